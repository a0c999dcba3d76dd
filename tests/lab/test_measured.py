"""The closed forms that are compared with YaRN's defaults, on usages written by hand."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from loading import script

from ropetool.lab.usage.measuring import Usage
from ropetool.rope import arithmetic


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    script("lab/train")  # puts the folder on the path
    return script("lab/measured")


def usage(copies: list[list[float]], by_pair: list[float]) -> Usage:
    shares = np.array(copies)
    pairs = np.broadcast_to(by_pair, (*shares.shape, len(by_pair)))
    inv_freq = 1e4 ** (-np.arange(len(by_pair)) / len(by_pair))
    return Usage("model", 4096, 256, "text", tuple(range(len(copies))), shares, shares, shares, pairs, inv_freq)


def test_the_ramp_ends_where_the_slower_pairs_carry_95_percent(measured: ModuleType) -> None:
    some = usage([[0.5, 0.1]], [0.01, 0.01, 0.02, 0.16, 0.3, 0.3, 0.1, 0.1])
    turns = arithmetic.turns(some.inv_freq, 4096)
    assert measured.beta_fast(some) == pytest.approx(turns[3])  # from pair 3 on: 96 %; from pair 4 on: 80 %
    slow = usage([[0.5, 0.1]], [0, 0, 0, 0, 0, 0, 0, 1])
    assert measured.beta_fast(slow) == 1.01  # the ramp never ends below one turn


def test_heads_are_weighed_by_what_they_copy(measured: ModuleType) -> None:
    two = usage([[0.9, 0.1]], [0.5, 0.5, 0, 0])
    pairs = np.stack([np.array([0, 0, 1.0, 0]), np.array([1.0, 0, 0, 0])])[None]
    apart = Usage(two.name, 4096, 256, "text", (0,), two.first, two.far, two.copies, pairs, two.inv_freq)
    assert measured.beta_fast(apart) == pytest.approx(arithmetic.turns(two.inv_freq, 4096)[0])  # 10 % are in pair 0
    alone = Usage(two.name, 4096, 256, "text", (0,), two.first, two.far, np.array([[1.0, 0.0]]), pairs, two.inv_freq)
    assert measured.beta_fast(alone) == pytest.approx(max(arithmetic.turns(two.inv_freq, 4096)[2], 1.01))


def test_few_heads_get_a_gain_in_one_half(measured: ModuleType) -> None:
    copies = np.linspace(0, 0.5, 40).reshape(4, 10)
    gains = np.array(measured.head_gains(copies, 1, 1.1))
    assert gains.shape == (4, 10, 2)
    assert np.argwhere(gains == 1.1).tolist() == [[3, 8, 1], [3, 9, 1]]  # 5 % of 40 heads
    assert np.sum(gains == 1) == 78
    assert np.argwhere(np.array(measured.head_gains(-copies, 0, 0.5)) == 0.5).tolist() == [[0, 0, 0], [0, 1, 0]]


def test_the_record_has_every_plan(measured: ModuleType) -> None:
    record = measured.known("measured")
    assert record.keys() == measured.SUBJECTS.keys()
    for name, figures in record.items():
        assert figures.keys() == {"beta_fast", "yarn", *measured.SUBJECTS[name].plans}
        empty = [plan for plan, scores in figures.items() if scores is None]
        assert empty in ([], ["tune"])  # a search may find nothing
