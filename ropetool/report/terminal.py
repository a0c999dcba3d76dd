"""The writer for terminals: lines, sections and charts as text of a width, with colours and legends on request."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from ropetool.escaping import escaped
from ropetool.sections import BAD, BOLD, DIM, GOOD, NONE, WARN, Cell, Line, Part, Section, Table

POINTER = Line(
    "Pass --explain for a description of the columns below each table. The pages of --report contain it too.", DIM
)
WIDTH = 120  # of tables and side remarks if lines may have any length
BESIDE = 30  # characters that words need to be wrapped next to the other columns, and not below them
GAP = "  "
UNBROKEN = "\0"  # a space where no line ends; text that is shown has no other
CODES = {GOOD: "32", BAD: "31", WARN: "33", BOLD: "1", DIM: "2"}
_QUOTED = re.compile("`[^`]*`")

Spans = list[tuple[str, str]]
"""A line: texts, each with its styles, separated by spaces."""


def terminal_text(
    parts: Iterable[Part], width: int | None = None, *, colour: bool = False, explained: bool = False
) -> str:
    """Return the parts of a result as lines for a terminal.

    width: characters in a line. None for lines of any length; tables and side remarks then have at most 120.
    explained: add the legends below the tables. Without them, the last line names the option for it.
    """
    lines: list[Spans] = []
    parts = tuple(parts)
    for part in parts:
        if isinstance(part, str):
            lines.append([(escaped(part), "")])
        elif isinstance(part, Line):
            lines += _sentence(part, width)
        elif isinstance(part, Section) and part.table.listed:
            lines += _listing(part, width, is_first=not lines)
        elif isinstance(part, Section):
            lines += _section(part, width or WIDTH, explained)
        else:
            from ropetool.report.plot import chart_lines  # few results have a chart

            lines += [[], *([(line, "")] for line in chart_lines(part, width or WIDTH))]
    if not explained and any(isinstance(part, Section) and part.legend for part in parts):
        lines += [[], *_sentence(POINTER, width)]
    return "".join(f"{_painted(line) if colour else _plain(line)}\n" for line in lines)


def wrapped(text: str, width: int, first: str = "", indent: int = 2) -> str:
    """Return the text in lines of at most this width, `first` in front of the first line, the others indented.

    Text in backquotes is a command to copy, and stays on one line of any length.
    """
    whole = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", UNBROKEN), text)
    lines = textwrap.wrap(
        whole, max(width, indent + 1), initial_indent=first, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return "".join(f"{line}\n" for line in lines).replace(UNBROKEN, " ") or f"{first.rstrip()}\n"


def _plain(line: Spans) -> str:
    return "".join(part for part, _ in line).rstrip()


def _painted(line: Spans) -> str:
    shown = ""
    for part, styles in line:
        codes = ";".join(CODES[style] for style in styles.split())
        shown += f"\x1b[{codes}m{part}\x1b[0m" if codes and part else part
    return shown.rstrip()


def _sentence(line: Line, width: int | None) -> Iterator[Spans]:
    room = WIDTH if width is None and line.style == DIM else width
    texts = [escaped(one) for one in (line.text.splitlines() or [""] if line.breaks else [line.text])]
    first, *rest = texts if room is None else wrapped("\n".join(texts), room, indent=line.indent).splitlines()
    lead = first.partition(":")[0] if line.lead else ""
    yield [(lead, line.lead), (first[len(lead) :], line.style)]
    yield from ([(other, line.style)] for other in rest)


# --- lists of facts


def _listing(section: Section, width: int | None, is_first: bool) -> Iterator[Spans]:
    """Yield a title and the rows below it; without a title, the rows continue the list above."""
    indent = 2 * section.depth + 2
    if section.title:
        yield from () if is_first else ([],)
        yield [(f"{'':{indent - 2}}{escaped(section.title)}", "")]
    for line in _rows(section.table, indent, width):
        yield [(line, "")]


def _rows(table: Table, indent: int, width: int | None) -> Iterator[str]:
    """Yield rows whose columns are aligned, except for the last.

    A row is one line if there is no width. Else the last cell of a longer row is wrapped in its column, or below the
    others if the column is too narrow for text. A word that is longer stays whole.
    """
    rows = [[escaped(name) for name in table.head]] if table.head else []
    rows += [[escaped(cell.text) for cell in cells] for cells in table.rows]
    wide = [max(cell_len(cells[i]) for cells in rows) for i in range(len(rows[0]) - 1)] if rows else []
    start = indent + sum(size + len(GAP) for size in wide)  # where the last column begins
    for *cells, last in rows:
        padded = [_padded(cell, wide[i], i in table.words) for i, cell in enumerate(cells)]
        before = f"{'':{indent}}" + "".join(cell + GAP for cell in padded)
        if width is None or table.whole or cell_len(before + last) <= width:
            yield f"{before}{last}"
        elif not cells or width - start >= BESIDE:
            yield from wrapped(last, width, before, start).splitlines()
        else:
            yield f"{'':{indent}}{GAP.join(cells)}"
            yield from wrapped(last, width, " " * (indent + 2), indent + 2).splitlines()


def _padded(text: str, size: int, is_word: bool) -> str:
    padding = " " * (size - cell_len(text))
    return f"{text}{padding}" if is_word else f"{padding}{text}"


# --- tables with a rule below their head


def _section(section: Section, width: int, explained: bool) -> Iterator[Spans]:
    """Yield the title, the table within the width, then the notes, and the legend if it is requested."""
    yield []
    yield from ([(line, BOLD)] for line in _folded(section.title, width))
    for columns in _parts(section.table, width):
        yield from _ruled(section.table, columns, width)
    entries = [*(section.legend if explained else ()), *(("note", note) for note in section.notes)]
    wide = max((len(term) for term, _ in entries), default=0)
    if entries:
        yield []
    for term, meaning in entries:
        for index, line in enumerate(_folded(meaning, width - wide - 2)):
            yield [(f"{'' if index else term:<{wide}}{GAP}{line}", DIM)]


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(escaped(text), width, break_on_hyphens=False)


def _parts(table: Table, width: int) -> list[list[int]]:
    """Return the columns that are next to each other: all, or several times as many as fit, after the first column.

    A column without a value in any row is omitted.
    """
    wide = [_wide(table, index) for index in range(len(table.head))]
    rest = [i for i in range(1, len(wide)) if any(cells[i].text != NONE for cells in table.rows)]
    sentences = [rest.pop()] if table.ends_in_sentences and rest[-1:] == [len(wide) - 1] else []
    parts = [[0]]
    for index in rest:
        if len(parts[-1]) > 1 and sum(wide[i] + len(GAP) for i in [*parts[-1], index]) > width:
            parts.append([0])
        parts[-1].append(index)
    parts[-1] += sentences
    return parts


def _wide(table: Table, index: int) -> int:
    """Return how many characters of a terminal the widest cell of a column takes."""
    return max(cell_len(text) for text in (table.head[index], *(escaped(cells[index].text) for cells in table.rows)))


def _ruled(table: Table, columns: Sequence[int], width: int) -> Iterator[Spans]:
    """Yield head, rule and rows of some columns. Sentences in the last column are wrapped next to the others or below."""
    flowing = [index for index in columns[1:] if index == len(table.head) - 1 and table.ends_in_sentences]
    fixed = [index for index in columns if index not in flowing]
    wide = {index: _wide(table, index) for index in fixed}
    start = 1 + sum(size + len(GAP) for size in wide.values())  # where sentences next to the others begin
    is_beside = width - start >= BESIDE
    indent, room = (start, width - start) if is_beside else (3, width - 3)

    def lines_of(cells: Sequence[Cell]) -> Iterator[Spans]:
        line: Spans = [(" ", "")]
        for index in fixed:
            shown = escaped(cells[index].text)
            padding = " " * (wide[index] - cell_len(shown))
            spans = [(shown, cells[index].tone), (padding, "")]
            line += [*(spans if index in table.words else reversed(spans)), (GAP, "")]
        sentences = [part for index in flowing for part in _folded(cells[index].text, room)]
        if is_beside and sentences:
            line.append((sentences.pop(0), ""))
        yield line
        yield from ([(f"{'':{indent}}{part}", "")] for part in sentences)

    rows = [line for cells in table.rows for line in lines_of(cells)]
    yield []
    yield from lines_of([Cell(name) for name in table.head])
    yield [(f" {'─' * (max((cell_len(_plain(line)) for line in rows), default=1) - 1)}", "")]
    yield from rows
