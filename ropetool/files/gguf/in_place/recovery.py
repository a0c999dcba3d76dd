"""An edit in place that was cut: finished where its journal is marked, taken back where it is not.

What holds at every moment, whoever is killed or loses power:

- The journal is on the disk before the first byte changes, and is removed when all that it says is there.
- Until it is marked nothing of the old file has been overwritten: a range may have been inserted, and bytes may lie behind
  the old end. Both are taken out again.
- Once it is marked, the room is on the disk: the writes are repeated, which leads to the same file however often.
- A whole copy is on the disk before its journal, which is marked from the start: the copy takes the name, then what stands
  beside it follows.
- An insertion moves the file's extents one by one, the last first, and a power failure may cut it in between. The range of
  zeros then lies somewhere behind its place. It is found by the ranges without data, held against those of the old file
  and against samples of its bytes, and taken out where it is. A file for which that is not certain is left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropetool.errors import OutputError, PlanMismatch
from ropetool.escaping import Shown, command
from ropetool.files.gguf.cursor import AGAIN
from ropetool.files.gguf.in_place.disk import Disk, NotHere
from ropetool.files.gguf.in_place.guard import held
from ropetool.files.gguf.in_place.planning import COPY
from ropetool.files.gguf.journal import MARK, EditJournal, Insertion, Sample, Write, copy_of, journal_of
from ropetool.files.gguf.shards import first_name
from ropetool.files.output import output_error
from ropetool.files.regular import open_regular

FORWARD, BACK, NOTHING = "forward", "back", "nothing"
_SAID = {
    FORWARD: "the interrupted edit is finished: this is the new file",
    BACK: "the interrupted edit is undone: this is the old file",
    NOTHING: "no edit of this file is pending",
}


@dataclass(frozen=True)
class Recovered(Shown):
    """What became of a pending edit: `forward`, `back` or `nothing`; and how it was done, as its journal says."""

    path: Path
    direction: str
    way: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return _SAID[self.direction]


def recover(path: str | Path) -> Recovered:
    """Finish or take back the edit of a file that was cut; without one, do nothing.

    Raises: MissingFile if there is no such file; OutputError if it cannot be written or is in use; PlanMismatch if it is
    no longer the file of its journal, or nothing tells what it holds: then it is left as it is.
    """
    real = Path(path).resolve()
    with open_regular(real):
        pass
    try:
        copy, pending = copy_of(real), journal_of(real).exists()
        if not pending and not copy.exists():
            return Recovered(real, NOTHING)
        with held(real) as holding:
            direction, way = settle(holding.disk) if pending else (NOTHING, "")
            # That of a process that was killed while it wrote: the file is held, so nobody writes it now.
            copy.unlink(missing_ok=True)
            return Recovered(real, direction, way, holding.notes)
    except OSError as error:
        raise output_error(error, real) from error


def settle(disk: Disk) -> tuple[str, str]:
    """Return what became of a pending edit, and its way.

    Raises: OSError; PlanMismatch, and all is as it was.
    """
    name = journal_of(disk.path).name
    journal = EditJournal.decode(disk.read_beside(name))
    own = f"{disk.path.name}.", f"{first_name(disk.path.name)}."
    if journal is not None and any(not text.startswith(own) for text in journal.beside):
        raise _lost(disk, "its journal writes files of a different model")
    if journal is None:  # it was cut while it was written, before anything else changed
        end(disk)
        return BACK, ""
    if journal.way == COPY:
        put_copy(disk, journal)
        return FORWARD, COPY
    if journal.marked:
        _check_forward(disk, journal)
        forward(disk, journal)
    else:
        _back(disk, journal)
        end(disk)
    return FORWARD if journal.marked else BACK, journal.way


def end(disk: Disk) -> None:
    """Remove the journal: all that it says is on the disk, or nothing is."""
    disk.remove_beside(journal_of(disk.path).name)
    disk.sync_folder()


def forward(disk: Disk, journal: EditJournal) -> None:
    """Write what a marked journal says, bring it to the disk, and remove the journal."""
    for write in journal.writes:
        disk.write(write.at, write.new)
    if disk.size() != journal.final_size:
        disk.truncate(journal.final_size)
    disk.sync()
    _put_beside(disk, journal)


def put_copy(disk: Disk, journal: EditJournal) -> None:
    """Give a whole copy, which is on the disk, the name of the file; then as in `forward`. Done again, it goes on.

    Raises: PlanMismatch if neither the file nor its copy is that of the journal.
    """
    copy = copy_of(disk.path).name
    size = disk.size_beside(copy)
    if size is None:
        if disk.size_beside(disk.path.name) != journal.final_size:
            raise _lost(disk, f"its copy {copy}, which should replace it, is missing")
    elif size != journal.final_size or disk.size() != journal.size or not _hold(disk, journal, journal.size):
        raise _lost(disk, f"it or its copy {copy}, which should replace it, is a different file")
    else:
        disk.rename_beside(copy, disk.path.name)
        disk.sync_folder()
    _put_beside(disk, journal)


def _put_beside(disk: Disk, journal: EditJournal) -> None:
    """Write the texts beside the file, then remove the journal."""
    for name, text in journal.beside.items():
        if text:
            new = f".{name}.ropetool-new"
            disk.write_beside(new, text)
            disk.sync_beside(new)
            disk.rename_beside(new, name)
        else:
            disk.remove_beside(name)
        disk.sync_folder()
    end(disk)


def mark(disk: Disk, raw: bytes) -> None:
    """Say in the journal, whose content this is, that the edit will be finished from here on."""
    name = journal_of(disk.path).name
    disk.write_beside(name, MARK, len(raw))
    disk.sync_beside(name)


def refused(error: OSError, real: Path) -> OutputError:
    """Return what to say of an edit that the system has stopped."""
    refusal = output_error(error, real)
    if journal_of(real).exists():
        refusal.message += "; the edit is not finished"
        refusal.try_ = command("ropetool", "recover", real)
    return refusal


# --- is it the file of the journal?


def _check_forward(disk: Disk, journal: EditJournal) -> None:
    """Refuse a file that is neither the old one, nor the new one, nor something in between."""
    inserted = journal.insertion
    if disk.size() not in (journal.roomy_size, journal.final_size):
        raise _lost(disk, f"it has {disk.size():,} bytes, but the edit results in {journal.final_size:,}")
    for write in journal.writes:
        if write.at < journal.final_size and not _is_between(disk.read(write.at, len(write.new)), write):
            raise _lost(disk, f"the bytes from {write.at:,} on are neither the old ones nor the new ones")
    if not _hold(disk, _untouched(journal), inserted.at if inserted is not None else journal.size):
        raise _lost(disk, "bytes outside the edit have changed")
    for copy in journal.copies:
        written = any(w.at < copy.at + copy.nbytes and copy.at < w.at + len(w.new) for w in journal.writes)
        if not written and hashlib.sha256(disk.read(copy.at, copy.nbytes)).hexdigest() != copy.sha256:
            raise _lost(disk, f"the tensors that the edit copied to byte {copy.at:,} are missing")


def _untouched(journal: EditJournal) -> EditJournal:
    """Return the journal with only those samples that no write overlaps, and that are not cut off."""
    inserted = journal.insertion

    def is_free(sample: Sample) -> bool:
        nbytes = inserted.nbytes if inserted is not None and sample.at + sample.nbytes > inserted.at else 0
        at, stop = sample.at, sample.at + sample.nbytes + nbytes
        return stop <= journal.final_size and not any(
            write.at < stop and at < write.at + len(write.new) for write in journal.writes
        )

    return replace(journal, samples=tuple(filter(is_free, journal.samples)))


def _is_between(found: bytes, write: Write) -> bool:
    old = write.old.ljust(len(write.new), b"\0")
    now, one, other = (np.frombuffer(text, np.uint8) for text in (found, old, write.new))
    return len(now) == len(one) and bool(((now == one) | (now == other)).all())


def _hold(disk: Disk, journal: EditJournal, at: int) -> bool:
    """Return whether the samples are there, if the inserted range begins at this place of the old file."""
    nbytes = journal.insertion.nbytes if journal.insertion is not None else 0
    for sample in journal.samples:
        before = min(max(at - sample.at, 0), sample.nbytes)
        found = disk.read(sample.at, before) + disk.read(sample.at + before + nbytes, sample.nbytes - before)
        if hashlib.sha256(found).hexdigest() != sample.sha256:
            return False
    return True


# --- back


def _back(disk: Disk, journal: EditJournal) -> None:
    size, inserted = disk.size(), journal.insertion
    longer = journal.size + (inserted.nbytes if inserted is not None else 0)
    if inserted is not None and size >= longer:
        _take_out(disk, journal, inserted)
    elif size < journal.size or (inserted is not None and size > journal.size):
        raise _lost(disk, f"it has {size:,} bytes instead of {journal.size:,} as before the edit")
    elif not _hold(disk, journal, journal.size):
        raise _lost(disk, "bytes that the edit had not reached have changed")
    elif size > journal.size:
        disk.truncate(journal.size)
    disk.sync()


def _take_out(disk: Disk, journal: EditJournal, inserted: Insertion) -> None:
    """Take the inserted range out, wherever the insertion has left it, and what was to follow the end."""
    at = _found(disk, journal, inserted)
    if at is None:
        raise _lost(
            disk,
            f"the edit was interrupted while it inserted {inserted.nbytes:,} zeros at byte {inserted.at:,}, and their place is unclear",
        )
    if disk.size() > journal.size + inserted.nbytes:
        disk.truncate(journal.size + inserted.nbytes)
        disk.sync()
    if at + inserted.nbytes >= disk.size():
        disk.truncate(journal.size)
        return
    try:
        disk.collapse(at, inserted.nbytes)
    except NotHere:
        raise _lost(
            disk, f"this file system cannot remove the {inserted.nbytes:,} zeros inserted at byte {at:,}"
        ) from None


def _found(disk: Disk, journal: EditJournal, inserted: Insertion) -> int | None:
    """Return where the inserted range lies, None where that is not certain.

    The block at its place moves last: where that has moved, all has. Else a range without data tells, if those of the old
    file with it are those that are there now; two that do lie at the same place, or differ in samples.
    """
    whole = disk.read(inserted.at, inserted.nbytes)
    if not any(whole) and _moved(disk, journal, inserted) and _hold(disk, journal, inserted.at):
        return inserted.at
    now = disk.holes()
    fitting = []
    for start, stop in now:
        at = max(start, inserted.at)
        expected = with_hole(journal.holes, at, inserted.nbytes)
        if stop - at < inserted.nbytes:  # of a block that the old file does not fill, the rest is there
            at, expected = journal.size, sorted({*journal.holes, (start, stop)})
        if stop - at >= inserted.nbytes and expected == now and _hold(disk, journal, at):
            fitting.append(at)
    return fitting[0] if len(fitting) == 1 else None


def _moved(disk: Disk, journal: EditJournal, inserted: Insertion) -> bool:
    """Return whether what lay at the place of the insertion lies behind the inserted range."""
    first = next((sample for sample in journal.samples if sample.at == inserted.at), None)
    if first is None:
        return False
    found = disk.read(first.at + inserted.nbytes, first.nbytes)
    return any(found) and hashlib.sha256(found).hexdigest() == first.sha256


def with_hole(holes: Iterable[tuple[int, int]], at: int, nbytes: int) -> list[tuple[int, int]]:
    """Return ranges without data after another one was inserted: what lies behind it moves, what touches is one."""
    parts = []
    for start, stop in holes:
        if start < at < stop:
            parts += [(start, at), (at + nbytes, stop + nbytes)]
        else:
            parts.append((start, stop) if stop <= at else (start + nbytes, stop + nbytes))
    joined: list[tuple[int, int]] = []
    for start, stop in sorted([*parts, (at, at + nbytes)]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _lost(disk: Disk, reason: str) -> PlanMismatch:
    name = journal_of(disk.path).name
    return PlanMismatch(
        f"cannot be recovered, and is not changed: {reason}", where=str(disk.path),
        try_=f"if you replaced the file, remove {name} next to it; otherwise {AGAIN}",
    )  # fmt: skip
