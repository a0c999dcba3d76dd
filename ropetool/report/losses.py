"""Losses by length as charts: of a target and its baseline, and the regression within the trained length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ropetool import charts
from ropetool.verification.results import LengthResult, VerifyResult


def by_length(marks: Iterable[charts.Series], lengths: Iterable[int], trained_length: int) -> charts.Panel:
    """Return losses by length, with a line at the trained length. lengths: the labels, in tokens."""
    context = charts.Axis("context", charts.TOKENS, tokens=tuple(lengths))
    loss = charts.Axis("loss (nats per token)", charts.LOSSES)
    return charts.Panel(context, loss, (*marks, trained_line(trained_length)))


def trained_line(place: float) -> charts.Guide:
    """Return a line at the trained length."""
    return charts.Guide("trained length", charts.DOTTED, place)


def loss_charts(result: VerifyResult) -> Iterator[charts.Chart]:
    """Yield the losses of target and baseline, and the regression if it was measured."""
    if result.lengths:
        yield loss_chart(result)
    if any(entry.tax for entry in result.lengths):
        yield _regression_chart(result)


def loss_chart(result: VerifyResult) -> charts.Chart:
    """Return the losses of target and baseline by length."""
    caption = (
        f"Mean loss of the same last {result.scored} tokens by context length. Bands: 95 % interval over documents. "
        "Perplexity = exp(loss). A level curve keeps its quality, a falling curve uses the context, a rising curve breaks."
    )
    lengths = [entry.length for entry in result.lengths]
    panel = by_length(target_and_baseline(result), lengths, result.trained_length)
    return charts.Chart("loss", "loss", "Loss against context", caption, (panel,), several="both")


def target_and_baseline(result: VerifyResult, form: str = charts.BAND) -> tuple[charts.Series, charts.Series]:
    """Return the losses of the baseline and of the target by length, in the order in which they are drawn."""
    measured = [(entry.length, entry.baseline) for entry in result.lengths if entry.baseline]
    baseline = charts.series("baseline", charts.BASELINE, measured, form)
    return baseline, charts.series(
        "target", charts.TARGET, [(each.length, each.target) for each in result.lengths], form
    )


def target_losses(name: str, look: charts.Look, lengths: Iterable[LengthResult]) -> charts.Series:
    """Return the losses of a target, a candidate or a reference attention variant by length, without intervals."""
    return charts.series(name, look, [(entry.length, entry.target) for entry in lengths], charts.LINE)


def _regression_chart(result: VerifyResult) -> charts.Chart:
    """Return the regression at each length within the trained length."""
    regressions = [(entry.length, entry.tax) for entry in result.lengths if entry.tax]
    caption = (
        f"regression(n) = loss(target, n) - loss(baseline, n) for lengths n up to the trained {result.trained_length}, paired "
        "by token, with 95 % interval. Above zero, the extension makes short texts worse: the perplexity grows by "
        "exp(regression) - 1."
    )
    bars = charts.series("", replace(charts.TARGET, dashes=""), enumerate(tax for _, tax in regressions), charts.BARS)
    lengths = charts.Axis("context", charts.EVEN_TOKENS, tokens=tuple(length for length, _ in regressions))
    panel = charts.Panel(
        lengths, charts.Axis("regression (nats per token)"), (charts.Guide("", charts.THIN, 0, level=True), bars)
    )
    return charts.Chart("tax", "worth", "Short-context regression", caption, (panel,), 2.8)
