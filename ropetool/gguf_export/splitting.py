"""Splits an export over several files as gguf-split does: which tensors go where, and the keys that tie them together.

Knows tables of tensors and keys, neither files nor data. Source: tools/gguf-split/gguf-split.cpp of llama.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ropetool.errors import ConfigError
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.shards import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS
from ropetool.files.gguf.tensors import padded
from ropetool.gguf_export.container import File
from ropetool.gguf_export.tensors import ALIGNMENT, Placed

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}  # decimal, as gguf-split and the stock converter have them
MAX_SHARDS = 2**16 - 1  # split.count has 16 bits
_SIZE = re.compile(r"([0-9]+)([KMG]?)")


@dataclass(frozen=True)
class Limits:
    """What one file may hold: bytes of tensors, and tensors; 0 for no limit."""

    nbytes: int = 0
    tensors: int = 0


def limits_of(max_size: str | None, max_tensors: int | None) -> Limits:
    """Return the limits that the options state. Raises: ConfigError for a size or a count that is none."""
    nbytes = 0
    if max_size is not None:
        match = _SIZE.fullmatch(max_size.strip().upper())
        nbytes = int(match[1]) * UNITS[match[2]] if match else 0
        if nbytes < 1:
            raise ConfigError(
                f"{max_size!r} is not a size: a whole number above 0 with K, M or G, which are thousands, millions and "
                "billions of bytes",
                where="--split-max-size", try_="--split-max-size 2G",
            )  # fmt: skip
    if max_tensors is not None and max_tensors < 1:
        raise ConfigError(
            f"{max_tensors} is not a number of tensors; it must be at least 1", where="--split-max-tensors"
        )
    return Limits(nbytes, max_tensors or 0)


def split(file: File, limits: Limits) -> list[File]:
    """Return the files that the tensors go to, in their order; one that needs no second stays as it is.

    A tensor that is larger than the limit has a file to itself. The first file has all keys.
    Raises: ConfigError if there would be more files than the format counts.
    """
    sizes = [info.nbytes for info in file.infos()]
    parts = list(_parts(sizes, limits))
    if len(parts) == 1:
        return [file]
    if len(parts) > MAX_SHARDS:
        raise ConfigError(
            f"makes {len(parts)} files; a model has at most {MAX_SHARDS}", where="--split-max-size, --split-max-tensors"
        )
    return [_part(file, part, number, len(parts), len(sizes)) for number, part in enumerate(parts)]


def _parts(sizes: Sequence[int], limits: Limits) -> Iterator[range]:
    """Yield which tensors share a file."""
    first, held = 0, 0
    for number, size in enumerate(sizes):
        room = padded(size, ALIGNMENT)
        full = held + room > (limits.nbytes or math.inf) or number - first >= (limits.tensors or math.inf)
        if full and number > first:
            yield range(first, number)
            first, held = number, 0
        held += room
    yield range(first, len(sizes))


def _part(file: File, part: range, number: int, count: int, total: int) -> File:
    placed, vectors = file.layout.tensors, list(file.vectors.items())
    chosen = [placed[index] for index in part if index < len(placed)]
    rest = dict(vectors[index - len(placed)] for index in part if index >= len(placed))
    ties = {  # in gguf-split's order: the files are byte for byte its own
        SPLIT_NO: Value.of(ValueType.U16, number), SPLIT_TENSORS: Value.of(ValueType.I32, total),
        SPLIT_COUNT: Value.of(ValueType.U16, count),
    }  # fmt: skip
    values = {**file.values, **ties} if number == 0 else ties
    return File(values, replace(file.layout, tensors=tuple(moved(chosen))), rest)


def moved(tensors: Sequence[Placed]) -> Iterator[Placed]:
    """Yield the tensors with the places that they have in a file of their own."""
    offset = 0
    for placed in tensors:
        info = replace(placed.info, offset=offset)
        yield replace(placed, info=info)
        offset = padded(info.end, ALIGNMENT)
