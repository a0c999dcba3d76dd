"""A comparison of candidates: the parts that a terminal shows, and its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropetool import __version__, charts
from ropetool.choosing.ranking import PairResult, Ranking
from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.report.losses import by_length, target_losses
from ropetool.report.page import Page
from ropetool.sections import BOLD, DIM, NONE, TONES, Cell, Line, Part, Section, Table, change, counted, number, row
from ropetool.verification.gate import GRADES
from ropetool.verification.measures.loss import JUDGED
from ropetool.verification.measures.retrieval import RetrievalPair
from ropetool.verification.results import NOT_JUDGED, Estimate, LengthResult

# The looks of candidates in one chart; more curves would be unreadable. In grey, marks and dashes still differ.
LOOKS = tuple(
    charts.Look(colour, mark, dashes, sign=sign)
    for colour, mark, dashes, sign in (
        ("target", "o", "-", "a"), ("second", "s", "--", "b"), ("third", "D", "-.", "c"), ("fourth", "^", ":", "d"),
        ("fifth", "v", (5, 1, 1, 1), "e"), ("sixth", "P", (3, 1), "f"),
    )
)  # fmt: skip


def compare_parts(comparison: Comparison) -> Iterator[Part]:
    """Yield the best candidate at each length, the figures of each candidate, and the reasons of refusals."""
    for sentence in sentences(comparison):
        yield Line(sentence, lead=BOLD, indent=2)
    yield Line(conditions(comparison), DIM)
    for section in sections(comparison):
        yield section
        if section.key == "ratios":
            yield _losses_in_terminal(comparison)


def sentences(comparison: Comparison) -> list[str]:
    """Return a sentence for each ranking, with the best candidate and its significantly worse rivals."""
    ranked = [_sentence(ranking) for ranking in comparison.rankings] or ["no ranking, because no losses were measured"]
    return (
        ranked
        if comparison.beside is None
        else [*ranked, f"with reference attention variants, {_sentence(comparison.beside)}"]
    )


def _sentence(ranking: Ranking) -> str:
    parts = [ranking.best]
    better = ranking.better_than(ranking.best)
    if better:
        parts.append(f"better than {', '.join(better)}")
    if ranking.tied:
        parts.append(f"not significantly better than {', '.join(ranking.tied)}")
    return f"best at {ranking.length} tokens: {'; '.join(parts)}"


def conditions(comparison: Comparison) -> str:
    """Return the conditions of the rankings in one line: source, grade, suite, texts and runtime."""
    grade = GRADES[comparison.grade]
    documents = counted(len(comparison.documents), "document")
    return (
        f"{comparison.source}, trained at {comparison.trained_length} tokens; grade {grade.name} allows {grade.max_ratio:g} times its "
        f"perplexity; suite {comparison.suite}, {documents}; {comparison.runtime}"
    )


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the tables of a comparison, in the order of a report."""
    measured = [each for each in comparison.candidates if each.measured is not None]
    yield _overview(comparison, measured)
    if comparison.rankings:
        yield _ratios(comparison, measured)
        yield _pairs(comparison)
    refused = [each for each in comparison.candidates if each.measured is None]
    if refused:
        rows = tuple(row(each.name, each.refusal) for each in refused)
        yield Section("refused", "Not measured", Table(("candidate", ""), rows, words=(0, 1)))


def _overview(comparison: Comparison, measured: list[CandidateResult]) -> Section:
    rows = tuple(
        row(
            each.name, str(each.target_length or NONE), _ratio(each.regression), _ratio(each.reached), _answers(each),
            _gain(each, "key_tokens"), _gain(each, "needle_answers"), _verdict(each),
        )
        for each in measured
    )  # fmt: skip
    legend = (
        ("context", "context length of the candidate in tokens"),
        (
            "regression",
            f"worst ratio at lengths up to {comparison.trained_length} tokens, the trained length: the cost on short texts",
        ),
        (
            "ratio",
            "perplexity of the candidate / perplexity of the source at min(length, trained length), at the longest "
            "measured length within the candidate's context, with one-sided 95 % bounds",
        ),
        (
            "answers",
            "retrieval: right answers at the longest measured length, and in the same trials within the trained length",
        ),
        ("key tokens", "nats per token that distant text saves on its repetitions, ± 95 %"),
        ("needles", "nats per answer that distant text saves, if only this text contains the answer, ± 95 %"),
        ("grade", f"the verdict of `verify` on the output for grade {comparison.grade}, without the checks of files"),
    )
    head = ("candidate", "context", "regression", "ratio", "answers", "key tokens", "needles", "grade")
    notes = tuple(f"{each.name}: {each.note}" for each in measured if each.note)
    return Section("candidates", "Candidates", Table(head, rows, words=(0, 7)), legend, notes)


def _ratios(comparison: Comparison, measured: list[CandidateResult]) -> Section:
    rows = tuple(row(each.name, *(_judged(each.at(length)) for length in comparison.lengths)) for each in measured)
    legend = (
        ("columns", "tokens of input; the last tokens are always the same"),
        (
            "cells",
            f"ratio with one-sided 95 % bounds; better: significantly below 1; worse: significantly above the limit of {comparison.grade}",
        ),
    )
    head = ("candidate", *map(str, comparison.lengths))
    return Section("ratios", "Perplexity ratio by length", Table(head, rows, words=(0,)), legend)


def _pairs(comparison: Comparison) -> Section:
    """Return the significantly better candidates by length, with every pair as a detail."""
    rankings = [*comparison.rankings, *([comparison.beside] if comparison.beside else [])]
    rows = tuple(
        row(
            str(ranking.length), ranking.best, ", ".join(ranking.better_than(ranking.best)) or NONE,
            ", ".join(ranking.tied) or NONE,
        )
        for ranking in rankings
    )  # fmt: skip
    legend = (
        ("best", "lowest loss on the same tokens, among the candidates measured at this length"),
        (
            "better than",
            "significantly: paired by document, with Holm's correction over all pairs of a length, at 5 % in all",
        ),
    )
    details = tuple(
        Table(
            ("lower loss", "higher loss", "difference", "p", "significant"), tuple(map(_pair, ranking.pairs)), words=(0, 1, 4),
            title=f"Every pair at {ranking.length} tokens{', with reference attention variants' if ranking is comparison.beside else ''}",
        )
        for ranking in rankings
        if ranking.pairs
    )  # fmt: skip
    table = Table(("length", "best", "better than", "not significantly better than"), rows, words=(1, 2, 3))
    return Section("best", "The best at the longest lengths", table, legend, details=details)


def _pair(pair: PairResult) -> tuple[Cell, ...]:
    return row(pair.first, pair.second, change(pair.difference), number(pair.chance), "yes" if pair.better else "no")


def _verdict(each: CandidateResult) -> Cell:
    assert each.measured is not None
    if each.plan is None:
        return Cell(NONE)
    return Cell(each.measured.verdict, TONES.get(each.measured.verdict, ""))


def _judged(entry: LengthResult | None) -> Cell:
    return (
        Cell(NONE)
        if entry is None
        else Cell(_ratio(entry), "" if entry.verdict == NOT_JUDGED else JUDGED[entry.verdict])
    )


def _ratio(entry: LengthResult | None) -> str:
    if entry is None:
        return NONE
    if entry.lower is None or entry.upper is None or entry.partial:
        return f"{number(entry.ratio)} (?)"
    return f"{number(entry.ratio)} ({number(entry.lower)}-{number(entry.upper)})"


def _answers(each: CandidateResult) -> str:
    """Return for each task the right answers at the longest length, and in the same trials within the trained length."""
    assert each.measured is not None
    answers = []
    for grid in each.measured.measures["retrieval"]:
        pairs: list[RetrievalPair] = [pair for pair in grid.pairs if pair.depth is None and not pair.generated]
        if pairs:
            last = max(pairs, key=lambda pair: pair.length)
            answers.append(f"{last.hits}/{last.trials}, {last.own}")
    return "; ".join(answers) or NONE


def _gain(each: CandidateResult, name: str) -> str:
    assert each.measured is not None
    tokens = each.measured.measures.get(name)
    gain: Estimate | None = tokens.gain if tokens is not None and not tokens.note else None
    return change(gain)


# --- charts


def compare_charts(comparison: Comparison) -> Iterator[charts.Chart]:
    """Yield the charts of everything that was measured."""
    if comparison.beside is not None:
        yield losses_chart(comparison, comparison.beside, "losses-beside", ", with reference attention variants")
    for ranking in reversed(comparison.rankings):
        yield losses_chart(comparison, ranking, f"losses-{ranking.length}")
    if comparison.rankings:
        yield _costs_chart(comparison)


def _losses_in_terminal(comparison: Comparison) -> charts.Chart:
    """Return the losses of the best at the longest length and of the source, at all measured lengths."""
    ranking = comparison.beside or comparison.rankings[-1]
    longest = max(ranking.length, *comparison.lengths, *comparison.baseline)
    return losses_chart(comparison, replace(ranking, length=longest), "losses")


def losses_chart(comparison: Comparison, ranking: Ranking, name: str, extra: str = "") -> charts.Chart:
    """Return the losses of the best candidates of a ranking and of the source, by length up to the ranking's length.

    Beyond its own length, the line of the source is dotted.
    name: the name of the chart.
    extra: the end of the title.
    """
    drawn, length = ranking.order[: len(LOOKS)], ranking.length
    lengths = [n for n in comparison.lengths if n <= length]
    own = {n: loss for n, loss in comparison.baseline.items() if n <= length}
    marks = [charts.series("the source", charts.BASELINE, own.items())]
    beyond = tuple(n for n in lengths if own and n >= max(own))
    if len(beyond) > 1:  # the tokens are the same at every length, so cut text gives the same loss
        cut = (own[max(own)].mean,) * len(beyond)
        look = charts.Look(charts.BASELINE.colour, dashes=":")
        marks.append(charts.Series(f"the source, text cut to {max(own)} tokens", look, beyond, cut))
    for look, each in zip(LOOKS, drawn, strict=False):
        measured = comparison.candidate(each).measured
        marks.append(
            target_losses(each, look, (e for e in (measured.lengths if measured else ()) if e.length <= length))
        )
    rest = f", the {len(drawn)} best" if len(drawn) == len(LOOKS) else ""
    caption = (
        f"Mean loss of the same last {comparison.scored} tokens by context length, for candidates measured at {length} tokens{rest}. "
        "Band: 95 % interval of the source over documents. Intervals of differences are narrower than intervals of losses, so "
        "curves within one band can differ significantly. The table of pairs contains these differences."
    )
    panel = by_length(marks, lengths, comparison.trained_length)
    return charts.Chart(
        name, "ratios", f"Losses up to {length} tokens{extra}", caption, (panel,), 4.0, several="several"
    )


def _costs_chart(comparison: Comparison) -> charts.Chart:
    """Return two ratios per candidate: at the longest length in its own context, and the worst in the trained length."""
    shown = [each for each in comparison.candidates if each.regression is not None and each.reached is not None]
    caption = (
        "Perplexity of each candidate / perplexity of the source at min(length, trained length), with one-sided 95 % bounds. "
        "Left of 1, the candidate is better than the source with text of its trained length."
    )
    marks = (
        _ratios_series(
            "at the longest length within its own context", charts.TARGET, [each.reached for each in shown], -0.12
        ),
        _ratios_series("worst within the trained length", charts.BASELINE, [each.regression for each in shown], 0.12),
        charts.Guide("", charts.THIN, 1, level=True),
    )
    candidates = charts.Axis("", charts.NAMES, names=tuple(each.name for each in shown))
    panel = charts.Panel(candidates, charts.Axis("perplexity ratio", charts.RATIOS), marks, sideways=True)
    return charts.Chart("costs", "candidates", "Cost of each candidate", caption, (panel,), 1.4 + 0.34 * len(shown))


def _ratios_series(name: str, look: charts.Look, entries: Sequence[LengthResult | None], shift: float) -> charts.Series:
    """Return the ratio of each candidate with its bounds. A bound that is missing or infinite is the ratio itself."""
    known = [entry for entry in entries if entry is not None]
    lows = tuple(entry.ratio - _finite(entry.ratio - (entry.lower or entry.ratio)) for entry in known)
    highs = tuple(entry.ratio + _finite((entry.upper or entry.ratio) - entry.ratio) for entry in known)
    places = tuple(index + shift for index in range(len(known)))
    return charts.Series(
        name, replace(look, dashes=""), places, tuple(entry.ratio for entry in known), lows, highs, charts.BARS
    )


def _finite(reach: float) -> float:
    return max(0.0, reach) if math.isfinite(reach) else 0.0


# --- as a page


def compare_page(comparison: Comparison, command: str = "") -> Page:
    """Return the page of a comparison. command: the command line of the comparison."""
    best = sentences(comparison)
    longest = best[len(comparison.rankings) - 1] if comparison.rankings else best[0]
    word, _, sentence = longest.partition(": ")
    return Page(
        command="compare",
        title=f"{comparison.source}: {longest}",
        word=word,
        tone="",
        sentence=sentence,
        conditions=conditions(comparison),
        facts=[
            ("source", comparison.source),
            ("suite", comparison.suite),
            (
                "lengths",
                f"trained {comparison.trained_length}; measured at {', '.join(map(str, comparison.lengths))} tokens",
            ),
            ("seed", str(comparison.seed)),
            ("versions", f"ropetool {__version__}, {comparison.runtime}"),
            ("command", command),
        ],
        sections=list(sections(comparison)),
        charts=compare_charts(comparison),
        notes=(*(best[-1:] if comparison.beside else ()), *comparison.notes),
        documents=comparison.documents,
        fingerprint=comparison.text_fingerprint,
        texts=comparison.texts,
    )
