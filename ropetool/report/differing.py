"""A comparison of two checkpoints, as parts for a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ropetool.comparison.relations import (
    CHANGED,
    CONVERTED,
    IDENTICAL,
    PERMUTED,
    REQUANTISED,
    SCALED,
    Relation,
    Scale,
)
from ropetool.comparison.results import ONLY_IN_A, ONLY_IN_B, SKIPPED, Diff, Fact, NetScore, Side, TensorDiff
from ropetool.files.hf.jsontext import shown
from ropetool.sections import Part, listing

DIFFERS = "differs"
LEAST_DIGITS, MOST_DIGITS = 4, 7
TINY = 1e-30  # smaller than any weight, so a scale below it means zero
SHOWN_SINGLY = 4  # ranges of rows, or names, that are listed one by one
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def diff_parts(diff: Diff) -> Iterator[Part]:
    """Yield what `ropetool diff` prints."""
    yield from (_side_line("A", diff.a), _side_line("B", diff.b))
    yield from _facts_parts(diff.facts)
    if diff.tensors:
        meant = {tensor.relation.kind for tensor in diff.tensors if tensor.differs}
        counts = [(kind, str(count), DIFFERS if kind in meant else "") for kind, count in diff.counts().items()]
        yield listing("weights", counts)
        yield from _tensors_parts(diff.tensors)
    if diff.scores:
        yield listing("scores of B divided by scores of A", [(_score_words(score),) for score in diff.scores])
    aside = "" if diff.a.tensors and diff.b.tensors else "; weights were not compared"
    yield from ("", f"the same in meaning{aside}" if diff.same else f"differs: {'; '.join(diff.differences)}")


def _side_line(name: str, side: Side) -> str:
    by = f", as {side.runtime} computes it" if side.runtime else ""
    return f"{name}: {side.source}: {side.arch or 'no model_type'}, {side.config_style or side.format}{by}"


# --- facts


def _facts_parts(facts: Sequence[Fact]) -> Iterator[Part]:
    """Yield a table for the whole model and one for each layer type."""
    for layer_type in dict.fromkeys(fact.layer_type for fact in facts):
        rows = [_fact_row(fact) for fact in facts if fact.layer_type == layer_type and not _is_dull(fact)]
        yield listing(layer_type or "model", rows, head=("", "A", "B", ""))


def _is_dull(fact: Fact) -> bool:
    """Return whether a fact is a feature that neither checkpoint has."""
    plain: dict[str, Any] = {"softmax_multiplier": 1.0, "temperature": None, "sliding_window": None, "factor": None}
    return fact.name in plain and fact.a == fact.b == plain[fact.name]


def _fact_row(fact: Fact) -> tuple[str, str, str, str]:
    name = fact.name.replace("_", " ")
    mark = DIFFERS if fact.differs else ""
    if fact.name == "inv_freq":
        return "table", *_table_words(fact), mark
    if fact.name == "layers":
        return name, _layers(fact.a), _layers(fact.b), mark
    return name, _value(fact.a), _value(fact.b), mark


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value or "-" if isinstance(value, str) else "-" if value is None else shown(value)


def _layers(layers: list[int]) -> str:
    return _stretch_words(_stretches(layers)) if layers else "none"


def _table_words(fact: Fact) -> tuple[str, str]:
    """Return the number of rotary pairs of A, and for B the number of different pairs and the largest factor."""
    a, b = np.array(fact.a), np.array(fact.b)
    words = [f"{size} pairs" if size else "none" for size in (a.size, b.size)]
    if not fact.differs or a.size != b.size:
        return words[0], words[1] if fact.differs else "the same" if a.size else words[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a == b, 1.0, b / a)
        apart = np.maximum(ratio, 1 / ratio)
    count = int(np.sum(apart > 1 + 1e-6))
    if not count:
        return words[0], "different for short texts"
    return words[0], f"{count} of {b.size} differ by up to {apart.max():.3g}x"


# --- weights


def _tensors_parts(tensors: Sequence[TensorDiff]) -> Iterator[Part]:
    """Yield the tensors that are not identical: first real differences, then differences without effect on the model."""
    groups: dict[tuple[Any, ...], list[TensorDiff]] = {}
    for tensor in tensors:
        if tensor.relation.kind != IDENTICAL:
            groups.setdefault(_alike(tensor), []).append(tensor)
    if groups:
        ordered = sorted(groups.values(), key=lambda group: not group[0].differs)
        yield from ("", listing("", [(f"{_who(group)}: {_words(group)}",) for group in ordered]))


def _who(group: Sequence[TensorDiff]) -> str:
    names = [tensor.name for tensor in group]
    alike = len({_NUMBER.sub("#", name) for name in names}) == 1
    return folded(names) if alike else f"{len(names)} tensors"


def _alike(tensor: TensorDiff) -> tuple[Any, ...]:
    """Return the properties that all tensors in one line have in common."""
    relation = tensor.relation
    rows = () if relation.kind in (CHANGED, REQUANTISED, CONVERTED) else relation.rows
    scales = tuple(scale.rows for scale in relation.scales) if len(relation.scales) == 1 else (len(relation.scales),)
    name = "" if relation.kind == CONVERTED else _NUMBER.sub("#", tensor.name)
    return (
        name, relation.kind, relation.dtypes, relation.order, relation.runs, rows, scales, tensor.differs,
        tensor.reason or relation.detail,
    )  # fmt: skip


def folded(names: Sequence[str]) -> str:
    """Return names as one, with differing numbers as {0-31}. If the numbers form no grid, return the first few names."""
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    places = [sorted(set(place)) for place in zip(*numbers, strict=True)]
    if int(np.prod([len(place) for place in places] or [1])) == len(names):
        filled = iter(str(p[0]) if len(p) == 1 else f"{{{_stretch_words(_stretches(p))}}}" for p in places)
        return _NUMBER.sub(lambda _: next(filled), names[0])
    rest = len(names) - SHOWN_SINGLY
    return ", ".join(names[:SHOWN_SINGLY]) + (f" and {rest} more" if rest > 0 else "")


def _words(group: Sequence[TensorDiff]) -> str:
    relation, relations = group[0].relation, [tensor.relation for tensor in group]
    reason = group[0].reason or relation.detail
    text = _relation_words(relation, relations)
    if relation.order and relation.kind != PERMUTED:
        text += f", rows from {relation.order}"
    return f"{text}; {reason}" if reason else text


def _relation_words(relation: Relation, group: Sequence[Relation]) -> str:
    types = " to ".join(dict.fromkeys(relation.dtypes))
    if relation.kind == CONVERTED:
        largest = max(one.largest for one in group)
        return f"{types}, {f'rounded by up to {largest:.2g}' if largest else 'exactly'}"
    if relation.scales:
        return _scale_words(relation, group)
    if relation.kind == PERMUTED:
        runs = f" in runs of {relation.runs} rows" if relation.runs else ""
        return f"rows permuted, {relation.order}{runs}" if relation.order else f"rows permuted: {_row_words(relation)}"
    if relation.kind == REQUANTISED:
        return f"{types}, relative rms error {max(one.rms for one in group):.2g}"
    if relation.kind == CHANGED and relation.total:
        rows = f" in {_row_words(relation)}" if len(group) == 1 and relation.rows else ""
        largest, mean = max(one.largest for one in group), max(one.mean for one in group)
        return f"changed{rows}, by up to {largest:.2g}, {mean:.2g} on average" + _types(relation)
    return relation.kind if relation.kind in (CHANGED, ONLY_IN_A, ONLY_IN_B, SKIPPED) else f"{relation.kind}, {types}"


def _types(relation: Relation) -> str:
    return f", {' to '.join(relation.dtypes)}" if len(set(relation.dtypes)) > 1 else ""


def _scale_words(relation: Relation, group: Sequence[Relation]) -> str:
    what = "" if relation.kind == SCALED else f"{_row_words(relation)} "
    scales = [scale for one in group for scale in one.scales]
    if all(abs(scale.value) < TINY for scale in scales):
        return f"{what}set to zero{_types(relation)}"
    if all(abs(scale.value) > 1 / TINY for scale in scales):
        return f"{what}zero before{_types(relation)}"
    spread = f" (single numbers deviate by up to {max(scale.spread for scale in scales):.2g})"
    low, high = max(scale.low for scale in scales), min(scale.high for scale in scales)
    if low <= high:
        return f"{what}scaled by {_known(scales, low, high)}{spread}{_types(relation)}"
    values = [scale.value for scale in scales]
    many = (len({len(one.scales) for one in group}) == 1 and len(relation.scales)) or len(scales)
    return f"{what}scaled by {many} numbers from {min(values):.7g} to {max(values):.7g}{_types(relation)}"


def _known(scales: Sequence[Scale], low: float, high: float) -> str:
    """Return the common scale with the digits that its bounds determine and one more, seven at most."""
    value = float(np.clip(np.median([scale.value for scale in scales]), low, high))
    share = (high - low) / abs(value) if value else 0.0
    known = 1 + math.ceil(-math.log10(share)) if 0 < share < math.inf else MOST_DIGITS
    return f"{value:.{min(max(known, LEAST_DIGITS), MOST_DIGITS)}g}"


# --- rows


def _row_words(relation: Relation) -> str:
    """Return which rows changed: all, the same rows of each head, or ranges of rows."""
    count = sum(last - first + 1 for first, last in relation.rows)
    if count == relation.total:
        return f"all {count} rows"
    steps = {b[0] - a[0] for a, b in zip(relation.rows, relation.rows[1:], strict=False)}
    if len(steps) == 1 and len({last - first for first, last in relation.rows}) == 1:
        (step,), (first, last) = steps, relation.rows[0]
        if relation.total == step * len(relation.rows) and last < step:
            return f"rows {_stretch(first, last)} of each {step}"
    return f"{count} rows ({_stretch_words(relation.rows)})" if count > 1 else f"row {relation.rows[0][0]}"


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    stretches: list[tuple[int, int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1] = stretches[-1][0], number
        else:
            stretches.append((number, number))
    return stretches


def _stretch(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _stretch_words(stretches: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(_stretch(*one) for one in stretches[:SHOWN_SINGLY])
    return f"{shown}, ... {len(stretches) - SHOWN_SINGLY} more" if len(stretches) > SHOWN_SINGLY else shown


def _score_words(score: NetScore) -> str:
    net = f"net {score.part} score unchanged" if score.same else f"net {score.net:.6g}"
    return (
        f"{score.layer_type}, {score.part} part: {score.tables:.6g} by the tables, {score.rows:.6g} by the rows: {net}"
    )
