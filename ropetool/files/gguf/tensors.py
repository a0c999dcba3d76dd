"""The tensor table of a header: names, shapes, types and positions of the data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.cursor import I32, I64, U32, U64, Cursor
from ropetool.files.gguf.kinds import GGML_TYPES

MAX_NAME_BYTES = 63  # ggml keeps 64 bytes with the closing zero
MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in the header.

    shape: the stored order, with the contiguous length first. numpy has it last.
    ggml_type: a key of GGML_TYPES.
    offset: from the start of the data, in bytes.
    nbytes: the size without padding, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Return the end of the tensor without padding, from the start of the data, in bytes."""
        return self.offset + self.nbytes

    @property
    def type_name(self) -> str:
        """Return ggml's name of the type: F32, Q4_K."""
        return GGML_TYPES[self.ggml_type].name


def padded(size: int, alignment: int) -> int:
    """Return the size rounded up to a multiple of the alignment, a power of two."""
    return (size + alignment - 1) & -alignment


def read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """Return the next `count` tensors of the table.

    Raises: CorruptFile if llama.cpp would not load a name, shape or type, or if an offset is not the sum of the padded
    sizes before it.
    """
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for index in range(count):
        info = _tensor(cursor, index)
        if info.name in tensors:
            raise cursor.error("appears a second time; a tensor appears once")
        if info.offset != expected:
            fault = "overlaps the tensor before it" if info.offset < expected else "leaves a gap before it"
            raise cursor.error(f"{fault}: its offset is {info.offset} instead of {expected}")
        tensors[info.name] = info
        expected = padded(info.end, alignment)
    return tuple(tensors.values())


def _tensor(cursor: Cursor, index: int) -> TensorInfo:
    start = cursor.position
    cursor.enter(f"tensor number {index}", start)
    name = cursor.text(MAX_NAME_BYTES, f"a tensor's name has at most {MAX_NAME_BYTES}")
    cursor.enter(f"tensor {shown(name)}", start)
    n_dims = cursor.number(U32)
    if n_dims > MAX_DIMS:
        raise cursor.error(f"has {n_dims} dimensions; at most {MAX_DIMS} are allowed")
    shape = tuple(cursor.number(I64) for _ in range(n_dims))
    ggml_type = cursor.number(I32)
    nbytes = _nbytes(cursor, shape, ggml_type)
    return TensorInfo(name, shape, ggml_type, cursor.number(U64), nbytes)


def _nbytes(cursor: Cursor, shape: tuple[int, ...], number: int) -> int:
    elements = prod(shape)
    if min(shape, default=0) < 0 or elements >= 2**63:
        raise cursor.error(f"has shape {list(shape)}; each dimension must be at least 0, and the product below 2^63")
    ggml_type = GGML_TYPES.get(number)
    if ggml_type is None:
        raise cursor.error(f"has the unknown tensor type {number}")
    row = shape[0] if shape else 1
    if row % ggml_type.block:
        raise cursor.error(f"has rows of {row} elements; {ggml_type.name} stores blocks of {ggml_type.block}")
    return elements // ggml_type.block * ggml_type.nbytes
