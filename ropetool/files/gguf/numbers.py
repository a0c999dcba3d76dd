"""The numbers of any tensor as floats. The gguf package decodes quantised tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ropetool.errors import UnsupportedDtype
from ropetool.files.dtypes import STORAGE, decode
from ropetool.files.gguf.kinds import GGML_TYPES


def numbers(raw: npt.NDArray[np.uint8], ggml_type: int, where: str = "") -> npt.NDArray[np.float64]:
    """Return rows of bytes as rows of numbers.

    Shapes: (rows, bytes) -> (rows, elements).
    Raises: UnsupportedDtype for a type that the gguf package does not decode.
    """
    name = GGML_TYPES[ggml_type].name
    if name in STORAGE:
        return decode(np.ascontiguousarray(raw).data.cast("B"), name).astype(np.float64).reshape(raw.shape[0], -1)
    return decoded_blocks(raw, ggml_type, where).astype(np.float64)


def decoded_blocks(raw: npt.NDArray[np.uint8], ggml_type: int, where: str = "") -> npt.NDArray[np.float32]:
    """Return rows of blocks as rows of numbers, in float32 as ggml decodes them.

    Shapes: (rows, bytes) -> (rows, elements).
    Raises: UnsupportedDtype for a type that the gguf package does not decode.
    """
    import gguf

    try:
        decoded = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(ggml_type))
    except (NotImplementedError, ValueError):
        name = GGML_TYPES[ggml_type].name
        raise UnsupportedDtype(f"has type {name}, which the gguf package does not decode", where=where) from None
    return np.asarray(decoded, np.float32)
