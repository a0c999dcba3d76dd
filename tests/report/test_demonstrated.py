"""The second half of the demo: losses against truncation, the limit, and the larger factor beside it."""

from __future__ import annotations

import math

import sample

from ropetool.report.demonstrated import stricter_section
from ropetool.report.terminal import section_text


def test_before_is_what_truncation_costs() -> None:
    result = sample.full()
    section = stricter_section("T", result, result)
    for cells, entry in zip(section.table.rows, result.lengths, strict=True):
        length, before, loss, ratio, upper, good = (cell.text for cell in cells)
        assert int(length) == entry.length
        if entry.difference_to_truncation is not None:
            assert math.isclose(float(loss) - float(before), entry.difference_to_truncation.mean, abs_tol=1.1e-3)
        assert math.isclose(float(ratio), entry.ratio, rel_tol=5e-3)
        assert math.isclose(float(upper), entry.upper or 0, rel_tol=5e-3)
        assert good == ("yes" if entry.holds else "no")
    broken = stricter_section("T", sample.failing(), result)
    assert {cells[-1].text for cells in broken.table.rows} == {"yes", "no"}


def test_it_fits_a_terminal_of_80_columns_and_says_how_the_larger_factor_did() -> None:
    result = sample.full()
    lines = section_text(stricter_section("T", result, result)).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("demo-yarn-8x, above: ratios" in line for line in lines)
