"""Replacement of a whole file under its own name, for edits that do not fit in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ropetool import names
from ropetool.errors import RopetoolError
from ropetool.files.gguf.codec import ARRAY_HEAD, Value
from ropetool.files.gguf.header import GgufHeader
from ropetool.files.gguf.in_place.guard import Held
from ropetool.files.gguf.in_place.planning import COPY
from ropetool.files.gguf.in_place.recovery import end, put_copy, refused, settle
from ropetool.files.gguf.journal import EditJournal, copy_of, journal_of, sampled
from ropetool.files.gguf.kinds import ValueType
from ropetool.files.gguf.patch import Patch
from ropetool.files.gguf.writer import write_patched
from ropetool.files.renames import sync

Beside = Callable[[int], Mapping[str, bytes]]


def replace_by_copy(header: GgufHeader, patch: Patch, holding: Held, room: int, beside: Beside | None) -> int:
    """Write the patched copy next to the file, with room for later edits, and give it the file's name.

    Return its size in bytes.
    Raises: OutputError; the errors of `write_patched`.
    """
    filler = Value(ValueType.ARR, ARRAY_HEAD.pack(ValueType.U8, room) + bytes(room))
    roomy = Patch({**patch.set, names.GGUF_FILLER: filler}, patch.remove, patch.tensors)
    return replace_by(lambda new: write_patched(header, roomy, new), holding, beside)


def replace_by(write: Callable[[Path], None], holding: Held, beside: Beside | None) -> int:
    """Call `write` for a new file next to the held file, and give it the held file's name. Return its size in bytes.

    A journal, written after the new file is on the disk, covers the change of the name and of the files next to it.
    Raises: OutputError; the errors of `write`.
    """
    holding.let_read()  # readers keep the old file, and the lock against other edits stays
    disk = holding.disk
    real = disk.path
    new = copy_of(real)
    try:
        new.unlink(missing_ok=True)  # from a killed process
        write(new)
        shutil.copymode(real, new)
        with suppress(PermissionError):  # the file of a different user: the copy belongs to this user
            status = real.stat()
            os.chown(new, status.st_uid, status.st_gid)
        sync(new)
        size = new.stat().st_size
        texts = beside(size) if beside is not None else {}
        journal = replace(sampled(disk, EditJournal(COPY, disk.size(), size)), beside=texts).as_marked()
        try:
            name = journal_of(real).name
            disk.write_beside(name, journal.encode())
            disk.sync_beside(name)
            disk.sync_folder()
            put_copy(disk, journal)
        except BaseException:
            with suppress(OSError, RopetoolError):  # then the edit stays pending, and the error names `recover`
                (end if new.exists() else settle)(disk)
            raise
        return size
    except OSError as error:
        raise refused(error, real) from error
    finally:
        if not journal_of(real).exists():
            with suppress(OSError):
                new.unlink(missing_ok=True)
