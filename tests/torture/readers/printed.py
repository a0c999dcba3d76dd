"""The command line on mutated files: what it prints may hold nothing that a terminal obeys, and no traceback."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from torture.mutating import Mutate
from torture.readers.base import Reader, Slot

# C0 and C1 but for the line end; overrides and marks of the writing direction; separators of lines and paragraphs.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EXTEND = ("-m", "yarn", "--factor", "4", "--dry-run")
# What stands in front of the source, and what behind it.
COMMANDS = (
    (("inspect",), ()), (("inspect",), ("--json",)), (("extend",), EXTEND), (("extend",), (*EXTEND, "--json")),
    (("gguf", "list"), ()), (("gguf", "list"), ("--json",)), (("gguf", "get"), ("general.architecture", "--json")),
)  # fmt: skip
WORDS = [b"\x1b[31m", b"\\u001b[2J", "\u202e".encode(), b"\r", b"\x07", b"\\u009b", b"`id`", b"$(id)", b"'; id"]


def printed(
    name: str, seeds: Sequence[bytes], mutate: Mutate, slot: Slot, source: Path, words: Sequence[bytes]
) -> Reader:
    """Return a reader that runs a command on a source, of which the slot is a file."""

    def read(data: bytes, rng: random.Random) -> None:
        slot(data)
        command, options = rng.choice(COMMANDS)
        check([*command, str(source), *options])

    return Reader(name, seeds, mutate, read, [*WORDS, *words], 1)


def check(arguments: Sequence[str]) -> None:
    """Run a command, and raise AssertionError for an exit code, or for words, that no file may bring about."""
    from ropetool.cli import main

    with _held() as (out, err):
        try:
            main(list(arguments))
            code: object = 0
        except SystemExit as done:
            code = done.code
    text, said = out.getvalue(), err.getvalue()
    assert code in (0, 1, 2), f"exit code {code}: {said[-300:]}"
    assert "Traceback" not in said, said[-300:]
    assert code == 0 or "Error: " in said, f"exit code {code} and no word"
    if "--json" in arguments:
        json.loads(text)
    for stream, words in (("stdout", text), ("stderr", said)):
        found = OBEYED.search(words)
        assert found is None, (
            f"{found and found[0]!r} on {stream}: {words[max(0, found.start() - 60) : found.end() + 20]!r}"
        )


@contextlib.contextmanager
def _held() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err
