"""Sections and lines for a terminal: tables in as many parts as its width asks for, colours, legends on request."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ropetool.escaping import escaped
from ropetool.sections import BAD, GOOD, NONE, WARN, Cell, Section, Table

POINTER = "Pass --explain for a description of the columns below each table. The pages of --report contain it too."
WIDTH, NARROW = 120, 80
BESIDE = 30  # columns that words need to stand beside figures, and not below them
GAP = "  "
STYLES = {GOOD: "green", BAD: "red", WARN: "yellow", "": ""}


def section_text(section: Section) -> str:
    """Return one section with its legend as text for a terminal of 80 columns, without colours."""
    console = console_of(colour=False)
    print_section(console, section, NARROW, explained=True)
    return written(console)


def console_of(colour: bool) -> Console:
    """Return what collects lines of text, with colours or without."""
    return Console(
        file=io.StringIO(), width=WIDTH, highlight=False, force_terminal=colour, no_color=False,
        color_system="standard" if colour else None,
    )  # fmt: skip


def put(console: Console, text: Text) -> None:
    """Add a line."""
    console.print(text, soft_wrap=True)


def written(console: Console) -> str:
    """Return all lines that were added."""
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def print_section(console: Console, section: Section, width: int, explained: bool) -> None:
    """Add a section: its title, its table within the width, and below it notes and, where asked for, what its columns mean."""
    put(console, Text())
    for line in textwrap.wrap(escaped(section.title), width, break_on_hyphens=False):
        put(console, Text(line, style="bold"))
    for columns in _parts(section.table, width):
        for row in _lines(section.table, columns, width):
            put(console, row)
    below = list(_below(section, width, explained))
    for line in ["", *below] if below else []:
        put(console, Text(line, style="dim"))


def _parts(table: Table, width: int) -> list[list[int]]:
    """Return the columns that stand beside each other: all, or several times as many as fit, behind the first column.

    A column without a value in any row is left out.
    """
    wide = [_wide(table, index) for index in range(len(table.head))]
    rest = [i for i in range(1, len(wide)) if any(row[i].text != NONE for row in table.rows)]
    words = [rest.pop()] if table.ends_in_sentences and rest[-1:] == [len(wide) - 1] else []
    parts = [[0]]
    for index in rest:
        if len(parts[-1]) > 1 and sum(wide[i] + len(GAP) for i in [*parts[-1], index]) > width:
            parts.append([0])
        parts[-1].append(index)
    parts[-1] += words
    return parts


def _wide(table: Table, index: int) -> int:
    """Return how many places of a terminal the widest cell of a column takes."""
    return max(cell_len(text) for text in (table.head[index], *(escaped(row[index].text) for row in table.rows)))


def _lines(table: Table, columns: Sequence[int], width: int) -> Iterator[Text]:
    """Yield head, rule and rows of some columns; words in the last column end at the width, beside the others or below."""
    flowing = [index for index in columns[1:] if index == len(table.head) - 1 and table.ends_in_sentences]
    fixed = [index for index in columns if index not in flowing]
    wide = {index: _wide(table, index) for index in fixed}
    start = 1 + sum(size + len(GAP) for size in wide.values())  # what stands in front of words beside the others
    beside = width - start >= BESIDE
    indent, room = (start, width - start) if beside else (3, width - 3)

    def row(cells: Sequence[Cell]) -> Iterator[Text]:
        line = Text(" ")
        for index in fixed:
            padding = " " * (wide[index] - cell_len(escaped(cells[index].text)))
            shown = Text(escaped(cells[index].text), style=STYLES[cells[index].tone])
            line.append_text(Text.assemble(*((shown, padding) if index in table.words else (padding, shown)), GAP))
        words = [part for index in flowing for part in folded(cells[index].text, room)]
        if beside and words:
            line.append(words.pop(0))
        yield line
        yield from (Text(f"{'':{indent}}{part}") for part in words)

    yield Text()
    yield from row([Cell(name) for name in table.head])
    rows = [line for cells in table.rows for line in row(cells)]
    yield Text(f" {'─' * (max((cell_len(line.plain.rstrip()) for line in rows), default=1) - 1)}")
    yield from rows


def folded(text: str, width: int) -> list[str]:
    """Return a text in lines of a width."""
    return textwrap.wrap(escaped(text), width, break_on_hyphens=False)


def _below(section: Section, width: int, explained: bool) -> Iterator[str]:
    entries = [*(section.legend if explained else ()), *(("note", note) for note in section.notes)]
    wide = max((len(term) for term, _ in entries), default=0)
    for term, text in entries:
        for index, line in enumerate(folded(text, width - wide - 2)):
            yield f"{'' if index else term:<{wide}}  {line}"
