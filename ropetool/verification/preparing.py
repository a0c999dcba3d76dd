"""The preparation of a run of a suite: its lengths and rows, the checks of its options, and the precision of its texts."""

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

DISAGREEING = 0.1  # share of pairs of trials with exactly one correct answer; 0.2 for the demo, extended four times


def default_lengths(trained_length: int, target_length: int) -> list[int]:
    """Return lengths that double from a quarter of the trained length. The last one is exactly the target length."""
    lengths = []
    length = max(MIN_LENGTH, trained_length // 4)
    while length < target_length:
        lengths.append(length)
        length *= 2
    return [*lengths, target_length]


def check_amounts(lengths: Sequence[int], trained_length: int, suite: Suite) -> None:
    """Raise ConfigError if the lengths or the amounts of the suite are invalid or too small."""
    check_lengths(lengths)
    _check_count("trained length", trained_length, MIN_LENGTH)
    check_segments(suite.segments)
    check_trials(suite.trials)


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise ConfigError for lengths that do not increase, or are too small."""
    if not lengths:
        raise ConfigError("the list of lengths is empty", where="--lengths")
    for length in lengths:
        _check_count("--lengths", length, MIN_LENGTH)
    for shorter, longer in pairwise(lengths):
        if longer <= shorter:
            raise ConfigError(f"lengths must increase, but {longer} follows {shorter}", where="--lengths")


def check_segments(segments: int) -> None:
    """Raise ConfigError for too few passages per length."""
    _check_count("--segments", segments, MIN_SEGMENTS)


def check_trials(trials: int) -> None:
    """Raise ConfigError for too few retrieval trials."""
    _check_count("--trials", trials, 1)


def _check_count(where: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"must be a whole number of at least {at_least}, not {value!r}", where=where)


def check_judge(judge: Path, paths: Mapping[str, Path], suite: Suite) -> None:
    """Raise ConfigError if the judge is target or baseline, or the suite does not measure key tokens.

    paths: the checkpoint of each other role.
    """
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
    """Return the suite with measures for the use of distant text, if the grade requires evidence.

    These are retrieval, and copies if there are several documents. A custom suite stays unchanged.
    beyond: a length exceeds the trained length. documents: the number of documents.
    """
    if not limits.asked.reads_far or not beyond or suite.name == suites.CUSTOM:
        return suite
    proofs = [*([suites.FAR] if documents > 1 else []), suites.RETRIEVAL]
    return replace(suite, measures=(*suite.measures, *(name for name in proofs if name not in suite.measures)))


def prepared(setting: Setting) -> list[Measurement]:
    """Return the measurements of the suite with their chosen rows. Raises: ConfigError if the texts are too short."""
    measurements: list[Measurement] = []
    for measure in measures.of(setting.suite.measures):
        measurement = measure.prepare(setting, measurements)
        measurements += [] if measurement is None else [measurement]
    return measurements


def work_of(measurements: Sequence[Measurement], roles: Sequence[str]) -> Counter[int]:
    """Return the number of rows of each length that all roles compute together."""
    return sum((Counter(m.rows(role)) for m in measurements for role in roles), Counter[int]())


def planned_rows(
    reader: Tokenizes,
    texts: Sequence[Document],
    lengths: Sequence[int],
    trained_length: int,
    chosen: Sequence[Suite],
    limits: Limits,
) -> list[Counter[int]]:
    """Return the number of rows of each length that `verify` would compute for target and baseline, for each suite.

    chosen: the suites. Raises: ConfigError if the texts are too short.
    """
    corpus, rows = read_corpus(texts, {TARGET: reader}, {}), []
    for suite in chosen:
        whole = with_proofs(suite, limits, max(lengths) > trained_length, len(texts))
        setting = Setting(whole, corpus, reader, lengths, trained_length, max(lengths), limits)
        rows.append(work_of(prepared(setting), (TARGET, BASELINE)))
    return rows


def decidable(able: float, limits: Limits) -> str:
    """Return a sentence about the precision of these texts. able: the ratio that they probably distinguish from 1."""
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
    """Return a sentence about the precision of each retrieval task, or an empty list if the grade does not need them."""
    grade = limits.asked
    if not grade.reads_far:
        return []
    tasks = [m for m in measurements if isinstance(m, Retrieval) and m.contexts]
    counts = {m.name: len(m.contexts[max(m.contexts)]) for m in tasks}
    return [
        f"{name}: if every pair agrees, {trials} trials exclude a loss above {paired_bounds(0, 0, trials)[1]:.2f} of the "
        f"answers; if one pair in {1 / DISAGREEING:.0f} differs, above {attainable_loss(trials, DISAGREEING):.2f}; "
        f"grade {grade.name} requires {grade.max_lost:.2f}"
        for name, trials in counts.items()
    ]
