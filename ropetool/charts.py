"""Charts as plain data: series, guides and cells between two axes. Only `report` draws them.

Each result and each measure returns its charts, as it returns its sections.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

LINE, BAND, BARS, STEPS = "line", "band", "bars", "steps"
LINEAR, LOGARITHMIC, RATIOS, LOSSES = "linear", "logarithmic", "ratios", "losses"
TOKENS, EVEN_TOKENS, NAMES = "tokens", "even tokens", "names"


class Interval(Protocol):
    """A mean between two bounds, which are infinite if there is no interval."""

    @property
    def mean(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Look:
    """The look of a series or a guide. Series differ by marks and dashes too, for readers who cannot see the colours.

    colour: a name in report/drawing.py, or `#rrggbb`.
    mark: matplotlib's letter for the mark of a value; empty for none.
    dashes: `-`, `--`, `-.`, `:`, or the lengths of dashes and gaps; empty for values that are not joined.
    width: the width of the line, in points.
    size: the size of the marks, in points.
    sign: the character of a value in a terminal; empty if terminals do not show the series.
    """

    colour: str
    mark: str = ""
    dashes: str | tuple[int, ...] = "-"
    width: float = 1.5
    size: float = 5.0
    sign: str = ""


TARGET = Look("target", "o", sign="●")
BASELINE = Look("baseline", "s", "--", sign="○")
THIN, DOTTED = Look("quiet", width=1.0), Look("quiet", dashes=":")


@dataclass(frozen=True)
class Series:
    """Values at places.

    name: its name in the key of the chart; empty for none.
    places: where the values are. `STEPS` have one place more, because they reach from place to place.
    low, high: the ends of the interval of each value, infinite without an interval; empty if no value has one.
    form: `LINE` without intervals, `BAND` for intervals as an area, `BARS` for error bars, `STEPS` with error bars.
    """

    name: str
    look: Look
    places: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    form: str = LINE


@dataclass(frozen=True)
class Guide:
    """A straight line through a chart.

    name: its name in the key of the chart; empty for none.
    at: its place, or its value if it is level.
    """

    name: str
    look: Look
    at: float
    level: bool = False


@dataclass(frozen=True)
class Cells:
    """Shares from 0 to 1, shown as the colours of a grid.

    name: the meaning of the colours.
    shares, texts: by row, then by column. The share of a missing cell is NaN.
    """

    name: str
    shares: tuple[tuple[float, ...], ...]
    texts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Axis:
    """The name and the scale of an axis.

    name: its meaning with the unit. The writer adds the unit of tokens.
    scale: `LINEAR`; `LOGARITHMIC`, with a place for 0; `RATIOS` around 1, logarithmic; `LOSSES` in nats per token, with
      their perplexities; `TOKENS`, logarithmic; `EVEN_TOKENS` or `NAMES`, whose places are 0, 1, 2 and so on.
    tokens, names: the labels of the last three scales.
    """

    name: str
    scale: str = LINEAR
    tokens: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Marks between two axes.

    marks: in the order in which they are drawn. Guides with a name are drawn last.
    sideways: the places are below each other, and the values go to the right.
    """

    places: Axis
    values: Axis
    marks: tuple[Series | Guide | Cells, ...]
    sideways: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of one panel, or of several panels below each other with the same places.

    name: the name of its PNG file, without the suffix.
    section: the key of the section that shows it.
    caption: an explanation of axes and marks.
    height: inches. All charts have the same width.
    several: the meaning of a terminal's sign for several series on one place; empty for a single series.
    """

    name: str
    section: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    height: float = 3.5
    several: str = ""


def series(name: str, look: Look, points: Iterable[tuple[float, Interval]], form: str = BAND) -> Series:
    """Return the means of intervals, and the ends of the intervals, by place."""
    every = tuple(points)
    means = [mean for _, mean in every]
    ends = (tuple(mean.mean for mean in means), tuple(mean.low for mean in means), tuple(mean.high for mean in means))
    return Series(name, look, tuple(place for place, _ in every), *ends, form)
