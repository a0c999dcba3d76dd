"""Write a new GGUF file: the header, then the tensors of gguf_model, a few MB at a time.

A single thread writes in the order of the file, so the same input always produces the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.files.copying import write_all
from ropetool.files.gguf import TensorInfo, Value
from ropetool.files.gguf.entries import padded
from ropetool.files.gguf.writer import creating, encode_head, encode_info
from ropetool.gguf_model.streaming import converted
from ropetool.gguf_model.tensors import ALIGNMENT, Layout, vector_infos
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
