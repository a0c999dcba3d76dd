"""Rows of numbers as the blocks of q8_0, q5_1, q5_0, q4_1 and q4_0, byte for byte those of ggml's reference.

Knows arrays alone. Everything is float32, one rounding an operation, as C has it where nothing is fused. The gguf
package's own blocks are others where zeros of both signs are the least or the largest numbers: it takes -0 for 0.
Source: quantize_row_*_ref in ggml/src/ggml-quants.c, llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 32
Singles = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_SIGN, _MAGNITUDE = np.uint32(1 << 31), np.uint32((1 << 31) - 1)
# The number before a half. Added and cut off, it rounds halves away from zero as C's roundf does, where a half itself
# would lift 0.49999997 to 1.
_BEFORE_HALF = np.nextafter(np.float32(0.5), np.float32(0))


@dataclass(frozen=True)
class BlockType:
    """How 32 numbers are stored: `scales` float16 numbers, then the fifth bits where there are any, then the rest."""

    scales: int
    nbytes: int
    encode: Callable[[Singles], tuple[list[Singles], Bytes]]
    fifth_bits: bool = False


def blocks(values: Singles, name: str) -> Bytes:
    """Return the blocks of numbers: GGML's type `name`, Q8_0.

    A block whose numbers are not finite, or too large for the float16 scales, has scales that are not finite.
    Shapes: any, a multiple of 32 numbers -> (blocks, bytes of a block).
    """
    kind = BLOCK_TYPES[name]
    with np.errstate(all="ignore"):
        scales, codes = kind.encode(values.reshape(-1, BLOCK))
        halves = np.stack(scales, axis=1).astype("<f2")
    out = np.empty((len(codes), kind.nbytes), np.uint8)
    at = 2 * kind.scales
    out[:, :at] = halves.view(np.uint8)
    if kind.fifth_bits:
        out[:, at : at + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")
        at += 4
    out[:, at:] = codes if kind.nbytes - at == BLOCK else _nibbles(codes)
    return out


def unfit(encoded: Bytes, name: str) -> npt.NDArray[np.bool_]:
    """Return which blocks have a scale that is not finite. Shapes: (blocks, bytes of a block) -> (blocks,)."""
    scales = np.ascontiguousarray(encoded[:, : 2 * BLOCK_TYPES[name].scales]).view("<f2")
    good: npt.NDArray[np.bool_] = np.isfinite(scales).all(axis=1)
    return ~good


def _nibbles(codes: Bytes) -> Bytes:
    """Return two numbers a byte: the first half of the block in the lower four bits, the second in the upper."""
    half = BLOCK // 2
    pairs: Bytes = (codes[:, :half] & np.uint8(15)) | (codes[:, half:] << np.uint8(4))
    return pairs


def _q8_0(x: Singles) -> tuple[list[Singles], Bytes]:
    largest = _of_rows(np.maximum, x.view(np.uint32) & _MAGNITUDE).view(np.float32)
    scale = largest / np.float32(127)
    scaled = x * _inverse(scale)[:, None]
    bits = scaled.view(np.uint32)
    scaled += ((bits & _SIGN) | _BEFORE_HALF.view(np.uint32)).view(np.float32)
    return [scale], _cut(scaled, scale, np.int8)


def _symmetric(levels: int) -> Callable[[Singles], tuple[list[Singles], Bytes]]:
    """Return the encoding whose number of largest magnitude becomes -levels: q4_0 has 8, q5_0 has 16."""

    def encode(x: Singles) -> tuple[list[Singles], Bytes]:
        scale = _largest(x) / np.float32(-levels)
        scaled = x * _inverse(scale)[:, None]
        scaled += np.float32(levels + 0.5)
        return [scale], np.minimum(_cut(scaled, scale, np.uint8), np.uint8(2 * levels - 1))

    return encode


def _shifted(steps: int) -> Callable[[Singles], tuple[list[Singles], Bytes]]:
    """Return the encoding of the distance from the least number: q4_1 has 15 steps, q5_1 has 31."""

    def encode(x: Singles) -> tuple[list[Singles], Bytes]:
        low, high = _ends(x)
        least = _least(x, low)
        scale = (high - least) / np.float32(steps) + np.float32(0)  # 0: equal zeros of two signs make -0
        scaled = (x - least[:, None]) * _inverse(scale)[:, None]
        scaled += np.float32(0.5)
        return [scale, least], np.minimum(_cut(scaled, scale, np.uint8), np.uint8(steps))

    return encode


def _largest(x: Singles) -> Singles:
    """Return the number of largest magnitude in each row with its sign: of two with equal ones the first; never -0."""
    low, high = _ends(x)
    found = np.where((high >= -low) | np.isnan(high), high, low)
    (tied,) = np.nonzero(high == -low)
    rows = x[tied]
    found[tied] = rows[np.arange(len(tied)), np.abs(rows).argmax(axis=1)]
    largest: Singles = found + np.float32(0)
    return largest


def _least(x: Singles, low: Singles) -> Singles:
    """Return the least number of each row: where it is a zero, and there are zeros of both signs, the first."""
    found: Singles = low.copy()
    (zeros,) = np.nonzero(low == 0)
    rows = x[zeros]
    found[zeros] = rows[np.arange(len(zeros)), (rows == 0).argmax(axis=1)]
    return found


def _ends(x: Singles) -> tuple[Singles, Singles]:
    """Return the least and the greatest number of each row: as whole numbers, which numpy compares twice as fast."""
    bits = x.view(np.int32)
    ordered = _reordered(bits)
    low, high = _of_rows(np.minimum, ordered), _of_rows(np.maximum, ordered)
    return _reordered(low).view(np.float32), _reordered(high).view(np.float32)


def _of_rows(function: np.ufunc, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the least or the greatest of each row; min and max along an axis this short take twice as long."""
    found: npt.NDArray[Any] = function.reduceat(x.reshape(-1), np.arange(0, x.size, BLOCK))
    return found


def _reordered(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return whole numbers in the order of the floats whose bits are given; applied twice it returns the bits."""
    turned: npt.NDArray[np.int32] = bits ^ ((bits >> 31) & np.int32(_MAGNITUDE))
    return turned


def _inverse(scale: Singles) -> Singles:
    """Return 1 / scale, and 0 where the scale is 0."""
    inverse: Singles = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return inverse


def _cut(scaled: Singles, scale: Singles, kind: type[np.integer[Any]]) -> Bytes:
    """Return whole numbers, cut off towards zero.

    Below 2^-128 a scale has no finite inverse. What C makes of infinity is not defined; x86 processors make 0 of it.
    """
    codes = scaled.astype(kind).view(np.uint8)
    codes[np.isinf(np.float32(1) / scale) & (scale != 0)] = 0
    return codes


BLOCK_TYPES = {
    "Q8_0": BlockType(1, 34, _q8_0),
    "Q4_0": BlockType(1, 18, _symmetric(8)),
    "Q4_1": BlockType(2, 20, _shifted(15)),
    "Q5_0": BlockType(1, 22, _symmetric(16), fifth_bits=True),
    "Q5_1": BlockType(2, 24, _shifted(31), fifth_bits=True),
}
