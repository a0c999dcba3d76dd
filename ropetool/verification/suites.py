"""Which measurements there are, and which of them the suites make, with how much work each.

Plain data; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ropetool.errors import ConfigError, did_you_mean
from ropetool.verification import results
from ropetool.verification.measures.protocols import PROTOCOLS

LAST_SEGMENT, POSITION, FAR, RETRIEVAL = "last-segment", "position", "far", "retrieval"
MANY_KEYS, VARIABLES, NEEDLES = "many-keys", "variables", "needles"
BY_POSITION, KEY_TOKENS = "by-position", "key-tokens"
EFFECTIVE_LENGTH, MANY_SHOT, CACHE = "effective-length", "many-shot", "cache"
RETRIEVALS = (RETRIEVAL, MANY_KEYS, VARIABLES, NEEDLES)
MEASURES = (
    LAST_SEGMENT,
    POSITION,
    FAR,
    *RETRIEVALS,
    BY_POSITION,
    KEY_TOKENS,
    EFFECTIVE_LENGTH,
    MANY_SHOT,
    CACHE,
    *PROTOCOLS,
)


@dataclass(frozen=True)
class Suite:
    """What is measured. segments: places scored at each length; passages: of the probes; trials: of each depth.

    ends: far dependence and retrieval are measured at the trained and the longest length alone. most_scored: tokens at
    the end of a segment, at most; None for as many as its length allows.
    """

    name: str
    measures: tuple[str, ...]
    segments: int
    passages: int
    trials: int
    ends: bool = False
    most_scored: int | None = None

    @property
    def task_trials(self) -> int:
        """How many trials each task of the effective length has."""
        return 2 * self.trials

    @property
    def lessons(self) -> int:
        """How many trials of many-shot learning there are."""
        return 4 * self.trials


SUITES = {
    suite.name: suite
    for suite in (
        Suite("quick", (LAST_SEGMENT,), segments=16, passages=8, trials=5, ends=True),
        Suite("standard", (LAST_SEGMENT, POSITION, FAR, RETRIEVAL), segments=32, passages=16, trials=20),
        Suite("full", MEASURES, segments=64, passages=32, trials=40),
    )
}
CUSTOM = results.CUSTOM
# What can be measured where the probabilities of single tokens are told; the others ask for all logits, or for a cache.
BY_TOKENS = (LAST_SEGMENT, POSITION, FAR, *RETRIEVALS)
MOST_SCORED = 16  # tokens at the end of a passage: each is a request with all that is before it


def choose(name: str | None, measures: Sequence[str], segments: int | None, trials: int | None = None) -> Suite:
    """Return the suite of that name with more measurements, or without a name the measurements alone.

    Without either it is the standard suite. Raises: ConfigError for an unknown name.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(
                f"{measure!r} is not one of {', '.join(MEASURES)}{did_you_mean(measure, MEASURES)}", where="--measure"
            )
    if name is not None and name not in SUITES:
        raise ConfigError(f"{name!r} is not one of {', '.join(SUITES)}{did_you_mean(name, SUITES)}", where="--suite")
    base = SUITES[name or "standard"]
    if measures:
        wanted = {*(base.measures if name else ()), *measures}
        base = replace(base, name=name or CUSTOM, measures=tuple(m for m in MEASURES if m in wanted))
    base = base if segments is None else replace(base, segments=segments)
    return base if trials is None else replace(base, trials=trials)


def choose_by_tokens(
    name: str | None,
    measures: Sequence[str],
    segments: int | None,
    trials: int | None,
    *,
    score_prompts: bool,
    who: str = "a server",
) -> Suite:
    """Return as much of a suite as single tokens tell, the quick one where none is named.

    score_prompts: whole prompts are scored at once, so that no fewer tokens are. Raises: ConfigError for an unknown name, and
    for a measurement that was asked for and that single tokens do not tell.
    """
    found = choose(name or (None if measures else "quick"), measures, segments, trials)
    unable = [measure for measure in found.measures if measure not in BY_TOKENS]
    if unable and measures:
        raise ConfigError(
            f"{', '.join(unable)}: {who} does not tell what it takes; it can be asked for {', '.join(BY_TOKENS)}",
            where="--measure",
        )
    return replace(
        found, measures=tuple(measure for measure in found.measures if measure in BY_TOKENS),
        most_scored=None if score_prompts else MOST_SCORED,
    )  # fmt: skip
