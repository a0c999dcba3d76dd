"""What a runtime is: a decoder from what a file says to what that program really computes.

Shared by all files of this folder. A runtime module holds NAME, FORMATS, SUMMARY, and either VERSIONS and
decode(view), or RELEASES and decode(view, first) where releases of the program differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.families import Family
from ropetool.formats.gguf import GgufHeader, Patch, TensorInfo, Value, ValueType, read_vector
from ropetool.formats.gguf.kinds import F32

MAX_TEXT_BYTES = 4096


@dataclass(frozen=True)
class Releases:
    """A stretch of releases of a program that read alike, from `first` to `last`: the ends that were checked."""

    first: str
    last: str

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    def has(self, version: str) -> bool:
        """Return whether a version lies within; 0.25.1 is within 0.24 to 0.25."""
        asked, last = numbers(version), numbers(self.last)
        return numbers(self.first) <= asked and asked[: len(last)] <= last


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison; what follows the first part without one is left out."""
    return tuple(int(part) for part in re.match(r"(\d+(?:\.\d+)*)?", version)[0].split(".") if part)  # type: ignore[index]


class Refuses(Exception):
    """The runtime stops with an error on this file; the text says which."""


class NotHeld(Refuses):
    """No file that the runtime reads holds what is asked: it would compute something else; the text says what."""


class NotKnown(Refuses):
    """The runtime may run this file, but ropetool does not know how."""


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

    def read(self, key: str, type_: ValueType) -> Any:
        """Return the decoded value of a key, or None where the file does not have it.

        Raises: Refuses if it has another type; runtimes convert nothing.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if value.type is not type_:
            raise Refuses(f"key {key} has wrong type {value.type.label} but expected type {type_.label}")
        if type_ is ValueType.STR and len(value.raw) > MAX_TEXT_BYTES:
            raise Refuses(
                f"key {key} is {len(value.raw)} bytes long; no value that is known has more than a few letters"
            )
        return value.decode()
