"""The suites: their amounts of work, and the choice of a suite or of single measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropetool.errors import ConfigError, did_you_mean
from ropetool.verification import measures, results
from ropetool.verification.measure import Suite

# The measures that other modules name: losses, the evidence that a grade requires, and the tokens that a judge chooses.
LAST_SEGMENT, FAR, RETRIEVAL, KEY_TOKENS = "last-segment", "far", "retrieval", "key-tokens"
SUITES = {
    suite.name: suite
    for suite in (
        Suite("quick", (), segments=16, passages=8, trials=5, ends=True),
        Suite("standard", (), segments=32, passages=16, trials=20),
        Suite("full", (), segments=64, passages=32, trials=40),
    )
}
"""The amounts of work of each suite; `named` adds the measures."""
CUSTOM = results.CUSTOM
MOST_SCORED = 16  # scored tokens at the end of a passage, because each needs a request with all text before it


def named(name: str) -> Suite:
    """Return the suite with this name and its measures."""
    parts = (each for each in measures.every() if name in each.suites and not each.part_of)
    return replace(SUITES[name], measures=tuple(each.name for each in parts))


def choose(name: str | None, chosen: Sequence[str], segments: int | None, trials: int | None = None) -> Suite:
    """Return the suite with this name and the chosen measures. Without a name, it has only the chosen measures.

    Without both, it is the standard suite. Raises: ConfigError for an unknown name.
    """
    for each in chosen:
        check_measure(each)
    if name is not None:
        check_suite(name)
    base = named(name or "standard")
    if chosen:
        both = {*(base.measures if name else ()), *chosen}
        base = replace(base, name=name or CUSTOM, measures=tuple(each for each in measures.offered() if each in both))
    base = base if segments is None else replace(base, segments=segments)
    return base if trials is None else replace(base, trials=trials)


def check_measure(name: str) -> None:
    """Raise ConfigError for an unknown measure."""
    names = measures.offered()
    if name not in names:
        raise ConfigError(f"{name!r} is not one of {', '.join(names)}{did_you_mean(name, names)}", where="--measure")


def check_suite(name: str) -> None:
    """Raise ConfigError for an unknown suite."""
    if name not in SUITES:
        raise ConfigError(f"{name!r} is not one of {', '.join(SUITES)}{did_you_mean(name, SUITES)}", where="--suite")


def choose_by_tokens(
    name: str | None,
    chosen: Sequence[str],
    segments: int | None,
    trials: int | None,
    *,
    score_prompts: bool,
    who: str = "a server",
) -> Suite:
    """Return the part of a suite that needs only probabilities of single tokens. The default is the quick suite.

    name, chosen, segments, trials: as for `choose`.
    score_prompts: whole prompts are scored at once, so that the number of scored tokens is not reduced.
    who: the program, for an error message.

    Raises: ConfigError for an unknown name, and for a chosen measure that needs all logits.
    """
    suite = choose(name or (None if chosen else "quick"), chosen, segments, trials)
    able = [measure.name for measure in measures.every() if measure.by_tokens]
    unable = [each for each in suite.measures if each not in able]
    if unable and chosen:
        raise ConfigError(
            f"{who} does not return the logits for {', '.join(unable)}; it supports {', '.join(able)}",
            where="--measure",
        )
    return replace(
        suite, measures=tuple(each for each in suite.measures if each in able),
        most_scored=None if score_prompts else MOST_SCORED,
    )  # fmt: skip
