"""What one program computes otherwise than another: each part of it, in words, with what it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable, Temperature

FULL, SLIDING = "full_attention", "sliding_attention"
BASE = base_inv_freq(10000.0, 32)
ENTRY = LayerRope("default", RopeTable.fixed(BASE), 32, 32, "half", (0, 1))
LISTS = RopeTable((Regime(BASE, 1.0, up_to=512), Regime(BASE / 4, 1.0)))
OTHER_RULE = RopeTable((Regime(BASE, 1.0),), rule=lambda length: Regime(BASE, 1.0), rule_key=("b", 2.0))
RULE = RopeTable((Regime(BASE, 1.0),), rule=lambda length: Regime(BASE, 1.0), rule_key=("b", 1.0))


def differences(first: RopeSet, other: RopeSet) -> list[str]:
    return [str(one) for one in first.differences(other)]


def rope_set(entry: LayerRope = ENTRY, context: int = 512) -> RopeSet:
    return RopeSet({FULL: entry}, context, 512)


CHANGES = {
    "faster": (
        {"table": RopeTable.fixed(np.r_[BASE[:2], 4 * BASE[2:]])},
        "table: 14 of 16 pairs differ: distances look up to 4x longer",
    ),
    "both ways": (
        {"table": RopeTable.fixed(np.r_[BASE[:2], BASE[2] * 2, BASE[3:] / 3])},
        "table: 14 of 16 pairs differ: distances look up to 2x longer or 3x shorter",
    ),
    "standing still": (
        {"table": RopeTable.fixed(np.r_[BASE[:15], 0.0])}, "table: 1 of 16 pairs differ: distances look up to infx shorter",
    ),
    "hardly": (
        {"table": RopeTable.fixed(np.r_[BASE[:2], BASE[2:8] * 1.00001, BASE[8:]])},
        "table: 6 of 16 pairs differ: distances look up to 1.00001x longer",
    ),
    "one way hardly": (
        {"table": RopeTable.fixed(np.r_[BASE[:2], BASE[2:8] * 1.00001, BASE[8:] / 2])},
        "table: 14 of 16 pairs differ: distances look up to 2x shorter",
    ),
    "factor": (
        {"table": RopeTable.fixed(BASE, 1.5)},
        "attention factor 1.5 instead of 1: scores of the rotated channels times 2.25",
    ),
    "fewer pairs": (
        {"rotary_dim": 16, "table": RopeTable.fixed(BASE[:8])}, "8 rotary pairs instead of 16: different channels rotate",
    ),
    "layout": (
        {"layout": "interleaved"}, "layout interleaved instead of half: different channels are paired, so the output is noise",
    ),
    "score": (
        {"softmax_multiplier": 2.0}, "the whole score is multiplied by 2 instead of 1: attention is sharper",
    ),
    "temperature": (
        {"temperature": Temperature(0.1, 512)},
        "the position temperature differs: attention far into a text is sharper or flatter",
    ),
    "window": (
        {"sliding_window": 64}, "a sliding window of 64 tokens instead of none: looks no further back",
    ),
    "layers": ({"layers": (0,)}, "other layers, 1 instead of 2: they rotate with a different table"),
    "no rotation": (
        {"table": None, "rotary_dim": 0}, "one rotates, the other does not: positions are lost or added",
    ),
    "by length": (
        {"table": RULE}, ("a table that depends on the length instead of one table for all lengths: some lengths get a different "
"table"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_said_alone(change: str) -> None:
    values, words = CHANGES[change]
    changed = replace(ENTRY, **values)
    assert differences(rope_set(), rope_set(changed)) == [words]
    assert differences(rope_set(changed), rope_set(changed)) == []


def test_several_are_said_together() -> None:
    other = replace(ENTRY, table=RopeTable.fixed(BASE / 2, 1.5), layout="interleaved")
    found = differences(rope_set(), rope_set(other, 256))
    assert [text.partition(" ")[0] for text in found] == ["context", "table:", "attention", "layout"]
    assert found[0] == "context 256 instead of 512: stops earlier"
    assert differences(rope_set(), rope_set(context=1024)) == ["context 1024 instead of 512: accepts longer texts"]


def test_a_window_that_is_missing() -> None:
    found = differences(rope_set(replace(ENTRY, sliding_window=64)), rope_set())
    assert found == ["no sliding window instead of 64 tokens: looks back to the beginning"]


def test_tables_that_follow_the_length() -> None:
    def said(one: RopeTable, other: RopeTable) -> list[str]:
        return differences(rope_set(replace(ENTRY, table=one)), rope_set(replace(ENTRY, table=other)))

    assert said(LISTS, RopeTable.fixed(BASE / 4)) == [
        "one table for all lengths instead of a table that depends on the length: some lengths get a different table"
    ]
    assert (
        said(LISTS, RULE)[0] == "the table depends on the length in a different way: some lengths get a different table"
    )
    later = RopeTable((Regime(BASE, 1.0, up_to=256), Regime(BASE / 4, 1.0)))
    assert said(LISTS, later) == ["the table changes at 256 tokens instead of 512"]
    assert said(RULE, OTHER_RULE) == ["the rule that depends on the length differs"]
    short = RopeTable((Regime(BASE * 2, 1.0, up_to=512), Regime(BASE / 4, 1.0)))
    assert said(LISTS, short) == ["the table up to 512 tokens differs"]
    assert said(LISTS, LISTS) == []


def test_kinds_of_layer() -> None:
    two = RopeSet({FULL: ENTRY, SLIDING: replace(ENTRY, sliding_window=64)}, 512, 512)
    assert differences(two, rope_set()) == [
        "layer types ['full_attention'] instead of ['full_attention', 'sliding_attention']"
    ]
    other = RopeSet({FULL: ENTRY, SLIDING: ENTRY}, 512, 512)
    assert differences(two, other) == [
        "sliding_attention: no sliding window instead of 64 tokens: looks back to the beginning"
    ]
