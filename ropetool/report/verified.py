"""The result of a verification as text for a terminal: the verdict, the gate, tables and a plot; legends on request."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ropetool.escaping import escaped
from ropetool.report.answered import TONES as ANSWERED
from ropetool.report.answered import curve_plot, questions_section, texts_section
from ropetool.report.gate import gate_section
from ropetool.report.layout import counted, wrapped
from ropetool.report.plot import SEVERAL, TRAINED, perplexity_plot
from ropetool.report.terminal import POINTER, STYLES, WIDTH, console_of, print_section, put, written
from ropetool.report.verdict import summary
from ropetool.sections import TONES
from ropetool.verification.gate import GRADES
from ropetool.verification.results import VerifyResult
from ropetool.verification.verdict.answers import Answers

TARGET, BASELINE = "●", "○"


def verify_text(
    result: VerifyResult, *, width: int | None = None, colour: bool = False, explained: bool = False
) -> str:
    """Return the verdict in one sentence, the gate, and what was measured table by table.

    width: of the terminal, within which all lines are kept; None where there is none, for which tables get 120 columns
    and the sentence is one line. explained: what columns mean stands below their tables.
    """
    console = console_of(colour)
    columns = WIDTH if width is None else width
    verdict, _, rest = escaped(summary(result)).partition(": ")
    lines = [f"{verdict}: {rest}"] if width is None else wrapped(f"{verdict}: {rest}", width, indent=0).splitlines()
    tone = TONES[result.verdict] if result.answers is None else ANSWERED[result.answers.verdict]
    put(console, Text.assemble((verdict, f"bold {STYLES[tone]}"), lines[0][len(verdict) :]))
    for line in lines[1:]:
        put(console, Text(line))
    for line in wrapped(escaped(conditions(result)), columns, indent=0).splitlines():
        put(console, Text(line, style="dim"))
    if result.answers is not None:
        _put_answers(console, result, result.answers, columns, explained)
        return written(console)
    from ropetool.report.sections import sections  # tables of all measures, which only suites have

    print_section(console, gate_section(result), columns, explained)
    for section in sections(result):
        print_section(console, section, columns, explained)
        if section.key == "loss":
            put(console, Text(f"\n{_plot(result, columns)}".rstrip("\n")))
    if not explained:
        for line in ["", *wrapped(POINTER, columns, indent=0).splitlines()]:
            put(console, Text(line, style="dim"))
    return written(console)


def _put_answers(console: Console, result: VerifyResult, answers: Answers, width: int, explained: bool) -> None:
    print_section(console, questions_section(result), width, explained)
    plot = curve_plot(answers, width)
    if plot:
        put(console, Text(f"\n{plot}".rstrip("\n")))
    if explained:
        from ropetool.report.sections import sections

        for section in (texts_section(result), *sections(result)):
            print_section(console, section, width, explained)
        print_section(console, gate_section(result), width, explained)


def conditions(result: VerifyResult) -> str:
    """Return in one line under which conditions was measured what the verdict says."""
    if result.answers is not None:
        return f"{_lengths(result)}; {result.answers.minutes:.1f} minutes; {result.runtime or 'no model was run'}"
    grade = GRADES.get(result.grade)
    proof = " and requires that the model uses distant text" if grade and grade.reads_far else ""
    allowed = f"grade {grade.name} allows {grade.max_ratio:g} times the baseline's perplexity{proof}; " if grade else ""
    documents = counted(len(result.documents), "document")
    return f"{_lengths(result)}; {allowed}suite {result.suite}, {documents}; {result.runtime}"


def _lengths(result: VerifyResult) -> str:
    return f"Trained length {result.trained_length} tokens, context length {result.context_length}"


def _plot(result: VerifyResult, width: int) -> str:
    series = {
        BASELINE: [(entry.length, entry.baseline.mean) for entry in result.lengths if entry.baseline],
        TARGET: [(entry.length, entry.target.mean) for entry in result.lengths],
    }
    key = f"{'ppl':>8}  {TARGET} target  {BASELINE} baseline  {SEVERAL} both  {TRAINED} trained length\n"
    return key + perplexity_plot(series, result.trained_length, width)
