"""One verification: texts, measurements, runners and the gate put together.

Knows nothing of options, of where a checkpoint comes from, or of how results are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.verification import estimate, gate, suites
from ropetool.verification.corpus import read_corpus
from ropetool.verification.gate import Limits
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.measures.loss import LastSegment, prepare_last_segment
from ropetool.verification.measures.position import prepare_position
from ropetool.verification.measures.protocols import PROTOCOLS
from ropetool.verification.measures.protocols import prepare as prepare_protocol
from ropetool.verification.measures.repeats import prepare_far
from ropetool.verification.measures.retrieval import prepare_retrieval
from ropetool.verification.measures.segments import MIN_SEGMENTS
from ropetool.verification.results import Check, DivergenceResult, VerifyResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Measurement, Runner
from ropetool.verification.suites import Suite
from ropetool.verification.texts import Document, fingerprint

MIN_LENGTH = 8
AGAINST = "against"
DIVERGENCE_TOKENS = 16384  # of each model, at most, unless one row is longer
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
    something around each runner, told its role.

    Raises: ConfigError if an option is out of range, the texts are too short, or the tokenizers differ;
    CheckpointError if a checkpoint cannot be read or its logits are not finite.
    """
    suite, limits = suite or suites.SUITES["quick"], limits or Limits()
    _check(lengths, trained_length, suite.segments)
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
        if say is not None:
            _estimate(runners[TARGET], measurements, corpus, [role for role in paths if role != AGAINST], say)
        raw = _measure_each(around, measurements, tell)
        found = {m.name: m.result(raw[TARGET][m.name], raw.get(BASELINE, {}).get(m.name)) for m in measurements}
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
        checks=(*checks, *_judged(found, divergence, own, against, trained_length, limits)),
        runtime=around[TARGET].description,
        notes=(*notes, *([warning] if warning else [])),
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
                    corpus, lengths, trained_length, context_length=context_length, max_ratio=limits.max_ratio,
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
    divergence: DivergenceResult | None,
    own: DivergenceResult | None,
    against: Pair | None,
    trained_length: int,
    limits: Limits,
) -> list[Check]:
    checks: list[Check] = []
    if suites.LAST_SEGMENT in found:
        checks += gate.loss_checks(found[suites.LAST_SEGMENT], trained_length, limits)
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
