"""The journal of an in-place edit: all planned changes to a file, written to the disk before the first change.

`in_place` plans, executes and recovers edits.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.errors import PlanMismatch
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.files.gguf.in_place.disk import Disk

MAGIC = b"ropetool-journal-1\n"
MARK = b"forward\n"  # after the digest: recovery finishes the edit and does not revert it
_LENGTH = struct.Struct("<Q")
_DIGEST = 32  # bytes of SHA-256
_SAMPLES, _SAMPLE = 64, 4 << 10  # blocks, and bytes of each


@dataclass(frozen=True)
class Write:
    """Bytes at a position of the file, after room was made.

    old: the bytes before the edit, up to the old end of the file.
    new: the bytes after the edit.
    """

    at: int
    old: bytes
    new: bytes


@dataclass(frozen=True)
class Copy:
    """Bytes of the file that are copied to a position after its end.

    start, at: the old and the new position.
    nbytes: the number of bytes.
    sha256: the digest of the bytes; empty before `sampled`.
    """

    start: int
    at: int
    nbytes: int
    sha256: str = ""


@dataclass(frozen=True)
class Insertion:
    """A range of zeros that is inserted into the file. All bytes from `at` on move by `nbytes`."""

    at: int
    nbytes: int


@dataclass(frozen=True)
class Sample:
    """The digest of a block of the file before the edit."""

    at: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class EditJournal:
    """An edit of one file, with everything that is needed to finish or revert it.

    The edit first makes room: `insertion`, `copies`, and a longer file. Until this is on the disk and the journal is
    marked, no byte of the old file is overwritten, and recovery reverts the edit. Then it does the `writes`, sets the
    length to `final_size`, and writes the texts in `beside`. Recovery repeats these steps until all are on the disk.

    way: the way of the edit, a constant of `in_place.planning`.
    size, final_size: the size of the file before and after the edit, in bytes.
    insertion: the inserted range, or None.
    samples: digests of blocks, to recognise the file.
    holes: the ranges without data before the edit, if a range is inserted. They show the progress of an interrupted
      insertion.
    beside: the texts of files next to the file, by name; an empty text removes the file.
    marked: whether room was made, so that recovery finishes the edit.
    """

    way: str
    size: int
    final_size: int
    insertion: Insertion | None = None
    copies: tuple[Copy, ...] = ()
    writes: tuple[Write, ...] = field(default=(), repr=False)
    samples: tuple[Sample, ...] = field(default=(), repr=False)
    holes: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    beside: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    marked: bool = False

    @property
    def roomy_size(self) -> int:
        """Return the size of the file after room was made, in bytes."""
        inserted = self.insertion.nbytes if self.insertion is not None else 0
        return max(self.size + inserted, self.final_size)

    @property
    def makes_room(self) -> bool:
        """Return whether the edit makes room before the writes."""
        return self.insertion is not None or self.roomy_size > self.size

    def encode(self) -> bytes:
        """Return the content of the journal file."""
        blobs = [part for write in self.writes for part in (write.old, write.new)] + list(self.beside.values())
        data: dict[str, Any] = {
            "way": self.way, "size": self.size, "final_size": self.final_size,
            "insertion": [self.insertion.at, self.insertion.nbytes] if self.insertion is not None else None,
            "copies": [[copy.start, copy.at, copy.nbytes, copy.sha256] for copy in self.copies],
            "writes": [[write.at, len(write.old), len(write.new)] for write in self.writes],
            "samples": [[sample.at, sample.nbytes, sample.sha256] for sample in self.samples],
            "holes": self.holes, "beside": {name: len(text) for name, text in self.beside.items()},
        }  # fmt: skip
        text = json.dumps(data).encode("ascii")
        raw = b"".join([MAGIC, _LENGTH.pack(len(text)), text, *blobs])
        return raw + hashlib.sha256(raw).digest() + (MARK if self.marked else b"")

    @classmethod
    def decode(cls, raw: bytes) -> EditJournal | None:
        """Return the journal, or None if it is incomplete. Then the edit has not changed anything yet."""
        start = len(MAGIC) + _LENGTH.size
        if raw[: len(MAGIC)] != MAGIC or len(raw) < start:
            return None
        text_end = start + _LENGTH.unpack_from(raw, len(MAGIC))[0]
        try:
            data = json.loads(raw[start:text_end])
            end = text_end + sum(old + new for _, old, new in data["writes"]) + sum(data["beside"].values())
            if hashlib.sha256(raw[:end]).digest() != raw[end : end + _DIGEST]:
                return None
            return _journal(data, raw, text_end, raw[end + _DIGEST :] == MARK)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def as_marked(self) -> EditJournal:
        """Return the journal after room was made."""
        return replace(self, marked=True)


def _journal(data: Mapping[str, Any], raw: bytes, at: int, marked: bool) -> EditJournal:
    """Return the journal from its parsed text. Raises: KeyError, TypeError or ValueError if it is invalid."""
    writes = []
    for place, old, new in data["writes"]:
        writes.append(Write(_whole(place), raw[at : at + _whole(old)], raw[at + old : at + old + _whole(new)]))
        at += old + new
    beside = {}
    for name, length in data["beside"].items():
        if name != os.path.basename(name) or name.startswith(".") or b"\0" in os.fsencode(name):
            raise ValueError(f"{name!r} is not the name of a file in its folder")
        beside[name] = raw[at : at + _whole(length)]
        at += length
    insertion = Insertion(*map(_whole, data["insertion"])) if data["insertion"] else None
    copies = [
        Copy(_whole(start), _whole(to), _whole(nbytes), str(digest)) for start, to, nbytes, digest in data["copies"]
    ]
    samples = [Sample(_whole(place), _whole(nbytes), str(digest)) for place, nbytes, digest in data["samples"]]
    holes = [(_whole(start), _whole(end)) for start, end in data["holes"]]
    return EditJournal(
        str(data["way"]), _whole(data["size"]), _whole(data["final_size"]), insertion, tuple(copies), tuple(writes),
        tuple(samples), tuple(holes), beside, marked,
    )  # fmt: skip


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of bytes")
    return value


def journal_of(path: Path) -> Path:
    """Return the path of a file's journal. It is next to the file itself, even if the path is a link to the file."""
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.ropetool-journal")


def copy_of(path: Path) -> Path:
    """Return the path of the copy that will replace a file."""
    return path.with_name(f".{path.name}.ropetool-copy")


def check_settled(path: Path) -> None:
    """Return if the file has no pending in-place edit.

    Raises: PlanMismatch, with the command that finishes or reverts the edit.
    """
    try:
        journal = journal_of(path)
    except (OSError, ValueError):  # a zero byte or a loop of links: opening gives a better message
        return
    if os.path.lexists(journal):
        raise PlanMismatch(
            f"an edit of this file in place was interrupted: its journal {journal.name} still exists",
            where=str(path), try_=command("ropetool", "recover", path),
        )  # fmt: skip


def sampled(disk: Disk, journal: EditJournal) -> EditJournal:
    """Return the journal with samples, digests of the copies, and holes, which recognise the file later."""
    places = {journal.size * number // _SAMPLES // _SAMPLE * _SAMPLE for number in range(_SAMPLES)}
    places |= {max(journal.size - _SAMPLE, 0), *((journal.insertion.at,) if journal.insertion is not None else ())}
    samples = [_sample(disk, at) for at in sorted(places)]
    copies = [
        replace(copy, sha256=hashlib.sha256(disk.read(copy.start, copy.nbytes)).hexdigest()) for copy in journal.copies
    ]
    return replace(
        journal, samples=tuple(samples), copies=tuple(copies), holes=tuple(disk.holes()) if journal.insertion else ()
    )


def _sample(disk: Disk, at: int) -> Sample:
    data = disk.read(at, _SAMPLE)
    return Sample(at, len(data), hashlib.sha256(data).hexdigest())
