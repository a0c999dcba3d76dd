"""The result of a verification as text for a terminal: the verdict, the gate, tables and a plot; legends on request."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ropetool.escaping import escaped
from ropetool.report.gate import gate_section
from ropetool.report.layout import wrapped
from ropetool.report.plot import SEVERAL, TRAINED, perplexity_plot
from ropetool.report.sections import sections
from ropetool.report.tables import BAD, GOOD, NONE, TONES, WARN, Cell, Section, Table
from ropetool.report.verdict import summary
from ropetool.verification.gate import GRADES
from ropetool.verification.results import VerifyResult

WIDTH, NARROW = 120, 80
BESIDE = 30  # columns that words need to stand beside figures, and not below them
GAP = "  "
TARGET, BASELINE = "●", "○"
STYLES = {GOOD: "green", BAD: "red", WARN: "yellow", "": ""}
POINTER = "--explain says below each table what its columns mean; so do the pages of --report."


def verify_text(
    result: VerifyResult, *, width: int | None = None, colour: bool = False, explained: bool = False
) -> str:
    """Return the verdict in one sentence, the gate, and what was measured table by table.

    width: of the terminal, within which all lines are kept; None where there is none, for which tables get 120 columns
    and the sentence is one line. explained: what columns mean stands below their tables.
    """
    console = _console(colour)
    columns = WIDTH if width is None else width
    verdict, _, rest = escaped(summary(result)).partition(": ")
    lines = [f"{verdict}: {rest}"] if width is None else wrapped(f"{verdict}: {rest}", width, indent=0).splitlines()
    _put(console, Text.assemble((verdict, f"bold {STYLES[TONES[result.verdict]]}"), lines[0][len(verdict) :]))
    for line in lines[1:]:
        _put(console, Text(line))
    for line in wrapped(escaped(conditions(result)), columns, indent=0).splitlines():
        _put(console, Text(line, style="dim"))
    _print(console, gate_section(result), columns, explained)
    for section in sections(result):
        _print(console, section, columns, explained)
        if section.key == "loss":
            _put(console, Text(f"\n{_plot(result, columns)}".rstrip("\n")))
    if not explained:
        for line in ["", *wrapped(POINTER, columns, indent=0).splitlines()]:
            _put(console, Text(line, style="dim"))
    return _written(console)


def section_text(section: Section) -> str:
    """Return one section with its legend as text for a terminal of 80 columns, without colours."""
    console = _console(colour=False)
    _print(console, section, NARROW, explained=True)
    return _written(console)


def conditions(result: VerifyResult) -> str:
    """Return in one line under which conditions was measured what the verdict says."""
    grade = GRADES.get(result.grade)
    proof = " and asks for proof that far text is read" if grade and grade.reads_far else ""
    allowed = f"grade {grade.name} allows {grade.max_ratio:g} times the baseline's perplexity{proof}; " if grade else ""
    documents = f"{len(result.documents)} document{'' if len(result.documents) == 1 else 's'}"
    return (
        f"Trained at {result.trained_length} tokens, states {result.context_length}; {allowed}"
        f"suite {result.suite}, {documents}; {result.runtime}"
    )


def _console(colour: bool) -> Console:
    return Console(
        file=io.StringIO(), width=WIDTH, highlight=False, force_terminal=colour, no_color=False,
        color_system="standard" if colour else None,
    )  # fmt: skip


def _put(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _print(console: Console, section: Section, width: int, explained: bool) -> None:
    _put(console, Text())
    for line in textwrap.wrap(escaped(section.title), width, break_on_hyphens=False):
        _put(console, Text(line, style="bold"))
    for columns in _parts(section.table, width):
        for row in _lines(section.table, columns, width):
            _put(console, row)
    below = list(_below(section, width, explained))
    for line in ["", *below] if below else []:
        _put(console, Text(line, style="dim"))


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
        words = [part for index in flowing for part in _folded(cells[index].text, room)]
        if beside and words:
            line.append(words.pop(0))
        yield line
        yield from (Text(f"{'':{indent}}{part}") for part in words)

    yield Text()
    yield from row([Cell(name) for name in table.head])
    rows = [line for cells in table.rows for line in row(cells)]
    yield Text(f" {'─' * (max((cell_len(line.plain.rstrip()) for line in rows), default=1) - 1)}")
    yield from rows


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(escaped(text), width, break_on_hyphens=False)


def _below(section: Section, width: int, explained: bool) -> Iterator[str]:
    entries = [*(section.legend if explained else ()), *(("note", note) for note in section.notes)]
    wide = max((len(term) for term, _ in entries), default=0)
    for term, text in entries:
        for index, line in enumerate(_folded(text, width - wide - 2)):
            yield f"{'' if index else term:<{wide}}  {line}"


def _plot(result: VerifyResult, width: int) -> str:
    series = {
        BASELINE: [(entry.length, entry.baseline.mean) for entry in result.lengths if entry.baseline],
        TARGET: [(entry.length, entry.target.mean) for entry in result.lengths],
    }
    key = f"{'ppl':>8}  {TARGET} target  {BASELINE} baseline  {SEVERAL} both  {TRAINED} trained length\n"
    return key + perplexity_plot(series, result.trained_length, width)
