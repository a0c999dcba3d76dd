"""The answers of a default verification: one sentence, a table of three questions, and a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ropetool import charts
from ropetool.report.losses import by_length
from ropetool.sections import BAD, GOOD, NONE, WARN, Cell, Section, Table, counted, row
from ropetool.verification.certifying import OF_FILES
from ropetool.verification.gate import BROKEN as BROKEN_TEXTS
from ropetool.verification.gate import LENGTHS, LONG, SHORT
from ropetool.verification.results import FAIL, FALSE, NOT_KNOWN, NOT_RUN, PASS, TRUE, VerifyResult, is_true
from ropetool.verification.verdict.answers import Answers, Question
from ropetool.verification.verdict.bounds import (
    BROKEN,
    COSTS,
    FEWEST_TEXTS,
    KEEP,
    KEPT,
    LOOKS,
    MEASURED,
    WORKING,
    WORKS,
)
from ropetool.verification.verdict.deciding import FILE, TEXTS

TONES = {KEEP: GOOD, WORKS: GOOD, COSTS: WARN, BROKEN: BAD, MEASURED: WARN}
POSITION = "position"  # a check that measures the cost of a position, not the use of text
HOURS = 120  # minutes from which a duration is shown in hours
MARGIN = 1.2  # times the expected minutes; another minute is for loading the models


def answers_sentence(result: VerifyResult) -> str:
    """Return the answers in words, without the verdict; empty for a file that failed the first question."""
    answers = result.answers
    assert answers is not None
    if answers.verdict == BROKEN:
        return _broken(result, answers)
    questions = [("on short texts", answers.short), (f"at {answers.length:,} tokens", answers.long)]
    answered = [(where, question) for where, question in questions if question is not None]
    alike = len({question.texts for _, question in answered}) == 1
    costs = [
        _cost(where, answers, question) + ("" if alike else f" in {counted(question.texts, 'text')}")
        for where, question in answered
    ]
    cost = ", ".join([*costs, *([f"in {counted(answered[0][1].texts, 'text')}"] if alike else [])])
    cost = f"perplexity {cost}" if cost else ""
    lines = [cost or "the time was too short for one text"]
    lines += [f"but {what}" for what in answers.lost]
    if answers.verdict == WORKS and not answers.lost:
        lines.append(f"a cost above {100 * (KEPT - 1):.0f} % is still possible")
    if answers.verdict == MEASURED:
        if answers.long is not None and answers.long.texts < LOOKS[0]:
            lines.append(FEWEST_TEXTS)
        if answers.length < answers.target_length:
            lines.append(f"the run did not reach {answers.target_length:,} tokens")
        lines += [check.detail for check in result.checks if check.verdict == NOT_RUN and check.name != LENGTHS]
    more = next_step(answers)
    return "; ".join([*lines, *([more] if more else [])])


def next_step(answers: Answers) -> str:
    """Return the next step and its duration; empty if the question is decided."""
    if answers.verdict in (KEEP, COSTS, BROKEN) or answers.lost:
        return ""
    if answers.more_texts is None or answers.more_minutes is None:
        return f"probably even {LOOKS[-1]} texts like these give no verdict"
    if answers.ended == TEXTS:
        return f"{counted(answers.more_texts, 'more text')} can decide; pass documents with --text"
    minutes = max(1, math.ceil(answers.more_minutes))
    duration = counted(minutes, "minute") if minutes < HOURS else counted(round(minutes / 60), "hour")
    budget = math.ceil(MARGIN * answers.more_minutes) + 1
    return (
        f"{counted(answers.more_texts, 'more text')} can decide, in about {duration}: repeat the command with "
        f"`--resume --budget {budget}`"
    )


def questions_section(result: VerifyResult) -> Section:
    """Return the three questions with their answers, and the use of distant text if it was measured."""
    answers = result.answers
    assert answers is not None
    read = [check for check in result.checks if check.name in OF_FILES]
    answer = is_true(read)
    deciding = {TRUE: read, FALSE: [check for check in read if check.verdict == FAIL]}.get(
        answer, [check for check in read if check.verdict == NOT_RUN] or read
    )
    file = {TRUE: Cell("yes", GOOD), FALSE: Cell("no", BAD)}.get(answer, Cell(answer, WARN))
    why = "; ".join(f"{check.name}: {check.detail}" for check in deciding)
    rows = [row("Is the file correct?", file, why)]
    if answers.ended != FILE:
        rows.append(
            row("What does it cost on short texts?", *_answer(answers, answers.short, "no source for comparison"))
        )
        rows.append(row("Does it work at full length?", *_answer(answers, answers.long, "not measured")))
    use = [check for check in result.checks if check.name not in (*OF_FILES, SHORT, LONG, BROKEN_TEXTS, LENGTHS)]
    if use:
        why = "; ".join(f"{check.name}: {check.detail}" for check in use)
        shown = any(check.verdict == PASS and check.name != POSITION for check in use)
        used = Cell("less", WARN) if answers.lost else Cell("no loss found", GOOD) if shown else Cell(NOT_KNOWN, WARN)
        rows.append(row("Is distant text used as before?", used, why))
    return Section("answers", "Three questions", Table(("question", "answer", ""), tuple(rows), words=(0, 1, 2)))


def texts_section(result: VerifyResult) -> Section:
    """Return a row for each text, with the changes of its perplexity."""
    assert result.answers is not None
    rows = tuple(
        row(
            text.document,
            text.kind or NONE,
            f"{text.length:,}",
            _gap(text.short, text.short_error),
            _gap(text.long, text.long_error),
            "broken" if text.broken else "cut" if text.cut else "",
        )
        for text in result.answers.texts
    )
    legend = (
        ("tokens", "tokens that the target read"),
        (
            "short, at length",
            "change of perplexity from source to target on the same tokens, ± two standard errors",
        ),
    )
    return Section(
        "texts",
        "Text by text",
        Table(("text", "kind", "tokens", "short", "at length", ""), rows, words=(0, 1, 5)),
        legend,
    )


def curve_charts(answers: Answers) -> Iterator[charts.Chart]:
    """Yield the target's loss by position; nothing if too few positions were read."""
    if len(answers.curve) >= 3:
        positions = tuple(point.position for point in answers.curve)
        losses = charts.Series(
            "target, by position", charts.TARGET, positions, tuple(point.loss for point in answers.curve)
        )
        panel = by_length([losses], positions, answers.trained_length)
        yield charts.Chart("curve", "answers", "Loss by position", "Mean loss of all texts by position.", (panel,))


def _answer(answers: Answers, question: Question | None, otherwise: str) -> tuple[Cell, str]:
    if question is None:
        return Cell("not measured", WARN), otherwise
    texts = f"{question.length:,} tokens, {counted(question.texts, 'text')}"
    if question.lower is None or question.upper is None:
        return Cell(f"perplexity {share(question.ratio)}"), f"{texts}; {_own_interval(answers, question)}"
    tone = (
        GOOD if question.upper <= KEPT else BAD if question.lower > WORKING else WARN if question.lower > KEPT else ""
    )
    return Cell(
        f"perplexity {share(question.ratio)}", tone
    ), f"{texts}; 95 % bounds {share(question.lower)} to {share(question.upper)}"


def _cost(where: str, answers: Answers, question: Question) -> str:
    if question.upper is None or question.lower is None:
        bounds = _own_interval(answers, question)
    elif answers.verdict == KEEP and question.ratio >= 1:
        bounds = f"at most {share(question.upper)}"
    else:
        bounds = f"{share(question.lower)} to {share(question.upper)}"
    return f"{share(question.ratio)} {where} ({bounds})"


def _broken(result: VerifyResult, answers: Answers) -> str:
    if answers.ended == FILE:
        return ""
    broken = [text for text in answers.texts if text.broken]
    questions = [each for each in (answers.long, answers.short) if each is not None and each.ratio > WORKING]
    source = result.baseline or "itself on text of its trained length"
    if not questions:
        return (
            f"{len(broken)} of {counted(len(answers.texts), 'text')} have a much higher perplexity than with {source}"
        )
    worst = questions[0]
    where = f"at {worst.length:,} tokens{' and more' if any(text.cut for text in answers.texts) else ''}"
    count = f"{len(broken)} of {counted(len(answers.texts), 'text')}" if broken else counted(len(answers.texts), "text")
    return f"{where} its perplexity is {worst.ratio:.1f} times the perplexity of {source}, in {count}"


def _own_interval(answers: Answers, question: Question) -> str:
    """Return the interval of a few texts, by two standard errors over their tokens."""
    is_short = question is answers.short
    errors = [
        error for text in answers.texts if (error := text.short_error if is_short else text.long_error) is not None
    ]
    reach = 2 * math.sqrt(sum(error**2 for error in errors)) / max(1, len(errors))
    if not math.isfinite(reach):
        return "for these tokens only"
    mean = math.log(question.ratio)
    return f"{share(math.exp(mean - reach))} to {share(math.exp(mean + reach))} for these tokens only"


def _gap(gap: float | None, error: float | None) -> str:
    if gap is None:
        return NONE
    if error is None or not math.isfinite(error):
        return share(math.exp(gap))
    return f"{share(math.exp(gap))} ± {200 * error:.1f} %"


def share(ratio: float) -> str:
    """Return a ratio of perplexities as a percentage, or as a factor from 3 on."""
    if ratio >= 3:
        return f"x{ratio:.1f}"
    percent = 100 * (ratio - 1)
    text = f"{percent:+.0f} %" if abs(percent) >= 9.95 else f"{percent:+.1f} %"
    return "+0.0 %" if text == "-0.0 %" else text
