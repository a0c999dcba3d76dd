"""The result of a verification: the parts that a terminal shows, and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ropetool import __version__
from ropetool.registry import addition
from ropetool.report.answered import TONES as ANSWERED
from ropetool.report.answered import curve_plot, questions_section, texts_section
from ropetool.report.grids import bands_section, divergence_section
from ropetool.report.page import Page
from ropetool.report.plot import BASELINE, TARGET, Plot
from ropetool.report.reference_attention import reference_attention_sections
from ropetool.report.terminal import terminal_text
from ropetool.report.verdict import summary
from ropetool.runtimes.inspection import Inspection
from ropetool.sections import BOLD, DIM, TONES, Cell, Line, Part, Section, Table, counted, exact, row
from ropetool.verification import measures
from ropetool.verification.gate import GRADES
from ropetool.verification.results import FAIL, INEXACT, NOT_ASKED, NOT_RUN, PASS, UNDECIDED, VerifyResult

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
        yield from curve_plot(result.answers)
        yield from (texts_section(result), *sections(result), gate_section(result)) if explained else ()
        return
    yield gate_section(result)
    for section in sections(result):
        yield section
        if section.key == "loss":
            yield _plot(result)


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


def _plot(result: VerifyResult) -> Plot:
    series = {
        BASELINE: [(entry.length, entry.baseline.mean) for entry in result.lengths if entry.baseline],
        TARGET: [(entry.length, entry.target.mean) for entry in result.lengths],
    }
    return Plot(series, {TARGET: "target", BASELINE: "baseline"}, "both", result.trained_length)


# --- as a page


def verify_page(
    result: VerifyResult, command: str = "", serving: Sequence[str] = (), target: Inspection | None = None
) -> Page:
    """Return the page of a verification.

    command: the command line of the verification.
    serving: the command lines that serve the target.
    target: its inspection, for a table of the runtimes; None for no such table.
    """
    from ropetool.report.charts import charts
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
        charts=charts(result),
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
