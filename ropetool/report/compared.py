"""A comparison of candidates: the parts that a terminal shows, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from ropetool import __version__
from ropetool.choosing.ranking import PairResult, Ranking
from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.report.page import Page
from ropetool.report.plot import BASELINE, Plot
from ropetool.sections import BOLD, DIM, NONE, TONES, Cell, Line, Part, Section, Table, change, counted, number, row
from ropetool.verification.gate import GRADES
from ropetool.verification.measures.loss import JUDGED
from ropetool.verification.measures.retrieval import RetrievalPair
from ropetool.verification.results import NOT_JUDGED, Estimate, LengthResult

MOST_DRAWN = 6  # candidates in one plot; more would be unreadable in a terminal


def compare_parts(comparison: Comparison) -> Iterator[Part]:
    """Yield the best candidate at each length, the figures of each candidate, and the reasons of refusals."""
    for sentence in sentences(comparison):
        yield Line(sentence, lead=BOLD, indent=2)
    yield Line(conditions(comparison), DIM)
    for section in sections(comparison):
        yield section
        if section.key == "ratios":
            yield _plot(comparison)


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


def _plot(comparison: Comparison) -> Plot:
    """Return the losses of the best at the longest length, a letter for each, and of the source."""
    drawn = (comparison.beside or comparison.rankings[-1]).order[:MOST_DRAWN]
    names = dict(zip(ascii_lowercase, drawn, strict=False))
    series = {BASELINE: [(length, loss.mean) for length, loss in comparison.baseline.items()]}
    for sign, name in names.items():
        measured = comparison.candidate(name).measured
        series[sign] = [(entry.length, entry.target.mean) for entry in (measured.lengths if measured else ())]
    return Plot(series, {**names, BASELINE: "the source"}, "several", comparison.trained_length)


# --- as a page


def compare_page(comparison: Comparison, command: str = "") -> Page:
    """Return the page of a comparison. command: the command line of the comparison."""
    from ropetool.report.compared_charts import charts

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
        charts=charts(comparison),
        notes=(*(best[-1:] if comparison.beside else ()), *comparison.notes),
        documents=comparison.documents,
        fingerprint=comparison.text_fingerprint,
        texts=comparison.texts,
    )
