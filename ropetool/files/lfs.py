"""Git LFS pointers: short texts that a clone without Git LFS leaves in place of large files."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

from ropetool.errors import CheckpointError, CorruptFile
from ropetool.files.regular import open_regular

START = b"version https://git-lfs.github.com/spec/"
TOLD_BY = 8  # bytes of the start; no safetensors, GGUF or JSON file begins with them
MAX_BYTES = 1023  # of a pointer, by the specification of Git LFS
TRY = "git lfs pull"


def is_pointer(start: bytes, size: int) -> bool:
    """Return whether a file of this size that starts with these bytes is a Git LFS pointer."""
    return len(start) >= TOLD_BY and size <= MAX_BYTES and start[: len(START)] == START[: len(start)]


def refusal(where: str, what: str = "weights") -> CorruptFile:
    """Return the error about a pointer in place of a file."""
    return CorruptFile(f"is a Git LFS pointer, not the {what}", where=where, try_=TRY)


def pointers(folder: Path, known: Container[str] = ()) -> Iterator[str]:
    """Yield the names of the Git LFS pointers directly in a folder, sorted. known: names to skip."""
    for path in sorted(folder.iterdir()):
        with suppress(CheckpointError, OSError):
            if path.name not in known and path.is_file() and path.stat().st_size <= MAX_BYTES:
                with open_regular(path) as file:
                    start = file.read(len(START))
                if is_pointer(start, len(start)):
                    yield path.name
