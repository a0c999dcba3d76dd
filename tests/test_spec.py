"""The plain data: what it refuses when it is made, and what it calls a difference."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import dynamic_table
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable, Temperature, is_number

TABLE = np.array([1.0, 0.1, 0.01, 0.0])


def layer(**changes: Any) -> LayerRope:
    base = LayerRope("default", RopeTable.fixed(TABLE), 8, 8, "half", (0, 1))
    return replace(base, **changes)


def fixed(inv_freq: Any = TABLE, attention_factor: float = 1.0) -> RopeTable:
    return RopeTable.fixed(inv_freq, attention_factor)


def bent(pair: int, by: float) -> np.ndarray:
    inv_freq = TABLE.copy()
    inv_freq[pair] *= by
    return inv_freq


def two_regimes(up_to: int = 4096, short: float = 1.0, long: float = 4.0) -> RopeTable:
    return RopeTable((Regime(TABLE / short, up_to=up_to), Regime(TABLE / long)))


@pytest.mark.parametrize("value", [0, -1, 1.5, np.float64(2.0)])
def test_numbers(value: Any) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, [1], 10**400])
def test_no_numbers(value: Any) -> None:
    assert not is_number(value)


# --- regimes


@pytest.mark.parametrize(
    ("inv_freq", "text"),
    [
        ([], r"the shape \(0,\)"),
        ([[1.0, 2.0]], r"the shape \(1, 2\)"),
        (1.0, r"the shape \(\)"),
        ([1.0, -0.1], r"inv_freq\[1\] is -0.1; it must be finite and not negative"),
        ([1.0, 0.1, math.nan], r"inv_freq\[2\] is nan"),
        ([math.inf], r"inv_freq\[0\] is inf"),
    ],
)
def test_table_refuses(inv_freq: Any, text: str) -> None:
    with pytest.raises(InvalidRope, match=text):
        Regime(inv_freq)


@pytest.mark.parametrize("attention_factor", [0.0, -1.0, math.nan, math.inf, "1.0", True, 10**400])
def test_attention_factor_is_a_number_above_0(attention_factor: Any) -> None:
    with pytest.raises(InvalidRope, match="it multiplies cos and sin and must be above 0"):
        Regime(TABLE, attention_factor)


def test_data_cannot_be_changed() -> None:
    mine = TABLE.copy()
    regime = Regime(mine)
    mine[0] = 7.0
    assert regime.inv_freq[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        regime.inv_freq[0] = 2.0
    with pytest.raises(FrozenInstanceError):
        regime.attention_factor = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([], "only the last regime must have no upper length"),
        ([4096], "the last regime"),
        ([None, None], "the last regime"),
        ([None, 4096], "the last regime"),
        ([8192, 4096, None], r"ordered by length, not \[8192, 4096\]"),
        ([4096, 4096, None], r"ordered by length, not \[4096, 4096\]"),
    ],
)
def test_regimes_are_ordered(limits: list[int | None], text: str) -> None:
    with pytest.raises(InvalidRope, match=text):
        RopeTable(tuple(Regime(TABLE, up_to=limit) for limit in limits))


def test_regimes_have_equally_many_pairs() -> None:
    with pytest.raises(InvalidRope, match=r"regimes of one table have \[4, 3\] rotary pairs"):
        RopeTable((Regime(TABLE, up_to=4096), Regime(TABLE[:3])))


def test_regime_is_chosen_by_length() -> None:
    table = RopeTable((Regime(TABLE, up_to=10), Regime(TABLE / 2, up_to=20), Regime(TABLE / 4)))
    assert [table.at(n).inv_freq[0] for n in (0, 1, 10, 11, 20, 21, 10**9)] == [1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert not table.is_fixed
    assert fixed().is_fixed


def test_rule_is_asked_at_every_length() -> None:
    table = RopeTable((Regime(TABLE),), rule=lambda n: Regime(TABLE / n), rule_key=("shrinking",))
    assert [table.at(n).inv_freq[0] for n in (1, 4)] == [1, 0.25]
    assert not table.is_fixed


# --- agreement


@pytest.mark.parametrize("by", [1 + 0.9e-6, 1 - 0.9e-6])
def test_tables_agree_within_the_tolerance(by: float) -> None:
    assert fixed().agrees(fixed(bent(1, by)))
    assert fixed().agrees(fixed(attention_factor=by))
    assert not fixed().agrees(fixed(bent(1, by)), tolerance=1e-7)


@pytest.mark.parametrize("by", [1 + 1.1e-6, 1 - 1.1e-6, 2.0, 0.0])
def test_tables_disagree_beyond_it(by: float) -> None:
    assert not fixed().agrees(fixed(bent(2, by)))
    assert not fixed(bent(2, by)).agrees(fixed())


def test_a_pair_that_stands_still_agrees_with_itself_alone() -> None:
    moving = TABLE.copy()
    moving[3] = 1e-300
    assert fixed().agrees(fixed())
    assert not fixed().agrees(fixed(moving))
    assert not fixed(moving).agrees(fixed())


def test_regimes_agree_when_all_do() -> None:
    assert two_regimes().agrees(two_regimes())
    assert not two_regimes().agrees(two_regimes(up_to=8192))
    assert not two_regimes().agrees(two_regimes(short=1.1))
    assert not two_regimes().agrees(two_regimes(long=4.1))
    assert not two_regimes().agrees(fixed())


def test_rules_are_compared_by_their_keys() -> None:
    rule = dynamic_table(TABLE, 4096, 8.0)
    assert rule.agrees(dynamic_table(TABLE, 4096, 8.0 * (1 + 1e-7)))
    assert not rule.agrees(dynamic_table(TABLE, 4096, 8.1))
    assert not rule.agrees(dynamic_table(TABLE, 8192, 8.0))
    assert not rule.agrees(dynamic_table(bent(0, 1.01), 4096, 8.0))
    assert not rule.agrees(dynamic_table(TABLE, 4096, 8.0, attention_factor=1.1))
    assert not rule.agrees(fixed())
    assert not fixed().agrees(rule)
    assert not rule.agrees(replace(rule, rule_key=("another", 8.0, 4096)))
    assert not rule.agrees(replace(rule, rule_key=("dynamic", 8.0)))


# --- layers


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layout": "neox"}, "layout is 'neox'; it must be half or interleaved"),
        ({"rotary_dim": 6}, "a table of 4 pairs does not fit rotary_dim 6"),
        ({"head_dim": 6}, "rotary_dim 8 is above head_dim 6"),
        ({"softmax_multiplier": 0.0}, "softmax_multiplier is 0.0"),
        ({"softmax_multiplier": math.nan}, "softmax_multiplier is nan"),
    ],
)
def test_layer_refuses(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRope, match=text):
        layer(**changes)


def test_score_multipliers() -> None:
    scaled = layer(table=fixed(attention_factor=1.2), softmax_multiplier=1.5)
    assert scaled.score_rotary == pytest.approx(2.16)
    assert scaled.score_plain == 1.5
    assert layer(table=None, rotary_dim=0).attention_factor == 1
    assert layer(table=RopeTable((Regime(TABLE, up_to=9), Regime(TABLE, 1.3)))).attention_factor == 1.3


def test_differences_have_the_tolerance_of_agreement() -> None:
    for by in (1 + 0.9e-6, 1 - 0.9e-6):
        assert layer().differences(layer(table=fixed(bent(0, by)))) == ()
    for by in (1 + 1.1e-6, 1 - 1.1e-6):
        (found,) = layer().differences(layer(table=fixed(bent(0, by))))
        assert (found.field, found.words) == ("inv_freq", "table: 1 of 4 pairs differ")


def test_what_does_not_reach_the_score_is_no_difference() -> None:
    # a YaRN table stored as lists scores like the YaRN keys
    same = layer(rope_type="longrope", rope_theta=1e4, factor=4.0, params={"factor": 4})
    assert layer().differences(same) == ()
    grows = layer(temperature=Temperature(0.1, 8192))
    assert grows.differences(layer(temperature=Temperature(0.1 * (1 + 1e-9), 8192))) == ()


def test_a_window_that_no_text_leaves_is_none() -> None:
    assert layer(sliding_window=64).within(64).sliding_window is None
    assert layer(sliding_window=64).within(65).sliding_window == 64


# --- sets


def rope_set(**entries: LayerRope) -> RopeSet:
    return RopeSet(entries, 8192, 4096)


def test_set_names_the_layer_type_when_there_are_several() -> None:
    other = layer(softmax_multiplier=2.0)
    text = "the whole score is multiplied by 2 instead of 1: attention is sharper"
    (found,) = rope_set(full_attention=layer()).differences(rope_set(full_attention=other))
    assert (str(found), found.field, found.first, found.other) == (text, "softmax_multiplier", 1.0, 2.0)
    both = rope_set(full_attention=layer(), sliding_attention=layer())
    assert both.differences(both) == ()
    (found,) = both.differences(both.with_entry("sliding_attention", other))
    assert (found.layer_type, str(found)) == ("sliding_attention", f"sliding_attention: {text}")
    assert both.disagreement(both.with_entry("sliding_attention", other)) == str(found)


def test_a_context_alone_is_no_disagreement() -> None:
    longer = RopeSet({"full_attention": layer()}, 16384, 4096)
    assert rope_set(full_attention=layer()).disagreement(longer) == ""
    assert [one.field for one in rope_set(full_attention=layer()).differences(longer)] == ["max_position_embeddings"]


def test_set_of_other_layer_types() -> None:
    one, two = rope_set(full_attention=layer()), rope_set(full_attention=layer(), sliding_attention=layer())
    text = "layer types ['full_attention'] instead of ['full_attention', 'sliding_attention']"
    assert two.disagreement(one) == text


def test_with_entry_leaves_the_original() -> None:
    one = rope_set(full_attention=layer())
    other = one.with_entry("full_attention", layer(softmax_multiplier=2.0))
    assert one.entries["full_attention"].softmax_multiplier == 1
    assert other.entries["full_attention"].softmax_multiplier == 2
    assert (other.max_position_embeddings, other.original_max_position_embeddings) == (8192, 4096)
