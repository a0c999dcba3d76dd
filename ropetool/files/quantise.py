"""Quantisation to q8_0, q5_1, q5_0, q4_1 and q4_0, with the same bytes as ggml's reference.

All steps are in float32 and round once per operation, like C without fused operations. The gguf package differs for
blocks with zeros of both signs as their least or largest numbers, because it treats -0 as 0.
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
# The float before 0.5. Adding it and truncating rounds halves away from zero, like C's roundf. Adding 0.5 would round
# 0.49999997 to 1.
_BEFORE_HALF = np.nextafter(np.float32(0.5), np.float32(0))


@dataclass(frozen=True)
class BlockType:
    """The stored form of 32 numbers.

    scales: the number of float16 numbers at the start.
    nbytes: the size of a block, in bytes.
    encode: returns the scales and the codes of blocks.
    fifth_bits: whether the fifth bits of all codes follow the scales, before the other bits.
    """

    scales: int
    nbytes: int
    encode: Callable[[Singles], tuple[list[Singles], Bytes]]
    fifth_bits: bool = False


def blocks(values: Singles, name: str) -> Bytes:
    """Return numbers as quantised blocks of the GGML type `name`, such as Q8_0.

    If numbers of a block are not finite, or too large for float16 scales, the scales of the block are not finite.
    Shapes: any, a multiple of 32 numbers -> (blocks, bytes of a block).
    """
    block_type = BLOCK_TYPES[name]
    with np.errstate(all="ignore"):
        scales, codes = block_type.encode(values.reshape(-1, BLOCK))
        halves = np.stack(scales, axis=1).astype("<f2")
    out = np.empty((len(codes), block_type.nbytes), np.uint8)
    at = 2 * block_type.scales
    out[:, :at] = halves.view(np.uint8)
    if block_type.fifth_bits:
        out[:, at : at + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")
        at += 4
    out[:, at:] = codes if block_type.nbytes - at == BLOCK else _nibbles(codes)
    return out


def unfit(encoded: Bytes, name: str) -> npt.NDArray[np.bool_]:
    """Return which blocks have a scale that is not finite. Shapes: (blocks, bytes of a block) -> (blocks,)."""
    scales = np.ascontiguousarray(encoded[:, : 2 * BLOCK_TYPES[name].scales]).view("<f2")
    good: npt.NDArray[np.bool_] = np.isfinite(scales).all(axis=1)
    return ~good


def _nibbles(codes: Bytes) -> Bytes:
    """Return two codes per byte: the first half of the block in the lower four bits, the second half in the upper."""
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
    """Return the encoding that maps the number of largest magnitude to -levels: 8 for q4_0, 16 for q5_0."""

    def encode(x: Singles) -> tuple[list[Singles], Bytes]:
        scale = _largest(x) / np.float32(-levels)
        scaled = x * _inverse(scale)[:, None]
        scaled += np.float32(levels + 0.5)
        return [scale], np.minimum(_cut(scaled, scale, np.uint8), np.uint8(2 * levels - 1))

    return encode


def _shifted(steps: int) -> Callable[[Singles], tuple[list[Singles], Bytes]]:
    """Return the encoding of the distance from the least number: 15 steps for q4_1, 31 for q5_1."""

    def encode(x: Singles) -> tuple[list[Singles], Bytes]:
        low, high = _ends(x)
        least = _least(x, low)
        scale = (high - least) / np.float32(steps) + np.float32(0)  # because zeros of different signs can give -0
        scaled = (x - least[:, None]) * _inverse(scale)[:, None]
        scaled += np.float32(0.5)
        return [scale, least], np.minimum(_cut(scaled, scale, np.uint8), np.uint8(steps))

    return encode


def _largest(x: Singles) -> Singles:
    """Return the number of largest magnitude in each row, with its sign.

    If two have the same magnitude, it is the first. It is never -0.
    """
    low, high = _ends(x)
    signed = np.where((high >= -low) | np.isnan(high), high, low)
    (tied,) = np.nonzero(high == -low)
    rows = x[tied]
    signed[tied] = rows[np.arange(len(tied)), np.abs(rows).argmax(axis=1)]
    largest: Singles = signed + np.float32(0)
    return largest


def _least(x: Singles, low: Singles) -> Singles:
    """Return the least number of each row. If it is zero, and zeros of both signs occur, it is the first zero."""
    least: Singles = low.copy()
    (zeros,) = np.nonzero(low == 0)
    rows = x[zeros]
    least[zeros] = rows[np.arange(len(zeros)), (rows == 0).argmax(axis=1)]
    return least


def _ends(x: Singles) -> tuple[Singles, Singles]:
    """Return the least and the greatest number of each row.

    They are compared as integers, which is twice as fast in numpy.
    """
    bits = x.view(np.int32)
    ordered = _reordered(bits)
    low, high = _of_rows(np.minimum, ordered), _of_rows(np.maximum, ordered)
    return _reordered(low).view(np.float32), _reordered(high).view(np.float32)


def _of_rows(function: np.ufunc, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the least or the greatest number of each row.

    numpy's min and max along such a short axis take twice as long.
    """
    extremes: npt.NDArray[Any] = function.reduceat(x.reshape(-1), np.arange(0, x.size, BLOCK))
    return extremes


def _reordered(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return integers in the same order as the floats with these bits. A second call returns the bits."""
    reordered: npt.NDArray[np.int32] = bits ^ ((bits >> 31) & np.int32(_MAGNITUDE))
    return reordered


def _inverse(scale: Singles) -> Singles:
    """Return 1 / scale, or 0 for a scale of 0."""
    inverse: Singles = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return inverse


def _cut(scaled: Singles, scale: Singles, integer: type[np.integer[Any]]) -> Bytes:
    """Return integers, truncated towards zero.

    A scale below 2^-128 has no finite inverse. C does not define the conversion of infinity; x86 processors return 0.
    """
    codes = scaled.astype(integer).view(np.uint8)
    codes[np.isinf(np.float32(1) / scale) & (scale != 0)] = 0
    return codes


BLOCK_TYPES = {
    "Q8_0": BlockType(1, 34, _q8_0),
    "Q4_0": BlockType(1, 18, _symmetric(8)),
    "Q4_1": BlockType(2, 20, _shifted(15)),
    "Q5_0": BlockType(1, 22, _symmetric(16), fifth_bits=True),
    "Q5_1": BlockType(2, 24, _shifted(31), fifth_bits=True),
}
