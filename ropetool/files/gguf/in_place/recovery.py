"""Recovery of an interrupted in-place edit: it finishes an edit with a marked journal, and reverts others.

Guarantees at every moment, also if a process is killed or the power fails:

- The journal is on the disk before the first change, and is removed after all its changes are on the disk.
- Until the journal is marked, no byte of the old file has been overwritten. A range may have been inserted, and there
  may be bytes after the old end. Recovery removes both.
- When the journal is marked, the room is on the disk. Recovery repeats the writes. Repeating them any number of times
  gives the same file.
- A whole copy is on the disk before its journal, which is marked from the start. The copy gets the name, then the files
  next to it are written.
- An insertion moves the file's extents one by one from the last, and a power failure may interrupt it. The range of
  zeros is then somewhere after its target position. Recovery compares the ranges without data with those before the
  edit, checks samples of the bytes, and removes the zeros. If their position is not certain, the file stays unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropetool.errors import OutputError, PlanMismatch
from ropetool.escaping import Shown, command
from ropetool.files.gguf.entries import AGAIN
from ropetool.files.gguf.in_place.disk import Disk, NotHere
from ropetool.files.gguf.in_place.guard import held
from ropetool.files.gguf.in_place.planning import COPY
from ropetool.files.gguf.journal import MARK, EditJournal, Insertion, Sample, Write, copy_of, journal_of
from ropetool.files.output import output_error
from ropetool.files.regular import open_regular
from ropetool.files.shard_names import first_name

FORWARD, BACK, NOTHING = "forward", "back", "nothing"
_SENTENCES = {
    FORWARD: "the interrupted edit is finished: this is the new file",
    BACK: "the interrupted edit is undone: this is the old file",
    NOTHING: "no edit of this file is pending",
}


@dataclass(frozen=True)
class Recovered(Shown):
    """The result of a recovery.

    path: the file.
    direction: FORWARD if the edit was finished, BACK if it was reverted, NOTHING if no edit was pending.
    way: the way of the edit, from its journal.
    notes: notes for the user.
    """

    path: Path
    direction: str
    way: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return _SENTENCES[self.direction]


def recover(path: str | Path) -> Recovered:
    """Finish or revert an interrupted edit of a file. Do nothing if no edit is pending.

    Raises: MissingFile if the file does not exist; OutputError if it cannot be written or is in use; PlanMismatch if it
    is not the file of the journal, or if its state is unclear. Then the file stays unchanged.
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
            # The copy is from a process that was killed while it wrote it. The file is held, so no other process writes
            # the copy.
            copy.unlink(missing_ok=True)
            return Recovered(real, direction, way, holding.notes)
    except OSError as error:
        raise output_error(error, real) from error


def settle(disk: Disk) -> tuple[str, str]:
    """Finish or revert a pending edit. Return the direction, FORWARD or BACK, and the way.

    Raises: OSError; PlanMismatch, without a change to the file.
    """
    name = journal_of(disk.path).name
    journal = EditJournal.decode(disk.read_beside(name))
    own = f"{disk.path.name}.", f"{first_name(disk.path.name)}."
    if journal is not None and any(not text.startswith(own) for text in journal.beside):
        raise _lost(disk, "its journal writes files of a different model")
    if journal is None:  # its write was interrupted, before any other change
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
    """Remove the journal after its edit is finished or reverted."""
    disk.remove_beside(journal_of(disk.path).name)
    disk.sync_folder()


def forward(disk: Disk, journal: EditJournal) -> None:
    """Execute the writes of a marked journal, write them to the disk, and remove the journal."""
    for write in journal.writes:
        disk.write(write.at, write.new)
    if disk.size() != journal.final_size:
        disk.truncate(journal.final_size)
    disk.sync()
    _put_beside(disk, journal)


def put_copy(disk: Disk, journal: EditJournal) -> None:
    """Give a complete copy the name of the file, then continue as in `forward`.

    A second call continues an interrupted one.
    Raises: PlanMismatch if the file or its copy does not match the journal.
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
    """Write the files next to the file, then remove the journal."""
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
    """Mark the journal with this content, so that recovery finishes the edit."""
    name = journal_of(disk.path).name
    disk.write_beside(name, MARK, len(raw))
    disk.sync_beside(name)


def refused(error: OSError, real: Path) -> OutputError:
    """Return the error for an edit that the system stopped."""
    refusal = output_error(error, real)
    if journal_of(real).exists():
        refusal.message += "; the edit is not finished"
        refusal.try_ = command("ropetool", "recover", real)
    return refusal


# --- whether it is the file of the journal


def _check_forward(disk: Disk, journal: EditJournal) -> None:
    """Raise PlanMismatch for a file that is neither the old one, nor the new one, nor between both."""
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
    """Return the journal with only the samples that no write overlaps, and that are not cut off."""
    inserted = journal.insertion

    def is_free(sample: Sample) -> bool:
        nbytes = inserted.nbytes if inserted is not None and sample.at + sample.nbytes > inserted.at else 0
        at, stop = sample.at, sample.at + sample.nbytes + nbytes
        return stop <= journal.final_size and not any(
            write.at < stop and at < write.at + len(write.new) for write in journal.writes
        )

    return replace(journal, samples=tuple(filter(is_free, journal.samples)))


def _is_between(data: bytes, write: Write) -> bool:
    old = write.old.ljust(len(write.new), b"\0")
    now, one, other = (np.frombuffer(text, np.uint8) for text in (data, old, write.new))
    return len(now) == len(one) and bool(((now == one) | (now == other)).all())


def _hold(disk: Disk, journal: EditJournal, at: int) -> bool:
    """Return whether the samples match, if the inserted range begins at this position of the old file."""
    nbytes = journal.insertion.nbytes if journal.insertion is not None else 0
    for sample in journal.samples:
        before = min(max(at - sample.at, 0), sample.nbytes)
        data = disk.read(sample.at, before) + disk.read(sample.at + before + nbytes, sample.nbytes - before)
        if hashlib.sha256(data).hexdigest() != sample.sha256:
            return False
    return True


# --- reverting an edit


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
    """Remove the inserted range from its current position, and the bytes after the old end."""
    at = _position_of_zeros(disk, journal, inserted)
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


def _position_of_zeros(disk: Disk, journal: EditJournal, inserted: Insertion) -> int | None:
    """Return the position of the inserted range, or None if it is not certain.

    The block at the target position moves last, so if it has moved, everything has. Otherwise a range without data is
    the inserted one if the old file's ranges with it equal the current ranges. Two candidates are either at the same
    position, or differ in samples.
    """
    whole = disk.read(inserted.at, inserted.nbytes)
    if not any(whole) and _moved(disk, journal, inserted) and _hold(disk, journal, inserted.at):
        return inserted.at
    now = disk.holes()
    fitting = []
    for start, stop in now:
        at = max(start, inserted.at)
        expected = with_hole(journal.holes, at, inserted.nbytes)
        if stop - at < inserted.nbytes:  # the end of a block that the old file does not fill is also without data
            at, expected = journal.size, sorted({*journal.holes, (start, stop)})
        if stop - at >= inserted.nbytes and expected == now and _hold(disk, journal, at):
            fitting.append(at)
    return fitting[0] if len(fitting) == 1 else None


def _moved(disk: Disk, journal: EditJournal, inserted: Insertion) -> bool:
    """Return whether the bytes from the target position of the insertion are now after the inserted range."""
    first = next((sample for sample in journal.samples if sample.at == inserted.at), None)
    if first is None:
        return False
    data = disk.read(first.at + inserted.nbytes, first.nbytes)
    return any(data) and hashlib.sha256(data).hexdigest() == first.sha256


def with_hole(holes: Iterable[tuple[int, int]], at: int, nbytes: int) -> list[tuple[int, int]]:
    """Return the ranges without data after an insertion. The ranges after it move, and adjacent ranges are joined."""
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
