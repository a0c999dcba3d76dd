"""Checks of the path of an output, and errors of the system as errors of ropetool."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ropetool.errors import OutputError
from ropetool.escaping import command, word

Rule = Callable[[Path], str]
"""Returns the objection to replacing a file or directory, to follow "exists already and"; empty to allow it."""

_ELSEWHERE = "pass another -o"


def anything(_: Path) -> str:
    """Allow the replacement of any file or directory of the same type.

    Use this if the caller has checked it, or wrote it itself.
    """
    return ""


def check_output(
    output: Path, source: Path, *, force: bool, directory: bool = False, may_replace: Rule = anything
) -> None:
    """Return if `output` may be written, as a file or as a directory.

    force: allow the replacement of an existing file or directory of the same type if `may_replace` has no objection.
      The source is never replaced.
    Raises: OutputError.
    """
    check_place(output, source)
    if directory and output.suffix == ".gguf":
        folder = output.with_suffix("")
        raise OutputError(
            "is the name of a GGUF file, but this output is a directory", where=str(output),
            try_=f"-o {word(folder)}, and then {command('ropetool', 'export', folder, '-o', output)}",
        )  # fmt: skip
    try:
        if os.path.lexists(output):
            _check_replaceable(output, force, directory, may_replace)
    except OSError as error:  # a directory without read permission
        raise output_error(error, output) from error


def check_place(output: Path, source: Path) -> None:
    """Return if an output can have this path: its folder exists and is writable, and it is separate from the source.

    An existing file does not matter.
    Raises: OutputError.
    """
    if output.name in ("", ".."):
        raise OutputError("does not end in a file name", where=str(output), try_=_ELSEWHERE)
    try:
        _check_apart(output, source)
        _check_parent(output)
    except OSError as error:  # a name that is too long, or a folder without write permission
        raise output_error(error, output) from error


def _check_apart(output: Path, source: Path) -> None:
    there, origin = Path(os.path.realpath(output)), Path(os.path.realpath(source))
    problem = ""
    if there == origin or (output.exists() and source.exists() and output.samefile(source)):
        problem = f"is the source, {source}"
    elif there in origin.parents:
        problem = f"contains the source, {source}"
    elif origin in there.parents:
        problem = f"is inside the source, {source}"
    if problem:
        raise OutputError(f"{problem}; ropetool never writes to the source", where=str(output), try_=_ELSEWHERE)


def _check_parent(output: Path) -> None:
    parent = output.parent
    if parent.is_dir():
        if not os.access(parent, os.W_OK | os.X_OK):
            number = errno.EROFS if os.statvfs(parent).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number), str(output))
        return
    nearest = next(path for path in (parent, *parent.parents) if os.path.lexists(path) or path == path.parent)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise OutputError(f"{nearest} is a file, not a directory", where=str(output), try_=_ELSEWHERE)
    raise OutputError(f"the directory {parent} does not exist", where=str(output), try_=command("mkdir", "-p", parent))


def _check_replaceable(output: Path, force: bool, directory: bool, may_replace: Rule) -> None:
    refusal = _other_type(output, directory) or may_replace(output)
    if refusal:
        only = "; --force does not replace it" if force else ""
        raise OutputError(
            f"exists already and {refusal}{only}",
            where=str(output),
            try_=f"{_ELSEWHERE}, or move the existing output away",
        )
    if not force:
        raise OutputError("exists already", where=str(output), try_=f"{_ELSEWHERE}, or --force to replace it")


def _other_type(output: Path, directory: bool) -> str:
    if output.is_symlink():
        return "is a symbolic link"
    if output.is_dir():
        return "" if directory else "is a directory; the output must be a file"
    if not output.is_file():
        return "is neither a file nor a directory"
    return "is a file; the output must be a directory" if directory else ""


def output_error(error: OSError, path: Path, *, need: int | None = None) -> OutputError:
    """Return an error of the system about writing `path` as an OutputError. need: the size of the output, in bytes."""
    where = str(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = "" if need is None else f"{need:,} bytes are needed, but "
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        free = shutil.disk_usage(folder).free
        return OutputError(
            f"no space left: {needed}{free:,} are free", where=where, try_="pass an -o on a disk with more space"
        )
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return OutputError("exists already", where=where, try_=_ELSEWHERE)
    reason = error.strerror or str(error)
    return OutputError(reason[:1].lower() + reason[1:], where=where, try_=_ELSEWHERE)
