"""What a decoder reads of a checkpoint: a config with its family, or the keys and tensors of a GGUF model, with edits or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.families import Family
from ropetool.files.gguf import GgufHeader, Patch, TensorInfo, Value, read_vector
from ropetool.files.gguf.kinds import F32


@dataclass(frozen=True)
class HfView:
    """A Hugging Face config as a decoder sees it: the parsed file, its family, and a name for messages."""

    config: Mapping[str, Any]
    family: Family
    where: str = "config.json"


@dataclass(frozen=True, eq=False)
class GgufView:
    """A GGUF model as a decoder sees it: its metadata, the tensors of all its files, and vectors on demand.

    vector: returns the data of a one-dimensional F32 tensor. where: a name for messages.
    """

    values: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    vector: Callable[[str], npt.NDArray[np.float32]]
    where: str = "model.gguf"

    @classmethod
    def of(cls, headers: tuple[GgufHeader, ...]) -> GgufView:
        """Return the view of a model, from the headers of all its files; the first has the metadata."""
        owners = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
        return cls(
            headers[0].values,
            {name: tensor for name, (_, tensor) in owners.items()},
            lambda name: read_vector(*owners[name]),
            str(headers[0].path),
        )

    def after(self, patch: Patch) -> GgufView:
        """Return the view of the model as it would be with the patch applied."""
        added = {name: TensorInfo(name, vector.shape, F32, 0, vector.nbytes) for name, vector in patch.tensors.items()}
        return GgufView(
            {key: value for key, value in self.values.items() if key not in patch.remove} | dict(patch.set),
            {**self.tensors, **added},
            lambda name: patch.tensors[name] if name in patch.tensors else self.vector(name),
            self.where,
        )
