"""Reference attention variants compared with a target: sections and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING

from ropetool import charts
from ropetool.report.losses import by_length, target_and_baseline, target_losses
from ropetool.sections import NONE, Cell, Section, Table, change, number, perplexity, row
from ropetool.verification.results import Estimate, VerifyResult

if TYPE_CHECKING:
    from ropetool.verification.measures.repeats import FarResult
    from ropetool.verification.measures.retrieval import RetrievalResult

# The variants differ only by marks and dashes, because the colours mean target and baseline.
LOOKS = tuple(
    charts.Look("quiet", mark, dashes, width=1.2)
    for mark, dashes in (("^", "-."), ("v", ":"), ("x", (3, 1, 1, 1)), ("+", (6, 2)), ("*", (1, 1)))
)
TITLE = "Reference attention variants: no file can store them"


def reference_attention_sections(result: VerifyResult) -> Iterator[Section]:
    """Yield the losses of the reference attention variants, then their gains from copies and their retrieval, if measured."""
    if result.lengths:
        yield _losses(result)
    far = result.measures.get("far")
    if far is not None:
        yield _far(result, far)
    for index, grid in enumerate(result.measures.get("retrieval", ())):
        yield _retrieval(result, grid, index)


def _losses(result: VerifyResult) -> Section:
    rows = []
    for index, entry in enumerate(result.lengths):
        rows.append(
            row(str(entry.length), "target", perplexity(entry.target), number(entry.ratio), change(entry.tax), NONE)
        )
        for variant in result.yardsticks:
            own = variant.lengths[index]
            rows.append(
                row("", variant.name, perplexity(own.target), number(own.ratio), change(own.tax), _apart(variant.differences[index]))
            )  # fmt: skip
    legend = (
        ("ppl", "exp(loss) of the same last tokens (95 % interval over documents)"),
        ("ratio", f"perplexity / perplexity of the baseline at min(length, {result.trained_length})"),
        (
            "regression",
            f"loss minus the baseline's loss at the same length, up to {result.trained_length} tokens, in nats per token",
        ),
        (
            "target minus this",
            "difference of loss on the same tokens, nats per token, ± 95 % interval; above 0, the target is worse",
        ),
    )
    head = ("length", "", "ppl", "ratio", "regression", "target minus this")
    served = (f"{variant.name}: {variant.served}" for variant in result.yardsticks if variant.served)
    notes = (f"applied to {result.yardsticks[0].on}; they do not affect the verdict", *served)
    return Section("yardsticks", TITLE, Table(head, tuple(rows), words=(1,)), legend, notes)


def reference_attention_chart(result: VerifyResult) -> charts.Chart:
    """Return the losses of target, baseline and reference attention variants by length."""
    caption = (
        f"Mean loss of the same last {result.scored} tokens. Reference attention variants, applied to "
        f"{result.yardsticks[0].on}, cannot be stored in a file. The table contains the differences with their intervals."
    )
    variants = (
        target_losses(variant.name, look, variant.lengths)
        for variant, look in zip(result.yardsticks, cycle(LOOKS), strict=False)
    )
    marks = (*target_and_baseline(result, charts.LINE), *variants)
    panel = by_length(marks, [entry.length for entry in result.lengths], result.trained_length)
    return charts.Chart("yardsticks", "yardsticks", "Loss of reference attention variants", caption, (panel,))


def _apart(difference: Estimate) -> Cell:
    """Return a difference: a warning if the variant is significantly better, good if the target is."""
    tone = "warn" if difference.low > 0 else "good" if difference.high < 0 else ""
    return Cell(change(difference), tone)


def _far(result: VerifyResult, far: FarResult) -> Section:
    distances = [entry.distance for entry in far.distances]
    rows = [row("target", *(change(entry.gain) for entry in far.distances))]
    for variant in result.yardsticks:
        own: FarResult | None = variant.measures.get("far")
        gains = {entry.distance: entry.gain for entry in own.distances} if own else {}
        rows.append(row(variant.name, *(change(gains.get(distance)) for distance in distances)))
    legend = (
        (
            "gain",
            "share of right next tokens after a copy minus the share after other text, by distance, ± 95 % interval",
        ),
    )
    table = Table(("", *map(str, distances)), tuple(rows), words=(0,))
    return Section("yardsticks-far", "Reference attention variants: gain from a copy", table, legend)


def _retrieval(result: VerifyResult, grid: RetrievalResult, index: int) -> Section:
    # Imported here, because a report without a suite loads no measure.
    from ropetool.verification.measures.retrieval import share

    lengths = sorted({cell.length for cell in grid.cells})
    grids = [("target", grid), *((variant.name, variant.measures["retrieval"][index]) for variant in result.yardsticks)]
    rows = [row(name, *(share([cell for cell in of.cells if cell.length == n]) for n in lengths)) for name, of in grids]
    legend = (("cells", "right answers / trials, over all depths; columns: context in tokens"),)
    table = Table(("", *map(str, lengths)), tuple(rows), words=(0,))
    return Section(f"yardsticks-{grid.task}", f"Reference attention variants: retrieval, {grid.task}", table, legend)
