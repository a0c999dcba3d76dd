"""The weight files of a checkpoint for the writer: safetensors shards, and GGUF files with a patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ropetool.checkpoint import gguf, hf
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint, patch_of
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.files.copying import copy_range, write_all
from ropetool.files.digests import new_file
from ropetool.files.gguf import GgufHeader, Patch, ggml_type, split_patch, write_patched
from ropetool.files.gguf.writer import Rewritten
from ropetool.files.hf import DTYPE_BITS, Header, header_bytes
from ropetool.weights.writing import NewData, WeightFile, nbytes_as


@dataclass(frozen=True, eq=False)
class Shard:
    """A safetensors file.

    header: its header.
    edited: whether it changes even without an edited tensor.
    """

    header: Header
    edited: bool = False

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def data_start(self) -> int:
        return self.header.data_start

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        return hf.stored_in(self.header)

    def write(self, target: Path, changed: Mapping[str, NewData]) -> None:
        head, order = self._new_header({name: tensor.dtype for name, tensor in changed.items()})
        with self.path.open("rb", buffering=0) as source, new_file(target) as file:
            write_all(file, 0, head)
            at = len(head)
            for name in order:
                stored = self.tensors[name]
                if name not in changed:
                    copy_range(source, file, stored.begin, at, stored.nbytes)
                    at += stored.nbytes
                    continue
                for data in changed[name].chunks:
                    write_all(file, at, data)
                    at += len(data)

    def _new_header(self, dtypes: Mapping[str, str]) -> tuple[bytes, list[str]]:
        """Return the bytes before the data, and the tensors in the order of their positions."""
        order = sorted(self.tensors, key=lambda name: (self.tensors[name].begin, self.tensors[name].nbytes))
        if all(self.tensors[name].dtype == dtype for name, dtype in dtypes.items()):
            with self.path.open("rb") as file:
                return file.read(self.data_start), order
        new = {name: dtypes.get(name, self.tensors[name].dtype) for name in order}
        # Wide types first, like the safetensors package: readers need each tensor at a multiple of its width.
        order.sort(key=lambda name: -DTYPE_BITS[new[name]])
        listed = (
            (name, new[name], self.tensors[name].shape, nbytes_as(self.tensors[name], new[name])) for name in order
        )
        return header_bytes(listed, self.header.metadata), order


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file, and the patch of its keys and vectors."""

    header: GgufHeader
    patch: Patch

    @property
    def edited(self) -> bool:
        return not self.patch.is_empty

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def data_start(self) -> int:
        return self.header.data_start

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        return gguf.stored_in(self.header)

    def write(self, target: Path, changed: Mapping[str, NewData]) -> None:
        new = {name: Rewritten(ggml_type(tensor.dtype), tensor.chunks) for name, tensor in changed.items()}
        write_patched(self.header, self.patch, target, new)


def weight_files(checkpoint: Checkpoint, edits: Sequence[FileEdit] = ()) -> Sequence[WeightFile]:
    """Return the weight files of a checkpoint. For a GGUF model, they include these edits of keys and vectors.

    Raises: CheckpointError; ConfigError for an edit of a different format.
    """
    if not isinstance(checkpoint, GgufCheckpoint):
        return [Shard(header) for header in checkpoint.headers]
    parts = split_patch(checkpoint.files, patch_of(edits))
    return [GgufFile(header, part) for header, part in zip(checkpoint.files, parts, strict=True)]
