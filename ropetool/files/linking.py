"""Putting an unchanged file into an output in the cheapest way: shared blocks, else a link, else a copy.

It never changes the source. Only files with weights are linked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ropetool import names
from ropetool.errors import CheckpointError, OutputError
from ropetool.files import hub, system
from ropetool.files.copying import copy_in_kernel, write_all
from ropetool.files.digests import new_file
from ropetool.files.output import output_error
from ropetool.files.regular import unreadable

WEIGHTS = (".safetensors", ".gguf")
REFLINKED, HARD_LINKED, COPIED = "reflinked", "hard-linked", "copied"
_BUFFER = 1 << 20
# The errors that mean "not with this file system or this pair of files". All others are real errors.
_UNSUPPORTED = frozenset({
    errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EMLINK,
    errno.EPERM,  # a hard link to a file of a different owner, with fs.protected_hardlinks
    errno.EACCES,
})  # fmt: skip


def check_within(path: Path, root: Path) -> None:
    """Return if a file of a checkpoint is in its directory after following all links, or in the same cache of the hub.

    Raises: CheckpointError if it is elsewhere, because such a file is not part of the model and may be private.
    """
    real = Path(os.path.realpath(path))
    homes, blobs = [Path(os.path.realpath(root))], hub.blobs(root)
    if blobs is not None:  # its name is not resolved, because a link with this name could lead anywhere
        homes.append(Path(os.path.realpath(blobs.parent), blobs.name))
    if not any(home in real.parents for home in homes):
        raise CheckpointError(
            f"is a link to a file outside the checkpoint, {real}", where=str(path),
            try_="remove the link, or replace it by the file if the model needs it",
        )  # fmt: skip


def check_links(root: Path) -> None:
    """Return if no link in this directory leads out of it.

    Hidden files and pickles are not checked, because no output has them.
    Raises: CheckpointError, as `check_within` does.
    """
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)  # .git and the hub's .cache
        if path.is_symlink() and path.is_file() and not hidden and path.suffix not in names.PICKLE_SUFFIXES:
            check_within(path, root)


def carry(source: Path, destination: Path, *, copy: bool = False) -> str:
    """Put an unchanged file of a checkpoint into an output, as `place` does. Only weights are linked.

    Programs rewrite tokenizers and configs in place. Through a hard link, this would change the source.
    """
    return place(source, destination, copy=copy or source.suffix not in WEIGHTS)


def place(source: Path, destination: Path, *, copy: bool = False) -> str:
    """Put the content of `source` at `destination`, and return "reflinked", "hard-linked" or "copied".

    Follows symbolic links first, as in a hub cache. A hard-linked file keeps its mode and owner.

    copy: copy the file instead of linking it.
    Raises: OutputError if the output cannot be written, and removes it; CheckpointError if the source cannot be read.
    """
    with _readable(source) as reader:
        try:
            return _place(reader, destination, copy)
        except OSError as error:
            raise output_error(error, destination, need=os.fstat(reader.fileno()).st_size) from error


def share(first: Path, second: Path) -> int:
    """Let two files share the blocks that are equal at the same positions, if the file system can.

    The content stays the same. Returns the number of shared bytes.
    """
    shared = 0
    try:
        with first.open("rb") as source, second.open("r+b") as target:
            size = min(os.fstat(file.fileno()).st_size for file in (source, target))
            for start in range(0, size, _BUFFER):
                shared += system.share(source.fileno(), target.fileno(), start, min(_BUFFER, size - start))
    except OSError:  # a file system without shared blocks, or an end inside a block
        pass
    return shared


def _place(reader: BinaryIO, destination: Path, copy: bool) -> str:
    if os.path.lexists(destination):
        raise OutputError("exists already", where=str(destination))
    if not copy and _reflink(reader, destination):
        return REFLINKED
    if not copy and _hard_link(Path(reader.name), destination):
        return HARD_LINKED
    _copy(reader, destination)
    return COPIED


@contextmanager
def _readable(source: Path) -> Iterator[BinaryIO]:
    try:
        real = source.resolve(strict=True)
        if not real.is_file():  # opening a pipe would block
            raise CheckpointError("is not a regular file, so it cannot be copied", where=str(source))
        file = real.open("rb")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise unreadable(error, str(source)) from error
    with file:
        yield file


@contextmanager
def _gone_if_it_fails(destination: Path) -> Iterator[None]:
    """Remove the new file if the body fails, also on a keyboard interrupt. An existing file stays."""
    try:
        yield
    except FileExistsError:
        raise
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def _reflink(reader: BinaryIO, destination: Path) -> bool:
    """Return whether the new file shares the blocks of the source, as btrfs, xfs and bcachefs can."""
    try:
        with _gone_if_it_fails(destination), destination.open("xb") as writer:
            system.clone(reader.fileno(), writer.fileno())
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


def _hard_link(real: Path, destination: Path) -> bool:
    try:
        os.link(real, destination)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


def _copy(reader: BinaryIO, destination: Path) -> None:
    size = os.fstat(reader.fileno()).st_size
    with _gone_if_it_fails(destination), new_file(destination) as writer:
        done = copy_in_kernel(reader, writer, 0, 0, size)
        if done < size:
            reader.seek(done)
            while data := reader.read(_BUFFER):
                write_all(writer, done, data)
                done += len(data)
        if os.fstat(writer.fileno()).st_size != size:
            raise CheckpointError(
                f"is no longer {size:,} bytes long: it changed while it was copied", where=reader.name
            )
