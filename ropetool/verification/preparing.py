"""The preparation of a run of a suite: its lengths and rows, the checks of its options, and what its texts can decide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ropetool.errors import ConfigError
from ropetool.verification import measures, suites
from ropetool.verification.corpus import read_corpus
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Setting, Suite
from ropetool.verification.measures.retrieval import Retrieval
from ropetool.verification.measures.segments import MIN_SEGMENTS
from ropetool.verification.scoring import BASELINE, MIN_LENGTH, TARGET, Measurement, Tokenizes
from ropetool.verification.shares import attainable_loss, paired_bounds
from ropetool.verification.texts import Document

DISAGREEING = 0.1  # share of the pairs of trials of which one alone is right; the demo's, extended four times: 0.2


def default_lengths(trained_length: int, target_length: int) -> list[int]:
    """Return lengths that double from a quarter of the trained length, ending exactly on the target."""
    lengths = []
    length = max(MIN_LENGTH, trained_length // 4)
    while length < target_length:
        lengths.append(length)
        length *= 2
    return [*lengths, target_length]


def check_amounts(lengths: Sequence[int], trained_length: int, suite: Suite) -> None:
    """Raise ConfigError for a value that makes no measurement."""
    if not lengths:
        raise ConfigError("the list of lengths is empty", where="--lengths")
    for length in lengths:
        _check_count("--lengths", length, MIN_LENGTH)
    for shorter, longer in pairwise(lengths):
        if longer <= shorter:
            raise ConfigError(f"lengths must increase, but {longer} follows {shorter}", where="--lengths")
    _check_count("trained length", trained_length, MIN_LENGTH)
    _check_count("--segments", suite.segments, MIN_SEGMENTS)
    _check_count("--trials", suite.trials, 1)


def _check_count(where: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"must be a whole number of at least {at_least}, not {value!r}", where=where)


def check_judge(judge: Path, paths: Mapping[str, Path], suite: Suite) -> None:
    """Raise ConfigError for a judge that judges itself, or nothing."""
    if suites.KEY_TOKENS not in suite.measures:
        raise ConfigError(
            "the judge selects key tokens, but they are not measured",
            where="--judge",
            try_="--measure key-tokens or --suite full",
        )
    for role, path in paths.items():
        if path.resolve() == judge.resolve():
            raise ConfigError(
                f"the judge must not be the {role} itself",
                where="--judge",
                try_="another model with the same tokenizer",
            )


def with_proofs(suite: Suite, limits: Limits, beyond: bool, documents: int) -> Suite:
    """Return the suite with the measures that prove the use of distant text, if its grade requires a proof.

    These are retrieval, and copies if there are several documents. A custom suite stays unchanged.
    """
    if not limits.asked.reads_far or not beyond or suite.name == suites.CUSTOM:
        return suite
    proofs = [*([suites.FAR] if documents > 1 else []), suites.RETRIEVAL]
    return replace(suite, measures=(*suite.measures, *(name for name in proofs if name not in suite.measures)))


def prepared(setting: Setting) -> list[Measurement]:
    """Return the measurements of the suite, their rows chosen. Raises: ConfigError if the texts are too short."""
    made: list[Measurement] = []
    for measure in measures.of(setting.suite.measures):
        measurement = measure.prepare(setting, made)
        made += [] if measurement is None else [measurement]
    return made


def work_of(measurements: Sequence[Measurement], roles: Sequence[str]) -> Counter[int]:
    """Return how many rows of each length are to be computed."""
    return sum((Counter(m.rows(role)) for m in measurements for role in roles), Counter[int]())


def planned_rows(
    reader: Tokenizes,
    texts: Sequence[Document],
    lengths: Sequence[int],
    trained_length: int,
    chosen: Sequence[Suite],
    limits: Limits,
    seed: int = 0,
) -> list[Counter[int]]:
    """Return how many rows of each length `verify` would have target and baseline compute together, for each suite.

    Raises: ConfigError where the texts are too short.
    """
    corpus, found = read_corpus(texts, {TARGET: reader}, {}), []
    for suite in chosen:
        whole = with_proofs(suite, limits, max(lengths) > trained_length, len(texts))
        setting = Setting(whole, corpus, reader, lengths, trained_length, max(lengths), limits, seed)
        found.append(work_of(prepared(setting), (TARGET, BASELINE)))
    return found


def decidable(able: float, limits: Limits) -> str:
    """Return what can be decided with these texts, as a sentence for before the run."""
    grade = limits.asked
    if not math.isfinite(able):
        return "a verdict needs several documents, and these texts are one; pass more with --text"
    known = f"these texts can probably distinguish a ratio of {able:.2f} from 1"
    if able <= grade.max_ratio:
        return f"{known}; grade {grade.name} requires {grade.max_ratio:g}"
    return (
        f"{known}, but grade {grade.name} requires {grade.max_ratio:g}; the verdict will probably be undecided, "
        "so pass more documents with --text"
    )


def decidable_answers(measurements: Sequence[Measurement], limits: Limits) -> list[str]:
    """Return what can be decided with these trials, where answers have to be shown, as a sentence for each task."""
    grade = limits.asked
    found = [m for m in measurements if isinstance(m, Retrieval) and m.contexts]
    if not grade.reads_far:
        return []
    counts = {m.name: len(m.contexts[max(m.contexts)]) for m in found}
    return [
        f"{name}: if every pair agrees, {trials} trials exclude a loss above {paired_bounds(0, 0, trials)[1]:.2f} of the "
        f"answers; if one pair in {1 / DISAGREEING:.0f} differs, above {attainable_loss(trials, DISAGREEING):.2f}; "
        f"grade {grade.name} requires {grade.max_lost:.2f}"
        for name, trials in counts.items()
    ]
