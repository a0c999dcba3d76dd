"""A whole file written again under its own name, for files that no way in place serves."""

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
    """Write the patched file beside it, with room for later edits, and give it the name; return its size in bytes.

    Raises: OutputError; what write_patched raises.
    """
    filler = Value(ValueType.ARR, ARRAY_HEAD.pack(ValueType.U8, room) + bytes(room))
    roomy = Patch({**patch.set, names.GGUF_FILLER: filler}, patch.remove, patch.tensors)
    return replace_by(lambda new: write_patched(header, roomy, new), holding, beside)


def replace_by(write: Callable[[Path], None], holding: Held, beside: Beside | None) -> int:
    """Have a new file written beside the one that is held, and give it the name; return its size in bytes.

    The name and what stands beside it change under a journal, which is written once the new file is on the disk.
    Raises: OutputError; what `write` raises.
    """
    holding.let_read()  # whoever has the file open keeps the old one; that nobody edits it stays held
    disk = holding.disk
    real = disk.path
    new = copy_of(real)
    try:
        new.unlink(missing_ok=True)  # what a process that was killed has left
        write(new)
        shutil.copymode(real, new)
        with suppress(PermissionError):  # another user's file, of which this one makes a copy of its own
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
            with suppress(OSError, RopetoolError):  # then it stays pending, and `recover` is named
                (end if new.exists() else settle)(disk)
            raise
        return size
    except OSError as error:
        raise refused(error, real) from error
    finally:
        if not journal_of(real).exists():
            with suppress(OSError):
                new.unlink(missing_ok=True)
