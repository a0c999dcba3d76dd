"""Tensor edits as data: what is accepted, how several of one tensor add up, and the row selectors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropetool import families
from ropetool.errors import ConfigError, UnknownName
from ropetool.families.rows import SELECTORS, Sizes, select
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.weights.edits import PERMUTE, SCALE, TensorEdit, by_tensor, row_change


@st.composite
def edits(draw: st.DrawFn) -> TensorEdit:
    length = draw(st.integers(1, 5))
    starts = draw(st.lists(st.integers(0, 11 // length), min_size=1, max_size=3, unique=True))
    begins = tuple(length * start for start in starts if length * start + length <= 12) or (0,)
    if draw(st.booleans()):
        factors = draw(st.lists(st.floats(0.1, 4), min_size=length, max_size=length))
        return TensorEdit("t", SCALE, 12, begins, length, factors=tuple(factors), reason="a")
    return TensorEdit("t", PERMUTE, 12, begins, length, order=tuple(draw(st.permutations(range(length)))), reason="b")


@given(st.lists(edits(), min_size=1, max_size=6))
def test_several_edits_are_one_change(found: list[TensorEdit]) -> None:
    """Carried out one after the other on a vector, block by block, in plain Python."""
    values = [float(2**i) for i in range(12)]
    for edit in found:
        for start in edit.starts:
            block = values[start : start + edit.length]
            if edit.operation == PERMUTE:
                block = [block[i] for i in edit.order]
            else:
                block = [value * factor for value, factor in zip(block, edit.factors, strict=True)]
            values[start : start + edit.length] = block
    change = row_change(found)
    old = np.array([float(2**i) for i in range(12)])
    np.testing.assert_allclose(old[change.source] * change.factor, values, rtol=1e-14)


@given(edits())
def test_an_edit_survives_json(edit: TensorEdit) -> None:
    assert TensorEdit.from_json(json.loads(json.dumps(edit.to_json()))) == edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": (0, 2)}, "overlap"), ({"starts": (10,)}, "do not fit in 12 rows"), ({"starts": ()}, "do not fit"),
        ({"length": 0}, "do not fit"), ({"factors": (1.0, 2.0)}, "blocks of 4 rows need 1 or 4 factors"),
        ({"factors": (-1.0,)}, "factors of at least 0"), ({"factors": (float("nan"),)}, "factors of at least 0"),
        ({"operation": "add"}, "must be scale or permute"),
        ({"operation": PERMUTE, "order": (0, 1, 2, 2)}, "not a permutation"), ({"starts": (-4,)}, "do not fit"),
    ],
)  # fmt: skip
def test_a_broken_edit_is_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "tensor": "t", "operation": SCALE, "height": 12, "starts": (0, 4), "length": 4, "factors": (2.0,),
    }  # fmt: skip
    assert TensorEdit(**good).rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ConfigError, match=message):
        TensorEdit(**{**good, **change})


def test_edits_that_undo_each_other_touch_nothing() -> None:
    twice = TensorEdit("t", SCALE, 4, (0,), 4, factors=(2.0,))
    half = TensorEdit("t", SCALE, 4, (0,), 4, factors=(0.5,))
    assert by_tensor([twice, half]) == {}
    assert by_tensor([twice])["t"].touched.all()
    with pytest.raises(ConfigError, match="disagree on its height"):
        row_change([twice, TensorEdit("t", SCALE, 8, (0,), 8, factors=(2.0,))])


# --- rows


def test_the_selectors_name_disjoint_rows_of_the_two_sides() -> None:
    mla = {"kv_lora_rank": 5, "q_lora_rank": 6, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4}
    config = {**mla, "index_head_dim": 4, "num_kv_heads": 2, "new_decoder_architecture": True}
    sizes = Sizes(4, 2, 6, config)
    for name in SELECTORS:
        rows = {}
        for side in ("q", "k"):
            found = select(name, sizes, side)
            rows[side] = {start + i for start in found.starts for i in range(found.width)}
            assert len(rows[side]) == len(found.starts) * found.width, name
            assert max(rows[side]) < found.height, name
            assert 0 <= found.rotary < found.width, name
        if name.startswith(("fused", "falcon")):
            assert not rows["q"] & rows["k"], name


@pytest.mark.parametrize(
    ("config", "queries", "keys", "height"),
    [
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, (0, 2, 8, 10), (4, 12), 16),
        ({"multi_query": True}, (0, 2, 4, 6), (8,), 12),
        ({"multi_query": False}, (0, 6, 12, 18), (2, 8, 14, 20), 24),
    ],
)
def test_falcon_has_three_forms(
    config: dict[str, Any], queries: tuple[int, ...], keys: tuple[int, ...], height: int
) -> None:
    sizes = Sizes(4, 4, 2, config)
    assert (select("falcon", sizes, "q").starts, select("falcon", sizes, "k").starts) == (queries, keys)
    assert select("falcon", sizes, "q").height == height


def test_every_family_names_selectors_that_exist() -> None:
    known = [families.get(name).bake for name in families.names()]
    described = [folding.steps(archs.get(name)) for name in folding.known() if not folding.refused(name)]
    stages = [
        stage
        for steps in (*known, *described)
        if steps
        for part in (steps.q, steps.k, steps.k_plain, steps.score, steps.indexer_k)
        for stage in part
    ]
    assert len(stages) > 60
    assert {stage.rows for stage in stages} == set(SELECTORS)
    with pytest.raises(UnknownName, match="no row selector is called 'head'"):
        select("head", Sizes(1, 1, 2, {}), "q")
    with pytest.raises(ConfigError, match="kv_lora_rank is null; it must be a whole number"):
        select("mla_rope_key", Sizes(1, 1, 2, {}), "k")
