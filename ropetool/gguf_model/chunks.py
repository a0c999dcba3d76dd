"""The conversion of a chunk of a tensor, from the bytes of the checkpoint to the bytes of the GGUF file.

It raises an error for numbers that the file cannot represent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, LossyExport
from ropetool.files import dtypes, quantise
from ropetool.gguf_model import mxfp4
from ropetool.gguf_model.sources import SourceTensor
from ropetool.gguf_model.tensors import Placed
from ropetool.weights.edits import RowChange

SLICE = 1 << 16  # elements converted at once: their float32 numbers stay in a processor's cache
# The smallest number that becomes infinite: halfway from the largest finite number to the next step.
_INFINITE_FROM = {"F16": 65520.0, "F32": 2.0**128 - 2.0**103, "BF16": 2.0**128 - 2.0**119}
# Computed in float64 and rounded once.
FUNCTIONS: dict[str, Callable[[dtypes.Floats], dtypes.Floats]] = {"minus_exp": lambda x: -np.exp(x.astype(np.float64))}
_FIRST_NOT_FINITE = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF << 52}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a source tensor and the tensor that they become part of.

    begin: the place of the first byte in the source's file.
    scales: the MXFP4 scales of this chunk; empty without scales.
    parts: the other tensors that unpack the source, by their role.
    """

    placed: Placed
    source: SourceTensor
    begin: int
    nbytes: int
    scales: bytes = b""
    parts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The place of the first number among the numbers of the source."""
        stored = self.source.stored
        return (self.begin - stored.begin) * math.prod(self.source.shape) // max(1, stored.end - stored.begin)


def unit(placed: Placed, source: SourceTensor) -> int:
    """Return how many source bytes must be converted together: bytes that change places or share a row or a block."""
    if mxfp4.is_packed(source):
        return mxfp4.unit(source)
    if _is_opaque(source):
        return 1
    elements = quantise.BLOCK
    if source.unpacking is not None:
        elements = source.unpacking.together * source.shape[-1]
    if source.order is not None:
        elements = math.lcm(elements, source.order.unit)
    if source.unpacking is not None:
        return elements // source.shape[-1] * ((source.stored.end - source.stored.begin) // source.shape[0])
    return elements * _stored_type(source).itemsize


def convert(raw: npt.NDArray[np.uint8], chunk: Chunk, allow_nan: bool) -> memoryview:
    """Return the bytes of the chunk in the GGUF file.

    Raises: CheckpointError for a NaN or an infinity, unless `allow_nan`; LossyExport for a number that is too large.
    """
    if mxfp4.is_packed(chunk.source):
        return mxfp4.blocks(raw, chunk.scales, chunk.source, chunk.begin).data
    if _is_opaque(chunk.source):
        return raw.data
    elements: npt.NDArray[Any] = raw.view(_stored_type(chunk.source))
    if chunk.source.unpacking is not None:
        row = chunk.first // chunk.source.shape[-1]
        elements = chunk.source.unpacking.numbers(raw, row, chunk.parts).reshape(-1)
    if chunk.source.gains is not None:
        elements = _multiplied(elements, chunk, chunk.source.gains)
    dtype = chunk.placed.dtype
    if dtype not in quantise.BLOCK_TYPES:
        _check(elements, chunk, allow_nan)
        return _encoded(elements, chunk).data
    encoded = _encoded(elements, chunk)
    if quantise.unfit(encoded, dtype).any():  # checks the scales of blocks, a 32nd of the work
        _check(elements, chunk, allow_nan)
        largest = float(np.max(np.abs(_numbers(elements, chunk.source))))
        raise _too_large(largest, chunk, f"too large for the float16 scales of {dtype}")
    return encoded.reshape(-1).data


def _is_opaque(source: SourceTensor) -> bool:
    """Return whether the source already contains blocks, which the file keeps unchanged."""
    return source.stored.dtype not in dtypes.STORAGE and source.unpacking is None


def _stored_type(source: SourceTensor) -> np.dtype[Any]:
    return np.dtype(np.uint8) if source.unpacking is not None else dtypes.storage(source.stored.dtype)


def _multiplied(elements: npt.NDArray[Any], chunk: Chunk, gains: RowChange) -> npt.NDArray[np.float32]:
    """Return the elements times the factors of their rows, in float64, each rounded once to float32."""
    columns = math.prod(chunk.source.shape) // gains.factor.size
    factor = gains.factor[np.arange(chunk.first, chunk.first + elements.size) // columns]
    numbers = _numbers(elements, chunk.source).astype(np.float64)
    multiplied: npt.NDArray[np.float32] = ((numbers + gains.offset) * factor - gains.offset).astype(np.float32)
    return multiplied


def _type_of(elements: npt.NDArray[Any], source: SourceTensor) -> str:
    """Return the type of elements: the source's type, or F32 after a computation."""
    return source.stored.dtype if elements.dtype == _stored_type(source) else "F32"


def _numbers(elements: npt.NDArray[Any], source: SourceTensor) -> dtypes.Floats:
    return dtypes.widened(elements) if _type_of(elements, source) == "BF16" else elements


def _encoded(elements: npt.NDArray[Any], chunk: Chunk) -> npt.NDArray[np.uint8]:
    """Return the bytes of the reordered elements in the output type. A type with blocks has a row for each block."""
    source, placed = chunk.source, chunk.placed
    if source.order is not None:
        elements = source.order.apply(elements)
    if placed.offset:
        elements = _numbers(elements, source).astype(np.float32) + np.float32(placed.offset)
    if placed.function:
        elements = FUNCTIONS[placed.function](_numbers(elements, source)).astype(np.float32)
    if _type_of(elements, source) == placed.dtype:
        return np.ascontiguousarray(elements).view(np.uint8)
    slices = (_numbers(elements[at : at + SLICE], source) for at in range(0, len(elements), SLICE))
    return np.concatenate([_bytes(numbers, placed.dtype) for numbers in slices])


def _bytes(numbers: dtypes.Floats, dtype: str) -> npt.NDArray[np.uint8]:
    if dtype not in quantise.BLOCK_TYPES:
        return np.ascontiguousarray(dtypes.encode(numbers, dtype)).view(np.uint8)
    with np.errstate(over="ignore"):
        return quantise.blocks(numbers.astype(np.float32, copy=False), dtype)


# --- numbers that the file cannot represent


def _check(elements: npt.NDArray[Any], chunk: Chunk, allow_nan: bool) -> None:
    """Raise an error for numbers that are not finite, or that become infinite in the output type."""
    source, dtype = chunk.source, chunk.placed.dtype
    bits = elements.view(f"<u{elements.itemsize}")
    dtype_now = _type_of(elements, source)
    largest_bits = np.max(bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1), initial=0, keepdims=True)
    if largest_bits[0] >= _FIRST_NOT_FINITE[dtype_now]:
        if not allow_nan or dtype in quantise.BLOCK_TYPES:
            raise _not_finite(_numbers(elements, source), chunk)
        finite = np.abs(_numbers(elements, source))
        largest = float(np.max(finite, initial=0, where=np.isfinite(finite)))
    else:
        largest = float(_numbers(largest_bits.view(elements.dtype), source)[0])
    if largest >= _INFINITE_FROM.get(dtype, math.inf):
        raise _too_large(largest, chunk, f"which becomes infinite in {dtype}")


def _not_finite(numbers: dtypes.Floats, chunk: Chunk) -> CheckpointError:
    stored, shape = chunk.source.stored, chunk.source.shape
    first = int(np.flatnonzero(~np.isfinite(numbers))[0])
    what = "NaN" if np.isnan(numbers[first]) else "an infinity"
    at = chunk.first + first
    columns = shape[-1] if len(shape) > 1 else 1
    place = f"row {at // columns}, column {at % columns}" if columns > 1 else f"element {at}"
    blocks = f", which {chunk.placed.dtype} blocks cannot store" if chunk.placed.dtype in quantise.BLOCK_TYPES else ""
    return CheckpointError(
        f"{stored.name} contains {what} in {place}{blocks}", where=str(chunk.source.path),
        try_="download the weights again, or export them unchanged with --allow-nan and --outtype f32, f16 or bf16",
    )  # fmt: skip


def _too_large(number: float, chunk: Chunk, why: str) -> LossyExport:
    return LossyExport(
        f"{chunk.placed.info.name} contains {number:.6g}, {why}", where="--outtype", try_="--outtype bf16, or f32"
    )
