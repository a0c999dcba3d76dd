"""A comparison of candidates: the parts that a terminal shows, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from ropetool import __version__
from ropetool.choosing.ranking import PairResult, Ranking
from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.report.page import Page
from ropetool.report.plot import BASELINE, Plot
from ropetool.report.terminal import Part
from ropetool.sections import BOLD, DIM, NONE, TONES, Cell, Line, Section, Table, change, counted, number, row
from ropetool.verification.gate import GRADES
from ropetool.verification.measures.loss import JUDGED
from ropetool.verification.measures.retrieval import RetrievalPair
from ropetool.verification.results import NOT_JUDGED, Estimate, LengthResult

MOST_DRAWN = 6  # candidates in one plot, beyond which a terminal shows a thicket


def compare_parts(found: Comparison) -> Iterator[Part]:
    """Yield the best candidate at each length, what was measured of each, and the reasons of refusals."""
    for sentence in sentences(found):
        yield Line(sentence, lead=BOLD, indent=2)
    yield Line(conditions(found), DIM)
    for section in sections(found):
        yield section
        if section.key == "ratios":
            yield _plot(found)


def sentences(found: Comparison) -> list[str]:
    """Return for each length up to which some candidate is measured who is the best there, and whom that is told apart from."""
    told = [_sentence(ranking) for ranking in found.rankings] or ["no ranking, because no losses were measured"]
    return told if found.beside is None else [*told, f"with reference attention variants, {_sentence(found.beside)}"]


def _sentence(ranking: Ranking) -> str:
    parts = [ranking.best]
    better = ranking.better_than(ranking.best)
    if better:
        parts.append(f"better than {', '.join(better)}")
    if ranking.tied:
        parts.append(f"not significantly better than {', '.join(ranking.tied)}")
    return f"best at {ranking.length} tokens: {'; '.join(parts)}"


def conditions(found: Comparison) -> str:
    """Return in one line under which conditions that holds."""
    grade = GRADES[found.grade]
    documents = counted(len(found.documents), "document")
    return (
        f"{found.source}, trained at {found.trained_length} tokens; grade {grade.name} allows {grade.max_ratio:g} times its "
        f"perplexity; suite {found.suite}, {documents}; {found.runtime}"
    )


def sections(found: Comparison) -> Iterator[Section]:
    """Yield the tables of a comparison, in the order of a report."""
    measured = [each for each in found.candidates if each.found is not None]
    yield _overview(found, measured)
    if found.rankings:
        yield _ratios(found, measured)
        yield _pairs(found)
    refused = [each for each in found.candidates if each.found is None]
    if refused:
        rows = tuple(row(each.name, each.refusal) for each in refused)
        yield Section("refused", "Not measured", Table(("candidate", ""), rows, words=(0, 1)))


def _overview(found: Comparison, measured: list[CandidateResult]) -> Section:
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
            f"worst ratio at lengths up to {found.trained_length} tokens, the trained length: the cost on short texts",
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
        ("grade", f"the verdict of `verify` on the output for grade {found.grade}, without the checks of files"),
    )
    head = ("candidate", "context", "regression", "ratio", "answers", "key tokens", "needles", "grade")
    notes = tuple(f"{each.name}: {each.note}" for each in measured if each.note)
    return Section("candidates", "Candidates", Table(head, rows, words=(0, 7)), legend, notes)


def _ratios(found: Comparison, measured: list[CandidateResult]) -> Section:
    rows = tuple(row(each.name, *(_judged(each.at(length)) for length in found.lengths)) for each in measured)
    legend = (
        ("columns", "tokens of input; the last tokens are always the same"),
        (
            "cells",
            f"ratio with one-sided 95 % bounds; better: significantly below 1; worse: significantly above the limit of {found.grade}",
        ),
    )
    head = ("candidate", *map(str, found.lengths))
    return Section("ratios", "Perplexity ratio by length", Table(head, rows, words=(0,)), legend)


def _pairs(found: Comparison) -> Section:
    """Return who is better than whom, with every pair as a detail."""
    rankings = [*found.rankings, *([found.beside] if found.beside else [])]
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
            title=f"Every pair at {ranking.length} tokens{', with reference attention variants' if ranking is found.beside else ''}",
        )
        for ranking in rankings
        if ranking.pairs
    )  # fmt: skip
    table = Table(("length", "best", "better than", "not significantly better than"), rows, words=(1, 2, 3))
    return Section("best", "The best at the longest lengths", table, legend, details=details)


def _pair(pair: PairResult) -> tuple[Cell, ...]:
    return row(pair.first, pair.second, change(pair.difference), number(pair.chance), "yes" if pair.better else "no")


def _verdict(each: CandidateResult) -> Cell:
    assert each.found is not None
    if each.plan is None:
        return Cell(NONE)
    return Cell(each.found.verdict, TONES.get(each.found.verdict, ""))


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
    """Return the right answers at the longest length and those of the same trials within the trained one, task by task."""
    assert each.found is not None
    told = []
    for grid in each.found.measures["retrieval"]:
        pairs: list[RetrievalPair] = [pair for pair in grid.pairs if pair.depth is None and not pair.generated]
        if pairs:
            last = max(pairs, key=lambda pair: pair.length)
            told.append(f"{last.hits}/{last.trials}, {last.own}")
    return "; ".join(told) or NONE


def _gain(each: CandidateResult, name: str) -> str:
    assert each.found is not None
    tokens = each.found.measures.get(name)
    gain: Estimate | None = tokens.gain if tokens is not None and not tokens.note else None
    return change(gain)


def _plot(found: Comparison) -> Plot:
    """Return the losses of the best at the longest length, a letter for each, and of the source."""
    drawn = (found.beside or found.rankings[-1]).order[:MOST_DRAWN]
    names = dict(zip(ascii_lowercase, drawn, strict=False))
    series = {BASELINE: [(length, loss.mean) for length, loss in found.baseline.items()]}
    for sign, name in names.items():
        measured = found.candidate(name).found
        series[sign] = [(entry.length, entry.target.mean) for entry in (measured.lengths if measured else ())]
    return Plot(series, {**names, BASELINE: "the source"}, "several", found.trained_length)


# --- as a page


def compare_page(found: Comparison, command: str = "") -> Page:
    """Return the page of a comparison. command: the command line of the comparison."""
    from ropetool.report.compared_charts import charts

    best = sentences(found)
    longest = best[len(found.rankings) - 1] if found.rankings else best[0]
    word, _, sentence = longest.partition(": ")
    return Page(
        command="compare",
        title=f"{found.source}: {longest}",
        word=word,
        tone="",
        sentence=sentence,
        conditions=conditions(found),
        facts=[
            ("source", found.source),
            ("suite", found.suite),
            ("lengths", f"trained {found.trained_length}; measured at {', '.join(map(str, found.lengths))} tokens"),
            ("seed", str(found.seed)),
            ("versions", f"ropetool {__version__}, {found.runtime}"),
            ("command", command),
        ],
        sections=list(sections(found)),
        charts=charts(found),
        notes=(*(best[-1:] if found.beside else ()), *found.notes),
        documents=found.documents,
        fingerprint=found.text_fingerprint,
        texts=found.texts,
    )
