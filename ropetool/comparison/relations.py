"""Find how the rows of two matrices relate: equal, rounded, scaled, or changed.

Works on decoded numbers, one chunk of rows after the other.
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

# Computed in float32. The results of two programs may differ in the last digit or two.
COMPUTED = "computed"
# The significant bits of each type, and the exponent of its smallest number.
ROUNDING = {"BF16": (8, -133), "F16": (11, -24), "F32": (24, -149), "F64": (53, -1074), COMPUTED: (22, -149)}
# The scale and the minimum of a block are float16, so each has a relative rounding error of 2^-11. The one may be three
# times the largest number of the row, the other one times.
BLOCK_ROUNDING = 2.0**-9
SLACK = 2.0**-51  # the bounds of a factor are computed in float64 themselves
# A program that multiplies in float32 rounds the factor, then the product, then the result to 16 bits.
HALF_SLACK = 2.0**-22
REGULAR = 0.01  # the type stores smaller numbers with fewer digits, so their ratios do not count
# A few numbers can be multiples of others by chance. If a row has fewer, all rows must have the same scale.
ENOUGH_IN_ROW = 16
ENOUGH = 4
TOUCHED_PART = 1 / 8  # at least this share of a scaled row's numbers must differ from before

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """Rows that were multiplied by the same number.

    value: a factor that gives these rows, after rounding to their type.
    low, high: bounds of the factor if one of both sides is exact.
    spread: the largest relative distance between the factor and the ratio of two single numbers.
    rows: the first and the last row of each stretch.
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
    """How the second of two matrices follows from the first.

    kind: the relation, one of the constants above.
    dtypes: the types of both.
    order: the name of the order of its rows. Empty if the rows have no known order.
    runs: the number of rows in each stretch of this order. 0 without a name.
    scales: the factors of scaled rows.
    rows: the first and the last row of each changed stretch.
    total: the number of rows.
    largest: the largest relative difference of a number.
    mean: the mean difference, divided by the mean size of the first matrix's numbers.
    rms: the root mean square difference, divided by the root mean square of the first matrix's numbers.
    detail: a message with further information, or an empty string.
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
        """Return whether the numbers differ by more than a type conversion."""
        return self.kind not in (IDENTICAL, CONVERTED)


def half_step(values: Array, dtype: str) -> Array:
    """Return the largest rounding error of each number in this type. Shapes: values -> same.

    For a type with blocks, it depends on the largest number of each row.
    """
    if dtype not in ROUNDING:
        largest: Array = np.abs(values).max(axis=1, keepdims=True, initial=0) * BLOCK_ROUNDING
        return np.broadcast_to(largest, values.shape)
    bits, smallest = ROUNDING[dtype]
    exponent = np.where(values == 0, smallest, np.frexp(values)[1].astype(np.int64) - bits)
    steps: Array = np.ldexp(0.5, np.maximum(exponent, smallest))
    return steps


def narrowest(values: Array, dtype: str) -> str:
    """Return the type with the fewest digits that can store all numbers. Float32 weights are often rounded ones."""
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
    """The bounds of a common factor for each row of two matrices, collected in a single pass.

    It distinguishes three cases: the second is the first multiplied and rounded. The first is the second divided and
    rounded. Both are rounded.
    dtypes: the types of both.
    offset: the number that is added to both before they are compared.
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
        """Add the rows from `start` on. Shapes: both (rows, columns), float64."""
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
        """Return the largest difference of two numbers that are roundings of each other, or of the same number."""
        steps = half_step(a, self.dtypes[0]), half_step(b, self.dtypes[1])
        neither_holds_the_other = set(self.dtypes) == {"BF16", "F16"}
        allowed: Array = steps[0] + steps[1] if neither_holds_the_other else np.maximum(*steps)
        return allowed

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
        """Return whether both have the same sum of sizes, as permuted rows have and few other matrices."""
        return math.isclose(self._size, self._other_size, rel_tol=1e-9)

    def _add_bounds(self, rows: Ints, a: Array, b: Array) -> None:
        narrow = [narrowest(values, dtype) for values, dtype in zip((a, b), self.dtypes, strict=True)]
        step_a, step_b = half_step(a, narrow[0]), half_step(b, narrow[1])
        a, b = a + self.offset, b + self.offset
        opposite, endless = np.sign(a) * np.sign(b) < 0, ~(np.isfinite(a) & np.isfinite(b))
        a, b = np.abs(a), np.abs(b)
        near_zero = (a <= step_a) | (b <= step_b)  # rounding can change the sign, for example in blocks with a minimum
        wrong = (opposite & ~near_zero) | endless
        both_zero = (a == 0) & (b == 0)
        slack = HALF_SLACK if {"BF16", "F16"} & set(narrow) else SLACK
        for case in tuple(self._alive):
            low, high = _bounds(case, a, b, step_a, step_b)
            least = np.max(np.where(wrong, np.inf, np.where(both_zero, 0, low)), axis=1, initial=0)
            most = np.min(np.where(wrong, 0, np.where(both_zero, np.inf, high)), axis=1, initial=np.inf)
            self.low[case, rows], self.high[case, rows] = least * (1 - slack), most * (1 + slack)
            if np.any(self.low[case, rows] > self.high[case, rows]):
                self._alive.remove(case)  # a row is not a multiple, so this case is excluded
        regular = (step_a < a * REGULAR) & (step_b < b * REGULAR)
        ratio = b / a
        self.ratio_low[rows] = np.min(np.where(regular, ratio, np.inf), axis=1, initial=np.inf)
        self.ratio_high[rows] = np.max(np.where(regular, ratio, 0), axis=1, initial=0)

    def relation(self) -> Relation:
        """Return the relation that all rows together have."""
        same_type = self.dtypes[0] == self.dtypes[1]
        settled = self.equal if same_type else self.within
        relation = Relation(
            IDENTICAL if same_type else CONVERTED, self.dtypes, total=len(settled), largest=self.largest,
            mean=_part(self._difference, self._size), rms=_part(self._squares, self._size_squares) ** 0.5,
        )  # fmt: skip
        if settled.all():
            return relation
        scales = self._scales(~settled)
        if not scales:
            return replace(relation, kind=CHANGED, rows=stretches(~settled))
        whole = len(scales) == 1 and scales[0].row_count >= np.count_nonzero(self.numbers)
        return replace(relation, kind=SCALED if whole else ROWS_SCALED, scales=scales, rows=stretches(~settled))

    def _scales(self, touched: Bools) -> tuple[Scale, ...]:
        """Return the scales of the touched rows, or nothing if not all of them are multiples."""
        if self.other[touched].sum() < TOUCHED_PART * self.numbers[touched].sum():
            return ()
        cases = [_groups(self.low[case], self.high[case], np.flatnonzero(touched)) for case in self._alive]
        believable = [groups for groups in cases if self._believable(groups, touched)]
        return tuple(self._scale(*group) for group in min(believable, key=len, default=[]))

    def _believable(self, groups: list[tuple[float, float, Ints]], touched: Bools) -> bool:
        if any(low <= 1 <= high for low, high, _ in groups):
            return False  # a factor of 1 is possible, although the numbers differ
        rows_are_long = int(self.numbers[touched].min()) >= ENOUGH_IN_ROW
        return rows_are_long or (len(groups) == 1 and int(self.numbers[touched].sum()) >= ENOUGH)

    def _bounds_of(self, rows: Ints) -> tuple[float, float]:
        """Return the bounds of the factor of rows if one matrix is exact. If that is not possible, both are rounded."""
        strict = [case for case in self._alive if case < 2]
        bounds = [(float(self.low[case, rows].max()), float(self.high[case, rows].min())) for case in strict]
        possible = [(low, high) for low, high in bounds if low <= high]
        if not possible:
            return float(self.low[2, rows].max()), float(self.high[2, rows].min())
        return min(low for low, _ in possible), max(high for _, high in possible)

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
    """Return the bounds of the factor between each pair of numbers, in one of the three cases of RowFit."""
    if case == 0:
        return (b - step_b) / a, (b + step_b) / a
    if case == 1:
        return b / (a + step_a), np.where(a > step_a, b / (a - step_a), np.inf)
    return (b - step_b) / (a + step_a), np.where(a > step_a, (b + step_b) / (a - step_a), np.inf)


def _part(a: float, b: float) -> float:
    return a / b if b else float(a > 0)


def _groups(low: Array, high: Array, rows: Ints) -> list[tuple[float, float, Ints]]:
    """Return the rows in as few groups as possible, each with the bounds of its common factor.

    To start each group with the smallest upper bound gives the fewest groups.
    """
    rows = rows[np.argsort(high[rows], kind="stable")]
    groups: list[tuple[float, float, Ints]] = []
    while rows.size:
        fits = low[rows] <= high[rows[0]]
        members = np.sort(rows[fits])
        groups.append((float(low[members].max()), float(high[rows[0]]), members))
        rows = rows[~fits]
    return sorted(groups, key=lambda group: int(group[2][0]))


def stretches(marked: Bools) -> tuple[tuple[int, int], ...]:
    """Return the first and the last row of each stretch of marked rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(np.int8)))
    return tuple((int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))
