"""Block types: a factor in the scales is the factor on every number, by the gguf package's own reading of the blocks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.families import get
from ropetool.rope.tables import RopeSet
from ropetool.weights import gguf_scales
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.rounding import RoundingErrors

ROWS, BLOCKS = 6, 4
HALF_STEP = 2.0**-11  # the largest relative rounding of a normal float16


def random_rows(dtype: str) -> np.ndarray:
    """Return rows of random blocks whose float16 scales are ordinary numbers.

    Shapes: -> (rows, bytes).
    """
    rng, kind = np.random.default_rng(3), gguf_scales.TYPES[dtype]
    blocks = rng.integers(0, 256, (ROWS, BLOCKS, kind.nbytes), dtype=np.uint8)
    for at in gguf_scales.F16_SCALES.get(dtype, ()):
        scales = rng.normal(0, 0.02, (ROWS, BLOCKS)).astype("<f2")
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if dtype == gguf_scales.E8M0:
        blocks[:, :, 0] = rng.integers(110, 130, (ROWS, BLOCKS))
    return blocks.reshape(ROWS, -1)


def numbers(rows: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(rows, Kind[dtype]), np.float64)


@pytest.mark.parametrize("dtype", gguf_scales.F16_SCALES)
def test_every_number_is_multiplied(dtype: str) -> None:
    rows = random_rows(dtype)
    before, factor = numbers(rows, dtype), np.array([1.0, 1.3, 0.25, 1.0, 2.1, 0.0])
    errors = RoundingErrors("float16", scales=True)
    baked = rows.copy()
    gguf_scales.scaled_rows(baked, dtype, factor, errors, "blk.0.attn_k.weight")
    after, wanted = numbers(baked, dtype), before * factor[:, None]
    # Two rounded scales are added and may cancel: the error is theirs, so it is measured against the row's largest.
    size = np.abs(before).max(axis=1, keepdims=True) * factor[:, None]
    assert np.all(np.abs(after - wanted) <= 4 * HALF_STEP * size)
    assert 0 < errors.highest <= HALF_STEP
    assert 0 < errors.mean < errors.highest
    assert np.array_equal(baked[[0, 3]], rows[[0, 3]])
    assert not after[5].any()
    assert np.abs(after - before)[1].max() > 0.1 * np.abs(before[1]).max()


def test_powers_of_two_are_exact_in_mxfp4() -> None:
    rows = random_rows("MXFP4")
    factor, errors = np.array([1.0, 2.0, 0.5, 1.0, 8.0, 1.0]), RoundingErrors("float16", scales=True)
    baked = rows.copy()
    gguf_scales.scaled_rows(baked, "MXFP4", factor, errors, "k")
    assert np.array_equal(numbers(baked, "MXFP4"), numbers(rows, "MXFP4") * factor[:, None])
    with pytest.raises(UnsupportedDtype, match=r"powers of two, but the factor 1\.3 is not"):
        gguf_scales.scaled_rows(rows, "MXFP4", factor * 1.3, errors, "k")
    with pytest.raises(LossyExport, match="leaves the range"):
        gguf_scales.scaled_rows(rows, "MXFP4", np.full(ROWS, 2.0**200), errors, "k")


@pytest.mark.parametrize(("factor", "said"), [(1e7, "too large"), (1e-9, "too small")])
def test_a_scale_that_leaves_its_type_is_refused(factor: float, said: str) -> None:
    with pytest.raises(LossyExport, match=said):
        gguf_scales.scaled_rows(
            random_rows("Q8_0"), "Q8_0", np.full(ROWS, factor), RoundingErrors("float16", scales=True), "k"
        )


def test_scales_below_the_normal_range_are_counted() -> None:
    errors = RoundingErrors("float16", scales=True)
    gguf_scales.scaled_rows(random_rows("Q8_0"), "Q8_0", np.full(ROWS, 1e-3), errors, "k")
    assert errors.subnormal > 0
    assert errors.highest > HALF_STEP


def view(dtype: str) -> FoldTargets:
    return FoldTargets(
        get("llama"), {}, RopeSet({}, 1, 1), {"k": StoredTensor(Path(), 0, 0, dtype, (4, 256), 1, "values")}, {}
    )


def edit() -> TensorEdit:
    return TensorEdit("k", "scale", 4, (0,), 4, factors=(1.3,), reason="why")


def test_the_plan_says_where_the_factor_goes() -> None:
    assert gguf_scales.on_blocks([edit()], view("F32"))[0].reason == "why"
    assert gguf_scales.on_blocks([edit()], view("Q4_K"))[0].reason == "why, in the float16 scales of the Q4_K blocks"
    assert gguf_scales.on_blocks([edit()], view("Q4_K"), "F32")[0].reason == "why, the Q4_K numbers as F32"
    with pytest.raises(ConfigError, match="must be one of F32"):
        gguf_scales.on_blocks([edit()], view("Q4_K"), "F64")


@pytest.mark.parametrize("dtype", ["IQ1_M", "NVFP4", "Q1_0", "I8"])
def test_other_types_are_refused_with_a_way_out(dtype: str) -> None:
    with pytest.raises(UnsupportedDtype, match="no float16 scale") as caught:
        gguf_scales.on_blocks([edit()], view(dtype))
    assert caught.value.try_.startswith("--bake-dtype f32")
