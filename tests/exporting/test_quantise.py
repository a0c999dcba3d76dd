"""Blocks of q8_0 to q4_0 against ggml's own code, byte for byte; NaN, infinities and what float16 scales do not hold."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from gguf_logits import quantised
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool.files import quantise

NAMES = sorted(quantise.BLOCK_TYPES)
FINITE = 0x7F800000  # the first bits of a float32 that is not


def ggml(values: np.ndarray, name: str) -> np.ndarray:
    """Return ggml_quantize_chunk of the library that llama-cpp-python brings. Shapes: -> (blocks, bytes)."""
    pytest.importorskip("llama_cpp")
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, 32)
    return np.frombuffer(quantised(rows, name), np.uint8).reshape(len(rows), -1)


def finite(bits: np.ndarray) -> np.ndarray:
    """Return the float32 numbers of bits, zero for those that are none."""
    return np.where((bits & 0x7FFFFFFF) < FINITE, bits, 0).astype(np.uint32).view(np.float32)


def rare() -> Iterator[tuple[str, np.ndarray]]:
    """Yield blocks of kinds that random weights seldom have."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal((500, 32)).astype(np.float32)
    yield "normal", normal
    yield "bfloat16", (normal.view(np.uint32) & 0xFFFF0000).view(np.float32)
    yield "any bits", finite(rng.integers(0, 2**32, (4000, 32), dtype=np.uint64).astype(np.uint32))
    yield "all magnitudes", (normal * 10.0 ** rng.uniform(-45, 4, (500, 1))).astype(np.float32)
    yield "denormal", finite(rng.integers(0, 2**23, (500, 32)).astype(np.uint32)) * rng.choice([-1, 1], (500, 32))
    yield "least denormals", finite(rng.integers(0, 300, (500, 32)).astype(np.uint32))
    yield "scales near 2^-128", (normal * 10.0 ** rng.uniform(-38.6, -37, (500, 1))).astype(np.float32)
    yield "ties", (rng.integers(-254, 255, (500, 32)) / 2).astype(np.float32)
    yield "equal magnitudes", rng.choice([-3.0, 3.0, 1.0], (500, 32)).astype(np.float32)
    yield "constant", np.repeat(normal[:, :1], 32, axis=1)
    yield "zeros of both signs", rng.choice([-0.0, 0.0], (200, 32)).astype(np.float32)
    yield (
        "nothing below zero",
        np.where(rng.random((500, 32)) < 0.4, np.abs(normal), rng.choice([-0.0, 0.0], (500, 32))),
    )
    yield (
        "nothing above zero",
        np.where(rng.random((500, 32)) < 0.4, -np.abs(normal), rng.choice([-0.0, 0.0], (500, 32))),
    )
    below = np.full((1, 32), 127.0)
    below[0, 1:] = np.nextafter(np.float32(0.5), np.float32(0))  # with a half added this would be 1
    yield "just below a half", below


CASES = {name: values.astype(np.float32) for name, values in rare()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_blocks_are_those_of_ggml(case: str, name: str) -> None:
    assert np.array_equal(quantise.blocks(CASES[case], name), ggml(CASES[case], name))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32), st.sampled_from(NAMES))
def test_any_finite_block_is_that_of_ggml(bits: list[int], name: str) -> None:
    values = finite(np.array(bits, np.uint64).astype(np.uint32))
    assert np.array_equal(quantise.blocks(values, name), ggml(values, name))


def test_q8_0_is_that_of_the_gguf_package() -> None:
    for case, values in CASES.items():
        if case not in ("any bits", "least denormals", "denormal", "scales near 2^-128"):  # numpy warns there
            expected = quantize(values, gguf.GGMLQuantizationType.Q8_0)
            assert np.array_equal(quantise.blocks(values, "Q8_0"), expected), case


@pytest.mark.parametrize(("name", "case"), [("Q4_0", "zeros of both signs"), ("Q4_1", "nothing below zero")])
def test_blocks_of_the_gguf_package_are_not_those_of_ggml(name: str, case: str) -> None:
    """Once they are, they can take the place of ours."""
    values = CASES[case]
    assert not np.array_equal(quantize(values, gguf.GGMLQuantizationType[name]), ggml(values, name))


def first_of_two(x: np.ndarray) -> np.ndarray:
    high, low = x.max(axis=1), x.min(axis=1)
    return np.where(high >= -low, high, low)


@pytest.mark.parametrize(
    ("part", "wrong", "name", "case"),
    [
        ("_BEFORE_HALF", np.float32(0.5), "Q8_0", "just below a half"),
        ("_largest", first_of_two, "Q4_0", "equal magnitudes"),
        ("_least", lambda x, low: low, "Q4_1", "nothing below zero"),
        ("_inverse", lambda scale: (1 / scale.astype(np.float64)).astype(np.float32), "Q5_0", "zeros of both signs"),
        ("_nibbles", lambda codes: codes[:, ::2] & 15 | codes[:, 1::2] << 4, "Q5_1", "normal"),
    ],
)
def test_a_planted_defect_is_seen(
    part: str, wrong: object, name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise, part, wrong)
    with np.errstate(all="ignore"):
        assert not np.array_equal(quantise.blocks(CASES[case], name), ggml(CASES[case], name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_block_that_cannot_be_stored_is_marked(bad: float, name: str) -> None:
    values = np.random.default_rng(3).standard_normal((3, 32)).astype(np.float32)
    values[1, 17] = bad
    assert quantise.unfit(quantise.blocks(values, name), name).tolist() == [False, True, False]
