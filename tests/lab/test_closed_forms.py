"""The table of closed forms, from figures written by hand."""

from __future__ import annotations

import importlib
import math
from types import ModuleType

import numpy as np
import pytest
from loading import script

DEFAULT = [2.0, 3.0, 2.5, 2.2]


@pytest.fixture(scope="module")
def closed_forms() -> ModuleType:
    script("lab/train")  # puts the folder on the path
    return importlib.import_module("closed_forms")


def record(**losses: list[float]) -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    return {"demo-2x": {name: {"512": {"loss": values}} for name, values in {"yarn": DEFAULT, **losses}.items()}}


def shifted(differences: list[float]) -> list[float]:
    return np.add(DEFAULT, differences).tolist()


def student(values: list[float]) -> tuple[float, float]:
    """Return half of the 95 % interval of the mean of four values, and the two-sided p value that it is 0.

    With three degrees of freedom, P(T < t) is 1/2 + (x / (1 + x^2) + arctan x) / pi, where x is t / sqrt(3).
    """
    error = float(np.std(values, ddof=1)) / 2
    x = abs(float(np.mean(values))) / error / math.sqrt(3)
    return 3.182446305 * error, 1 - 2 * (x / (1 + x**2) + math.atan(x)) / math.pi


def test_a_plan_is_compared_with_the_default_on_the_same_texts(closed_forms: ModuleType) -> None:
    better = [1.9, 2.85, 2.42, 2.08]
    estimate = closed_forms.differences(record(ramp=better))["demo-2x", "512", "ramp"]
    half, _ = student([-0.1, -0.15, -0.08, -0.12])
    assert estimate.mean == pytest.approx(-0.1125)
    assert (estimate.low, estimate.high) == pytest.approx((-0.1125 - half, -0.1125 + half))


def test_bold_differences_are_significant_over_the_whole_table(closed_forms: ModuleType) -> None:
    sure = shifted([-0.100, -0.101, -0.099, -0.100])
    worse = [0.10, 0.02, 0.11, 0.08]
    alone = shifted(worse)  # significant as the only cell, but not as one of five
    assert 0.05 / 4 < student(worse)[1] < 0.05
    same = shifted([0.01, -0.01, 0.02, -0.02])
    cells = closed_forms.differences(record(ramp=sure, gains=alone, halved=same, both=same, tune=same))
    assert closed_forms.significant(cells) == {("demo-2x", "512", "ramp")}
    assert closed_forms.significant({cell: each for cell, each in cells.items() if cell[2] == "gains"}) == {
        ("demo-2x", "512", "gains")
    }


def test_a_line_shows_the_loss_and_the_differences(closed_forms: ModuleType) -> None:
    some = record(ramp=[1.9, 2.9, 2.4, 2.1])
    some["demo-2x"]["beta_fast"] = 2.008
    (line,) = closed_forms._lines(some)
    assert line == "| demo 2x | 512 | 2.01 | 2.425 | **-0.1000 ± 0.0000** |  |  |  |  |"
