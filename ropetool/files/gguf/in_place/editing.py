"""Edits in place: a file held, its steps planned, written down, carried out.

Which keys and vectors change is the caller's concern; the order of what reaches the disk is stated in `recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ropetool.errors import OutputError, PlanMismatch, RopetoolError
from ropetool.files.gguf.header import GgufHeader
from ropetool.files.gguf.in_place import planning
from ropetool.files.gguf.in_place.copying import replace_by_copy
from ropetool.files.gguf.in_place.disk import Disk, NotHere
from ropetool.files.gguf.in_place.guard import COPY_INSTEAD, held
from ropetool.files.gguf.in_place.planning import NoWay
from ropetool.files.gguf.in_place.recovery import end, forward, mark, refused, settle
from ropetool.files.gguf.journal import EditJournal, journal_of, sampled
from ropetool.files.gguf.patch import Patch
from ropetool.files.gguf.shards import split_patch

WORDS = {
    planning.NOTHING: "nothing had to change",
    planning.OVERWRITE: "overwritten in place",
    planning.FILLER: "within the spare space of the header",
    planning.INSERT: "a range inserted into the file, without moving data",
    planning.MOVE: "the first tensors moved to the end, to make room for a longer header",
    planning.COPY: "the whole file copied, because the edit did not fit",
}
Beside = Callable[[str, int], Mapping[str, bytes]]
"""Texts that are put beside the file together with the edit, by name, an empty one to remove what is there; told the way and the
size that the file gets."""


@dataclass(frozen=True)
class Edited:
    """What an edit did, or would do. way: a word of `planning`. bytes_written: into the file, without its journal.

    path: the file itself, where a link was given. size: of the file after it.
    """

    path: Path
    way: str
    bytes_written: int
    size: int
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return WORDS[self.way]


def edit_in_place(
    headers: Sequence[GgufHeader], patch: Patch, *, copy_if_needed: bool = False, beside: Beside | None = None
) -> Edited:
    """Change keys and vectors of a model where it lies; after a cut at any moment `recover` makes it the old or the new one.

    headers: of all its files, from `read_unmapped`: a mapping is a reader like any other, and refuses the edit. Of a model
    in several files one is changed. copy_if_needed: write the whole file anew where no way in place serves.
    Raises: ConfigError, PlanMismatch or UnsupportedDtype if the patch does not fit; OutputError if the file has other
    names, is read-only or in use, no way serves it, or it cannot be written. Nothing has changed then, or `recover` is named.
    """
    header, part = edited_part(headers, patch)
    real, notes = _real(header)
    with held(real) as holding:
        check_unchanged(header, real)
        try:
            edited = _edit(holding.disk, header, part, beside)
        except NoWay as reason:
            if not copy_if_needed:
                raise _needs_copy(header, reason) from None
            edited = None
        except OSError as error:
            raise refused(error, real) from error
        if edited is None:
            size = replace_by_copy(header, part, holding, planning.ROOM, beside and partial(beside, planning.COPY))
            edited = Edited(real, planning.COPY, size, size)
    return replace(edited, notes=(*notes, *holding.notes))


def way_in_place(headers: Sequence[GgufHeader], patch: Patch, *, copy_if_needed: bool = False) -> Edited:
    """Return what `edit_in_place` would do, as far as that can be told without a step; nothing is written.

    Whether the file system inserts ranges shows only when it is asked to: on Linux it is taken for granted.
    Raises: what edit_in_place raises.
    """
    header, part = edited_part(headers, patch)
    real, notes = _real(header)
    with held(real) as holding:
        check_unchanged(header, real)
        disk = holding.disk
        try:
            journal = planning.steps(header, part, disk.read, can_insert=disk.can_insert, block=disk.block)
        except NoWay as reason:
            if not copy_if_needed:
                raise _needs_copy(header, reason) from None
            return Edited(real, planning.COPY, header.file_size, header.file_size, (*notes, *holding.notes))
    return Edited(real, journal.way, _written(journal), journal.final_size, (*notes, *holding.notes))


def carry_out(disk: Disk, journal: EditJournal) -> None:
    """Carry out planned steps, the journal first.

    Raises: NotHere if the file system inserts no range, and nothing has changed then; OSError.
    """
    name = journal_of(disk.path).name
    journal = journal if journal.makes_room else journal.as_marked()
    raw = journal.encode()
    try:
        disk.write_beside(name, raw)
        disk.sync_beside(name)
        disk.sync_folder()
        if journal.makes_room:
            _make_room(disk, journal)
            mark(disk, raw)
        forward(disk, journal)
    except NotHere:
        end(disk)
        raise
    except BaseException:
        with suppress(OSError, RopetoolError):  # then it stays pending, and `recover` is named
            settle(disk)
        raise


def _make_room(disk: Disk, journal: EditJournal) -> None:
    if journal.insertion is not None:
        disk.insert(journal.insertion.at, journal.insertion.nbytes)
        disk.sync()
        disk.reserve(journal.insertion.at, journal.insertion.nbytes)
    size = disk.size()
    if journal.final_size > size:
        disk.reserve(size, journal.final_size - size)
    for copy in journal.copies:
        disk.copy(copy.start, copy.at, copy.nbytes)
    if disk.size() < journal.final_size:  # a system that reserves nothing
        disk.truncate(journal.final_size)
    disk.sync()


def _edit(disk: Disk, header: GgufHeader, patch: Patch, beside: Beside | None) -> Edited:
    for can_insert in (True, False) if disk.can_insert else (False,):
        journal = planning.steps(header, patch, disk.read, can_insert=can_insert, block=disk.block)
        if journal.way == planning.NOTHING:
            break
        journal = replace(
            sampled(disk, journal), beside=beside(journal.way, journal.final_size) if beside is not None else {}
        )
        try:
            carry_out(disk, journal)
            break
        except NotHere:
            continue
    return Edited(disk.path, journal.way, _written(journal), journal.final_size)


def _written(journal: EditJournal) -> int:
    return sum(len(write.new) for write in journal.writes) + sum(copy.nbytes for copy in journal.copies)


def edited_part(headers: Sequence[GgufHeader], patch: Patch) -> tuple[GgufHeader, Patch]:
    """Return the file of a model that changes, and its part of the patch. Raises: OutputError if several would change."""
    parts = split_patch(tuple(headers), patch) if len(headers) > 1 else (patch,)
    touched = [number for number, part in enumerate(parts) if not part.is_empty]
    if len(touched) > 1:
        files = ", ".join(headers[number].path.name for number in touched)
        raise OutputError(
            f"the edit changes {len(touched)} files of the model ({files}), but only one can change in place",
            where=str(headers[0].path), try_=COPY_INSTEAD,
        )  # fmt: skip
    number = touched[0] if touched else 0
    return headers[number], parts[number]


def _real(header: GgufHeader) -> tuple[Path, tuple[str, ...]]:
    real = Path(os.path.realpath(header.path))
    linked = os.path.islink(header.path)
    return real, (f"{header.path} is a link: its target {real} was edited",) if linked else ()


def check_unchanged(header: GgufHeader, real: Path) -> None:
    status = os.stat(real)
    if (status.st_size, status.st_mtime_ns) != (header.file_size, header.mtime_ns):
        raise PlanMismatch("the file has changed since its header was read", where=str(header.path))


def _needs_copy(header: GgufHeader, reason: NoWay) -> OutputError:
    return OutputError(
        f"cannot be edited in place: {reason}", where=str(header.path),
        try_="pass --copy-if-needed to rewrite the whole file, or -o to write a copy",
    )  # fmt: skip
