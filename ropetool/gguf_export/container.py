"""Write a new GGUF model: for each file the header, then the tensors of gguf_model, a few MB at a time.

A single thread writes in the order of the file, so the same input always produces the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool.files.copying import write_all
from ropetool.files.gguf import GgufHeader, TensorInfo, Value
from ropetool.files.gguf.entries import padded
from ropetool.files.gguf.splitting import SplitLimits, grouped, part_values
from ropetool.files.gguf.writer import creating, encode_head, encode_info
from ropetool.files.hf import SafetensorsInfo
from ropetool.gguf_model.sources import SourceTensor
from ropetool.gguf_model.streaming import converted
from ropetool.gguf_model.tensors import ALIGNMENT, Layout, Placed, vector_infos
from ropetool.runtimes.llama_cpp.encodings import Vector

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class File:
    """One file to write.

    values: its keys.
    layout: its tensors from the checkpoint.
    vectors: float32 vectors after these tensors, by name.
    """

    values: Mapping[str, Value]
    layout: Layout
    vectors: Mapping[str, Vector]

    def infos(self) -> list[TensorInfo]:
        """Return the tensor table."""
        return [*(placed.info for placed in self.layout.tensors), *vector_infos(self.vectors, self.layout.end)]

    def start(self) -> int:
        """Return the place of the data in bytes."""
        return padded(len(_head(self.values, self.infos())), ALIGNMENT)

    def size(self) -> int:
        """Return the size of the whole file in bytes."""
        return padded(self.start() + self.infos()[-1].end, ALIGNMENT)


def split(file: File, limits: SplitLimits) -> list[File]:
    """Return the files as gguf-split does, with the tensors in their order. A file within the limits stays unchanged.

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


def moved(tensors: Iterable[Placed]) -> Iterator[Placed]:
    """Yield the tensors with their new places in a separate file."""
    offset = 0
    for placed in tensors:
        info = replace(placed.info, offset=offset)
        yield replace(placed, info=info)
        offset = padded(info.end, ALIGNMENT)


def stored_tensors(header: GgufHeader, without: Collection[str] = ()) -> Iterator[Placed]:
    """Yield the tensors of a GGUF file as they are stored. without: the names of tensors that are left out."""
    for info in header.tensors:
        if info.name not in without:
            begin = header.data_start + info.offset
            stored = SafetensorsInfo(info.name, info.type_name, info.shape[::-1], begin, begin + info.nbytes)
            yield Placed(info, info.type_name, (SourceTensor(header.path, stored),))


def write(destination: Path, file: File, progress: Progress, *, allow_nan: bool = False) -> int:
    """Write the file to a new path and return its size in bytes.

    Raises: OutputError if it cannot be written; PlanMismatch if a weight file shrinks meanwhile; LossyExport for a
    number that the output type cannot represent; CheckpointError for a NaN or an infinity, unless `allow_nan`.
    """
    infos, start, size = file.infos(), file.start(), file.size()
    with creating(destination, size) as target:
        write_all(target, 0, _head(file.values, infos))
        at, begun = start, ""
        for chunk, data in converted(file.layout, allow_nan=allow_nan):
            if chunk.placed.info.name != begun:
                at, begun = start + chunk.placed.info.offset, chunk.placed.info.name
                progress(begun, at, size)
            write_all(target, at, data)
            at += len(data)
        for info, vector in zip(infos[len(file.layout.tensors) :], file.vectors.values(), strict=True):
            write_all(target, start + info.offset, vector.astype("<f4").tobytes())
    progress("", size, size)
    return size


def _head(values: Mapping[str, Value], infos: Sequence[TensorInfo]) -> bytes:
    return b"".join([*encode_head(values, len(infos)), *map(encode_info, infos)])
