"""Split an export into several files, in the same way as gguf-split.

files.gguf.splitting distributes the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropetool.files.gguf.entries import padded
from ropetool.files.gguf.splitting import SplitLimits, grouped, part_values
from ropetool.gguf_export.container import File
from ropetool.gguf_model.tensors import ALIGNMENT, Placed


def split(file: File, limits: SplitLimits) -> list[File]:
    """Return the files with the tensors in their order. A file within the limits is returned unchanged.

    A tensor that is larger than the limit has its own file. The first file has all keys.
    Raises: ConfigError if there would be more files than the format can count.
    """
    sizes = [info.nbytes for info in file.infos()]
    groups = grouped(sizes, limits)
    if len(groups) == 1:
        return [file]
    return [_part(file, group, number, len(groups), len(sizes)) for number, group in enumerate(groups)]


def _part(file: File, part: range, number: int, count: int, total: int) -> File:
    placed, vectors = file.layout.tensors, list(file.vectors.items())
    chosen = [placed[index] for index in part if index < len(placed)]
    rest = dict(vectors[index - len(placed)] for index in part if index >= len(placed))
    values = part_values(file.values, number, count, total)
    return File(values, replace(file.layout, tensors=tuple(moved(chosen))), rest)


def moved(tensors: Sequence[Placed]) -> Iterator[Placed]:
    """Yield the tensors with their new places in a separate file."""
    offset = 0
    for placed in tensors:
        info = replace(placed.info, offset=offset)
        yield replace(placed, info=info)
        offset = padded(info.end, ALIGNMENT)
