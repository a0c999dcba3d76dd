"""What a reader is to the harness: good input, how it is mutated, and what reads it; and a file to put input into."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torture.mutating import Mutate

Read = Callable[[bytes, random.Random], None]


@dataclass(frozen=True)
class Reader:
    """One reader. share: how much of the time it gets, beside the others'; skipped: why it cannot be tried here."""

    name: str
    seeds: Sequence[bytes]
    mutate: Mutate
    read: Read
    words: Sequence[bytes] = ()
    share: float = 1.0
    skipped: str = ""


class Slot:
    """A file that is written again and again without being closed: to cut it to nothing first would cost a flush each time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)

    def __call__(self, data: bytes) -> Path:
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))
        return self.path


def ignore(result: object) -> None:
    """Take a result, and do nothing with it."""
