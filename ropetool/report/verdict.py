"""The verdict of a verification as one sentence, for readers who do not know the checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ropetool.report.answered import answers_sentence
from ropetool.sections import exact
from ropetool.verification import measures
from ropetool.verification.gate import GRADES
from ropetool.verification.measure import VerdictSentence
from ropetool.verification.results import (
    FAIL,
    INEXACT,
    NOT_RUN,
    PARTIAL,
    PASS,
    SCHEMA,
    UNDECIDED,
    WORSE,
    Check,
    VerifyResult,
)
from ropetool.verification.shares import attainable_loss
from ropetool.verification.suites import CUSTOM, SUITES

DETAIL = 160  # characters of a check's detail in the sentence; the gate shows the whole detail
TEXTS = "--text with more documents"
LARGER = {"quick": "--suite standard", "standard": "--suite full"}  # a suite with more passages


DIFFERS = "{} differ from {{against}} by more than rounding"
# By the name of the check up to its first comma, or up to a space. Measures add theirs. A check without words gets its figures.
WORDS: Mapping[str, Mapping[str, VerdictSentence]] = {
    "tables": {
        FAIL: VerdictSentence("its positions differ from its record or its method ({detail})", "{mend}"),
        NOT_RUN: VerdictSentence("its positions could not be rebuilt ({detail})"),
    },
    "weights": {FAIL: VerdictSentence("its weights differ from its source ({detail})", "{mend}")},
    "files": {FAIL: VerdictSentence("its other files differ from its source ({detail})", "{mend}")},
    "dress": {FAIL: VerdictSentence("it has cosmetic differences from its source ({detail})", "without --strict")},
    "rotation": {
        FAIL: VerdictSentence("its runtime rotates differently from its files ({detail})", "ropetool inspect TARGET"),
        NOT_RUN: VerdictSentence("its rotation could not be computed ({detail})"),
    },
    "same tables": {
        FAIL: VerdictSentence("the two files do not give the same positions ({detail})", "write one of them again")
    },
    "yardstick": {
        NOT_RUN: VerdictSentence("no record or baseline describes it before its extension", "--baseline SOURCE")
    },
    "lengths": {NOT_RUN: VerdictSentence("{detail}", "{reach}")},
    "texts": {NOT_RUN: VerdictSentence("{detail}", "--text with more or longer documents")},
    "ratio": {
        FAIL: VerdictSentence(
            "its perplexity at {worse} tokens is significantly more than {limit} times the perplexity of {reference} "
            "without the longer context",
            "{milder}",
        ),
        UNDECIDED: VerdictSentence(
            "these texts are too few to show that its perplexity at {unsure} tokens is at most {limit} times the "
            "perplexity of {reference} without the longer context",
            TEXTS,
        ),
        NOT_RUN: VerdictSentence("its perplexity could not be compared with a baseline", "--baseline SOURCE"),
    },
    "useful": {FAIL: VerdictSentence("a context beyond {trained} tokens does not help at every length", "{milder}")},
    "far text": {
        UNDECIDED: VerdictSentence("these texts do not show that it uses text more than {trained} tokens back", TEXTS),
        NOT_RUN: VerdictSentence("{detail}", "--lengths up to {context}"),
    },
    "KL": {
        FAIL: VerdictSentence(DIFFERS.format("its predictions"), "{wider}"),
        UNDECIDED: VerdictSentence("these texts do not show whether its predictions equal {against}", TEXTS),
        NOT_RUN: VerdictSentence("its predictions could not be compared ({detail})"),
    },
    "KL p99": {FAIL: VerdictSentence(DIFFERS.format("some of its predictions"), "{wider}")},
    "KL window": {
        FAIL: VerdictSentence(DIFFERS.format("at some positions, its predictions"), "{wider}"),
    },
    "KL rare tokens": {
        FAIL: VerdictSentence(DIFFERS.format("after rare tokens, its predictions"), "{wider}"),
    },
    "KL beyond": {
        FAIL: VerdictSentence(
            "beyond {trained} tokens, its predictions differ more from {against} than within", "{wider}"
        ),
    },
    "lm-eval": {
        FAIL: VerdictSentence("it is significantly worse at some task of lm-evaluation-harness ({detail})", "{milder}"),
        UNDECIDED: VerdictSentence(
            "the samples of lm-evaluation-harness are too few for a verdict", "--lm-eval with more samples"
        ),
        NOT_RUN: VerdictSentence(
            "the results of lm-evaluation-harness could not be judged ({detail})", "--lm-eval with more samples"
        ),
    },
}
PLAIN: Mapping[str, str] = {FAIL: "{name} is outside its limit", UNDECIDED: "{name} is undecided",
                            NOT_RUN: "{name} could not be measured"}  # fmt: skip
STEPS: Mapping[str, str] = {UNDECIDED: "{larger}"}
DECIDING: Mapping[str, str] = {FAIL: FAIL, PARTIAL: NOT_RUN, UNDECIDED: UNDECIDED}
OTHERS: Mapping[str, tuple[str, str]] = {
    FAIL: ("1 more check fails", "{count} more checks fail"),
    NOT_RUN: ("1 more did not run", "{count} more did not run"),
    UNDECIDED: ("1 more is undecided", "{count} more are undecided"),
}


def summary(result: VerifyResult) -> str:
    """Return the target and its verdict. If it did not pass, add the decisive check and the next step."""
    if result.answers is not None:
        return _answered(result)
    sentence = f"{result.verdict}: {_subject(result)} {_judgement(result)}"
    if result.verdict == PASS:
        return f"{sentence}{_worth(result)}{_inexact(result)}."
    decisive = _with(result.checks, DECIDING[result.verdict])
    others = [
        words.format(count=count)
        for verdict, (one, several) in OTHERS.items()
        for count in [len(_with(result.checks, verdict)) - (verdict == DECIDING[result.verdict])]
        for words in [one if count == 1 else several]
        if count
    ]
    # Failures are fixed one by one, but all missing measurements are needed.
    steps = dict.fromkeys(_step(result, check) for check in (decisive[:1] if result.verdict == FAIL else decisive))
    following = [step for step in steps if step]
    return (
        f"{sentence}: {_reason(result, decisive[0])}"
        f"{f'; {_listed(others)}' if others else ''}{f'; next: {_listed(following)}' if following else ''}."
    )


def _answered(result: VerifyResult) -> str:
    """Return the verdict on the three questions. For an incorrect file, add the reason and the next step."""
    assert result.answers is not None
    failed = _with(result.checks, FAIL)
    sentence = answers_sentence(result)
    if not sentence:
        step = _step(result, failed[0])
        sentence = f"{_reason(result, failed[0])}{f'; next: {step}' if step else ''}"
    return f"{result.answers.verdict}: {result.target}: {sentence}."


def verify_json(result: VerifyResult) -> dict[str, Any]:
    """Return what --json prints of a verification."""
    plain = result.to_json()
    return {"schema": SCHEMA, "verdict": plain["verdict"], "summary": summary(result), **plain}


def _subject(result: VerifyResult) -> str:
    extension = result.extension or {}
    factor = f", factor {extension['factor']:g}" if extension.get("factor") else ""
    method = f" ({extension['method']}{factor})" if extension.get("method") else ""
    against = [name for name in (result.baseline, result.against) if name]
    longest = max((entry.length for entry in result.lengths), default=0)
    reach = f" up to {longest} tokens" if longest else ""
    cache = f" with a {result.cache_type} cache" if result.cache_type else ""
    compared = f"against {_listed(against)}" if against else "without a baseline"
    return f"{result.target}{method}, measured{reach}{cache} {compared},"


def _judgement(result: VerifyResult) -> str:
    whole = result.suite != CUSTOM and bool(result.grade)
    grade = f"grade {result.grade}" if whole else "these measurements, which give no grade"
    return {
        PASS: f"is good enough for {grade}" if whole else f"passes {grade}",
        FAIL: f"fails for {grade}" if whole else "fails",
        PARTIAL: "cannot be judged completely",
        UNDECIDED: f"may or may not be good enough for {grade}" if whole else "is left undecided",
    }[result.verdict]


def _worth(result: VerifyResult) -> str:
    """Return whether the longer context is better than cut text, because a pass does not imply this."""
    beyond = [entry for entry in result.lengths if entry.length > result.trained_length and entry.useful is not None]
    if not beyond:
        return ""
    useful = [entry.length for entry in beyond if entry.useful]
    if not useful:
        return f"; these texts do not show a gain from more than {result.trained_length} tokens"
    return f"; it gains from {_of_lengths(useful)} tokens instead of {result.trained_length}"


def _inexact(result: VerifyResult) -> str:
    """Return the difference of its positions from its source, if --allow-inexact accepted it."""
    inexact = _with(result.checks, INEXACT)
    return f"; its positions differ slightly from its source: {inexact[0].detail}" if inexact else ""


def _reason(result: VerifyResult, check: Check) -> str:
    words = _words(result, check)
    if words is not None:
        return words.text.format_map(_values(result, check))
    figures = (
        "" if check.figure is None or check.limit is None else f"{exact(check.figure)}, limit {exact(check.limit)}"
    )
    reasons = "; ".join(part for part in (figures, _cut(check.detail)) if part)
    return f"{PLAIN[check.verdict].format(name=check.name)}{f' ({reasons})' if reasons else ''}"


def _step(result: VerifyResult, check: Check) -> str:
    words = _words(result, check)
    step = STEPS.get(check.verdict, "") if words is None else words.step
    return step.format_map(_values(result, check))


def _words(result: VerifyResult, check: Check) -> VerdictSentence | None:
    start = check.name.partition(",")[0]
    every = measures.every() if result.measures else ()
    by_check = {**WORDS, **{name: words for measure in every for name, words in measure.words.items()}}
    known = by_check.get(start) or by_check.get(start.partition(" ")[0]) or {}
    return known.get(check.verdict)


def _values(result: VerifyResult, check: Check) -> dict[str, str]:
    """Return the values of the names in braces in `WORDS`."""
    recorded = result.extension is not None and result.extension.get("params") is not None
    return {
        "name": check.name,
        "detail": _cut(check.detail),
        "limit": exact(check.limit),
        "trained": str(result.trained_length),
        "context": str(result.context_length),
        "reference": result.baseline or "it",
        "against": result.against or "the other file",
        "worse": _of_lengths(entry.length for entry in result.lengths if entry.verdict == WORSE) or "some",
        "unsure": _of_lengths(entry.length for entry in result.lengths if entry.verdict == UNDECIDED) or "some",
        "trials": str(_trials(result)),
        "larger": LARGER.get(result.suite, TEXTS),
        "mend": "extend its source again" if recorded else "fix it, or pass --stated KEY VALUE if this is intended",
        "reach": _reach(result),
        "milder": f"a smaller factor{_lower_grade(result)}",
        "wider": "write one of them again, with more bits if it is quantised",
    }  # fmt: skip


def _reach(result: VerifyResult) -> str:
    """Return the option that makes the measurement reach the configured context length."""
    if result.context_length > result.trained_length:
        return f"--lengths {result.trained_length},{result.context_length}"
    return "ropetool extend TARGET" if result.baseline else "--trained-length N if it was trained on fewer tokens"


def _trials(result: VerifyResult) -> int:
    """Return how many trials at each depth probably give a verdict: 2, 4 or at most 8 times as many as now."""
    allowed = GRADES[result.grade].max_lost if result.grade in GRADES else 1.0
    trials = [SUITES["quick"].trials]
    for grid in (grid for grid in result.measures.get("retrieval", ()) if grid.cells):
        now, depths = grid.cells[0].trials, len({cell.depth for cell in grid.cells})
        apart = max(((pair.gained + pair.lost) / pair.trials for pair in grid.pairs if pair.depth is None), default=0.0)
        likely = (more for more in (2 * now, 4 * now) if attainable_loss(more * depths, apart) <= allowed)
        trials.append(next(likely, 8 * now))
    return max(trials)


def _lower_grade(result: VerifyResult) -> str:
    """Return the option for a lower grade if the ratio is significantly within the limit of that grade."""
    uppers = [entry.upper for entry in result.lengths if entry.upper is not None]
    if result.grade not in GRADES or not uppers:
        return ""
    asked = GRADES[result.grade]
    lower = (g.name for g in GRADES.values() if g.max_ratio > asked.max_ratio and max(uppers) <= g.max_ratio)
    kept = next(lower, "")
    return f" or --grade {kept}" if kept else ""


def _with(checks: Iterable[Check], verdict: str) -> list[Check]:
    return [check for check in checks if check.verdict == verdict]


def _cut(text: str) -> str:
    """Return the text, cut after a clause or a word if it is longer than `DETAIL` characters."""
    if len(text) <= DETAIL:
        return text
    start = text[:DETAIL]
    return f"{start.rpartition('; ')[0] or start.rpartition(' ')[0] or start} ..."


def _of_lengths(lengths: Iterable[int]) -> str:
    return _listed([str(length) for length in lengths])


def _listed(items: list[str]) -> str:
    return " and ".join([part for part in (", ".join(items[:-1]), *items[-1:]) if part])
