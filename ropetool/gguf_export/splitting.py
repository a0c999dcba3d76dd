"""Splits an export over several files as gguf-split does.

Knows tables of tensors and keys, neither files nor data; which tensors share a file is files.gguf.splitting's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropetool.files.gguf.splitting import SplitLimits, grouped, part_values
from ropetool.files.gguf.tensors import padded
from ropetool.gguf_export.container import File
from ropetool.gguf_model.tensors import ALIGNMENT, Placed


def split(file: File, limits: SplitLimits) -> list[File]:
    """Return the files that the tensors go to, in their order; one that needs no second stays as it is.

    A tensor that is larger than the limit has a file to itself. The first file has all keys.
    Raises: ConfigError if there would be more files than the format counts.
    """
    sizes = [info.nbytes for info in file.infos()]
    found = grouped(sizes, limits)
    if len(found) == 1:
        return [file]
    return [_part(file, part, number, len(found), len(sizes)) for number, part in enumerate(found)]


def _part(file: File, part: range, number: int, count: int, total: int) -> File:
    placed, vectors = file.layout.tensors, list(file.vectors.items())
    chosen = [placed[index] for index in part if index < len(placed)]
    rest = dict(vectors[index - len(placed)] for index in part if index >= len(placed))
    values = part_values(file.values, number, count, total)
    return File(values, replace(file.layout, tensors=tuple(moved(chosen))), rest)


def moved(tensors: Sequence[Placed]) -> Iterator[Placed]:
    """Yield the tensors with the places that they have in a file of their own."""
    offset = 0
    for placed in tensors:
        info = replace(placed.info, offset=offset)
        yield replace(placed, info=info)
        offset = padded(info.end, ALIGNMENT)
