"""A piece of a tensor on its way: from the bytes of the checkpoint to those of the file.

Knows arrays, types and orders of elements; neither files nor threads. Refuses what the file could not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, LossyExport
from ropetool.files import dtypes, quantise
from ropetool.gguf_model import fp8, mxfp4
from ropetool.gguf_model.sources import Source
from ropetool.gguf_model.tensors import Placed
from ropetool.weights.edits import RowChange

SLICE = 1 << 16  # elements converted at once: their float32 numbers stay in a processor's cache
# The least number that becomes infinite: halfway to what would be the next one.
_INFINITE_FROM = {"F16": 65520.0, "F32": 2.0**128 - 2.0**103, "BF16": 2.0**128 - 2.0**119}
# Computed in float64 and rounded once.
FUNCTIONS: dict[str, Callable[[dtypes.Floats], dtypes.Floats]] = {"minus_exp": lambda x: -np.exp(x.astype(np.float64))}
_FIRST_NOT_FINITE = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF << 52}


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a source, from `begin` of its file on, and the tensor that they go to.

    scales: the source's, if any; of MXFP4 those of this piece.
    """

    placed: Placed
    source: Source
    begin: int
    nbytes: int
    scales: bytes = b""


def unit(placed: Placed, source: Source) -> int:
    """Return how many bytes of a source belong together: those that change places, share a row, or make a block."""
    if mxfp4.is_packed(source):
        return mxfp4.unit(source)
    if _is_opaque(source):
        return 1
    elements = quantise.BLOCK
    if source.scales is not None:
        elements = source.stored.shape[-1]
    if source.turn is not None:
        elements = math.lcm(elements, source.turn.unit)
    return elements * _stored_type(source).itemsize


def convert(raw: npt.NDArray[np.uint8], piece: Piece, allow_nan: bool) -> memoryview:
    """Return the piece as it stands in the file.

    Raises: CheckpointError for a NaN or an infinity, unless `allow_nan`; LossyExport for a number that is too large.
    """
    if mxfp4.is_packed(piece.source):
        return mxfp4.blocks(raw, piece.scales, piece.source, piece.begin).data
    if _is_opaque(piece.source):
        return raw.data
    elements: npt.NDArray[Any] = raw.view(_stored_type(piece.source))
    if piece.source.scales is not None:
        elements = _unscaled(elements, piece)
    if piece.source.gains is not None:
        elements = _multiplied(elements, piece, piece.source.gains)
    dtype = piece.placed.dtype
    if dtype not in quantise.BLOCK_TYPES:
        _check(elements, piece, allow_nan)
        return _encoded(elements, piece).data
    encoded = _encoded(elements, piece)
    if quantise.unfit(encoded, dtype).any():  # the scales of blocks show what is wrong, and are a 32nd of the work
        _check(elements, piece, allow_nan)
        largest = float(np.max(np.abs(_numbers(elements, piece.source))))
        raise _too_large(largest, piece, f"too large for the float16 scales of {dtype}")
    return encoded.reshape(-1).data


def _is_opaque(source: Source) -> bool:
    """Return whether its numbers stand in blocks already, which go into the file as they are."""
    return source.stored.dtype not in dtypes.STORAGE and source.stored.dtype not in fp8.TABLES


def _stored_type(source: Source) -> np.dtype[Any]:
    return np.dtype(np.uint8) if source.stored.dtype in fp8.TABLES else dtypes.storage(source.stored.dtype)


def _unscaled(elements: npt.NDArray[np.uint8], piece: Piece) -> npt.NDArray[np.float32]:
    source, columns = piece.source, piece.source.stored.shape[-1]
    assert source.scales is not None
    first = (piece.begin - source.stored.begin) // columns
    grid = fp8.scale_grid(piece.scales, source.scales)
    return fp8.weights(elements.reshape(-1, columns), first, source, grid).reshape(-1)


def _multiplied(elements: npt.NDArray[Any], piece: Piece, gains: RowChange) -> npt.NDArray[np.float32]:
    """Return the elements times the gains of their rows, each rounded once."""
    stored = piece.source.stored
    columns = math.prod(stored.shape) // gains.factor.size
    first = (piece.begin - stored.begin) // _stored_type(piece.source).itemsize
    factor = gains.factor[np.arange(first, first + elements.size) // columns]
    numbers = _numbers(elements, piece.source).astype(np.float64)
    multiplied: npt.NDArray[np.float32] = ((numbers + gains.offset) * factor - gains.offset).astype(np.float32)
    return multiplied


def _type_of(elements: npt.NDArray[Any], source: Source) -> str:
    """Return the type of elements: the source's, unless they have been computed, in float32."""
    return source.stored.dtype if elements.dtype == _stored_type(source) else "F32"


def _numbers(elements: npt.NDArray[Any], source: Source) -> dtypes.Floats:
    """Return the elements as numpy's floats."""
    return dtypes.widened(elements) if _type_of(elements, source) == "BF16" else elements


def _encoded(elements: npt.NDArray[Any], piece: Piece) -> npt.NDArray[np.uint8]:
    """Return the elements in their new order as bytes in the type to write; of blocks a row for each."""
    source, placed = piece.source, piece.placed
    if source.turn is not None:
        elements = source.turn.apply(elements)
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


# --- what the file could not hold


def _check(elements: npt.NDArray[Any], piece: Piece, allow_nan: bool) -> None:
    """Refuse numbers that are not finite, or would not be in the type to write."""
    source, dtype = piece.source, piece.placed.dtype
    bits = elements.view(f"<u{elements.itemsize}")
    kind = _type_of(elements, source)
    largest_bits = np.max(bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1), initial=0, keepdims=True)
    if largest_bits[0] >= _FIRST_NOT_FINITE[kind]:
        if not allow_nan or dtype in quantise.BLOCK_TYPES:
            raise _not_finite(_numbers(elements, source), piece)
        finite = np.abs(_numbers(elements, source))
        largest = float(np.max(finite, initial=0, where=np.isfinite(finite)))
    else:
        largest = float(_numbers(largest_bits.view(elements.dtype), source)[0])
    if largest >= _INFINITE_FROM.get(dtype, math.inf):
        raise _too_large(largest, piece, f"which becomes infinite in {dtype}")


def _not_finite(numbers: dtypes.Floats, piece: Piece) -> CheckpointError:
    stored = piece.source.stored
    found = int(np.flatnonzero(~np.isfinite(numbers))[0])
    what = "NaN" if np.isnan(numbers[found]) else "an infinity"
    at = (piece.begin - stored.begin) // _stored_type(piece.source).itemsize + found
    columns = stored.shape[-1] if len(stored.shape) > 1 else 1
    place = f"row {at // columns}, column {at % columns}" if columns > 1 else f"element {at}"
    blocks = f", which {piece.placed.dtype} blocks cannot store" if piece.placed.dtype in quantise.BLOCK_TYPES else ""
    return CheckpointError(
        f"{stored.name} contains {what} in {place}{blocks}", where=str(piece.source.path),
        try_="download the weights again, or export them unchanged with --allow-nan and --outtype f32, f16 or bf16",
    )  # fmt: skip


def _too_large(number: float, piece: Piece, why: str) -> LossyExport:
    return LossyExport(
        f"{piece.placed.info.name} contains {number:.6g}, {why}", where="--outtype", try_="--outtype bf16, or f32"
    )
