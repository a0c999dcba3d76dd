"""One verification run: combines texts, measurements, runners and the gate.

Does not know command line options, the origin of a checkpoint, or how results are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.verification import estimate, floors, gate, measures, suites
from ropetool.verification.beside import Beside, kept_as, told_by, yardstick_result
from ropetool.verification.corpus import read_corpus
from ropetool.verification.duration import Run, check_duration
from ropetool.verification.gate import Limits
from ropetool.verification.kl_gate import kl_checks, passes, with_inexact_tables
from ropetool.verification.measure import Grading, Setting, Suite
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.measures.long_pass import JUDGE, LongPass
from ropetool.verification.measures.loss import LastSegment, perplexity
from ropetool.verification.measures.retrieval import Retrieval
from ropetool.verification.measures.segments import MIN_SEGMENTS
from ropetool.verification.options import check_budget
from ropetool.verification.results import Check, DivergenceResult, VerifyResult, YardstickResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import (
    BASELINE,
    MIN_LENGTH,
    TARGET,
    Corpus,
    Measurement,
    Progress,
    Runner,
    Tokenizes,
    ignore,
)
from ropetool.verification.shares import attainable_loss, paired_bounds
from ropetool.verification.short_divergence import with_own_noise
from ropetool.verification.statistics import attainable
from ropetool.verification.texts import Document, fingerprint

AGAINST = "against"
DIVERGENCE_TOKENS = 16384  # of each model, at most, unless one row is longer
SPREAD = 0.15  # nats, by which documents differ in what an extension costs; of the demo's, which cost much
DISAGREEING = 0.1  # share of the pairs of trials of which one alone is right; the demo's, extended four times: 0.2
LONG_RUN = 60.0  # seconds, beyond which the estimate is told


class MakeRunner(Protocol):
    """Opens a checkpoint; calls `report` with a sentence for each change that the runner had to make."""

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner: ...


@dataclass(frozen=True)
class Pair:
    """A file whose logits are compared with the target's logits.

    other: the path of the file.
    kinds: the causes of rounding differences, by their names in `floors`.
    layers: the number of layers of the model.
    before: the same two files before the extension; None to skip that measurement.
    inexact: the tables of the two are known to differ.
    routed: the target has experts.
    """

    other: Path
    kinds: tuple[str, ...]
    layers: int
    before: tuple[Path, Path] | None = None
    inexact: bool = False
    routed: bool = False


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
    judge: Path | None = None,
    checks: Sequence[Check] | Callable[[], Sequence[Check]] = (),
    bands: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    foretell: Callable[[Sequence[Measurement]], str] | None = None,
    runner: MakeRunner = TorchRunner,
    target_runner: MakeRunner | None = None,
    wrap: Callable[[Runner, str], Runner] | None = None,
    baseline_reach: int | None = None,
    beside: Beside | None = None,
) -> VerifyResult:
    """Measure target and baseline on the same tokens, and return each result with its verdict.

    Without a baseline, the target within its trained length is the baseline. Lengths beyond the trained length and
    beyond `context_length` are measured too. The models are loaded in turn; only `against` is open together with the
    target.

    judge: a model that reads all lengths and chooses the key tokens.
    checks: finished checks, or a function that makes them after the estimate of the duration.
    wrap: wraps each runner; gets the runner and its role.
    budget: minutes that the run may take; None allows an hour, `NO_BUDGET` any time.
    foretell: returns one more sentence about the work, which is printed before it starts.
    baseline_reach: the longest text that the baseline can read, in tokens; None for no limit.
    target_runner: opens the target, if `runner` must not.
    beside: reference attention variants, applied to the baseline, or to the target without one.

    Raises: ConfigError if an option is out of range, the texts are too short, or the tokenizers differ; TooLong if the
    run exceeds the budget; CheckpointError if a checkpoint cannot be read or its logits are not finite.
    """
    free_grade = limits is None
    suite, limits = suite or suites.named("quick"), limits or Limits()
    check_budget(budget)
    check_amounts(lengths, trained_length, suite)
    asked_for = Run(suite, tuple(lengths), limits.grade)
    suite = with_proofs(suite, limits, max(lengths) > trained_length, len(texts))
    paths = {TARGET: target}
    if baseline is not None and baseline.resolve() != target.resolve():
        paths[BASELINE] = baseline
    if against is not None:
        paths[AGAINST] = against.other
    if judge is not None:
        _check_judge(judge, paths, suite)
        paths[JUDGE] = judge
    notes: list[str] = []

    def make(role: str, path: Path) -> Runner:
        opener = target_runner if role == TARGET and target_runner is not None else runner
        return opener(path, device=device, dtype=dtype, report=notes.append)

    tell = progress or nobody
    with ExitStack() as stack:
        runners = {role: stack.enter_context(closing(make(role, path))) for role, path in paths.items()}
        around = runners if wrap is None else {role: wrap(made, role) for role, made in runners.items()}
        tell("reading the texts", 0, 0)
        corpus = read_corpus(texts, runners, paths)
        setting = Setting(
            suite, corpus, runners[TARGET], lengths, trained_length, context_length, limits, seed, judge is not None,
            baseline_reach,
        )  # fmt: skip
        measurements = prepared(setting)
        asked = [role for role in paths if role in (TARGET, BASELINE)]
        on = asked[-1]
        yardsticks: Mapping[str, Runner] = {}
        if beside is not None:
            tell("trying the yardsticks", 0, 0)  # now, and not behind all that is measured before them
            yardsticks = beside.make(runners[on])
            if wrap is not None:
                yardsticks = {name: wrap(made, kept_as(name, trained_length)) for name, made in yardsticks.items()}
            runners[on].close()
        work = work_of(measurements, asked) + work_of(told_by(measurements) * len(yardsticks), [TARGET])

        @cache
        def pace() -> estimate.Pace:
            """Return the pace of the target, probed once: a second time a server would answer out of its cache."""
            return estimate.pace(runners[TARGET], corpus, work, suite.most_scored or 1)

        def rows(run: Run) -> Mapping[int, int]:
            """Return the rows of this run, or of a smaller one."""
            if run == asked_for:
                return work
            grade, beyond = replace(limits, grade=run.grade), run.lengths[-1] > trained_length
            less = with_proofs(run.suite, grade, beyond, len(texts))
            made = prepared(replace(setting, suite=less, lengths=run.lengths, limits=grade))
            return work_of(made, asked) + work_of(told_by(made) * len(yardsticks), [TARGET])

        check_duration(asked_for, rows, pace, budget, trained_length, free_grade=free_grade)
        if callable(checks):  # they run both models
            runners[TARGET].close()
            checks = checks()
        told = told_by(measurements)
        able = _attainable(measurements)
        if say is not None:
            if able is not None:
                say(_told(able, limits))
            for line in _told_of_answers(measurements, limits):
                say(line)
            if foretell is not None:
                say(foretell(measurements))
            _estimate(pace, work, say)
        raw = _measure_each(around, measurements, tell, {on: yardsticks})
        found = results_of(measurements, setting, raw[TARGET], raw.get(BASELINE, {}))
        long_pass = next((m for m in measurements if isinstance(m, LongPass)), None)
        if long_pass is not None and judge is not None:
            tell("the judge: key tokens", 0, 0)
            said = long_pass.run(around[JUDGE], JUDGE, ignore)
            found[suites.KEY_TOKENS] = long_pass.key_tokens(
                raw[TARGET][long_pass.name], raw.get(BASELINE, {}).get(long_pass.name), said
            )
        reference = raw.get(BASELINE) or {suites.LAST_SEGMENT: raw[TARGET].get(suites.LAST_SEGMENT)}
        held: list[YardstickResult] = []
        for name in yardsticks:
            assert beside is not None
            of_yardstick = result_of(results_of(told, setting, raw[name], reference), told, (), setting)
            held.append(yardstick_result(name, beside, of_yardstick, told, raw[TARGET], raw[name]))
        divergence, own, noise = None, None, None
        if against is not None:
            rounding = (runners[role].arithmetic for role in (TARGET, AGAINST))
            against = replace(against, kinds=(*against.kinds, *(kind for kind in rounding if kind)))
            measure = partial(
                _diverge, corpus=corpus, longest=max(lengths), trained_length=trained_length, seed=seed, tell=tell
            )
            divergence = measure(around[AGAINST], around[TARGET])
            own = _own_divergence(against, make, corpus, trained_length, seed, tell)
            allowed = floors.limit(against.kinds, against.layers)
            if own is None and limits.max_kl is None and not passes(divergence, allowed):
                divergence, noise = with_own_noise(
                    divergence, runners[AGAINST], runners[TARGET], measure, against.routed
                )
            divergence = replace(divergence, reference=hub.name_of(against.other))
    checked = [*checks, *checks_of(found, setting)]
    if divergence is not None and against is not None:
        apart = kl_checks(divergence, own, floors.limit(against.kinds, against.layers), limits.max_kl, noise)
        checked += with_inexact_tables(apart) if against.inexact else apart
    result = result_of(found, measurements, checked, setting)
    return replace(
        result,
        target=hub.name_of(target),
        baseline=hub.name_of(paths[BASELINE]) if BASELINE in paths else None,
        against=hub.name_of(against.other) if against else None,
        text_fingerprint=fingerprint(texts),
        divergence=divergence,
        bands=bands,
        runtime=around[TARGET].description,
        notes=(*notes, *result.notes),
        attainable=able,
        judge=None if judge is None else hub.name_of(judge),
        yardsticks=tuple(held),
    )


def results_of(
    measurements: Sequence[Measurement], setting: Setting, target: Mapping[str, Any], baseline: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result of each measure by its name, from the raw figures of both models by measurement."""
    made = {m.name: m for m in measurements}
    results: dict[str, Any] = {}
    for measure in measures.every():
        name = measure.measured_as
        if name in made:
            results[measure.name] = made[name].result(target[name], baseline.get(name))
        elif measure.derive is not None and measure.name in setting.suite.measures:
            results[measure.name] = measure.derive(results, setting.trained_length)
    return results


def result_of(
    found: Mapping[str, Any], measurements: Sequence[Measurement], checks: Sequence[Check], setting: Setting
) -> VerifyResult:
    """Return the result of a suite; whose it is, and what it was measured with, is for the caller to say."""
    segments = next((m for m in measurements if isinstance(m, LastSegment)), None)
    by_length = found.get(suites.LAST_SEGMENT, ())
    warning = gate.contamination(by_length)
    return VerifyResult(
        target="",
        baseline=None,
        against=None,
        suite=setting.suite.name,
        trained_length=setting.trained_length,
        context_length=setting.context,
        scored=segments.scored if segments else 0,
        seed=setting.seed,
        documents=segments.documents() if segments else setting.corpus.names,
        text_fingerprint="",
        lengths=by_length,
        divergence=None,
        bands=None,
        checks=tuple(checks),
        runtime="",
        notes=(warning,) if warning else (),
        grade=setting.limits.grade,
        measures=measures.keyed(found),
    )


def _check_judge(judge: Path, paths: Mapping[str, Path], suite: Suite) -> None:
    """Raise ConfigError for a judge that judges itself, or nothing."""
    if suites.KEY_TOKENS not in suite.measures:
        raise ConfigError("no key tokens are measured", where="--judge", try_="--measure key-tokens or --suite full")
    for role, path in paths.items():
        if path.resolve() == judge.resolve():
            raise ConfigError(f"it is the {role} itself", where="--judge", try_="another model with the same tokenizer")


def with_proofs(suite: Suite, limits: Limits, beyond: bool, documents: int) -> Suite:
    """Return the suite with what its grade asks for as proof that far text is read: copies, if texts allow it, and answers.

    Single measurements that were asked for stay alone.
    """
    if not limits.asked.reads_far or not beyond or suite.name == suites.CUSTOM:
        return suite
    proofs = [*([suites.FAR] if documents > 1 else []), suites.RETRIEVAL]
    return replace(suite, measures=(*suite.measures, *(name for name in proofs if name not in suite.measures)))


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


def _told_of_answers(measurements: Sequence[Measurement], limits: Limits) -> list[str]:
    """Return what can be decided with these trials, where answers have to be shown, as a sentence for each task."""
    grade = limits.asked
    found = [m for m in measurements if isinstance(m, Retrieval) and m.contexts]
    if not grade.reads_far:
        return []
    counts = {m.name: len(m.contexts[max(m.contexts)]) for m in found}
    return [
        f"{name}: {trials} trials show that no more than {paired_bounds(0, 0, trials)[1]:.2f} of the answers are lost where "
        f"every pair agrees, and {attainable_loss(trials, DISAGREEING):.2f} where one in {1 / DISAGREEING:.0f} does not; "
        f"grade {grade.name} asks for {grade.max_lost:.2f}"
        for name, trials in counts.items()
    ]


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


def _estimate(pace: Callable[[], estimate.Pace], work: Mapping[int, int], say: Callable[[str], None]) -> None:
    """Say how long the run will take, if that is long."""
    duration = pace()(work) if work else 0.0
    if duration > LONG_RUN:
        say(f"about {estimate.in_words(duration)} for {estimate.tokens(work)} tokens")


def _measure_each(
    runners: Mapping[str, Runner],
    measurements: Sequence[Measurement],
    tell: Progress,
    yardsticks: Mapping[str, Mapping[str, Runner]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return what each measurement found of each model; a model is freed before the next one is loaded.

    yardsticks: by the role of the model that they are put on; they are measured as a target is, while it is loaded.
    """
    roles = [role for role in (TARGET, BASELINE) if role in runners]
    steps = [
        (role, name, runner)
        for role in roles
        for name, runner in ((role, runners[role]), *(yardsticks or {}).get(role, {}).items())
    ]
    asked = {name: measurements if name == role else told_by(measurements) for role, name, _ in steps}
    as_role = {name: name if name == role else TARGET for role, name, _ in steps}
    total = sum(estimate.tokens(work_of(asked[name], [as_role[name]])) for name in asked)
    finished = 0
    raw: dict[str, dict[str, Any]] = {}
    for index, (role, name, runner) in enumerate(steps):
        if name == role:
            tell(f"loading the {role}", finished, total)
        raw[name] = {}
        for measurement in asked[name]:
            stage = f"{name}: {measurement.name}"

            def done(tokens: int, stage: str = stage) -> None:
                nonlocal finished
                finished += tokens
                tell(stage, finished, total)

            raw[name][measurement.name] = measurement.run(runner, as_role[name], done)
        if role not in [following for following, _, _ in steps[index + 1 :]]:
            runners[role].close()
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

    return diverge(other, target, rows, trained_length, documents, done, seed)


def _own_divergence(
    against: Pair, make: Callable[[str, Path], Runner], corpus: Corpus, trained_length: int, seed: int, tell: Progress
) -> DivergenceResult | None:
    """Return how far the pair is apart before the extension, within the trained length, where that is asked for."""
    if against.before is None:
        return None
    with ExitStack() as stack:
        roles = zip((AGAINST, TARGET), against.before, strict=True)
        other, target = (stack.enter_context(closing(make(role, path))) for role, path in roles)
        return _diverge(other, target, corpus, trained_length, trained_length, seed, tell)


def checks_of(results: Mapping[str, Any], setting: Setting) -> list[Check]:
    """Return the lines of the gate on these results, which are by measure."""
    made = [measure for measure in measures.every() if results.get(measure.name) is not None]
    grading = Grading(setting.limits, setting.trained_length, setting.context, results)
    evidence = [each for measure in made for each in measure.evidence(results[measure.name], grading)]
    grading = replace(grading, evidence=evidence)
    made.sort(key=lambda measure: measure.order if measure.checked is None else measure.checked)
    return [check for measure in made for check in measure.checks(results[measure.name], grading)]


def check_amounts(lengths: Sequence[int], trained_length: int, suite: Suite) -> None:
    """Raise ConfigError for a value that makes no measurement."""
    if not lengths:
        raise ConfigError("there is no length to measure", where="--lengths")
    for length in lengths:
        _check_count("--lengths", length, MIN_LENGTH)
    for shorter, longer in pairwise(lengths):
        if longer <= shorter:
            raise ConfigError(f"{longer} comes after {shorter}; lengths must increase", where="--lengths")
    _check_count("trained length", trained_length, MIN_LENGTH)
    _check_count("--segments", suite.segments, MIN_SEGMENTS)
    _check_count("--trials", suite.trials, 1)


def _check_count(where: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{value!r} is not a whole number of at least {at_least}", where=where)
