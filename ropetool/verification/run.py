"""One run of a suite: combines texts, measurements, runners and the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.verification import estimate, floors, gate, measures, suites
from ropetool.verification.beside import Beside, for_variants, kept_as, yardstick_result
from ropetool.verification.corpus import read_corpus
from ropetool.verification.duration import RunSize, check_duration
from ropetool.verification.gate import Limits
from ropetool.verification.kl_gate import kl_checks, passes, with_inexact_tables
from ropetool.verification.measure import Grading, Setting, Suite
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.measures.loss import LastSegment, perplexity
from ropetool.verification.options import VerifyOptions
from ropetool.verification.preparing import (
    check_amounts,
    check_judge,
    decidable,
    decidable_answers,
    prepared,
    with_proofs,
    work_of,
)
from ropetool.verification.results import Check, DivergenceResult, VerifyResult, YardstickResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, JUDGE, TARGET, Measurement, Progress, Runner, ignore
from ropetool.verification.short_divergence import with_own_noise
from ropetool.verification.statistics import attainable
from ropetool.verification.texts import Document, fingerprint

AGAINST = "against"
DIVERGENCE_TOKENS = 16384  # the most tokens of each model, unless a single row is longer
SPREAD = 0.15  # nats: the standard deviation over documents of an extension's cost, for the demo's expensive extensions
LONG_RUN = 60.0  # seconds; the estimate of a longer run is reported


class MakeRunner(Protocol):
    """Opens a checkpoint; calls `report` with a sentence for each change that the runner had to make."""

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner: ...


@dataclass(frozen=True)
class ComparedFile:
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


@dataclass(frozen=True)
class Models:
    """The models of a run, with the functions that open them.

    target, baseline: checkpoints; without a baseline, the target within its trained length is the baseline.
    against: a file to compare logits with; it is open together with the target.
    judge: a model that reads all lengths and chooses the key tokens.
    runner: opens a checkpoint. target_runner: opens the target, if `runner` must not.
    wrap: wraps each runner; gets the runner and its role.
    baseline_reach: the longest text that the baseline can read, in tokens; None for no limit.
    """

    target: Path
    baseline: Path | None = None
    against: ComparedFile | None = None
    judge: Path | None = None
    runner: MakeRunner = TorchRunner
    target_runner: MakeRunner | None = None
    wrap: Callable[[Runner, str], Runner] | None = None
    baseline_reach: int | None = None

    @property
    def paths(self) -> dict[str, Path]:
        """The checkpoint of each role."""
        paths = {TARGET: self.target}
        if self.baseline is not None and self.baseline.resolve() != self.target.resolve():
            paths[BASELINE] = self.baseline
        if self.against is not None:
            paths[AGAINST] = self.against.other
        if self.judge is not None:
            paths[JUDGE] = self.judge
        return paths

    def open(self, role: str, path: Path, options: VerifyOptions, notes: list[str]) -> Runner:
        """Return the runner of a checkpoint. notes: receives a sentence for each change that it had to make."""
        make = self.target_runner if role == TARGET and self.target_runner is not None else self.runner
        return make(path, device=options.device, dtype=options.dtype, report=notes.append)

    def wrapped(self, runner: Runner, role: str) -> Runner:
        """Return the wrapped runner, for measurements."""
        return runner if self.wrap is None else self.wrap(runner, role)


@dataclass(frozen=True)
class Workload:
    """The work of a run: a suite, its texts and its lengths.

    texts: the documents.
    lengths: tokens, increasing. Lengths beyond the trained length and beyond `context_length` are measured too.
    trained_length: tokens, before any extension.
    context_length: tokens, as configured; None if only the lengths count.
    suite: None is the quick suite.
    """

    texts: Sequence[Document]
    lengths: Sequence[int]
    trained_length: int
    context_length: int | None = None
    suite: Suite | None = None


def verify(
    models: Models,
    workload: Workload,
    options: VerifyOptions,
    *,
    checks: Sequence[Check] | Callable[[], Sequence[Check]] = (),
    beside: Beside | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    foretell: Callable[[Sequence[Measurement]], str] | None = None,
) -> VerifyResult:
    """Measure target and baseline on the same tokens, and return each result with its verdict.

    The models are loaded in turn; only `against` is open together with the target.

    options: only its limits, budget, seed, device and dtype count. A budget of None allows an hour, `NO_BUDGET` any
      time.
    checks: finished checks, or a function that makes them after the estimate of the duration.
    beside: reference attention variants, applied to the baseline, or to the target without one.
    progress: called with a stage, and the finished and total tokens.
    say: called with sentences about the work ahead.
    foretell: returns one more sentence about the work ahead.

    Raises: ConfigError if an option is out of range, the texts are too short, or the tokenizers differ; TooLong if the
    run exceeds the budget; CheckpointError if a checkpoint cannot be read or its logits are not finite.
    """
    with ExitStack() as stack:
        run = _SuiteRun(models, workload, options, stack, progress or nobody)
        run.open(beside)
        run.check_duration()
        if callable(checks):  # it loads both models, so the target must not be in memory
            run.runners[TARGET].close()
            checks = checks()
        if say is not None:
            run.foretell(say, foretell)
        results, yardsticks = run.measure()
        divergence, divergence_checks = run.divergence()
    judged = [*checks, *checks_of(results, run.setting), *divergence_checks]
    return replace(run.result(results, judged, divergence), yardsticks=yardsticks)


class _SuiteRun:
    """One run of a suite: its models are opened, its duration is checked, and then everything is measured."""

    def __init__(
        self, models: Models, workload: Workload, options: VerifyOptions, stack: ExitStack, tell: Progress
    ) -> None:
        self.models, self.workload, self.options = models, workload, options
        self._stack, self._tell = stack, tell
        self.limits = options.limits or Limits()
        suite = workload.suite or suites.named("quick")
        check_amounts(workload.lengths, workload.trained_length, suite)
        self._asked = RunSize(suite, tuple(workload.lengths), self.limits.grade)
        self.paths = models.paths
        if models.judge is not None:
            check_judge(models.judge, {role: path for role, path in self.paths.items() if role != JUDGE}, suite)
        self.notes: list[str] = []
        self.runners: dict[str, Runner] = {}
        self._yardsticks: Mapping[str, Runner] = {}

    def open(self, beside: Beside | None) -> None:
        """Open the models and choose the rows."""
        models, workload = self.models, self.workload
        for role, path in self.paths.items():
            runner = models.open(role, path, self.options, self.notes)
            self.runners[role] = self._stack.enter_context(closing(runner))
        self.around = {role: models.wrapped(runner, role) for role, runner in self.runners.items()}
        self._tell("reading the texts", 0, 0)
        self.corpus = read_corpus(workload.texts, self.runners, self.paths)
        self.setting = Setting(
            self._with_proofs(self._asked.suite, self.limits, workload.lengths),
            self.corpus,
            self.runners[TARGET],
            workload.lengths,
            workload.trained_length,
            workload.context_length,
            self.limits,
            seed=self.options.seed,
            judged=models.judge is not None,
            baseline_reach=models.baseline_reach,
        )
        self.measurements = prepared(self.setting)
        self._roles = [role for role in self.paths if role in (TARGET, BASELINE)]
        self._beside = beside
        if beside is not None:
            self._open_yardsticks(beside)
        self._work = self._work_of(self.measurements)

    def _with_proofs(self, suite: Suite, limits: Limits, lengths: Sequence[int]) -> Suite:
        workload = self.workload
        return with_proofs(suite, limits, max(lengths) > workload.trained_length, len(workload.texts))

    def _open_yardsticks(self, beside: Beside) -> None:
        """Open the reference attention variants before the measurements, so that an error occurs early."""
        self._tell("trying the attention variants", 0, 0)
        base, trained = self.runners[self._roles[-1]], self.workload.trained_length
        self._yardsticks = {
            name: self.models.wrapped(runner, kept_as(name, trained)) for name, runner in beside.make(base).items()
        }
        base.close()

    def _work_of(self, measurements: Sequence[Measurement]) -> Counter[int]:
        """Return the number of rows of each length, for models and reference attention variants together."""
        yardsticks = for_variants(measurements) * len(self._yardsticks)
        return work_of(measurements, self._roles) + work_of(yardsticks, [TARGET])

    @cached_property
    def _pace(self) -> estimate.Pace:
        """The pace of the target. It is measured only once, because a server would answer a second time from its cache."""
        scored = self.setting.suite.most_scored or 1
        return estimate.pace(self.runners[TARGET], self.corpus, self._work, scored)

    def check_duration(self) -> None:
        """Raise TooLong for a run that exceeds the budget."""

        def rows(run: RunSize) -> Mapping[int, int]:
            """Return the rows of this run, or of a smaller one."""
            if run == self._asked:
                return self._work
            limits = replace(self.limits, grade=run.grade)
            suite = self._with_proofs(run.suite, limits, run.lengths)
            return self._work_of(prepared(replace(self.setting, suite=suite, lengths=run.lengths, limits=limits)))

        check_duration(
            self._asked,
            rows,
            lambda: self._pace,
            self.options.budget,
            self.workload.trained_length,
            free_grade=self.options.limits is None,
        )

    def foretell(self, say: Callable[[str], None], foretell: Callable[[Sequence[Measurement]], str] | None) -> None:
        """Announce the precision of these texts, and the duration of a long run."""
        if self.attainable is not None:
            say(decidable(self.attainable, self.limits))
        for line in decidable_answers(self.measurements, self.limits):
            say(line)
        if foretell is not None:
            say(foretell(self.measurements))
        duration = self._pace(self._work) if self._work else 0.0
        if duration > LONG_RUN:
            say(f"about {estimate.in_words(duration)} for {estimate.tokens(self._work)} tokens")

    @cached_property
    def attainable(self) -> float | None:
        """The smallest ratio above 1 that the texts of the longest length probably detect; None without losses."""
        chosen = next((m.chosen for m in self.measurements if isinstance(m, LastSegment)), None)
        if chosen is None:
            return None
        documents = [segment.document for segment in chosen[max(chosen)]]
        return perplexity(attainable(documents, SPREAD))

    def measure(self) -> tuple[dict[str, Any], tuple[YardstickResult, ...]]:
        """Measure every model. Return the result of each measure by name, and the results of the attention variants."""
        raw = _measure_each(self.around, self.measurements, self._tell, {self._roles[-1]: self._yardsticks})
        results = results_of(self.measurements, self.setting, raw[TARGET], raw.get(BASELINE, {}))
        if self.models.judge is not None:
            results |= dict(self._judged(raw))
        return results, tuple(self._of_yardsticks(raw))

    def _of_yardsticks(self, raw: Mapping[str, Mapping[str, Any]]) -> Iterator[YardstickResult]:
        """Yield the result of each attention variant. raw: the figures by role or variant, and by measurement."""
        measurements = for_variants(self.measurements)
        reference = raw.get(BASELINE) or {suites.LAST_SEGMENT: raw[TARGET].get(suites.LAST_SEGMENT)}
        for name in self._yardsticks:
            assert self._beside is not None
            own = result_of(
                results_of(measurements, self.setting, raw[name], reference), measurements, (), self.setting
            )
            yield yardstick_result(name, self._beside, own, measurements, raw[TARGET], raw[name])

    def _judged(self, raw: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield the results that depend on the judge, by the name of the measure. raw: the figures by role and measurement."""
        by_name = {measurement.name: measurement for measurement in self.measurements}
        for measure in measures.of(self.setting.suite.measures):
            if measure.judged is None or measure.judged.measurement not in by_name:
                continue
            name = measure.judged.measurement
            self._tell(f"the judge: {measure.name}", 0, 0)
            of_models = (raw[TARGET][name], raw.get(BASELINE, {}).get(name))
            of_judge = by_name[name].run(self.around[JUDGE], JUDGE, ignore)
            yield measure.name, measure.judged.result(by_name[name], *of_models, of_judge)

    def divergence(self) -> tuple[DivergenceResult | None, Sequence[Check]]:
        """Return the divergence between the logits of the other file and of the target, and its checks."""
        pair = self.models.against
        if pair is None:
            return None, ()
        roundings = (self.runners[role].arithmetic for role in (TARGET, AGAINST))
        kinds = (*pair.kinds, *(each for each in roundings if each))
        allowed = floors.limit(kinds, pair.layers)
        measure = partial(self._diverge, longest=max(self.workload.lengths))
        result, noise = measure(self.around[AGAINST], self.around[TARGET]), None
        own = self._divergence_before(pair)
        if own is None and self.limits.max_kl is None and not passes(result, allowed):
            other, target = self.runners[AGAINST], self.runners[TARGET]
            result, noise = with_own_noise(result, other, target, measure, pair.routed)
        result = replace(result, reference=hub.name_of(pair.other))
        checks = kl_checks(result, own, allowed, self.limits.max_kl, noise)
        return result, with_inexact_tables(checks) if pair.inexact else checks

    def _divergence_before(self, pair: ComparedFile) -> DivergenceResult | None:
        """Return the divergence of the pair before the extension, within the trained length; None without such files."""
        if pair.before is None:
            return None
        with ExitStack() as stack:
            other, target = (
                stack.enter_context(closing(self.models.open(role, path, self.options, self.notes)))
                for role, path in zip((AGAINST, TARGET), pair.before, strict=True)
            )
            return self._diverge(other, target, longest=self.workload.trained_length)

    def _diverge(self, other: Runner, target: Runner, longest: int) -> DivergenceResult:
        seed = self.options.seed
        rows, documents = divergence_rows(self.corpus, longest, max(4, DIVERGENCE_TOKENS // longest), seed)
        total, finished = sum(map(len, rows)), 0

        def done(tokens: int) -> None:
            nonlocal finished
            finished += tokens
            self._tell("comparing the logits of both files", finished, total)

        return diverge(other, target, rows, self.workload.trained_length, documents, done, seed)

    def result(
        self, results: Mapping[str, Any], checks: Sequence[Check], divergence: DivergenceResult | None
    ) -> VerifyResult:
        """Return the result of the run, with the names of models and the notes."""
        models = self.models
        result = result_of(results, self.measurements, checks, self.setting)
        return replace(
            result,
            target=hub.name_of(models.target),
            baseline=hub.name_of(self.paths[BASELINE]) if BASELINE in self.paths else None,
            against=None if models.against is None else hub.name_of(models.against.other),
            text_fingerprint=fingerprint(self.workload.texts),
            divergence=divergence,
            runtime=self.around[TARGET].description,
            notes=(*self.notes, *result.notes),
            attainable=self.attainable,
            judge=None if models.judge is None else hub.name_of(models.judge),
        )


def results_of(
    measurements: Sequence[Measurement], setting: Setting, target: Mapping[str, Any], baseline: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result of each measure by its name, from the raw figures of both models by measurement."""
    by_name = {m.name: m for m in measurements}
    results: dict[str, Any] = {}
    for measure in measures.every():
        name = measure.measured_as
        if name in by_name:
            results[measure.name] = by_name[name].result(target[name], baseline.get(name))
        elif measure.derive is not None and measure.name in setting.suite.measures:
            results[measure.name] = measure.derive(results, setting.trained_length)
    return results


def result_of(
    results: Mapping[str, Any], measurements: Sequence[Measurement], checks: Sequence[Check], setting: Setting
) -> VerifyResult:
    """Return the result of a suite. The caller adds the names of models, the runtime and the fingerprint of texts."""
    segments = next((m for m in measurements if isinstance(m, LastSegment)), None)
    by_length = results.get(suites.LAST_SEGMENT, ())
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
        measures=measures.keyed(results),
    )


def _measure_each(
    runners: Mapping[str, Runner],
    measurements: Sequence[Measurement],
    tell: Progress,
    yardsticks: Mapping[str, Mapping[str, Runner]],
) -> dict[str, dict[str, Any]]:
    """Return the raw figures of each model or variant, by measurement. A model is freed before the next one is loaded.

    yardsticks: the runners of attention variants, by the role of the model that they are applied to. They are measured
      as a target, while this model is loaded.
    """
    roles = [role for role in (TARGET, BASELINE) if role in runners]
    steps = [
        (role, name, runner)
        for role in roles
        for name, runner in ((role, runners[role]), *yardsticks.get(role, {}).items())
    ]
    chosen = {name: measurements if name == role else for_variants(measurements) for role, name, _ in steps}
    as_role = {name: name if name == role else TARGET for role, name, _ in steps}
    total = sum(estimate.tokens(work_of(chosen[name], [as_role[name]])) for name in chosen)
    finished = 0
    raw: dict[str, dict[str, Any]] = {}
    for index, (role, name, runner) in enumerate(steps):
        if name == role:
            tell(f"loading the {role}", finished, total)
        raw[name] = {}
        for measurement in chosen[name]:
            stage = f"{name}: {measurement.name}"

            def done(tokens: int, stage: str = stage) -> None:
                nonlocal finished
                finished += tokens
                tell(stage, finished, total)

            raw[name][measurement.name] = measurement.run(runner, as_role[name], done)
        if role not in [following for following, _, _ in steps[index + 1 :]]:
            runners[role].close()
    return raw


def checks_of(results: Mapping[str, Any], setting: Setting) -> list[Check]:
    """Return the lines of the gate. results: the result of each measure by its name."""
    measured = [measure for measure in measures.every() if results.get(measure.name) is not None]
    grading = Grading(setting.limits, setting.trained_length, setting.context, results)
    evidence = [each for measure in measured for each in measure.evidence(results[measure.name], grading)]
    grading = replace(grading, evidence=evidence)
    measured.sort(key=lambda measure: measure.order if measure.checked is None else measure.checked)
    return [check for measure in measured for check in measure.checks(results[measure.name], grading)]
