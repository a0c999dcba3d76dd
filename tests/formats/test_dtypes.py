"""Bytes and arrays of the four float types, against torch's and the gguf package's conversions."""

from __future__ import annotations

from fractions import Fraction

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropetool.errors import UnsupportedDtype
from ropetool.files import dtypes

TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
GGUF = {
    "BF16": gguf.GGMLQuantizationType.BF16,
    "F16": gguf.GGMLQuantizationType.F16,
    "F32": gguf.GGMLQuantizationType.F32,
}


def every_half(dtype: str) -> np.ndarray:
    """Return all 65,536 patterns of a 16-bit type."""
    return np.arange(2**16, dtype=np.uint16).view(dtypes.STORAGE[dtype])


def awkward_singles() -> np.ndarray:
    """Return float32 numbers of all sizes: ties, neighbours of ties, subnormals, infinities, NaNs."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    upper = rng.integers(0, 2**16, 2_000, dtype=np.uint32) << 16
    near_ties = np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    return np.concatenate([bits, near_ties]).view(np.float32)


@pytest.mark.parametrize("dtype", dtypes.STORAGE)
def test_decode_equals_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    raw = np.random.default_rng(5).integers(0, 256, 8_000, dtype=np.uint8).tobytes()
    expected = torch.frombuffer(bytearray(raw), dtype=getattr(torch, TORCH[dtype]))
    found = dtypes.decode(raw, dtype)
    wanted = expected.float().numpy() if dtype == "BF16" else expected.numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_16_bit_pattern_survives(dtype: str) -> None:
    stored = every_half(dtype)
    again = dtypes.encode(dtypes.decode(stored.tobytes(), dtype), dtype)
    numbers = ~np.isnan(dtypes.decode(stored.tobytes(), dtype))
    np.testing.assert_array_equal(again.view(np.uint16)[numbers], stored.view(np.uint16)[numbers])
    assert np.isnan(dtypes.decode(again.tobytes(), dtype)[~numbers]).all()
    assert (~numbers).sum() > 100


@pytest.mark.parametrize("dtype", GGUF)
def test_encode_is_the_gguf_packages_quantiser_byte_for_byte(dtype: str) -> None:
    singles = awkward_singles()
    with np.errstate(over="ignore"):
        expected = gguf.quants.quantize(singles, GGUF[dtype])
    assert dtypes.encode(singles, dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_a_cut_instead_of_a_rounding_would_be_seen(dtype: str) -> None:
    singles = awkward_singles()
    cut = (singles.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert dtypes.encode(singles, dtype).tobytes() != dtypes.encode(cut, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@given(value=st.floats(allow_nan=False, allow_infinity=False, min_value=-6e4, max_value=6e4))
def test_float64_is_rounded_once_to_the_nearest(dtype: str, value: float) -> None:
    stored = dtypes.encode(np.array([value]), dtype)
    found = float(dtypes.decode(stored.tobytes(), dtype)[0])
    bits = stored.view(dtypes.STORAGE[dtype].str.replace("f", "u")).astype(np.int64)
    step = np.array([-1, 1]) if value else np.array([0])
    around = (bits + step).astype(stored.view(dtypes.STORAGE[dtype].str.replace("f", "u")).dtype)
    errors = [
        abs(Fraction(float(v)) - Fraction(value)) for v in dtypes.decode(around.tobytes(), dtype) if np.isfinite(v)
    ]
    assert abs(Fraction(found) - Fraction(value)) <= min(errors, default=Fraction(0))


def test_rounding_float64_through_float32_would_be_wrong() -> None:
    # Just above a tie of bfloat16: float32 rounds it onto the tie, from where it falls to the even side.
    value = np.array([1 + 2**-8 + 2**-40])
    twice = dtypes.encode(value.astype(np.float32), "BF16")
    assert dtypes.encode(value, "BF16") == 0x3F81
    assert twice == 0x3F80


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0x0000), (-0.0, 0x8000), (1.0, 0x3F80), (-2.5, 0xC020), (float("inf"), 0x7F80), (1e39, 0x7F80),
        (3.4e38, 0x7F80), (3.38e38, 0x7F7E), (1e-40, 0x0001), (1e-46, 0x0000),
    ],
)  # fmt: skip
def test_bfloat16_bits(value: float, bits: int) -> None:
    assert dtypes.encode(np.array([value]), "BF16")[0] == bits


def test_encode_keeps_the_shape_and_copies_no_float32() -> None:
    singles = np.ones((2, 3), np.float32)
    assert dtypes.encode(singles, "BF16").shape == (2, 3)
    assert dtypes.encode(singles, "F32") is singles


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "Q4_0", ""])
def test_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(UnsupportedDtype, match="types that can be read are BF16, F16, F32, F64"):
        dtypes.decode(b"\0\0\0\0", dtype)
