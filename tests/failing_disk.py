"""A disk that is killed or loses power: what was not synced is lost in any order and torn, shifts are cut between extents.

It has the calls of ropetool's own `Disk`, and keeps two states: what programs see, and what would be there after the power
failed. Nothing here is taken from how the edits work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropetool.files.gguf.in_place.disk import NotHere

SECTOR = 512


class Stopped(BaseException):
    """The process is gone, or the power is; nobody catches it."""


@dataclass
class File:
    """Blocks by number, a missing one being a hole, and the length in bytes."""

    block: int
    size: int = 0
    blocks: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, data: bytes, block: int) -> File:
        """Return a file of these bytes; blocks of zeros alone are holes."""
        made = cls(block, len(data))
        for at in range(0, len(data), block):
            made.put(at // block, data[at : at + block])
        return made

    def put(self, number: int, data: bytes) -> None:
        data = data.ljust(self.block, b"\0")
        if any(data) or number in self.blocks:
            self.blocks[number] = data

    def content(self) -> bytes:
        raw = bytearray(-(-self.size // self.block) * self.block)
        for number, data in self.blocks.items():
            at = number * self.block
            raw[at : at + self.block] = data[: len(raw) - at]
        return bytes(raw[: self.size])

    def copied(self) -> File:
        return replace(self, blocks=dict(self.blocks))

    def cut(self, size: int) -> None:
        """Set the length; what was behind it is gone, and zeros if it grows again."""
        last, rest = divmod(size, self.block)
        self.blocks = {n: data for n, data in self.blocks.items() if n < last or (n == last and rest)}
        if rest and last in self.blocks:
            self.blocks[last] = self.blocks[last][:rest].ljust(self.block, b"\0")
        self.size = size

    def holes(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for number in range(-(-self.size // self.block)):
            if number not in self.blocks:
                start, stop = number * self.block, min((number + 1) * self.block, self.size)
                if found and found[-1][1] == start:
                    start = found.pop()[0]
                found.append((start, stop))
        return found

    def extents(self, at: int, rng: random.Random) -> list[list[int]]:
        """Return the numbers of blocks from a place on, in runs as a file system has them: broken at gaps and by chance."""
        runs: list[list[int]] = []
        for number in sorted(n for n in self.blocks if n * self.block >= at):
            if runs and runs[-1][-1] == number - 1 and rng.random() < 0.8:
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def shift(self, runs: list[list[int]], by: int) -> None:
        for run in runs:
            moved = [(number + by, self.blocks.pop(number)) for number in run]
            self.blocks |= dict(moved)


Apply = Callable[[File], None]
Torn = Callable[[File, random.Random, float], None]


@dataclass
class Step:
    """Something that was done and not synced. meta: of the length or the order of blocks, which a journal keeps in order."""

    apply: Apply
    torn: Torn
    meta: bool


@dataclass
class Text:
    """A small file: what programs see, and what was synced."""

    now: bytes = b""
    safe: bytes = b""

    def after_power_loss(self, rng: random.Random) -> bytes:
        """Return what has reached the disk: some sectors, and not always the length. What was synced stays."""
        kept = len(self.safe) if self.now.startswith(self.safe) else 0
        length = rng.choice([kept, len(self.now), rng.randint(kept, len(self.now))])
        if self.now == self.safe:
            return self.safe
        found = bytearray(self.safe[:length].ljust(length, b"\0"))
        for at in range(0, length, SECTOR):
            if rng.random() < 0.6:
                found[at : at + SECTOR] = self.now[at : min(at + SECTOR, length)]
        return bytes(found)


class FailingDisk:
    """One file and those beside it. At its call number `stop_at` that changes or syncs something it stops."""

    def __init__(
        self,
        content: bytes | File,
        *,
        block: int = SECTOR,
        can_insert: bool = True,
        beside: dict[str, bytes] | None = None,
    ) -> None:
        self.path = Path("/nowhere/m.gguf")
        self.block, self.can_insert = block, can_insert
        self.now = content.copied() if isinstance(content, File) else File.of(content, block)
        self.safe = self.now.copied()
        self.pending: list[Step] = []
        self.names = {name: Text(text, text) for name, text in (beside or {}).items()}
        self.safe_names = dict(self.names)
        self.pending_names: list[dict[str, Text | None]] = []
        self.calls, self.stop_at, self.stopped = 0, -1, False
        self.rng = random.Random(0)
        self.ignored: frozenset[int] = frozenset()  # a planted defect: calls that do nothing, by number

    # --- what fails

    def _call(self) -> bool:
        """Count a call, and return whether it is carried out."""
        if self.calls == self.stop_at:
            self.stopped = True
        self._check()
        self.calls += 1
        return self.calls - 1 not in self.ignored

    def _check(self) -> None:
        if self.stopped:
            raise Stopped

    def after_kill(self) -> FailingDisk:
        """Return the disk as the next process finds it, if the machine went on."""
        beside = {name: text.now for name, text in self.names.items()}
        return FailingDisk(self.now, block=self.block, can_insert=self.can_insert, beside=beside)

    def after_power_loss(self, rng: random.Random) -> FailingDisk:
        """Return the disk as it is when the power is back: of what was not synced some is there, and some of that torn.

        Changes of the length and of the order of blocks happen in their order, the last of them perhaps in part; each
        block that was written is there or not.
        """
        file, share = self.safe.copied(), rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        cut, seen = rng.randint(0, sum(step.meta for step in self.pending)), 0
        for step in self.pending:
            if not step.meta:
                step.torn(file, rng, share)
                continue
            if seen < cut:
                step.apply(file)
            elif seen == cut:
                step.torn(file, rng, share)
            seen += 1
        names = dict(self.safe_names)
        for change in self.pending_names:
            if rng.random() < 0.5:
                names |= change  # type: ignore[arg-type]
        beside = {name: text.after_power_loss(rng) for name, text in names.items() if text is not None}
        return FailingDisk(file, block=self.block, can_insert=self.can_insert, beside=beside)

    # --- the calls of Disk

    def size(self) -> int:
        return self.now.size

    def read(self, at: int, nbytes: int) -> bytes:
        first, last = at // self.block, -(-(at + nbytes) // self.block)
        raw = b"".join(self.now.blocks.get(n, bytes(self.block)) for n in range(first, last))
        start = at - first * self.block
        return raw[start : start + max(0, min(nbytes, self.now.size - at))]

    def holes(self) -> list[tuple[int, int]]:
        return self.now.holes()

    def write(self, at: int, data: bytes) -> None:
        if self.calls == self.stop_at and data and not self.stopped:  # a kill lets a part of it through
            self._written(at, data[: self.rng.randrange(len(data))])
        if self._call():
            self._written(at, data)

    def copy(self, start: int, at: int, nbytes: int) -> None:
        assert start + nbytes <= at or at + nbytes <= start
        self.write(at, self.read(start, nbytes))

    def truncate(self, size: int) -> None:
        if self._call():
            self._change(lambda file: file.cut(size), _not_at_all, meta=True)

    def reserve(self, at: int, nbytes: int) -> None:
        if self._call() and at + nbytes > self.now.size:
            self._change(_lengthening(at + nbytes), _not_at_all, meta=True)

    def insert(self, at: int, nbytes: int) -> None:
        if not self.can_insert or at % self.block or nbytes % self.block or at >= self.now.size:
            raise NotHere
        if self._call():
            self._change(*_inserting(self.block, at, nbytes), meta=True)

    def collapse(self, at: int, nbytes: int) -> None:
        if not self.can_insert or at % self.block or nbytes % self.block or at + nbytes >= self.now.size:
            raise NotHere
        if self._call():
            self._change(*_collapsing(self.block, at, nbytes), meta=True)

    def sync(self) -> None:
        if self._call():
            self.safe, self.pending = self.now.copied(), []

    def _written(self, at: int, data: bytes) -> None:
        if at + len(data) > self.now.size:
            self._change(_lengthening(at + len(data)), _not_at_all, meta=True)
        self._change(*_writing(self.block, at, data), meta=False)

    def _change(self, apply: Apply, torn: Torn, *, meta: bool) -> None:
        apply(self.now)
        self.pending.append(Step(apply, torn, meta))

    # --- beside it

    def write_beside(self, name: str, data: bytes, at: int = 0) -> None:
        if self.calls == self.stop_at and not self.stopped:
            self._write_text(name, data[: self.rng.randrange(len(data))], at)
        if self._call():
            self._write_text(name, data, at)

    def _write_text(self, name: str, data: bytes, at: int) -> None:
        if name not in self.names:
            self._rename({name: Text()})
        self.names[name].now = self.names[name].now[:at].ljust(at, b"\0") + data

    def read_beside(self, name: str) -> bytes:
        self._check()
        if name not in self.names:
            raise FileNotFoundError(name)
        return self.names[name].now

    def sync_beside(self, name: str) -> None:
        if self._call():
            self.names[name].safe = self.names[name].now

    def rename_beside(self, name: str, new: str) -> None:
        if self._call():
            self._rename({new: self.names[name], name: None})

    def remove_beside(self, name: str) -> None:
        if self._call() and name in self.names:
            self._rename({name: None})

    def sync_folder(self) -> None:
        if self._call():
            self.safe_names, self.pending_names = dict(self.names), []

    def _rename(self, change: dict[str, Text | None]) -> None:
        self.names = {name: text for name, text in {**self.names, **change}.items() if text is not None}
        self.pending_names.append(change)


def _not_at_all(*_: object) -> None:
    """A length that is changed is changed or not."""


def _lengthening(size: int) -> Apply:
    def apply(file: File) -> None:
        file.size = max(file.size, size)

    return apply


def _writing(block: int, at: int, data: bytes) -> tuple[Apply, Torn]:
    def parts() -> Iterator[tuple[int, int, bytes]]:
        place = at
        while place < at + len(data):
            end = min((place // block + 1) * block, at + len(data))
            yield place // block, place % block, data[place - at : end - at]
            place = end

    def put(file: File, number: int, start: int, part: bytes) -> None:
        old = file.blocks.get(number, bytes(block))
        file.blocks[number] = old[:start] + part + old[start + len(part) :]

    def apply(file: File) -> None:
        for part in parts():
            put(file, *part)

    def torn(file: File, rng: random.Random, share: float) -> None:
        for part in parts():
            if rng.random() < share and part[0] * block < file.size:
                put(file, *part)

    return apply, torn


def _inserting(block: int, at: int, nbytes: int) -> tuple[Apply, Torn]:
    """The length first, then the extents one by one, the last first."""

    def apply(file: File) -> None:
        file.size += nbytes
        file.shift([[n] for n in sorted((n for n in file.blocks if n * block >= at), reverse=True)], nbytes // block)

    def torn(file: File, rng: random.Random, share: float) -> None:
        if rng.random() < 0.2:
            return
        file.size += nbytes
        runs = file.extents(at, rng)[::-1]
        file.shift(runs[: rng.randint(0, len(runs))], nbytes // block)

    return apply, torn


def _collapsing(block: int, at: int, nbytes: int) -> tuple[Apply, Torn]:
    """The range is emptied, the extents behind it move one by one, the first first, and the length is last."""

    def emptied(file: File) -> None:
        file.blocks = {n: data for n, data in file.blocks.items() if not at <= n * block < at + nbytes}

    def apply(file: File) -> None:
        emptied(file)
        file.shift([[n] for n in sorted(n for n in file.blocks if n * block >= at)], -(nbytes // block))
        file.size -= nbytes

    def torn(file: File, rng: random.Random, share: float) -> None:
        if rng.random() < 0.2:
            return
        emptied(file)
        runs = file.extents(at, rng)
        file.shift(runs[: rng.randint(0, len(runs))], -(nbytes // block))

    return apply, torn
