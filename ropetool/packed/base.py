"""The interface of a format of packed weights.

A file in this folder that defines `FORMAT` adds a format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import UnsupportedDtype
from ropetool.escaping import command
from ropetool.files.hf import SafetensorsInfo

Singles = npt.NDArray[np.float32]


class Part(Protocol):
    """A tensor of a checkpoint, and the file that contains it."""

    @property
    def path(self) -> Path: ...

    @property
    def stored(self) -> SafetensorsInfo: ...


class Unpacking(Protocol):
    """The way from the bytes of a packed matrix to its numbers. The bytes of a row follow each other.

    shape: the rows and columns of the matrix.
    dtype: the name of its type, in notes.
    nearest: the type of an export that stores the numbers with the least rounding at 16 bits.
    together: the number of rows that must be unpacked together.
    parts: the other tensors that unpacking needs, such as scales, by their role.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def nearest(self) -> str: ...

    @property
    def together(self) -> int: ...

    @property
    def parts(self) -> Mapping[str, Part]: ...

    def numbers(self, raw: npt.NDArray[np.uint8], first: int, parts: Mapping[str, bytes]) -> Singles:
        """Return the numbers of consecutive rows.

        raw: the bytes of the rows. first: the number of the first row, a multiple of `together`. parts: the bytes of
        each part.
        Shapes: (bytes,) -> (rows, columns).
        """


@dataclass(frozen=True)
class Unpacked:
    """The packed matrices of a checkpoint.

    matrices: by the name of the plain weight, the tensor with the packed numbers, and its unpacking.
    used: the names of all tensors that the matrices use, and of tensors that no exported model has.
    """

    matrices: Mapping[str, tuple[Part, Unpacking]]
    used: frozenset[str]


@dataclass(frozen=True)
class PackedFormat:
    """A format of packed weights.

    method: its quant_method in quantization_config.
    check_readable: raises an error if export cannot read weights with this quantization_config. where: config.json.
    unpack: returns the packed matrices among the tensors of a checkpoint; None for a format that export does not unpack.
    packages: the packages that transformers needs to run it. extra: the extra that installs them; "" for none.
    not_run: returns why transformers cannot run the checkpoint, or "". gpu: whether it runs on a GPU from NVIDIA.
    dequantize: whether the setting "dequantize" in quantization_config lets transformers unpack the weights.
    gpu: whether transformers runs the packed weights on a GPU from NVIDIA.
    """

    method: str
    check_readable: Callable[[Mapping[str, Any], str], None]
    unpack: Callable[[Mapping[str, Part], Mapping[str, Any]], Unpacked] | None = None
    packages: tuple[str, ...] = ()
    extra: str = ""
    not_run: Callable[[HfCheckpoint, bool], str] = lambda checkpoint, gpu: ""
    dequantize: bool = False
    gpu: bool = False


def unreadable(method: str, packs: str, where: str, try_: str) -> UnsupportedDtype:
    """Return the error about a format that export cannot unpack. packs: a description of the stored weights. try_: the next step."""
    return UnsupportedDtype(
        f"its weights are packed by {method}: {packs}, which ropetool does not unpack. Export the checkpoint before "
        "quantisation, or unpack this one; the file then contains the rounded weights",
        where=where, try_=try_,
    )  # fmt: skip


def python(code: str, **places: str) -> str:
    """Return the command line that runs code in Python. places: paths, by the fields of the code that take them."""
    literals = {field: json.dumps(path, ensure_ascii=False) for field, path in places.items()}
    return command("python", "-c", code.format(**literals))
