"""Results as plain data for people: lines, sections with tables of ready-made text, and numbers as text.

Each result and each measure becomes these objects and charts once. The writers in `report` turn them into text, HTML
and images.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ropetool.charts import Chart, Interval

NONE = "-"
GOOD, BAD, WARN = "good", "bad", "warn"
BOLD, DIM = "bold", "dim"
TONES = {"pass": GOOD, "fail": BAD, "partial": WARN, "undecided": WARN, "not run": WARN, "inexact": WARN}


@dataclass(frozen=True)
class Line:
    """A sentence, which is wrapped at the width of a terminal.

    style: `DIM` for a side remark, else empty.
    lead: styles of the words before the first colon, separated by spaces: `BOLD` and a tone; empty for none.
    indent: characters in front of each line but the first.
    breaks: the line ends of the text are kept if lines may have any length.
    """

    text: str
    style: str = ""
    lead: str = ""
    indent: int = 0
    breaks: bool = False


@dataclass(frozen=True)
class Cell:
    """A text, and its tone: `GOOD`, `BAD`, `WARN`, or empty for a plain figure."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head.

    head: the names of the columns; empty for none.
    words: the columns that contain words; all others contain figures.
    title: the title of a detail.
    listed: a list of facts, which a terminal shows without a rule below the head.
    whole: the last column contains commands, values or paths to copy, which are never broken.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: tuple[int, ...] = ()
    title: str = ""
    listed: bool = False
    whole: bool = False

    @property
    def ends_in_sentences(self) -> bool:
        """Whether the last column contains sentences, which may be broken: it has words, but no name."""
        return len(self.head) - 1 in self.words and not self.head[-1]


@dataclass(frozen=True)
class Section:
    """A table with its title.

    key: the name of the section, which charts refer to; empty for a section that is only shown in a terminal.
    legend: columns and their meaning.
    details: tables that only a page has room for.
    depth: the indentation of a list: -1 for none, 0 for two characters, 1 for four characters.
    """

    key: str
    title: str
    table: Table
    legend: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    details: tuple[Table, ...] = ()
    depth: int = 0


Part: TypeAlias = "str | Line | Section | Chart"
"""A part of a result: a string is one line, which is never broken."""


def row(*cells: str | Cell) -> tuple[Cell, ...]:
    """Return cells, plain ones from strings."""
    return tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in cells)


def listing(
    title: str,
    rows: Iterable[Sequence[str]],
    *,
    head: Sequence[str] = (),
    figures: Sequence[int] = (),
    depth: int = 0,
    whole: bool = False,
) -> Section:
    """Return a list of facts below a title.

    figures: the columns that are aligned to the right.
    depth, whole: see `Section` and `Table`.
    """
    cells = tuple(row(*texts) for texts in rows)
    columns = len(head) or max(map(len, cells), default=0)
    words = tuple(index for index in range(columns) if index not in figures)
    return Section("", title, Table(tuple(head), cells, words, listed=True, whole=whole), depth=depth)


def csv_text(table: Table) -> str:
    """Return a table as CSV, the head first."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [table.head, *([cell.text for cell in cells] for cells in table.rows)]
    )
    return text.getvalue()


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: 1 text, 2 texts."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def yes_no(value: bool | None, otherwise: str) -> Cell:
    """Return yes, which is good, or no, which is `otherwise`."""
    return Cell(NONE) if value is None else Cell("yes", GOOD) if value else Cell("no", otherwise)


def number(value: float) -> str:
    """Return a number with three digits, in whole ones from 100 on, with an exponent from 1e5 on and below 1e-3."""
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if size >= 1e5 or size < 1e-3:
        return _short(f"{value:.1e}")
    return f"{value:.0f}" if size >= 99.95 else f"{value:#.3g}"


def optional(value: float | None) -> str:
    """Return a number as `number` does, or a dash for None."""
    return NONE if value is None else number(value)


def exact(value: float | None) -> str:
    """Return a number with five digits, so that one just above a limit does not look equal to it."""
    return NONE if value is None else _short(f"{value:.5g}")


def _short(text: str) -> str:
    """Return a number without the padding of its exponent."""
    digits, sign, exponent = text.partition("e")
    return f"{digits}e{int(exponent)}" if sign else text


def perplexity(loss: Interval | None) -> str:
    """Return exp of a loss and of the ends of its interval."""
    if loss is None:
        return NONE
    mean, low, high = (number(math.exp(min(value, 709))) for value in (loss.mean, loss.low, loss.high))
    return f"{mean} (no interval)" if math.isinf(loss.high) else f"{mean} ({low}-{high})"


def with_interval(value: Interval | None) -> str:
    """Return a mean with the ends of its interval."""
    if value is None:
        return NONE
    if math.isinf(value.high):
        return f"{value.mean:.3f} (no interval)"
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def change(difference: Interval | None, sign: int = 1) -> str:
    """Return a difference, or with sign -1 its opposite, ± its 95 % interval."""
    if difference is None:
        return NONE
    mean = sign * difference.mean + 0.0  # no minus before a zero
    reach = half_width(difference)
    return f"{mean:+.3f} ± {'?' if math.isinf(reach) else f'{reach:.3f}'}"


def half_width(value: Interval) -> float:
    """Return half the width of an interval."""
    return (value.high - value.low) / 2
