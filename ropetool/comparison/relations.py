"""How the rows of one matrix came out of another's: equal, rounded, scaled, or changed otherwise.

Pure numpy on decoded numbers, a chunk of rows at a time; knows neither files nor what the rows mean to a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ropetool.rope.tables import Array

IDENTICAL, CONVERTED, SCALED, ROWS_SCALED = "identical", "converted", "scaled", "rows scaled"
PERMUTED, REQUANTISED, CHANGED = "rows permuted", "quantised otherwise", "changed"
UNMOVED = "rows not moved with the layout"

# Significant bits of a type, and the exponent of its smallest number.
COMPUTED = "computed"  # in float32 by a function, two programs' of which agree but for its last digit or two
ROUNDING = {"BF16": (8, -133), "F16": (11, -24), "F32": (24, -149), "F64": (53, -1074), COMPUTED: (22, -149)}
# Block scales are float16, and so are what blocks begin from: a rounding of 2^-11 of each, the two of which may be three
# times and once the largest number of the row.
BLOCK_ROUNDING = 2.0**-9
SLACK = 2.0**-51  # the bounds of a factor are computed in float64 themselves
# Whoever multiplies in float32 before rounding to 16 bits rounds the factor, the product, and then once more.
HALF_SLACK = 2.0**-22
REGULAR = 0.01  # numbers so small that the type holds them to fewer digits say nothing of how far a ratio spreads
# A few numbers of a type can be called multiples of others by chance: with fewer in a row, one scale must serve all.
ENOUGH_IN_ROW = 16
ENOUGH = 4
TOUCHED_PART = 1 / 8  # of a scaled row's numbers at least this many are others than before

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """Rows that were multiplied by one number.

    value: one that, with the numbers rounded to their type, gives these rows. low, high: bounds of what it may be if one
    of both sides is exact. spread: how far from it the ratio of single numbers is. rows: first and last of each stretch.
    """

    value: float
    low: float
    high: float
    spread: float
    rows: tuple[tuple[int, int], ...]

    @property
    def row_count(self) -> int:
        return sum(last - first + 1 for first, last in self.rows)


@dataclass(frozen=True)
class Relation:
    """What makes the second of two matrices out of the first.

    order: the name of the order that its rows have; runs: how many rows each stretch of that order has, 0 where it has
    no name. rows: stretches of rows that changed. total: how many rows there are. largest: the largest relative
    difference of a number; mean, rms: the mean and the root mean square difference over those of the numbers.
    detail: what else there is to say.
    """

    kind: str
    dtypes: tuple[str, str] = ("", "")
    order: str = ""
    runs: int = 0
    scales: tuple[Scale, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    total: int = 0
    largest: float = 0.0
    mean: float = 0.0
    rms: float = 0.0
    detail: str = ""

    @property
    def differs(self) -> bool:
        """Whether the numbers are others, and not only of another type."""
        return self.kind not in (IDENTICAL, CONVERTED)


def half_step(values: Array, dtype: str) -> Array:
    """Return how far from each number of the type another one may be that rounds to it.

    Of a type with blocks it is taken from the largest number of each row.
    """
    if dtype not in ROUNDING:
        largest: Array = np.abs(values).max(axis=1, keepdims=True, initial=0) * BLOCK_ROUNDING
        return np.broadcast_to(largest, values.shape)
    bits, smallest = ROUNDING[dtype]
    exponent = np.where(values == 0, smallest, np.frexp(values)[1].astype(np.int64) - bits)
    found: Array = np.ldexp(0.5, np.maximum(exponent, smallest))
    return found


def narrowest(values: Array, dtype: str) -> str:
    """Return the type with the fewest digits that holds all the numbers: weights stored in float32 were rounded before."""
    for narrow, (bits, _) in ROUNDING.items():
        if dtype not in ROUNDING or narrow == dtype:
            return dtype
        if _have_digits(values[:1], bits) and _have_digits(values, bits):
            return narrow
    return dtype


def _have_digits(values: Array, bits: int) -> bool:
    mantissas = np.ldexp(np.frexp(values)[0], bits)
    return bool(np.all(mantissas == np.rint(mantissas)))


class RowFit:
    """What is known of each row of two matrices after a pass over them: within which bounds a common factor lies.

    Three cases are kept apart: the second is the first multiplied and rounded; the first is the second divided and
    rounded; both are roundings. offset: what is added to either before they are compared.
    """

    def __init__(self, rows: int, dtypes: tuple[str, str], offset: float = 0.0) -> None:
        self.dtypes, self.offset = dtypes, offset
        self.low, self.high = np.zeros((3, rows)), np.full((3, rows), np.inf)
        self.ratio_low, self.ratio_high = np.full(rows, np.inf), np.zeros(rows)
        self.equal, self.within = np.ones(rows, np.bool_), np.ones(rows, np.bool_)
        self.numbers, self.other = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.largest = 0.0
        self._alive = [0, 1, 2]
        self._difference = self._size = self._squares = self._size_squares = self._other_size = 0.0

    def add(self, start: int, a: Array, b: Array) -> None:
        """Take in the rows from `start` on. Shapes: both (rows, columns), float64."""
        part = slice(start, start + len(a))
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        self.equal[part] = self.within[part] = equal.all(axis=1)
        self.numbers[part] = np.sum((a != 0) | (b != 0), axis=1)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self._add_sizes(np.where(equal, 0.0, np.abs(b - a)), a, b)
            settled = equal
            if self.dtypes[0] != self.dtypes[1] and not equal.all():
                settled = equal | (np.abs(b - a) <= self._allowed(a, b))
                self.within[part] = settled.all(axis=1)
            self.other[part] = np.sum(~settled, axis=1)
            touched = np.flatnonzero(self.other[part])
            if touched.size and self._alive:
                self._add_bounds(start + touched, a[touched], b[touched])

    def _allowed(self, a: Array, b: Array) -> Array:
        """Return how far numbers may be apart that are roundings of each other, or both of the same."""
        steps = half_step(a, self.dtypes[0]), half_step(b, self.dtypes[1])
        neither_holds_the_other = set(self.dtypes) == {"BF16", "F16"}
        found: Array = steps[0] + steps[1] if neither_holds_the_other else np.maximum(*steps)
        return found

    def _add_sizes(self, difference: Array, a: Array, b: Array) -> None:
        larger = np.maximum(np.abs(a), np.abs(b))
        self.largest = max(self.largest, float(np.max(difference / np.where(larger == 0, 1, larger), initial=0)))
        self._difference += float(difference.sum())
        self._size += float(np.nansum(np.abs(a)))
        self._squares += float(np.sum(difference**2))
        self._size_squares += float(np.nansum(a**2))
        self._other_size += float(np.nansum(np.abs(b)))

    @property
    def may_be_permuted(self) -> bool:
        """Whether both hold as much: the same rows in another order do, and few other matrices."""
        return math.isclose(self._size, self._other_size, rel_tol=1e-9)

    def _add_bounds(self, rows: Ints, a: Array, b: Array) -> None:
        held = [narrowest(values, dtype) for values, dtype in zip((a, b), self.dtypes, strict=True)]
        step_a, step_b = half_step(a, held[0]), half_step(b, held[1])
        a, b = a + self.offset, b + self.offset
        opposite, endless = np.sign(a) * np.sign(b) < 0, ~(np.isfinite(a) & np.isfinite(b))
        a, b = np.abs(a), np.abs(b)
        near_zero = (a <= step_a) | (b <= step_b)  # a sign that rounding may have turned, as blocks with a beginning do
        wrong = (opposite & ~near_zero) | endless
        nothing = (a == 0) & (b == 0)
        slack = HALF_SLACK if {"BF16", "F16"} & set(held) else SLACK
        for case in tuple(self._alive):
            low, high = _bounds(case, a, b, step_a, step_b)
            least = np.max(np.where(wrong, np.inf, np.where(nothing, 0, low)), axis=1, initial=0)
            most = np.min(np.where(wrong, 0, np.where(nothing, np.inf, high)), axis=1, initial=np.inf)
            self.low[case, rows], self.high[case, rows] = least * (1 - slack), most * (1 + slack)
            if np.any(self.low[case, rows] > self.high[case, rows]):
                self._alive.remove(case)  # a row that is not a multiple: nothing more is asked
        regular = (step_a < a * REGULAR) & (step_b < b * REGULAR)
        ratio = b / a
        self.ratio_low[rows] = np.min(np.where(regular, ratio, np.inf), axis=1, initial=np.inf)
        self.ratio_high[rows] = np.max(np.where(regular, ratio, 0), axis=1, initial=0)

    def relation(self) -> Relation:
        """Return what all rows together say."""
        same_type = self.dtypes[0] == self.dtypes[1]
        settled = self.equal if same_type else self.within
        found = Relation(
            IDENTICAL if same_type else CONVERTED, self.dtypes, total=len(settled), largest=self.largest,
            mean=_part(self._difference, self._size), rms=_part(self._squares, self._size_squares) ** 0.5,
        )  # fmt: skip
        if settled.all():
            return found
        scales = self._scales(~settled)
        if not scales:
            return replace(found, kind=CHANGED, rows=stretches(~settled))
        whole = len(scales) == 1 and scales[0].row_count >= np.count_nonzero(self.numbers)
        return replace(found, kind=SCALED if whole else ROWS_SCALED, scales=scales, rows=stretches(~settled))

    def _scales(self, touched: Bools) -> tuple[Scale, ...]:
        """Return the scales of the touched rows, or nothing where not all of them are multiples of what they were."""
        if self.other[touched].sum() < TOUCHED_PART * self.numbers[touched].sum():
            return ()
        cases = [_groups(self.low[case], self.high[case], np.flatnonzero(touched)) for case in self._alive]
        believable = [groups for groups in cases if self._believable(groups, touched)]
        return tuple(self._scale(*group) for group in min(believable, key=len, default=[]))

    def _believable(self, groups: list[tuple[float, float, Ints]], touched: Bools) -> bool:
        if any(low <= 1 <= high for low, high, _ in groups):
            return False  # no scale at all, and yet the numbers differ
        rows_are_long = int(self.numbers[touched].min()) >= ENOUGH_IN_ROW
        return rows_are_long or (len(groups) == 1 and int(self.numbers[touched].sum()) >= ENOUGH)

    def _bounds_of(self, rows: Ints) -> tuple[float, float]:
        """Return between what the factor of rows may lie if one of the two matrices is exact; if neither can be, both round."""
        strict = [case for case in self._alive if case < 2]
        bounds = [(float(self.low[case, rows].max()), float(self.high[case, rows].min())) for case in strict]
        found = [(low, high) for low, high in bounds if low <= high]
        if not found:
            return float(self.low[2, rows].max()), float(self.high[2, rows].min())
        return min(low for low, _ in found), max(high for _, high in found)

    def _scale(self, low: float, high: float, rows: Ints) -> Scale:
        value = (low + high) / 2
        bounds = self._bounds_of(rows)
        marked = np.zeros(len(self.equal), np.bool_)
        marked[rows] = True
        counted = rows[self.ratio_low[rows] <= self.ratio_high[rows]]
        least, most = self.ratio_low[counted].min(initial=value), self.ratio_high[counted].max(initial=value)
        return Scale(
            value,
            *bounds,
            float(max(most - value, value - least) / value) if value and np.isfinite(value) else 0.0,
            stretches(marked),
        )


def _bounds(case: int, a: Array, b: Array, step_a: Array, step_b: Array) -> tuple[Array, Array]:
    """Return between which factors each b is a's multiple, in one of the three cases of RowFit."""
    if case == 0:
        return (b - step_b) / a, (b + step_b) / a
    if case == 1:
        return b / (a + step_a), np.where(a > step_a, b / (a - step_a), np.inf)
    return (b - step_b) / (a + step_a), np.where(a > step_a, (b + step_b) / (a - step_a), np.inf)


def _part(a: float, b: float) -> float:
    return a / b if b else float(a > 0)


def _groups(low: Array, high: Array, rows: Ints) -> list[tuple[float, float, Ints]]:
    """Return the rows in as few groups as there must be, each with the bounds of its common factor.

    Taking rows by their upper bound makes the fewest groups.
    """
    rows = rows[np.argsort(high[rows], kind="stable")]
    found: list[tuple[float, float, Ints]] = []
    while rows.size:
        fits = low[rows] <= high[rows[0]]
        members = np.sort(rows[fits])
        found.append((float(low[members].max()), float(high[rows[0]]), members))
        rows = rows[~fits]
    return sorted(found, key=lambda group: int(group[2][0]))


def stretches(marked: Bools) -> tuple[tuple[int, int], ...]:
    """Return the first and the last row of each stretch of marked rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(np.int8)))
    return tuple((int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))
