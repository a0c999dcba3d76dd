"""Which candidate is taken: the best within the regression allowed, and YaRN where nothing is surely better."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropetool.choosing.choice import choose
from ropetool.choosing.ranking import ranked
from ropetool.errors import ConfigError

DOCUMENTS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def made(levels: dict[str, float], regressions: dict[str, float]) -> Any:
    """Return a comparison at 512 tokens: losses above a common hardness, and the worst ratio of each within 256."""
    draw = np.random.default_rng(5)
    hardness = draw.normal(3, 1, size=(12, 16))
    losses = {
        name: hardness + level + draw.normal(0, 0.02, size=6)[DOCUMENTS][:, None] for name, level in levels.items()
    }
    candidates = {
        name: SimpleNamespace(
            name=name, plan=SimpleNamespace(method=name.split()[0]), regression=SimpleNamespace(ratio=regressions[name])
        )
        for name in levels
    }
    return SimpleNamespace(
        rankings=(ranked(512, losses, DOCUMENTS),), grade="usable", trained_length=256, candidate=candidates.__getitem__
    )


def test_the_best_is_taken_where_it_is_surely_better() -> None:
    found = choose(made({"yarn x2": 0.5, "llama3 x2": 0.0}, {"yarn x2": 1.04, "llama3 x2": 1.01}))
    assert found.candidate.name == "llama3 x2"
    assert found.why == (
        "the lowest loss at 512 tokens, significantly better than yarn x2; within 256 tokens at most 1.01 times the source's perplexity"
    )


def test_what_is_not_told_apart_leaves_the_default() -> None:
    found = choose(made({"yarn x2": 0.01, "llama3 x2": 0.0}, {"yarn x2": 1.04, "llama3 x2": 1.01}))
    assert found.candidate.name == "yarn x2"
    assert "not significantly better than the default" in found.why


def test_a_regression_above_the_bound_is_left_out_unless_all_are() -> None:
    levels, costs = (
        {"yarn x2": 0.5, "ntk x2": 0.3, "llama3 x2": 0.0},
        {"yarn x2": 1.04, "ntk x2": 1.02, "llama3 x2": 1.3},
    )
    found = choose(made(levels, costs))
    assert found.candidate.name == "ntk x2"
    assert found.why.endswith("above 1.1: llama3 x2")
    assert choose(made(levels, costs), max_regression=1.5).candidate.name == "llama3 x2"
    none = choose(made(levels, costs), max_regression=1.01)
    assert none.candidate.name == "llama3 x2"
    assert none.why.endswith("all candidates exceed 1.01")


def test_nothing_ranked_is_nothing_chosen() -> None:
    empty = SimpleNamespace(rankings=())
    with pytest.raises(ConfigError, match="none were measured"):
        choose(empty)  # type: ignore[arg-type]
