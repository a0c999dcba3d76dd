"""Columns within the width of a terminal, and without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from running import run

import ropetool
from ropetool.files.counting import byte_size
from ropetool.report.terminal import terminal_text, wrapped
from ropetool.sections import Line, Section, Table, counted, listing, row

ROWS = [("config.json", "rope_scaling", "null -> " + " ".join(f"{i}.5," for i in range(60))), ("a", "b", "short")]


def columns(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return a list without a title."""
    return terminal_text([listing("", rows)], width)


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


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1000, "1,000 bytes"), (1024, "1.00 KiB"), (2**20 - 1, "1.00 MiB"), (2**30, "1.00 GiB"),
     (2**42, "4.00 TiB"), (2**52, "4,096.00 TiB")],
)  # fmt: skip
def test_a_size_is_told_in_its_largest_unit(count: int, words: str) -> None:
    assert byte_size(count) == words


def test_the_cache_of_a_long_context_is_told_in_gib() -> None:
    done = run("advise", str(Path(ropetool.__file__).parent / "demo" / "model"), "--target-length", "2147483648")
    assert "KV cache            4.00 TiB per sequence" in done.out


def test_a_titled_list_has_a_blank_line_above_unless_it_is_first() -> None:
    parts = [
        listing("one", [("a", "b")]),
        listing("two", [("c", "d")], depth=1),
        listing("", [("e",)], depth=-1),
        "",
        "end",
    ]
    assert terminal_text(parts) == "one\n  a  b\n\n  two\n    c  d\ne\n\nend\n"
    assert terminal_text([listing("", [])]) == ""


def test_figures_of_a_list_are_aligned_to_the_right_and_letters_of_two_places_count_as_two() -> None:
    shown = terminal_text([listing("t", [("重み", "7", "x"), ("ab", "100", "y")], head=("", "n", ""), figures=(1,))])
    assert shown == "t\n          n\n  重み    7  x\n  ab    100  y\n"


def test_a_command_to_copy_is_never_broken_and_foreign_control_characters_are_escaped() -> None:
    line = "ropetool " + "word " * 30 + "\x1b[2J\n"
    (shown,) = terminal_text([listing("", [(line,)], whole=True)], 40).splitlines()
    assert shown.endswith("word \\x1b[2J\\n")
    assert terminal_text(["\x1b", Line("\n")], 40) == "\\x1b\n\\n\n"


def test_a_text_of_several_lines_is_wrapped_only_within_a_width() -> None:
    text = Line("one two\nthree", breaks=True)
    assert terminal_text([text]) == "one two\nthree\n"
    assert terminal_text([text], 9) == "one two\nthree\n"
    assert terminal_text([text], 20) == "one two three\n"


def test_the_option_that_explains_is_named_where_a_legend_is_left_out() -> None:
    section = Section("x", "T", Table(("a",), (row("1"),)), (("a", "the meaning"),))
    assert "--explain" in terminal_text([section])
    assert "--explain" not in terminal_text([section], explained=True)
    assert "the meaning" in terminal_text([section], explained=True)
    assert "--explain" not in terminal_text([listing("x", [("a",)])])


def test_things_are_counted_in_words() -> None:
    assert (counted(1, "text"), counted(2, "text")) == ("1 text", "2 texts")
