"""NTK as a change of base, with the numbers of kexue.fm/archives/9675, and the picture docs/base-conversion.svg.

python scripts/lab/base_conversion.py    draw the picture
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from ropetool.rope.methods import Goal, Source, get

PICTURE = ROOT / "docs" / "base-conversion.svg"
NUMBER, OLD_LIMIT, NEW_LIMIT, OLD_BASE, DIGITS = 1749, 1000, 2000, 10, 3
DIM, BASE, TRAINED, FACTOR = 128, 1e4, 512, 8
METHODS = ("linear", "ntk", "yarn")


def digits(number: float, base: int) -> list[float]:
    """Return three digits, the highest first; the lowest keeps the fraction, and the highest what does not fit."""
    high, rest = divmod(number, base**2)
    middle, low = divmod(rest, base)
    return [high, middle, low]


def new_base() -> int:
    """Return the smallest base whose three digits hold every number below the new limit."""
    return next(base for base in range(OLD_BASE, NEW_LIMIT) if base**DIGITS >= NEW_LIMIT)


def section() -> str:
    """Return the table of the three ways to write the number."""
    shown = {
        "extrapolate: the same digits": (NUMBER, OLD_BASE, "RoPE as it is"),
        f"interpolate: the number / {NEW_LIMIT // OLD_LIMIT}": (
            NUMBER / (NEW_LIMIT // OLD_LIMIT),
            OLD_BASE,
            "`linear`",
        ),
        f"convert: base {new_base()}": (NUMBER, new_base(), "`ntk`"),
    }
    head = (f"{NUMBER} in three digits", "", f"largest digit up to {NEW_LIMIT}", "gap between neighbours", "method")
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --: | --: | --- |"]
    for name, (number, base, method) in shown.items():
        gap = number / NUMBER
        largest = max(max(digits(gap * n, base)) for n in range(NEW_LIMIT))
        written = ", ".join(f"{digit:g}" for digit in digits(number, base))
        lines.append(f"| {name} | [{written}] | {largest:g} | {gap:g} | {method} |")
    return "\n".join(lines) + "\n"


def divisors() -> Iterator[tuple[str, np.ndarray]]:
    """Yield by what each method divides the frequency of each pair, and what a base times the factor does."""
    own = BASE ** (-np.arange(0, DIM, 2) / DIM)
    for name in METHODS:
        method, goal = get(name), Goal.make(TRAINED, FACTOR, None)
        table = method.derive(Source(own, TRAINED, BASE), goal, method.params({})).table
        yield name, own / table.at(goal.target_length).inv_freq
    yield f"base {BASE * FACTOR:,.0f}", own / (BASE * FACTOR) ** (-np.arange(0, DIM, 2) / DIM)


def farthest() -> float:
    """Return by how much the divisors of NTK and of the base times the factor differ at most, as a share."""
    known = dict(divisors())
    ntk, base = known["ntk"], known[f"base {BASE * FACTOR:,.0f}"]
    return float(np.abs(base / ntk - 1).max())


def picture() -> bytes:
    """Return the picture of the divisors."""
    from ropetool import charts
    from ropetool.report import drawing
    from ropetool.report.bands import PAIR, by_pair

    looks = {
        "linear": charts.Look("#d55e00", "s", "--"), "ntk": charts.Look("#0072b2", "o"), "yarn": charts.Look("#009e73", "D", "-."),
    }  # fmt: skip
    marks = [
        by_pair(name, looks.get(name, charts.Look("quiet", dashes=":")), dict(enumerate(values.tolist())))
        for name, values in divisors()
    ]
    panel = charts.Panel(charts.Axis(PAIR), charts.Axis("frequency divided by"), tuple(marks))
    return drawing.images(charts.Chart("base-conversion", "", "", "", (panel,), 3.2), "svg")[0]


if __name__ == "__main__":
    PICTURE.write_bytes(picture())
