"""The gate: what was measured beside its limits, and what could not be measured. Measures nothing.

Formulas and reasons stand in docs/verify.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropetool.errors import ConfigError
from ropetool.verification.measures.retrieval import count_at, score_within
from ropetool.verification.results import (
    FAIL,
    NOT_ASKED,
    NOT_RUN,
    PASS,
    Check,
    DivergenceResult,
    FarResult,
    LengthResult,
    RetrievalResult,
)  # fmt: skip
from ropetool.verification.statistics import wilson

KL = "KL"
NOTHING_BEYOND = "no length beyond the trained one was measured"
FORMAT_KL = 1e-4  # nats a token between two unquantised files of one model
QUANTISED_TIMES = 2.0  # what an extension may add to the divergence of a quantisation
SUSPICIOUS_BITS = 0.4  # bits a byte; models that never saw a text need .6 to .9, one that knows it by heart far less


@dataclass(frozen=True)
class Limits:
    """What is allowed. max_kl: None asks for the default of the pair of files; see `kl_checks`."""

    max_ratio: float = 1.5
    max_tax: float = 0.35
    min_retrieval: float = 0.8
    max_kl: float | None = None
    require_useful: bool = False

    def __post_init__(self) -> None:
        for name, value in (("--max-ratio", self.max_ratio), ("--max-tax", self.max_tax), ("--max-kl", self.max_kl)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{value} is not a limit; it must be finite and above 0", where=name)
        if not 0 <= self.min_retrieval <= 1:
            raise ConfigError(
                f"{self.min_retrieval} is not a share of a score; it lies between 0 and 1", where="--min-retrieval"
            )


def loss_checks(lengths: Sequence[LengthResult], trained_length: int, limits: Limits) -> list[Check]:
    """Return the checks on the last segments: ratio, tax, usefulness, and whether the texts sufficed."""
    worst = max(lengths, key=lambda entry: entry.ratio)
    checks = [
        Check(
            "ratio", worst.ratio, limits.max_ratio, _verdict(all(entry.holds for entry in lengths)),
            f"largest, at {worst.length} tokens",
        ),
        _tax_check(lengths, limits),
        _useful_check([entry for entry in lengths if entry.length > trained_length], limits),
    ]  # fmt: skip
    thin = [str(entry.length) for entry in lengths if entry.partial]
    if thin:
        checks.append(Check("texts", None, None, NOT_RUN, f"too little text at {', '.join(thin)}"))
    return checks


def _tax_check(lengths: Sequence[LengthResult], limits: Limits) -> Check:
    taxed = [(entry.tax.mean, entry.length) for entry in lengths if entry.tax is not None]
    if not taxed:
        return Check("tax", None, limits.max_tax, NOT_ASKED, "no length within the trained one, or no baseline")
    figure, length = max(taxed)
    return Check(
        "tax", figure, limits.max_tax, _verdict(figure <= limits.max_tax), f"nats, largest, at {length} tokens"
    )


def _useful_check(beyond: Sequence[LengthResult], limits: Limits) -> Check:
    useful = [entry.length for entry in beyond if entry.useful]
    if not beyond:
        return Check("useful", None, None, NOT_ASKED, NOTHING_BEYOND)
    told = f"useful at {', '.join(map(str, useful)) or 'no length'} beyond the trained one"
    if not limits.require_useful:
        return Check("useful", None, None, NOT_ASKED, told)
    return Check("useful", None, None, _verdict(len(useful) == len(beyond)), told)


def retrieval_check(grid: RetrievalResult, far: FarResult | None, trained_length: int, limits: Limits) -> Check:
    """Return the check on retrieval: the worst score beyond the trained length against the baseline's within it.

    It fails when the whole interval of that score is below the limit: a few trials more or less are noise.
    Where the baseline itself is below twice chance the grid says nothing, and far dependence stands in: copies
    further away than the trained length must help, with the whole interval above zero.
    """
    name = f"retrieval, {grid.task}"
    lengths = sorted({cell.length for cell in grid.cells if cell.length > trained_length})
    own = score_within(grid, trained_length)
    if not lengths or own is None:
        return Check(name, None, None, NOT_RUN, grid.note or NOTHING_BEYOND)
    if own >= 2 * grid.chance:
        counts = {length: count_at(grid, length) for length in lengths}
        upper, length = min((wilson(*counts[length])[1], length) for length in lengths)
        limit = limits.min_retrieval * own
        hits, trials = counts[length]
        told = (
            f"{hits} of {trials} right at {length} tokens, the fewest; the figure is the upper end of that share's 95 % "
            f"interval; the baseline within {trained_length} has {own:.2f}"
        )
        return Check(name, upper, limit, _verdict(upper >= limit), told)
    weak = f"the baseline has {own:.2f} where a blind guess has {grid.chance:.2f}"
    beyond = [] if far is None else [d for d in far.distances if d.distance > trained_length]
    if not beyond:
        return Check(name, None, None, NOT_RUN, f"{weak}, and far dependence was not measured")
    least = min(beyond, key=lambda entry: entry.gain.low)
    told = f"{weak}, so far dependence: lower end of the gain at distance {least.distance}"
    return Check(name, least.gain.low, 0.0, _verdict(least.gain.low > 0), told)


def kl_checks(found: DivergenceResult, own: DivergenceResult | None, quantised: bool, limits: Limits) -> list[Check]:
    """Return the checks on two files against each other.

    Unquantised ones may differ by what their runtimes round. A quantised one may differ by twice as much as the
    unextended pair `own` of the same types does, and beyond the trained length by twice as much as within.
    """
    mean = max(span.mean.mean for span in (found.within, found.beyond) if span is not None)
    if limits.max_kl is not None or not quantised:
        limit = FORMAT_KL if limits.max_kl is None else limits.max_kl
        return [Check(KL, mean, limit, _verdict(mean <= limit), "nats a token, the larger of within and beyond")]
    checks = []
    if own is None:
        told = "a quantised file needs the unextended pair to compare with: give --baseline, or --max-kl"
        checks.append(Check(KL, found.within.mean.mean, None, NOT_RUN, told))
    else:
        limit = QUANTISED_TIMES * own.within.mean.mean
        told = "nats a token within the trained length; twice that of the unextended pair"
        checks.append(Check(KL, found.within.mean.mean, limit, _verdict(found.within.mean.mean <= limit), told))
    if found.beyond is not None:
        limit = QUANTISED_TIMES * found.within.mean.mean
        told = "nats a token beyond the trained length; twice that within"
        checks.append(
            Check("KL beyond", found.beyond.mean.mean, limit, _verdict(found.beyond.mean.mean <= limit), told)
        )
    return checks


def contamination(lengths: Sequence[LengthResult]) -> str:
    """Return a warning if the baseline predicts the texts so well that it has probably seen them, else nothing."""
    bits = [entry.baseline_bits for entry in lengths if entry.baseline_bits is not None]
    if not bits or min(bits) >= SUSPICIOUS_BITS:
        return ""
    return (
        f"the baseline needs only {min(bits):.2f} bits a byte: it has probably seen these texts, and recites where it "
        "should predict; --text with texts of your own says more"
    )


def _verdict(holds: bool) -> str:
    return PASS if holds else FAIL
