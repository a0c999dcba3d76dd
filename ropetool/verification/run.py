"""One verification: texts, measurements, runners and the gate put together.

Knows nothing of options, of where a checkpoint comes from, or of how results are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.verification import estimate, gate, suites
from ropetool.verification.corpus import read_corpus
from ropetool.verification.gate import Limits
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.measures.loss import LastSegment, Losses, perplexity, prepare_last_segment
from ropetool.verification.measures.position import prepare_position
from ropetool.verification.measures.protocols import PROTOCOLS
from ropetool.verification.measures.protocols import prepare as prepare_protocol
from ropetool.verification.measures.repeats import prepare_far
from ropetool.verification.measures.retrieval import prepare_retrieval
from ropetool.verification.measures.segments import MIN_SEGMENTS
from ropetool.verification.results import UNDECIDED, Check, DivergenceResult, VerifyResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Measurement, Runner
from ropetool.verification.statistics import ERROR, attainable
from ropetool.verification.suites import Suite
from ropetool.verification.texts import Document, fingerprint

MIN_LENGTH = 8
AGAINST = "against"
DIVERGENCE_TOKENS = 16384  # of each model, at most, unless one row is longer
SPREAD = 0.15  # nats, by which documents differ in what an extension costs; of the demo's, which cost much
SPENT = (0.01, 0.04)  # chances of a wrong verdict that the first and the second stage of a run with a budget may take
MOST_SEGMENTS = 4096
LONG_RUN = 60.0  # seconds, beyond which the estimate is told

Progress = Callable[[str, int, int], None]
"""Told the stage in words, the tokens computed so far, and those of the whole run (0: not known yet)."""


class MakeRunner(Protocol):
    """What opens a checkpoint; `report` is told in words what the runner had to change on the way."""

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner: ...


@dataclass(frozen=True)
class Pair:
    """The file to compare the target's logits with, and the same pair before the extension, where it is at hand."""

    other: Path
    quantised: bool
    before: tuple[Path, Path] | None = None


def default_lengths(trained_length: int, target_length: int) -> list[int]:
    """Return lengths that double from a quarter of the trained length, ending exactly on the target."""
    lengths = []
    length = max(MIN_LENGTH, trained_length // 4)
    while length < target_length:
        lengths.append(length)
        length *= 2
    return [*lengths, target_length]


def verify(
    target: Path,
    *,
    baseline: Path | None,
    texts: Sequence[Document],
    lengths: Sequence[int],
    trained_length: int,
    context_length: int | None = None,
    suite: Suite | None = None,
    limits: Limits | None = None,
    budget: float | None = None,
    against: Pair | None = None,
    checks: Sequence[Check] = (),
    bands: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    runner: MakeRunner = TorchRunner,
    wrap: Callable[[Runner, str], Runner] | None = None,
) -> VerifyResult:
    """Return what the suite measures of target and baseline, on the same tokens, with the verdict of each check.

    Without a baseline the target itself within its trained length is the baseline. Lengths beyond the trained
    length, and beyond the file's `context_length`, are measured like any other. The models are loaded one after
    the other, but for `against`, which is open beside the target. `checks` are those made already; `wrap` may put
    something around each runner, told its role. budget: minutes; a run that its first stage leaves undecided goes on with
    more segments for so long, and each stage takes a part of the chance of a wrong verdict.

    Raises: ConfigError if an option is out of range, the texts are too short, or the tokenizers differ;
    CheckpointError if a checkpoint cannot be read or its logits are not finite.
    """
    suite, limits = suite or suites.SUITES["quick"], limits or Limits()
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise ConfigError(f"{budget} is not a number of minutes above 0", where="--budget")
    _check(lengths, trained_length, suite.segments)
    suite = _shown_far(suite, limits, max(lengths) > trained_length, len(texts))
    paths = {TARGET: target}
    if baseline is not None and baseline.resolve() != target.resolve():
        paths[BASELINE] = baseline
    if against is not None:
        paths[AGAINST] = against.other
    notes: list[str] = []

    def make(path: Path) -> Runner:
        return runner(path, device=device, dtype=dtype, report=notes.append)

    tell = progress or nobody
    with ExitStack() as stack:
        runners = {role: stack.enter_context(closing(make(path))) for role, path in paths.items()}
        around = runners if wrap is None else {role: wrap(made, role) for role, made in runners.items()}
        tell("reading the texts", 0, 0)
        corpus = read_corpus(texts, runners, paths)
        measurements = _prepared(suite, corpus, runners[TARGET], lengths, trained_length, context_length, limits, seed)
        more = (
            None
            if budget is None
            else _affordable(
                suite,
                corpus,
                runners[TARGET],
                measurements,
                [role for role in paths if role != AGAINST],
                budget,
                limits,
                seed,
            )
        )
        if more is not None:
            measurements = [
                m if not isinstance(m, LastSegment) else more.part(0, suite.segments, SPENT[0]) for m in measurements
            ]
        able = _attainable(measurements if more is None else [more])
        if say is not None:
            if able is not None:
                say(_told(able, limits))
            _estimate(runners[TARGET], measurements, corpus, [role for role in paths if role != AGAINST], say)
        raw = _measure_each(around, measurements, tell)
        found = {m.name: m.result(raw[TARGET][m.name], raw.get(BASELINE, {}).get(m.name)) for m in measurements}
        error = ERROR if budget is None else SPENT[0]
        judge = partial(
            _judged, trained_length=trained_length, context_length=context_length or max(lengths), limits=limits
        )
        if more is not None and any(check.verdict == UNDECIDED for check in judge(found, error=error)):
            rest, error = more.part(suite.segments, None, SPENT[1]), SPENT[1]
            again = _measure_each(around, [rest], tell)
            joined = {role: _joined(raw[role][more.name], again[role][more.name]) for role in again}
            more = replace(more, error=error)
            measurements = [m if not isinstance(m, LastSegment) else more for m in measurements]
            found[more.name] = more.result(joined[TARGET], joined.get(BASELINE))
            notes.append(
                f"the first {suite.segments} segments decided nothing at {100 * SPENT[0]:g} %, so there was a second stage"
            )
        divergence, own = None, None
        if against is not None:
            divergence = _diverge(around[AGAINST], around[TARGET], corpus, max(lengths), trained_length, seed, tell)
            divergence = replace(divergence, reference=hub.name_of(against.other))
            own = _own_divergence(against, make, corpus, trained_length, seed, tell)
    segments = next((m for m in measurements if isinstance(m, LastSegment)), None)
    by_length = found.get(suites.LAST_SEGMENT, ())
    warning = gate.contamination(by_length)
    return VerifyResult(
        target=hub.name_of(target),
        baseline=hub.name_of(paths[BASELINE]) if BASELINE in paths else None,
        against=hub.name_of(against.other) if against else None,
        suite=suite.name,
        trained_length=trained_length,
        context_length=max(lengths) if context_length is None else context_length,
        scored=segments.scored if segments else 0,
        seed=seed,
        documents=segments.documents() if segments else corpus.names,
        text_fingerprint=fingerprint(texts),
        lengths=by_length,
        protocols=tuple(found[name] for name in PROTOCOLS if name in found),
        position=found.get(suites.POSITION),
        far=found.get(suites.FAR),
        retrieval=tuple(found[n] for n in (suites.RETRIEVAL, suites.MANY_KEYS, suites.VARIABLES) if n in found),
        divergence=divergence,
        bands=bands,
        checks=(
            *checks, *judge(found, divergence, own, against, error=error),
        ),
        runtime=around[TARGET].description,
        notes=(*notes, *([warning] if warning else [])),
        grade=limits.grade,
        attainable=able,
    )  # fmt: skip


def _shown_far(suite: Suite, limits: Limits, beyond: bool, documents: int) -> Suite:
    """Return the suite with far dependence where its grade asks for proof that far text is read, and texts allow it."""
    wanted = limits.asked.reads_far and beyond and documents > 1 and suite.name != suites.CUSTOM
    if not wanted or suites.FAR in suite.measures:
        return suite
    return replace(suite, measures=(*suite.measures, suites.FAR))


def _affordable(
    suite: Suite,
    corpus: Corpus,
    target: Runner,
    measurements: Sequence[Measurement],
    roles: Sequence[str],
    budget: float,
    limits: Limits,
    seed: int,
) -> LastSegment | None:
    """Return the last segments with as many places as the budget leaves time for; None where that is no more than asked.

    budget: minutes, for all measurements and both models, as `estimate` knows them beforehand.
    """
    first = next((m for m in measurements if isinstance(m, LastSegment)), None)
    if first is None:
        return None
    spent = estimate.seconds(target, corpus, _work(measurements, roles))
    one = estimate.seconds(target, corpus, _work([first], roles)) / suite.segments
    extra = int((60 * budget - spent) / one) if one else 0
    if extra < MIN_SEGMENTS:
        return None
    return prepare_last_segment(
        corpus, first.asked, first.trained_length, context_length=first.context_length, margin=limits.asked.margin,
        segments=min(suite.segments + extra, MOST_SEGMENTS), seed=seed,
    )  # fmt: skip


def _joined(first: Losses, rest: Losses) -> Losses:
    """Return the losses of both stages, by length."""
    return {length: np.concatenate([part, rest[length]]) if length in rest else part for length, part in first.items()}


def _attainable(measurements: Sequence[Measurement]) -> float | None:
    """Return the ratio that the texts of the longest length are likely to tell from 1; None where nothing is compared."""
    chosen = next((m.chosen for m in measurements if isinstance(m, LastSegment)), None)
    if chosen is None:
        return None
    documents = [segment.document for segment in chosen[max(chosen)]]
    return perplexity(attainable(documents, SPREAD))


def _told(able: float, limits: Limits) -> str:
    """Return what can be decided with these texts, as a sentence for before the run."""
    grade = limits.asked
    if not math.isfinite(able):
        return "these texts are one document, which decides nothing; --text takes several"
    known = f"these texts are likely to tell a ratio of {able:.2f} from 1"
    if able <= grade.max_ratio:
        return f"{known}; grade {grade.name} asks for {grade.max_ratio:g}"
    return (
        f"{known}, and grade {grade.name} asks for {grade.max_ratio:g}: unless the documents agree more than those of the "
        "demo, it stays undecided; --text with more documents decides"
    )


def _prepared(
    suite: Suite,
    corpus: Corpus,
    target: Runner,
    lengths: Sequence[int],
    trained_length: int,
    context_length: int | None,
    limits: Limits,
    seed: int,
) -> list[Measurement]:
    """Return the measurements of the suite, their rows chosen. Raises: ConfigError if the texts are too short."""
    made: list[Measurement] = []
    for name in suite.measures:
        if name == suites.LAST_SEGMENT:
            made.append(
                prepare_last_segment(
                    corpus, lengths, trained_length, context_length=context_length, margin=limits.asked.margin,
                    segments=suite.segments, seed=seed,
                )
            )  # fmt: skip
        elif name == suites.POSITION:
            made.append(prepare_position(corpus, lengths, trained_length, count=suite.passages, seed=seed))
        elif name == suites.FAR:
            made.append(prepare_far(corpus, lengths, trained_length, count=suite.passages, seed=seed))
        elif name in PROTOCOLS:
            made.append(prepare_protocol(name, corpus, [n for n in lengths if n >= trained_length] or lengths[-1:]))
        else:
            task = "keys" if name == suites.RETRIEVAL else name
            made.append(
                prepare_retrieval(
                    task, corpus, target.tokenize, lengths, trained_length, trials=suite.trials, seed=seed
                )
            )
    return made


def _work(measurements: Sequence[Measurement], roles: Sequence[str]) -> Counter[int]:
    """Return how many rows of each length are to be computed."""
    return sum((Counter(m.rows(role)) for m in measurements for role in roles), Counter[int]())


def _estimate(
    target: Runner,
    measurements: Sequence[Measurement],
    corpus: Corpus,
    roles: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Say how long the run will take, if that is long."""
    work = _work(measurements, roles)
    duration = estimate.seconds(target, corpus, work) if work else 0.0
    if duration > LONG_RUN:
        total = sum(length * count for length, count in work.items())
        say(f"about {estimate.in_words(duration)} for {total} tokens")


def _measure_each(
    runners: Mapping[str, Runner],
    measurements: Sequence[Measurement],
    tell: Progress,
) -> dict[str, dict[str, Any]]:
    """Return what each measurement found of each model; a model is freed before the next one is loaded."""
    roles = [role for role in (TARGET, BASELINE) if role in runners]
    total = sum(length * count for length, count in _work(measurements, roles).items())
    finished = 0
    raw: dict[str, dict[str, Any]] = {}
    for role in roles:
        runner = runners[role]
        tell(f"loading the {role}", finished, total)
        raw[role] = {}
        for measurement in measurements:
            stage = f"{role}: {measurement.name}"

            def done(tokens: int, stage: str = stage) -> None:
                nonlocal finished
                finished += tokens
                tell(stage, finished, total)

            raw[role][measurement.name] = measurement.run(runner, role, done)
        runner.close()
    return raw


def _diverge(
    other: Runner, target: Runner, corpus: Corpus, longest: int, trained_length: int, seed: int, tell: Progress
) -> DivergenceResult:
    rows, documents = divergence_rows(corpus, longest, max(4, DIVERGENCE_TOKENS // longest), seed)
    total, finished = sum(map(len, rows)), 0

    def done(tokens: int) -> None:
        nonlocal finished
        finished += tokens
        tell("both files, logits", finished, total)

    return diverge(other, target, rows, trained_length, documents, done)


def _own_divergence(
    against: Pair, make: Callable[[Path], Runner], corpus: Corpus, trained_length: int, seed: int, tell: Progress
) -> DivergenceResult | None:
    """Return how far the pair is apart before the extension, within the trained length, where that is asked for."""
    if against.before is None or not against.quantised:
        return None
    with ExitStack() as stack:
        other, target = (stack.enter_context(closing(make(path))) for path in against.before)
        return _diverge(other, target, corpus, trained_length, trained_length, seed, tell)


def _judged(
    found: Mapping[str, Any],
    divergence: DivergenceResult | None = None,
    own: DivergenceResult | None = None,
    against: Pair | None = None,
    *,
    trained_length: int,
    context_length: int,
    limits: Limits,
    error: float,
) -> list[Check]:
    checks: list[Check] = []
    if suites.LAST_SEGMENT in found:
        lengths = found[suites.LAST_SEGMENT]
        evidence = gate.evidence_of_reading(lengths, found.get(suites.FAR), trained_length, context_length)
        checks += gate.loss_checks(lengths, trained_length, limits, error)
        checks.append(gate.reading_check(evidence, limits.asked, trained_length, context_length, error))
    for name in (suites.RETRIEVAL, suites.MANY_KEYS, suites.VARIABLES):
        if name in found:
            checks.append(gate.retrieval_check(found[name], found.get(suites.FAR), trained_length, limits))
    if divergence is not None and against is not None:
        checks += gate.kl_checks(divergence, own, against.quantised, limits)
    return checks


def _check(lengths: Sequence[int], trained_length: int, segments: int) -> None:
    """Raise ConfigError for a value that makes no measurement."""
    if not lengths:
        raise ConfigError("there is no length to measure", where="--lengths")
    for length in lengths:
        _check_count("--lengths", length, MIN_LENGTH)
    for shorter, longer in pairwise(lengths):
        if longer <= shorter:
            raise ConfigError(f"{longer} comes after {shorter}; lengths must increase", where="--lengths")
    _check_count("trained length", trained_length, MIN_LENGTH)
    _check_count("segments", segments, MIN_SEGMENTS)


def _check_count(where: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{value!r} is not a whole number of at least {at_least}", where=where)
