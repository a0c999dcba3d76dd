"""Outputs that appear whole or not at all: what may be written where, and the staging that keeps the promise.

Knows paths only, not what is written.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ropetool import names
from ropetool.errors import OutputError, RopetoolError
from ropetool.escaping import command

_ELSEWHERE = "give another -o"
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # linux/fs.h: flags of renameat2


# --- what may be written


def check_output(output: Path, source: Path, *, force: bool, directory: bool = False) -> None:
    """Return if `output` may be written, as a file or as a directory.

    `force` allows the place of a regular file, or of a directory that ropetool wrote, by one of the same kind; never
    of the source.
    Raises: OutputError.
    """
    if output.name in ("", ".."):
        raise OutputError("ends in no name", where=str(output), try_=_ELSEWHERE)
    try:
        _check_apart(output, source)
        _check_parent(output)
        if os.path.lexists(output):
            _check_replaceable(output, force, directory)
    except OSError as error:  # a name that is too long, a directory that may not be looked into
        raise output_error(error, output) from error


def _check_apart(output: Path, source: Path) -> None:
    there, origin = Path(os.path.realpath(output)), Path(os.path.realpath(source))
    problem = ""
    if there == origin or (output.exists() and source.exists() and output.samefile(source)):
        problem = f"is the source, {source}"
    elif there in origin.parents:
        problem = f"holds the source, {source}"
    elif origin in there.parents:
        problem = f"is inside the source, {source}"
    if problem:
        raise OutputError(f"{problem}; the source is never written", where=str(output), try_=_ELSEWHERE)


def _check_parent(output: Path) -> None:
    parent = output.parent
    if parent.is_dir():
        return
    nearest = next(path for path in (parent, *parent.parents) if os.path.lexists(path) or path == path.parent)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise OutputError(f"{nearest} is a file where a directory is needed", where=str(output), try_=_ELSEWHERE)
    raise OutputError(f"the directory {parent} does not exist", where=str(output), try_=command("mkdir", "-p", parent))


def _check_replaceable(output: Path, force: bool, directory: bool) -> None:
    refusal = ""
    if output.is_symlink():
        refusal = "is a symbolic link"
    elif output.is_dir():
        if not (output / names.PROVENANCE_JSON).is_file():
            refusal = f"is a directory that ropetool did not write (it holds no {names.PROVENANCE_JSON})"
        elif not directory:
            refusal = "is a directory, where a file is to be written"
    elif not output.is_file():
        refusal = "is neither a file nor a directory"
    elif directory:
        refusal = "is a file, where a directory is to be written"
    if refusal:
        only = "; --force does not replace it" if force else ""
        raise OutputError(f"exists already and {refusal}{only}", where=str(output), try_=_ELSEWHERE)
    if not force:
        raise OutputError("exists already", where=str(output), try_=f"{_ELSEWHERE}, or --force to replace it")


def output_error(error: OSError, path: Path, *, need: int | None = None) -> OutputError:
    """Return the refusal for what the system said about writing `path`, which takes `need` bytes."""
    where = str(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = "" if need is None else f"{need:,} bytes are needed, "
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        free = shutil.disk_usage(folder).free
        return OutputError(f"no space left: {needed}{free:,} are free", where=where, try_="give an -o on another disk")
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return OutputError("exists already", where=where, try_=_ELSEWHERE)
    reason = error.strerror or str(error)
    return OutputError(reason[:1].lower() + reason[1:], where=where, try_=_ELSEWHERE)


# --- staging


@contextmanager
def staged(output: Path, source: Path, *, force: bool = False, directory: bool = False) -> Iterator[Path]:
    """Yield a path beside `output` that takes its place once the body has ended without an error.

    It is an empty directory, or the name of a file that the body creates. On any error, a keyboard interrupt
    included, it is removed and `output` is as before; a killed process leaves at most a hidden `.NAME.ropetool-XXXXXX`.
    Raises: OutputError if the output may not or cannot be written.
    """
    check_output(output, source, force=force, directory=directory)
    stage = _hidden_beside(output)
    try:
        if directory:
            stage.mkdir()
        yield stage
        _flush(stage)
        check_output(output, source, force=force, directory=directory)  # again: writing may have taken minutes
        _put(stage, output)
    except BaseException as error:
        with suppress(OSError):  # the error at hand says more than one about what is left of the stage
            _remove(stage)
        if isinstance(error, OSError):
            raise output_error(error, _named_in(error, stage, output)) from error
        if isinstance(error, RopetoolError):
            error.where = error.where.replace(str(stage), str(output))  # the name that the user gave
        raise


def _named_in(error: OSError, stage: Path, output: Path) -> Path:
    """Return the file that the error is about, by the name that it was to have."""
    name = error.filename if isinstance(error.filename, str) else str(output)
    return Path(name.replace(str(stage), str(output)))


def _hidden_beside(output: Path) -> Path:
    while True:
        path = output.with_name(f".{output.name}.ropetool-{secrets.token_hex(3)}")
        if not os.path.lexists(path):
            return path


def _flush(stage: Path) -> None:
    """Bring everything that was written to the disk, so that no rename can overtake its data."""
    if stage.is_dir():
        for folder, _, files in os.walk(stage):
            for name in files:
                _sync(Path(folder, name))
            _sync(Path(folder))
    else:
        _sync(stage)


def _sync(path: Path) -> None:
    # A linked file is the source's: flushing it could mean gigabytes that are not ours. Windows syncs no directory.
    if os.name != "posix" or (path.is_file() and path.stat().st_nlink > 1):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync no directory
            raise
    finally:
        os.close(descriptor)


def _put(stage: Path, output: Path) -> None:
    """Give `stage` the name `output`; what had that name is removed once the new one has it."""
    replaced: Path | None = None
    if not os.path.lexists(output):
        if not _renameat2(stage, output, _NOREPLACE):
            stage.rename(output)
    elif stage.is_file() and output.is_file():
        stage.replace(output)
    elif _renameat2(stage, output, _EXCHANGE):
        replaced = stage
    else:
        replaced = _rename_twice(stage, output)
    _sync(output.parent)
    if replaced is not None:
        _remove(replaced)


def _renameat2(old: Path, new: Path, flag: int) -> bool:
    """Rename with a flag that plain rename lacks; return False where libc, kernel or file system does not have it."""
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # glibc before 2.28
        return False
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(new))


def _rename_twice(stage: Path, output: Path) -> Path:
    """Put `stage` at `output` and return where the old one is now; if that fails the old one is back."""
    aside = _hidden_beside(output)
    try:
        output.rename(aside)
        stage.rename(output)
    except BaseException:
        if not os.path.lexists(output):
            aside.rename(output)
        raise
    return aside


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
