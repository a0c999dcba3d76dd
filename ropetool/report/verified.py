"""The result of a verification: the parts that a terminal shows, and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ropetool import __version__, charts
from ropetool.registry import addition
from ropetool.report.answered import TONES as ANSWERED
from ropetool.report.answered import curve_charts, questions_section, texts_section
from ropetool.report.bands import bands_chart, bands_section
from ropetool.report.losses import loss_chart, loss_charts, trained_line
from ropetool.report.page import Page
from ropetool.report.reference_attention import reference_attention_chart, reference_attention_sections
from ropetool.report.terminal import terminal_text
from ropetool.report.verdict import summary
from ropetool.runtimes.inspection import Inspection
from ropetool.sections import (
    BOLD,
    DIM,
    TONES,
    Cell,
    Line,
    Part,
    Section,
    Table,
    counted,
    exact,
    half_width,
    number,
    row,
)
from ropetool.verification import measures
from ropetool.verification.gate import GRADES
from ropetool.verification.results import (
    FAIL,
    INEXACT,
    NOT_ASKED,
    NOT_RUN,
    PASS,
    UNDECIDED,
    DivergenceResult,
    DivergenceSpan,
    VerifyResult,
)

ORDER = (FAIL, NOT_RUN, UNDECIDED, INEXACT, PASS, NOT_ASKED)  # of the checks: those that decide the verdict first


def verify_text(
    result: VerifyResult, *, width: int | None = None, colour: bool = False, explained: bool = False
) -> str:
    """Return what `ropetool verify` prints; width, colour, explained: see `terminal_text`."""
    return terminal_text(verify_parts(result, explained), width, colour=colour, explained=explained)


def verify_parts(result: VerifyResult, explained: bool = False) -> Iterator[Part]:
    """Yield the verdict in one sentence, then the gate and the tables of all measures, or the three questions.

    explained: after the three questions, add the table of texts, the measures and the gate.
    """
    yield Line(summary(result), lead=f"{BOLD} {_tone(result)}")
    yield Line(conditions(result), DIM)
    if result.answers is not None:
        yield questions_section(result)
        yield from curve_charts(result.answers)
        yield from (texts_section(result), *sections(result), gate_section(result)) if explained else ()
        return
    yield gate_section(result)
    for section in sections(result):
        yield section
        if section.key == "loss":
            yield loss_chart(result)


def sections(result: VerifyResult) -> Iterator[Section]:
    """Yield the tables of everything that was measured, in the order of a report."""
    results = {measures.LENGTHS: result.lengths, **result.measures}
    for key, measure in measures.by_key().items() if any(results.values()) else ():
        if results.get(key):
            yield from measure.sections(results[key], result)
    if result.lm_eval is not None:
        section: Section = addition("lm_eval_section")(result.lm_eval)
        yield section
    if result.yardsticks:
        yield from reference_attention_sections(result)
    if result.divergence is not None:
        yield divergence_section(result.divergence, result.trained_length)


def gate_section(result: VerifyResult) -> Section:
    """Return each check with its figure, limit and verdict."""
    rows = tuple(
        row(check.name, exact(check.figure), exact(check.limit), Cell(check.verdict, TONES.get(check.verdict, "")), check.detail)
        for check in sorted(result.checks, key=lambda check: ORDER.index(check.verdict))
    )  # fmt: skip
    meaning = (
        "pass, fail: decides the verdict; undecided: too little data; not run: could not be measured, so the result "
        "is partial; inexact: differs, as --allow-inexact accepted; -: only informs"
    )
    grade = f", grade {result.grade}" if result.grade else ""
    table = Table(("check", "figure", "limit", "verdict", ""), rows, words=(0, 3, 4))
    return Section("gate", f"Gate, suite {result.suite}{grade}", table, (("verdict", meaning),))


def conditions(result: VerifyResult) -> str:
    """Return the conditions of the verdict in one line: lengths, grade, texts or minutes, and the runtime."""
    lengths = f"Trained length {result.trained_length} tokens, context length {result.context_length}"
    if result.answers is not None:
        return f"{lengths}; {result.answers.minutes:.1f} minutes; {result.runtime or 'no model was run'}"
    grade = GRADES.get(result.grade)
    proof = " and requires that the model uses distant text" if grade and grade.reads_far else ""
    allowed = f"grade {grade.name} allows {grade.max_ratio:g} times the baseline's perplexity{proof}; " if grade else ""
    documents = counted(len(result.documents), "document")
    return f"{lengths}; {allowed}suite {result.suite}, {documents}; {result.runtime}"


def _tone(result: VerifyResult) -> str:
    return TONES[result.verdict] if result.answers is None else ANSWERED[result.answers.verdict]


# --- the divergence of two files


def divergence_section(divergence: DivergenceResult, trained_length: int) -> Section:
    """Return the divergence within and beyond the trained length."""
    named = (("within", divergence.within), ("beyond", divergence.beyond), ("rare tokens", divergence.rare))
    spans = [(label, span) for label, span in named if span is not None]
    legend = (
        (
            "KL",
            "KL(reference || target) = sum of p ln(p/q) over the vocabulary, nats per token, ± 95 % interval over documents",
        ),
        ("top-1", "share of tokens for which both have the same likeliest token"),
        ("logits", "largest difference of two logits, divided by the largest logit of the reference"),
        (
            "within",
            f"the trained length of {trained_length} tokens; {divergence.rows} rows of {divergence.length} tokens",
        ),
        *(
            [("rare tokens", "rows of tokens that do not occur in the texts, in random order")]
            if divergence.rare
            else []
        ),
    )
    head = ("positions", "", "tokens", "mean KL", "median", "99 %", "maximum", "top-1", "logits")
    rows = tuple(_span(span, label) for label, span in spans)
    finer = Table(head, tuple(_span(span, "") for span in divergence.by_position), words=(0, 1), title="By position")
    title = f"Divergence from {divergence.reference}"
    notes = (divergence.note,) if divergence.note else ()
    return Section("divergence", title, Table(head, rows, words=(0, 1)), legend, notes, (finer,))


def _span(span: DivergenceSpan, label: str) -> tuple[Cell, ...]:
    reach = half_width(span.mean)
    return row(
        f"{span.start}-{span.end - 1}",
        label,
        str(span.tokens),
        f"{number(span.mean.mean)} ± {'?' if reach == float('inf') else number(reach)}",
        number(span.median),
        number(span.p99),
        number(span.maximum),
        exact(span.top1),
        number(span.logit_difference),
    )


def _divergence_chart(divergence: DivergenceResult, trained_length: int) -> charts.Chart:
    """Return the divergence by position."""
    caption = (
        "KL(reference || target) = Σ p ln(p / q) over the vocabulary, by position: the mean with 95 % interval, and the "
        "99th percentile. Rounding errors do not depend on the position; errors of a wrong frequency grow with it."
    )
    spans = divergence.by_position
    edges = (*(span.start for span in spans), spans[-1].end)
    places = tuple(range(len(edges)))
    means, highs = tuple(span.mean.mean for span in spans), tuple(span.mean.high for span in spans)
    # An interval that would reach zero or below ends at half the mean.
    lows = tuple(span.mean.low if span.mean.low > 0 else span.mean.mean / 2 for span in spans)
    marks: tuple[charts.Series | charts.Guide, ...] = (
        charts.Series("mean", charts.TARGET, places, means, lows, highs, charts.STEPS),
        charts.Series("99 %", charts.BASELINE, places, tuple(span.p99 for span in spans), form=charts.STEPS),
        *([trained_line(edges.index(trained_length))] if trained_length in edges[1:-1] else []),
    )
    positions = charts.Axis("position", charts.EVEN_TOKENS, tokens=edges)
    panel = charts.Panel(positions, charts.Axis("KL (nats per token)", charts.LOGARITHMIC), marks)
    return charts.Chart("divergence", "divergence", "KL by position", caption, (panel,), 3.0)


# --- as a page


def verify_charts(result: VerifyResult) -> Iterator[charts.Chart]:
    """Yield the charts of everything that was measured."""
    yield from loss_charts(result)
    if any(variant.lengths for variant in result.yardsticks):
        yield reference_attention_chart(result)
    if result.bands is not None:
        yield bands_chart(result.bands, result.context_length)
    for key, measure in measures.by_key().items() if any(result.measures.values()) else ():
        if result.measures.get(key):
            yield from measure.charts(result.measures[key], result)
    if result.divergence is not None and result.divergence.by_position:
        yield _divergence_chart(result.divergence, result.trained_length)


def verify_page(
    result: VerifyResult, command: str = "", serving: Sequence[str] = (), target: Inspection | None = None
) -> Page:
    """Return the page of a verification.

    command: the command line of the verification.
    serving: the command lines that serve the target.
    target: its inspection, for a table of the runtimes; None for no such table.
    """
    from ropetool.report.inspected_page import runtimes_section

    shown = [gate_section(result), *sections(result)]
    if result.answers is not None:
        shown = [questions_section(result), texts_section(result), *shown]
    if result.bands is not None:
        shown.append(bands_section(result.bands))
    if target is not None:
        shown.append(runtimes_section(target))
    word = result.verdict if result.answers is None else result.answers.verdict
    return Page(
        command="verify",
        title=f"{word}: {result.target}",
        word=word,
        tone=_tone(result),
        sentence=summary(result).partition(": ")[2],
        conditions=conditions(result),
        facts=[*_facts(result, command), *(("served by", line) for line in serving)],
        sections=shown,
        charts=verify_charts(result),
        notes=result.notes,
        documents=result.documents,
        fingerprint=result.text_fingerprint,
        texts=result.texts,
    )


def _facts(result: VerifyResult, command: str) -> list[tuple[str, str]]:
    return [
        ("target", result.target),
        ("baseline", result.baseline or "the target itself, within its trained length"),
        ("against", result.against or ""),
        ("suite", result.suite),
        ("lengths", f"trained length {result.trained_length}, context length {result.context_length} tokens"),
        ("cache", f"keys and values of the target in {result.cache_type}" if result.cache_type else ""),
        ("seed", str(result.seed)),
        ("versions", f"ropetool {__version__}, {result.runtime}"),
        ("command", command),
    ]
