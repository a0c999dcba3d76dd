"""The second half of the demo: losses against truncation, the limit, and the larger factor beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import sample

from ropetool.report.demonstrated import stricter_section
from ropetool.report.verified import section_text
from ropetool.verification.results import VerifyResult


def held_to(result: VerifyResult, limit: float) -> VerifyResult:
    return replace(result, lengths=tuple(replace(entry, holds=entry.ratio <= limit) for entry in result.lengths))


def test_before_is_what_truncation_costs() -> None:
    result = sample.full()
    section = stricter_section("T", held_to(result, 1.1), 1.1, result)
    for cells, entry in zip(section.table.rows, result.lengths, strict=True):
        length, before, loss, ratio, within = (cell.text for cell in cells)
        assert int(length) == entry.length
        if entry.difference_to_truncation is not None:
            assert math.isclose(float(loss) - float(before), entry.difference_to_truncation.mean, abs_tol=1.1e-3)
        assert math.isclose(float(ratio), entry.ratio, rel_tol=5e-3)
        assert within == ("yes" if entry.ratio <= 1.1 else "no")
    assert {cells[-1].text for cells in section.table.rows} == {"yes", "no"}


def test_it_fits_a_terminal_of_80_columns_and_says_how_the_larger_factor_did() -> None:
    result = sample.full()
    lines = section_text(stricter_section("T", result, 1.1, result)).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("demo-yarn-8x, above: ratios" in line and "outside 1.1" in line for line in lines)
    wide = section_text(stricter_section("T", result, 99, result))
    assert "outside" not in wide
