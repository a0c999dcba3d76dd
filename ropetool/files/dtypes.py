"""Floating-point tensor types as bytes and as numpy arrays: BF16, F16, F32 and F64, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import UnsupportedDtype

Floats = npt.NDArray[np.floating[Any]]

# The stored form of each type. numpy has no bfloat16, so its elements are handled as their 16 bits.
STORAGE: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_QUIET = np.uint16(0x0040)  # the bit that makes a bfloat16 NaN quiet; without it the rest of the NaN could be infinity


def storage(dtype: str, where: str = "") -> np.dtype[Any]:
    """Return the numpy type of the stored elements. It is uint16 for BF16.

    Raises: UnsupportedDtype for other types.
    """
    stored = STORAGE.get(dtype)
    if stored is None:
        raise UnsupportedDtype(f"has type {dtype}; types that can be read are {', '.join(STORAGE)}", where=where)
    return stored


def decode(raw: bytes | bytearray | memoryview, dtype: str) -> Floats:
    """Return the elements as the narrowest numpy float type that represents them exactly. BF16 becomes float32.

    Raises: UnsupportedDtype.
    """
    stored = np.frombuffer(raw, storage(dtype))
    return widened(stored) if dtype == "BF16" else stored


def widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the float32 numbers of bfloat16 bits: the same bits, followed by 16 zeros."""
    wide = bits.astype("<u4")
    wide <<= 16
    return wide.view("<f4")


def encode(values: Floats, dtype: str) -> npt.NDArray[Any]:
    """Return the elements in stored form, rounded once to nearest, ties to even. Too large numbers become infinite.

    Shapes: any -> same.
    Raises: UnsupportedDtype.
    """
    stored = storage(dtype)
    if dtype == "BF16":
        return _narrowed(values)
    with np.errstate(over="ignore"):
        return values.astype(stored, copy=False)


def _narrowed(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the bfloat16 bits of numbers, rounded like ggml and like processors."""
    single = _to_odd(values) if values.dtype.itemsize > 4 else values.astype("<f4", copy=False)
    bits = np.ascontiguousarray(single).view("<u4")
    upper = (bits >> 16).astype("<u2")
    # Adding slightly less than half carries into the upper 16 bits if the lower 16 are above half, or half and odd.
    rounded: npt.NDArray[np.uint16] = ((bits + (0x7FFF + (upper & 1).astype("<u4"))) >> 16).astype("<u2")
    no_numbers = np.isnan(single)
    rounded[no_numbers] = upper[no_numbers] | _QUIET
    return rounded


def _to_odd(values: Floats) -> npt.NDArray[np.float32]:
    """Return float32 numbers that round to the same bfloat16 as the float64 numbers.

    They are truncated, and the last bit is set if any bit was lost. Rounding to nearest twice would first move a number
    near a tie onto the tie, and then to the wrong side.
    """
    with np.errstate(over="ignore"):
        single = values.astype("<f4")
    bits: npt.NDArray[np.uint32] = single.view("<u4").copy()
    back = single.astype("<f8")
    bits[np.abs(back) > np.abs(values)] -= 1  # towards zero; from infinity to the largest number
    bits[(back != values) & ~np.isnan(values)] |= 1
    return bits.view(np.float32)
