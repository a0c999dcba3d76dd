"""In-place edits: hold a file, plan the steps, write the journal, execute the steps.

`recovery` describes the order of writes to the disk.
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
"""Takes the way of the edit and the new size of the file. Returns texts of files next to the file, by name, which are
written together with the edit. An empty text removes the file."""


@dataclass(frozen=True)
class Edited:
    """The result of an edit, or of its preview.

    path: the file itself, even if the caller passed a link.
    way: a constant of `planning`.
    bytes_written: the bytes written into the file, without the journal.
    size: the size of the file after the edit, in bytes.
    notes: notes for the user.
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
    """Change keys and vectors of a model in its file.

    After an interruption, `recover` restores the old or the new file.
    headers: the headers of all files of the model, from `read_unmapped`, because a mapping is a reader and prevents the
      edit. Only one of the files may change.
    copy_if_needed: rewrite the whole file if the edit does not fit.
    beside: returns texts to write next to the file.
    Raises: ConfigError, PlanMismatch or UnsupportedDtype if the patch does not fit the model.
    Raises: OutputError if the file has hard links, is read-only or in use, if the edit does not fit, or if a write
    fails. Then the file is unchanged, or the error names `recover`.
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
    """Return the expected result of `edit_in_place` without writing anything.

    It cannot know whether the file system inserts ranges, and assumes this on Linux.
    Raises: the errors of `edit_in_place`.
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
    """Write the journal, then execute the planned steps.

    Raises: NotHere if the file system cannot insert ranges, before any change to the file; OSError.
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
        with suppress(OSError, RopetoolError):  # then the edit stays pending, and the error names `recover`
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
    if disk.size() < journal.final_size:  # on a system that cannot reserve space
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
    """Return the file of a model that changes, and its part of the patch.

    Raises: OutputError if more than one file would change.
    """
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
