"""The gate: compares figures with their limits, and lists missing measurements. docs/judging.md explains the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropetool.checkpoint.certificate import PUBLISHABLE, RESEARCH, USABLE
from ropetool.errors import ConfigError, did_you_mean
from ropetool.verification.results import (
    FAIL,
    NOT_ASKED,
    NOT_JUDGED,
    NOT_RUN,
    PASS,
    UNDECIDED,
    WORSE,
    Check,
    Estimate,
    LengthResult,
)  # fmt: skip
from ropetool.verification.statistics import ERROR, chance_of_less, lower_bound, rejected

RATIO, FAR_TEXT, YARDSTICK, LENGTHS = "ratio", "far text", "yardstick", "lengths"
SHORT, LONG, BROKEN = "short texts", "whole length", "broken texts"  # of a default verification
SURE = f"{100 * (1 - ERROR):g} %"  # the confidence of a bound, in words
NOTHING_BEYOND = "no measured length is beyond the trained length"
SUSPICIOUS_BITS = 0.4  # bits per byte; models need 0.6 to 0.9 for an unknown text, and far less for a memorised one


@dataclass(frozen=True)
class Grade:
    """A grade of quality with its limits.

    name: the name for --grade.
    max_ratio: the largest ratio of perplexities at any length.
    max_lost: the largest loss of correct answers compared with the trained length, as a share of all trials.
    reads_far: the grade requires evidence that the model uses long-range context, and the limit `max_lost`.
    """

    name: str
    max_ratio: float
    max_lost: float
    reads_far: bool

    @property
    def margin(self) -> float:
        """The largest allowed increase of the loss, in nats per token."""
        return math.log(self.max_ratio)


GRADES = {
    grade.name: grade
    for grade in (
        Grade(PUBLISHABLE, 1.03, 0.05, True),
        Grade(USABLE, 1.10, 0.10, True),
        Grade(RESEARCH, 1.5, 0.20, False),
    )
}


@dataclass(frozen=True)
class Limits:
    """The limits of the gate.

    grade: the name of a grade in GRADES.
    max_kl: the limit on the mean KL in nats per token; None uses the limits of the types, see kl_gate.py.
    require_useful: each length beyond the trained length must have a significantly lower loss.

    Raises: ConfigError for an unknown grade or an invalid limit.
    """

    grade: str = USABLE
    max_kl: float | None = None
    require_useful: bool = False

    def __post_init__(self) -> None:
        if self.grade not in GRADES:
            raise ConfigError(
                f"{self.grade!r} is not one of {', '.join(GRADES)}{did_you_mean(self.grade, GRADES)}", where="--grade"
            )
        if self.max_kl is not None and not (math.isfinite(self.max_kl) and self.max_kl > 0):
            raise ConfigError(f"the limit must be finite and above 0, not {self.max_kl}", where="--max-kl")

    @classmethod
    def at_grade(cls, grade: str | None) -> Limits | None:
        """Return the limits of a requested grade, or None if no grade is requested. Raises: ConfigError."""
        return None if grade is None else cls(grade=grade)

    @property
    def asked(self) -> Grade:
        """The requested grade with its limits."""
        return GRADES[self.grade]


def without_source() -> Check:
    """Return the check for a target without a record or a baseline."""
    why = "no record or baseline describes the model before the extension; pass --baseline SOURCE"
    return Check(YARDSTICK, None, None, NOT_RUN, why)


def not_reached(longest: int, context_length: int) -> Check:
    """Return the check of a run that ends before the configured context length."""
    why = f"the longest measured length is {longest} tokens, and the context length is {context_length}"
    return Check(LENGTHS, None, None, NOT_RUN, why)


def loss_checks(lengths: Sequence[LengthResult], trained_length: int, limits: Limits) -> list[Check]:
    """Return the checks of the losses: the bounds of the ratio, the usefulness, and the amount of text."""
    checks = [
        _ratio_check(lengths, limits.asked),
        _useful_check([entry for entry in lengths if entry.length > trained_length], limits),
    ]
    thin = [str(entry.length) for entry in lengths if entry.partial]
    if thin:
        checks.append(Check("texts", None, None, NOT_RUN, f"too little text at {', '.join(thin)} tokens"))
    return checks


def _ratio_check(lengths: Sequence[LengthResult], grade: Grade) -> Check:
    """Return the check of the ratios: it passes by their upper bounds, and fails by a significant lower bound."""
    judged = [
        (entry.upper, entry.length) for entry in lengths if entry.verdict != NOT_JUDGED and entry.upper is not None
    ]
    if not judged:
        return Check(RATIO, None, grade.max_ratio, NOT_RUN, "no length could be compared with a baseline")
    worse = {entry.length: entry.lower for entry in lengths if entry.verdict == WORSE and entry.lower is not None}
    if worse:
        length = max(worse, key=worse.__getitem__)
        places = ", ".join(map(str, worse))
        detail = f"{SURE} lower bound at {length} tokens; worse than grade {grade.name} allows at {places}"
        return Check(RATIO, worse[length], grade.max_ratio, FAIL, detail)
    upper, length = max(judged)
    detail = f"largest {SURE} upper bound, at {length} tokens"
    straddling = [str(entry.length) for entry in lengths if entry.verdict == UNDECIDED]
    if straddling:
        return Check(
            RATIO, upper, grade.max_ratio, UNDECIDED, f"{detail}; more text can decide at {', '.join(straddling)}"
        )
    return Check(RATIO, upper, grade.max_ratio, PASS, detail)


def _useful_check(beyond: Sequence[LengthResult], limits: Limits) -> Check:
    useful = [entry.length for entry in beyond if entry.useful]
    if not beyond:
        return Check("useful", None, None, NOT_ASKED, NOTHING_BEYOND)
    detail = f"useful lengths beyond the trained length: {', '.join(map(str, useful)) or 'none'}"
    if not limits.require_useful:
        return Check("useful", None, None, NOT_ASKED, detail)
    return Check("useful", None, None, PASS if len(useful) == len(beyond) else FAIL, detail)


@dataclass(frozen=True)
class Evidence:
    """A gain that only text farther away than the trained length can cause.

    text: the name of the gain with its place, for a report.
    gain: compared with 0, so the unit does not matter.
    """

    text: str
    gain: Estimate


def reading_check(evidence: Sequence[Evidence], grade: Grade, trained_length: int, context_length: int) -> Check:
    """Return the check that the model uses long-range context: one gain must be significant by Holm's rule."""
    name = FAR_TEXT
    if not grade.reads_far:
        return Check(name, None, None, NOT_ASKED, f"grade {grade.name} does not require it")
    if context_length <= trained_length:
        return Check(name, None, None, NOT_ASKED, "the context length is not above the trained length")
    if not evidence:
        return Check(name, None, 0.0, NOT_RUN, f"no comparison reached the context length of {context_length} tokens")
    chances = [chance_of_less(each.gain, 0.0) for each in evidence]
    best = evidence[chances.index(min(chances))]
    detail = f"{SURE} lower bound of the {best.text}"
    return Check(name, lower_bound(best.gain), 0.0, PASS if any(rejected(chances)) else UNDECIDED, detail)


def contamination(lengths: Sequence[LengthResult]) -> str:
    """Return a warning if the baseline predicts the texts so well that it has probably memorised them, else ""."""
    bits = [entry.baseline_bits for entry in lengths if entry.baseline_bits is not None]
    if not bits or min(bits) >= SUSPICIOUS_BITS:
        return ""
    return (
        f"the baseline needs only {min(bits):.2f} bits per byte, so it has probably memorised these texts; "
        "pass texts that it has not seen with --text"
    )
