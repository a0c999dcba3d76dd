"""The result of a verification as text for a terminal: table, legend, plot, verdict. Measures and judges nothing."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ropetool.report.plot import SEVERAL, TRAINED, number, perplexity_plot

WIDTH = 160  # the table takes about 100; a broken model's figures are wider, and are not to be cut off
TARGET, BASELINE = "●", "○"


class Interval(Protocol):
    """A mean in nats with the ends of its 95 % interval, infinite where there is none."""

    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Entry(Protocol):
    """What was found at one length."""

    @property
    def length(self) -> int: ...
    @property
    def target(self) -> Interval: ...
    @property
    def baseline(self) -> Interval | None: ...
    @property
    def difference_to_truncation(self) -> Interval | None: ...
    @property
    def ratio(self) -> float: ...
    @property
    def holds(self) -> bool: ...
    @property
    def useful(self) -> bool | None: ...
    @property
    def segments(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def partial(self) -> bool: ...
    @property
    def note(self) -> str: ...


class Result(Protocol):
    """What was found at all lengths. The measuring layer lies above this one, so its types are known by shape."""

    @property
    def target(self) -> str: ...
    @property
    def baseline(self) -> str | None: ...
    @property
    def trained_length(self) -> int: ...
    @property
    def scored(self) -> int: ...
    @property
    def max_ratio(self) -> float: ...
    @property
    def lengths(self) -> Sequence[Entry]: ...
    @property
    def verdict(self) -> str: ...


def verify_table(result: Result, *, colour: bool = False) -> str:
    """Return the table, what its columns mean, notes on single lengths, a plot, and the verdict as last line."""
    console = Console(
        file=io.StringIO(),
        width=WIDTH,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    console.print(Text(_title(result)))
    console.print(_table(result))
    for line in [*_legend(result), *(f"note      {e.length}: {e.note}" for e in result.lengths if e.note)]:
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()
    console.print(Text(_plot(result)), soft_wrap=True)
    console.print(_verdict(result), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _title(result: Result) -> str:
    against = result.baseline or "itself within that length"
    return f"{result.target}, trained at {result.trained_length} tokens, against {against}"


def _table(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in (
        "length",
        "segments",
        "ppl baseline",
        "ppl target",
        "ratio",
        "holds",
        "gain over truncation",
        "useful",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in result.lengths:
        table.add_row(
            str(entry.length),
            f"{entry.segments} of {entry.documents}{'!' if entry.partial else ''}",
            _perplexity(entry.baseline),
            _perplexity(entry.target),
            number(entry.ratio),
            _yes_no(entry.holds, bad="red"),
            _gain(entry.difference_to_truncation),
            _yes_no(entry.useful, bad="yellow"),
        )
    return table


def _legend(result: Result) -> list[str]:
    trained = result.trained_length
    return [
        "length    tokens of model input, always ending on the same tokens",
        "segments  places in the texts, and how many documents they lie in",
        f"ppl       perplexity of the last {result.scored} tokens of each segment (95 % interval over documents)",
        f"ratio     ppl of the target over that of the baseline at min(length, {trained});"
        f" holds: at most {result.max_ratio:g}",
        f"gain      nats a token that the target saves on the baseline that reads the last min(length, {trained})",
        "          tokens alone, ± its 95 % interval; useful: all of the interval is above 0",
    ]


def _plot(result: Result) -> str:
    series = {
        BASELINE: [(entry.length, entry.baseline.mean) for entry in result.lengths if entry.baseline],
        TARGET: [(entry.length, entry.target.mean) for entry in result.lengths],
    }
    key = f"{'ppl':>8}  {TARGET} target  {BASELINE} baseline  {SEVERAL} both  {TRAINED} trained length\n"
    return key + perplexity_plot(series, result.trained_length)


def _verdict(result: Result) -> Text:
    worst = max(result.lengths, key=lambda entry: entry.ratio)
    broken = _listed(entry for entry in result.lengths if not entry.holds)
    thin = _listed(entry for entry in result.lengths if entry.partial)
    useful = _listed(entry for entry in result.lengths if entry.useful)
    sentence = (
        f": ppl at {broken or 'every length'} is {'above' if broken else 'at most'} {result.max_ratio:g} x the "
        f"baseline's at min(length, {result.trained_length}); worst {number(worst.ratio)} at {worst.length}"
    )
    sentence += f"; too little text at {thin}" if thin else ""
    sentence += f"; useful at {useful or 'no length'}"
    style = {"pass": "bold green", "fail": "bold red", "partial": "bold yellow"}[result.verdict]
    return Text.assemble((result.verdict, style), sentence)


def _listed(entries: Iterable[Entry]) -> str:
    return ", ".join(str(entry.length) for entry in entries)


def _perplexity(loss: Interval | None) -> str:
    if loss is None:
        return "-"
    mean, low, high = (number(math.exp(min(value, 709))) for value in (loss.mean, loss.low, loss.high))
    return f"{mean} (no interval)" if math.isinf(loss.high) else f"{mean} ({low}-{high})"


def _gain(difference: Interval | None) -> str:
    if difference is None:
        return "-"
    reach = (difference.high - difference.low) / 2
    return f"{-difference.mean:+.3f} ± {'?' if math.isinf(reach) else f'{reach:.3f}'}"


def _yes_no(value: bool | None, bad: str) -> Text:
    if value is None:
        return Text("-")
    return Text("yes", style="green") if value else Text("no", style=bad)
