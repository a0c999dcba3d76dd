"""Columns within the width of a terminal, and without one."""

from __future__ import annotations

import pytest

from ropetool.report.layout import columns, wrapped

ROWS = [("config.json", "rope_scaling", "null -> " + " ".join(f"{i}.5," for i in range(60))), ("a", "b", "short")]


def words(text: str) -> list[str]:
    return text.split()


def test_without_a_width_a_row_is_a_line() -> None:
    lines = columns(ROWS).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("  config.json  rope_scaling  null -> 0.5, 1.5,")
    assert lines[1] == "  a            b             short"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_within_a_width_nothing_is_lost(width: int) -> None:
    text = columns(ROWS, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert words(text) == words(columns(ROWS))


def test_a_wide_last_column_stays_in_its_place_and_a_narrow_one_goes_below() -> None:
    wide, narrow = (columns(ROWS, width=width).splitlines() for width in (80, 50))
    assert len(wide[1]) - len(wide[1].lstrip()) == wide[0].index("null") == 29
    assert narrow[0] == "  config.json  rope_scaling"
    assert narrow[1].startswith("    null -> 0.5, 1.5,")


def test_a_word_that_is_longer_than_a_line_stays_whole() -> None:
    path = "/a" * 40
    assert path in columns([("output", path)], width=40).splitlines()[-1]
    assert wrapped("", 40, "Note: ") == "Note:\n"
    assert wrapped("one two three", 12, "Note: ") == "Note: one\n  two three\n"


@pytest.mark.parametrize("width", [20, 30, 80])
def test_a_command_in_backquotes_stays_on_one_line(width: int) -> None:
    """So that it can be copied: a line end in the middle of it would end it, or stand in a quoted word."""
    command = "`python -c 'import sys;  print(sys.argv)' " + "word " * 30 + "'a b'`"
    lines = wrapped(f"these words may be broken anywhere: {command}, and these words too", width, "Note: ").splitlines()
    (line,) = (line for line in lines if "`" in line)
    assert command in line
    assert len(lines) > 1
    assert max(len(one) for one in lines if one is not line) <= width
    assert "\0" not in "".join(lines)
    (cell,) = (one for one in columns([("reason", f"see {command}")], width=40).splitlines() if "`" in one)
    assert command in cell
