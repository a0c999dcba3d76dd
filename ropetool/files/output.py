"""What may be written where, and what the system's refusals mean.

Knows paths, not what is written; how an output gets there is transaction's concern.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ropetool.errors import OutputError
from ropetool.escaping import command

Rule = Callable[[Path], str]
"""Returns why what stands at a path may not be replaced, as in "exists already and ...", empty if it may be."""

_ELSEWHERE = "pass another -o"


def anything(_: Path) -> str:
    """Let all be replaced, of the kind that is written: for a caller that has looked at it, or knows it as its own."""
    return ""


def check_output(
    output: Path, source: Path, *, force: bool, directory: bool = False, may_replace: Rule = anything
) -> None:
    """Return if `output` may be written, as a file or as a directory.

    `force` allows the place of a file or directory of the same kind that `may_replace` has nothing against; never of
    the source.
    Raises: OutputError.
    """
    check_place(output, source)
    try:
        if os.path.lexists(output):
            _check_replaceable(output, force, directory, may_replace)
    except OSError as error:  # a directory that may not be looked into
        raise output_error(error, output) from error


def check_place(output: Path, source: Path) -> None:
    """Return if this is a place for an output, whatever stands there: in a folder, and apart from the source.

    Raises: OutputError.
    """
    if output.name in ("", ".."):
        raise OutputError("does not end in a file name", where=str(output), try_=_ELSEWHERE)
    try:
        _check_apart(output, source)
        _check_parent(output)
    except OSError as error:  # a name that is too long
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
        return
    nearest = next(path for path in (parent, *parent.parents) if os.path.lexists(path) or path == path.parent)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise OutputError(f"{nearest} is a file, not a directory", where=str(output), try_=_ELSEWHERE)
    raise OutputError(f"the directory {parent} does not exist", where=str(output), try_=command("mkdir", "-p", parent))


def _check_replaceable(output: Path, force: bool, directory: bool, may_replace: Rule) -> None:
    refusal = _other_kind(output, directory) or may_replace(output)
    if refusal:
        only = "; --force does not replace it" if force else ""
        raise OutputError(
            f"exists already and {refusal}{only}",
            where=str(output),
            try_=f"{_ELSEWHERE}, or move the existing output away",
        )
    if not force:
        raise OutputError("exists already", where=str(output), try_=f"{_ELSEWHERE}, or --force to replace it")


def _other_kind(output: Path, directory: bool) -> str:
    if output.is_symlink():
        return "is a symbolic link"
    if output.is_dir():
        return "" if directory else "is a directory; the output must be a file"
    if not output.is_file():
        return "is neither a file nor a directory"
    return "is a file; the output must be a directory" if directory else ""


def output_error(error: OSError, path: Path, *, need: int | None = None) -> OutputError:
    """Return the refusal for what the system said about writing `path`, which takes `need` bytes."""
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
