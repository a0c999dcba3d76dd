"""Changes to a GGUF file as data, and the keys and tensors after these changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError, PlanMismatch, UnsupportedDtype
from ropetool.files.gguf.codec import Value, shown, utf8
from ropetool.files.gguf.entries import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    TensorInfo,
    padded,
)
from ropetool.files.gguf.header import GgufHeader
from ropetool.files.gguf.kinds import F32, ValueType

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Patch:
    """Changes to one file.

    set: new values by key. An existing key keeps its position, and a new key is added at the end.
    remove: keys to remove.
    tensors: vectors by name. A vector overwrites the F32 tensor with the same name and length, or is appended.
    drop: tensors to remove. This works only in place and only for the last tensors, and reverts an appended tensor.
    """

    set: Mapping[str, Value] = field(default_factory=dict)
    remove: frozenset[str] = frozenset()
    tensors: Mapping[str, Vector] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether the patch does not change the file."""
        return not (self.set or self.remove or self.tensors or self.drop)


def patched_values(header: GgufHeader, patch: Patch) -> dict[str, Value]:
    """Return all keys and values after the patch, in the order of the file.

    Raises: ConfigError for an invalid key or a different alignment; PlanMismatch if the file does not have a key to
    remove.
    """
    for key in patch.set:
        if not 0 < len(utf8(key)) <= MAX_KEY_BYTES:
            raise ConfigError(f"{shown(key)} is not a key: it has 1 to {MAX_KEY_BYTES} bytes")
    both = sorted(patch.remove & patch.set.keys())
    if both:
        raise ConfigError("cannot be set and removed at once", where=both[0])
    absent = sorted(patch.remove - header.values.keys())
    if absent:
        raise PlanMismatch(f"has no key {shown(absent[0])} to remove", where=str(header.path))
    values = {key: value for key, value in header.values.items() if key not in patch.remove} | dict(patch.set)
    alignment = values.get(ALIGNMENT_KEY, Value.of(ValueType.U32, DEFAULT_ALIGNMENT))
    if alignment != Value.of(ValueType.U32, header.alignment):
        raise ConfigError(f"must stay {header.alignment}, because the data has this alignment", where=ALIGNMENT_KEY)
    return values


def overwritten(header: GgufHeader, patch: Patch) -> list[tuple[TensorInfo, bytes]]:
    """Return the existing tensors with new data in the patch, each with its data.

    Raises: UnsupportedDtype if a tensor is not F32; PlanMismatch if its shape differs; ConfigError if the new data is
    not a float32 vector.
    """
    changed = []
    for name, vector in patch.tensors.items():
        info = header.tensor(name)
        if info is None:
            continue
        data = _data(name, vector)
        if info.ggml_type != F32:
            raise UnsupportedDtype(f"tensor {name} is {info.type_name}; only F32 is written", where=str(header.path))
        if info.shape != vector.shape:
            raise PlanMismatch(
                f"tensor {name} has shape {list(info.shape)}, the new data {list(vector.shape)}", where=str(header.path)
            )
        changed.append((info, data))
    return changed


def appended(header: GgufHeader, patch: Patch) -> list[tuple[TensorInfo, bytes]]:
    """Return the new tensors of the patch, after all tensors of the file, each with its data.

    Raises: ConfigError if a name is too long, or the data is not a float32 vector.
    """
    added = []
    end = header.tensors[-1].end if header.tensors else 0
    for name, vector in patch.tensors.items():
        if header.tensor(name) is not None:
            continue
        if not 0 < len(utf8(name)) <= MAX_NAME_BYTES:
            raise ConfigError(f"{shown(name)} is not a valid tensor name: a name has 1 to {MAX_NAME_BYTES} bytes")
        data = _data(name, vector)
        info = TensorInfo(name, vector.shape, F32, padded(end, header.alignment), len(data))
        added.append((info, data))
        end = info.end
    return added


def _data(name: str, vector: Vector) -> bytes:
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.ndim != 1 or not vector.size:
        raise ConfigError("the new data must be a float32 vector of at least one entry", where=name)
    return vector.astype("<f4").tobytes()
