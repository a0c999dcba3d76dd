"""A whole file written again under its own name, for files that no way in place serves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ropetool import names
from ropetool.files.gguf.codec import ARRAY_HEAD, Value
from ropetool.files.gguf.header import GgufHeader
from ropetool.files.gguf.kinds import ValueType
from ropetool.files.gguf.patch import Patch
from ropetool.files.gguf.writer import write_patched
from ropetool.files.output import output_error
from ropetool.files.renames import sync

Beside = Callable[[int], Mapping[str, bytes]]


def replace_by_copy(header: GgufHeader, patch: Patch, real: Path, room: int, beside: Beside | None) -> int:
    """Write the patched file beside it, with room for later edits, and give it the name; return its size in bytes.

    Raises: OutputError; what write_patched raises.
    """
    filler = Value(ValueType.ARR, ARRAY_HEAD.pack(ValueType.U8, room) + bytes(room))
    roomy = Patch({**patch.set, names.GGUF_FILLER: filler}, patch.remove, patch.tensors)
    return replace_by(lambda new: write_patched(header, roomy, new), real, beside)


def replace_by(write: Callable[[Path], None], real: Path, beside: Beside | None) -> int:
    """Have a new file written beside a file, and give it the name; return its size in bytes.

    Raises: OutputError; what `write` raises.
    """
    new = real.with_name(f".{real.name}.ropetool-copy")
    try:
        new.unlink(
            missing_ok=True
        )  # what a process that was killed has left: the file is held, so nobody writes it now
        write(new)
        shutil.copymode(real, new)
        with suppress(PermissionError):  # another user's file, of which this one makes a copy of its own
            status = real.stat()
            os.chown(new, status.st_uid, status.st_gid)
        sync(new)
        size = new.stat().st_size
        for name, text in (beside(size) if beside is not None else {}).items():
            if text:
                real.with_name(name).write_bytes(text)
            else:
                real.with_name(name).unlink(missing_ok=True)
        os.replace(new, real)
        sync(real.parent)
        return size
    except OSError as error:
        raise output_error(error, real) from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
