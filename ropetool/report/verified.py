"""The result of a verification as text for a terminal: tables, legends, a plot, the gate and the verdict."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ropetool.escaping import escaped
from ropetool.report.gate import gate_section, verdict_sentence
from ropetool.report.plot import SEVERAL, TRAINED, perplexity_plot
from ropetool.report.sections import sections
from ropetool.report.tables import BAD, GOOD, TONES, WARN, Section, Table
from ropetool.verification.results import VerifyResult

WIDTH, NARROW = 120, 80
TARGET, BASELINE = "●", "○"
STYLES = {GOOD: "green", BAD: "red", WARN: "yellow", "": ""}


def verify_text(result: VerifyResult, colour: bool = False) -> str:
    """Return what was measured, table by table, then the gate, and the verdict as last line."""
    console = Console(
        file=io.StringIO(),
        width=WIDTH,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    console.print(Text(title(result)), soft_wrap=True)
    for section in sections(result):
        _print(console, section)
        if section.key == "loss":
            console.print(Text(f"\n{_plot(result)}".rstrip("\n")), soft_wrap=True)
    _print(console, gate_section(result))
    verdict = (result.verdict, f"bold {STYLES[TONES[result.verdict]]}")
    console.print(Text.assemble("\n", verdict, f": {escaped(verdict_sentence(result))}"), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def section_text(section: Section) -> str:
    """Return one section as text for a terminal of 80 columns, without colours."""
    console = Console(file=io.StringIO(), width=NARROW, highlight=False)
    _print(console, section, NARROW)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def title(result: VerifyResult) -> str:
    """Return what was compared with what."""
    against = result.baseline or "itself within that length"
    return escaped(f"{result.target}, trained at {result.trained_length} tokens, against {against}")


def _print(console: Console, section: Section, width: int = WIDTH) -> None:
    console.print(Text(f"\n{section.title}", style="bold"), soft_wrap=True)
    console.print(_table(section.table))
    for line in _below(section, width):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _table(table: Table) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    last = len(table.head) - 1
    for index, name in enumerate(table.head):
        words = index in table.words
        shown.add_column(name, justify="left" if words else "right", no_wrap=not (words and index == last))
    for cells in table.rows:
        shown.add_row(*(Text(escaped(cell.text), style=STYLES[cell.tone]) for cell in cells))
    return shown


def _below(section: Section, width: int) -> Iterator[str]:
    entries = [*section.legend, *(("note", note) for note in section.notes)]
    wide = max((len(term) for term, _ in entries), default=0)
    for term, text in entries:
        for index, line in enumerate(textwrap.wrap(escaped(text), width - wide - 2, break_on_hyphens=False)):
            yield f"{'' if index else term:<{wide}}  {line}"


def _plot(result: VerifyResult) -> str:
    series = {
        BASELINE: [(entry.length, entry.baseline.mean) for entry in result.lengths if entry.baseline],
        TARGET: [(entry.length, entry.target.mean) for entry in result.lengths],
    }
    key = f"{'ppl':>8}  {TARGET} target  {BASELINE} baseline  {SEVERAL} both  {TRAINED} trained length\n"
    return key + perplexity_plot(series, result.trained_length)
