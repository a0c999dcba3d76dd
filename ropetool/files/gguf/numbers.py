"""The numbers of any tensor, as floats; quantised ones by the tables of the gguf package. Knows no key by its meaning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ropetool.errors import CorruptFile, UnsupportedDtype
from ropetool.files.dtypes import STORAGE, decode
from ropetool.files.gguf.header import GgufHeader, reading
from ropetool.files.gguf.kinds import GGML_TYPES
from ropetool.files.gguf.tensors import TensorInfo


def numbers(raw: npt.NDArray[np.uint8], ggml_type: int, where: str = "") -> npt.NDArray[np.float64]:
    """Return rows of bytes as rows of numbers.

    Shapes: (rows, bytes) -> (rows, elements).
    Raises: UnsupportedDtype for a type that the gguf package does not decode.
    """
    name = GGML_TYPES[ggml_type].name
    if name in STORAGE:
        return decode(np.ascontiguousarray(raw).data.cast("B"), name).astype(np.float64).reshape(raw.shape[0], -1)
    import gguf

    try:
        found = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(ggml_type))
    except (NotImplementedError, ValueError):
        raise UnsupportedDtype(f"has type {name}, which the gguf package does not decode", where=where) from None
    return np.asarray(found, np.float64)


def read_numbers(header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float64]:
    """Return all numbers of a tensor, rows first.

    Raises: UnsupportedDtype; CorruptFile if the file became shorter.
    """
    with reading(header.path) as file:
        file.seek(header.data_start + info.offset)
        raw = np.frombuffer(file.read(info.nbytes), np.uint8)
    if raw.size < info.nbytes:
        raise CorruptFile(f"the file became shorter and ends inside tensor {info.name}", where=str(header.path))
    shape = info.shape[::-1]
    rows = raw.reshape(int(np.prod(shape[:-1])), -1)
    return numbers(rows, info.ggml_type, f"{header.path}: {info.name}").reshape(shape)
