"""Splitting and merging of models like gguf-split: the tensors of each file, its keys, and the file itself.

Source: tools/gguf-split/gguf-split.cpp of llama.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool.errors import ConfigError
from ropetool.files.copying import copy_range, write_all
from ropetool.files.gguf.codec import Value
from ropetool.files.gguf.entries import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, TensorInfo, padded
from ropetool.files.gguf.header import GgufHeader, reading
from ropetool.files.gguf.kinds import ValueType
from ropetool.files.gguf.shards import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS
from ropetool.files.gguf.writer import check_unchanged, creating, encode_head, encode_info

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}  # decimal, as in gguf-split and the stock converter
MAX_SHARDS = 2**16 - 1  # split.count has 16 bits
_SIZE = re.compile(r"([0-9]+)([KMG]?)")
Placed = tuple[GgufHeader, TensorInfo]  # a tensor, and the header of its file


@dataclass(frozen=True)
class SplitLimits:
    """The limits of one file: bytes of tensors, and number of tensors. 0 stands for unlimited."""

    nbytes: int = 0
    tensors: int = 0


def limits_of(max_size: str | None, max_tensors: int | None, prefix: str = "--split-") -> SplitLimits:
    """Return the limits from two options. `prefix` is the start of their names, for messages.

    Raises: ConfigError for an invalid size or count.
    """
    nbytes = 0
    if max_size is not None:
        match = _SIZE.fullmatch(max_size.strip().upper())
        nbytes = int(match[1]) * UNITS[match[2]] if match else 0
        if nbytes < 1:
            raise ConfigError(
                f"{max_size!r} is not a size: a whole number above 0 with K, M or G, which are thousands, millions and "
                "billions of bytes",
                where=f"{prefix}max-size", try_=f"{prefix}max-size 2G",
            )  # fmt: skip
    if max_tensors is not None and max_tensors < 1:
        raise ConfigError(
            f"{max_tensors} is not a number of tensors; it must be at least 1", where=f"{prefix}max-tensors"
        )
    return SplitLimits(nbytes, max_tensors or 0)


def grouped(sizes: Sequence[int], limits: SplitLimits, prefix: str = "--split-") -> list[range]:
    """Return ranges of tensors that share a file, from their sizes in bytes.

    A tensor above the limit gets its own file.
    Raises: ConfigError if there are more files than the format can count.
    """
    groups = list(_grouped(sizes, limits))
    if len(groups) > MAX_SHARDS:
        raise ConfigError(
            f"would write {len(groups)} files; a model can have at most {MAX_SHARDS}",
            where=f"{prefix}max-size, {prefix}max-tensors",
        )
    return groups


def _grouped(sizes: Sequence[int], limits: SplitLimits) -> Iterator[range]:
    start, size_so_far = 0, 0
    for number, size in enumerate(sizes):
        room = padded(size, DEFAULT_ALIGNMENT)  # regardless of the file's alignment, as in gguf-split
        full = size_so_far + room > (limits.nbytes or math.inf) or number - start >= (limits.tensors or math.inf)
        if full and number > start:
            yield range(start, number)
            start, size_so_far = number, 0
        size_so_far += room
    yield range(start, len(sizes))


def part_values(values: Mapping[str, Value], number: int, count: int, total: int) -> dict[str, Value]:
    """Return the keys of file `number` of `count`, for a model with `total` tensors.

    Only the first file has the model's keys.

    The split.* keys come last and in gguf-split's order, so that the files have the same bytes as its files.
    """
    ties = {
        SPLIT_NO: Value.of(ValueType.U16, number), SPLIT_TENSORS: Value.of(ValueType.I32, total),
        SPLIT_COUNT: Value.of(ValueType.U16, count),
    }  # fmt: skip
    return {**{key: value for key, value in values.items() if key not in ties}, **ties} if number == 0 else ties


def merged_values(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the keys of the merged file: the keys of the first file, with a split count of 0 as from gguf-split."""
    return {
        **{key: value for key, value in values.items() if key != SPLIT_COUNT}, SPLIT_COUNT: Value.of(ValueType.U16, 0)
    }  # fmt: skip


def tensors_of(headers: Sequence[GgufHeader]) -> list[Placed]:
    """Return the tensors of a model in order, each with the header of its file."""
    return [(header, tensor) for header in headers for tensor in header.tensors]


def write_file(destination: Path, values: Mapping[str, Value], tensors: Sequence[Placed]) -> None:
    """Write a new file with these keys and tensors. The data is copied in the kernel if possible.

    Raises: OutputError if the file exists or cannot be written; PlanMismatch if a source has changed since its header
    was read.
    """
    alignment_value = values.get(ALIGNMENT_KEY)
    alignment = int(alignment_value.number) if alignment_value is not None else DEFAULT_ALIGNMENT
    infos: list[TensorInfo] = []
    for _, tensor in tensors:
        infos.append(replace(tensor, offset=padded(infos[-1].end, alignment) if infos else 0))
    head = b"".join([*map(bytes, encode_head(values, len(infos))), *map(encode_info, infos)])
    start = padded(len(head), alignment) if infos else len(head)
    size = start + (padded(infos[-1].end, alignment) if infos else 0)
    sources = {header.path: header for header, _ in tensors}
    with ExitStack() as files, creating(destination, size) as target:
        opened = {path: files.enter_context(reading(path)) for path in sources}
        for path, header in sources.items():
            check_unchanged(header, opened[path])
        write_all(target, 0, head)
        for (header, tensor), info in zip(tensors, infos, strict=True):
            copy_range(opened[header.path], target, header.data_start + tensor.offset, start + info.offset, info.nbytes)
        for path, header in sources.items():
            check_unchanged(header, opened[path])
