"""`ropetool compare`: measures candidates in one loaded model, on the same tokens, with one baseline.

It uses the measures and the limits of `verify`, and writes only the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ropetool.checkpoint.opening import Checkpoint
from ropetool.choosing.candidates import Candidate, Refused, candidates_of
from ropetool.choosing.measuring import Field, Raw, Trial, checked, foretell, measure, prepare, views, whole_work
from ropetool.choosing.options import CandidateOptions, CompareArguments, split_arguments
from ropetool.choosing.ranking import Ranking, ranked
from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.choosing.source import SourceModel
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.plans.basis import Unpack
from ropetool.registry import addition
from ropetool.verification import catalogue, estimate, suites
from ropetool.verification.conditions import SOURCE, conditions, run_key
from ropetool.verification.corpus import read_corpus
from ropetool.verification.duration import RunSize, check_duration
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Setting
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.options import VerifyOptions
from ropetool.verification.preparing import check_amounts, default_lengths, with_proofs
from ropetool.verification.results import Estimate
from ropetool.verification.run import checks_of, result_of, results_of
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import TARGET, Corpus, Progress
from ropetool.verification.session import documents_of
from ropetool.verification.statistics import clustered
from ropetool.verification.texts import Document, fingerprint
from ropetool.verification.whole_suites import kept_on_disk, missing_comparisons

YARDSTICK = "a reference attention variant of the source; no file can store it"


def compare(
    source: str | Path | Checkpoint,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[CompareArguments],
) -> Comparison:
    """Measure one model with each method at each factor, and with each saved plan, and rank them.

    Loads the model once and changes its rotary table in memory. The unchanged source, within its trained length, is the
    baseline of every candidate. Candidates that cannot be written or measured stay in the result with the reason.

    options: the arguments in `CompareArguments`. `CandidateOptions` and `VerifyOptions` explain them.
      lengths: tokens, for all candidates. None measures each candidate up to its context.
      suite, measures: without both, the quick suite. The grade may add measures as proof.
      compare_with: names of reference attention variants, separated by commas. They run on the source at all lengths,
        and stay out of the rankings, because a file cannot contain them.
      budget: minutes for the run. None allows an hour, `NO_BUDGET` any time.
    progress: called with a stage, and the finished and total tokens.
    say: receives sentences about the work ahead.

    Raises: TooLong if the run exceeds the budget; ConfigError; CheckpointError; UnknownMethod; PlanMismatch for a plan
    of a different source; the first refusal if every candidate is refused.
    """
    candidates, measuring = split_arguments(options)
    return compare_candidates(source, candidates, measuring, progress=progress, say=say)


def compare_candidates(
    source: str | Path | Checkpoint,
    candidates: CandidateOptions,
    options: VerifyOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Measure and rank candidates as `compare` does.

    Uses only the options in `MeasureArguments`. Raises: as `compare`.
    """
    tell = progress or nobody
    chosen = _Chosen.of(
        SourceModel.of(source, "compare", "extend the file with each method and verify each output"),
        candidates,
        options,
    )
    with closing(chosen.source.load(options.device, options.dtype, chosen.notes.append)) as runner:
        loaded = chosen.on(runner, tell)
        loaded.check_duration()
        if say is not None:
            foretell(lambda: loaded.pace, loaded.field, loaded.trials, say)
        raw, own = loaded.measure(tell)
    return loaded.result(raw, own)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A comparison before the model is loaded.

    options: suite, texts, lengths and the other options of a verification.
    baseline_beyond: also score the source beyond its trained length.
    refused: candidates that no file can contain.
    named: the reference attention variants.
    run: suite, lengths and grade, without the measures that the grade adds.
    limits: the limits of the gate.
    documents: the texts to read.
    notes: sentences for the result.
    """

    source: SourceModel
    options: VerifyOptions
    baseline_beyond: bool
    candidates: Sequence[Candidate]
    refused: Sequence[Refused]
    named: Sequence[Any]
    run: RunSize
    limits: Limits
    documents: Sequence[Document]
    notes: list[str]

    @classmethod
    def of(cls, source: SourceModel, candidate_options: CandidateOptions, options: VerifyOptions) -> _Chosen:
        """Plan the candidates, choose suite and lengths, and read the documents. Raises: as `compare`."""
        for length in candidate_options.target_lengths:
            source.check_beyond(length, candidate_options.reading, "compare", candidate_options.original_length)
        candidates, refused = candidates_of(source.checkpoint, candidate_options)
        name = options.suite or (None if options.measures else "quick")
        suite = suites.choose(name, options.measures, options.segments, options.trials)
        lengths = options.lengths
        if lengths is None:
            contexts = {each.target_length for each in candidates}
            lengths = sorted({*default_lengths(source.trained, max(contexts)), *contexts})
        check_amounts(lengths, source.trained, suite)
        named = _named(options.compare_with, source.trained, lengths[-1], candidates)
        limits, notes = options.limits or Limits(), list[str]()
        documents = documents_of(options.texts, lengths[-1], notes)
        run = RunSize(suite, tuple(lengths), limits.grade)
        return cls(
            source,
            options,
            candidate_options.baseline_beyond,
            candidates,
            refused,
            named,
            run,
            limits,
            documents,
            notes,
        )

    def on(self, runner: TorchRunner, tell: Progress) -> _Loaded:
        """Return the views of the model and the rows, and load the model.

        Raises: ConfigError if the texts are too short.
        """
        source, lengths = self.source, self.run.lengths
        everywhere = self.options.lengths is not None
        able, unfit = views(runner, self.candidates, source.checkpoint, source.rope, lengths, everywhere=everywhere)
        tell("reading the texts", 0, 0)
        corpus = read_corpus(self.documents, {TARGET: runner}, {})
        field = prepare(self.setting(self.run, corpus, runner), {*(trial.reach for trial in able), lengths[-1]})
        able, unscaled = checked(able)
        beside, unfitting = self._beside(runner)
        return _Loaded(self, runner, field, able, beside, (*self.refused, *unfit, *unscaled, *unfitting))

    def setting(self, run: RunSize, corpus: Corpus, runner: TorchRunner) -> Setting:
        """Return the setting of this run or of a smaller one, with the measures that its grade adds."""
        trained, limits = self.source.trained, replace(self.limits, grade=run.grade)
        suite = with_proofs(run.suite, limits, run.lengths[-1] > trained, len(self.documents))
        return Setting(
            suite, corpus, runner, run.lengths, trained, None, limits, self.options.seed,
            baseline_reach=None if self.baseline_beyond else trained,
        )  # fmt: skip

    def _beside(self, runner: TorchRunner) -> tuple[list[Trial], list[Refused]]:
        """Return the trials of reference attention variants, and refusals of variants that do not fit the model."""
        if not self.named:
            return [], []
        source, longest = self.source, self.run.lengths[-1]
        trials: tuple[list[Trial], list[Refused]] = addition("yardstick_trials")(
            runner, self.named, source.checkpoint, source.rope, longest, source.trained
        )
        return trials


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A comparison in the loaded model.

    chosen: the planned comparison.
    runner: runs the model.
    field: the measurements that all candidates share.
    able: the candidates that are ranked.
    beside: the reference attention variants that fit the model.
    refused: the candidates and variants that are not measured.
    """

    chosen: _Chosen
    runner: TorchRunner
    field: Field
    able: Sequence[Trial]
    beside: Sequence[Trial]
    refused: Sequence[Refused]

    @property
    def trials(self) -> list[Trial]:
        """Return all trials: candidates and reference attention variants."""
        return [*self.able, *self.beside]

    @cached_property
    def pace(self) -> estimate.Pace:
        """Return the pace of the source. The model is probed only once."""
        setting = self.field.setting
        return estimate.pace(self.runner, setting.corpus, self.rows(self.chosen.run), setting.suite.most_scored or 1)

    def rows(self, run: RunSize) -> Mapping[int, int]:
        """Return the rows of this run, or of a smaller run that measures every candidate at all its lengths."""
        if run == self.chosen.run:
            return whole_work(self.field, self.trials)
        longest = run.lengths[-1]
        smaller = prepare(self.chosen.setting(run, self.field.setting.corpus, self.runner), {longest})
        return whole_work(smaller, [replace(trial, reach=longest) for trial in self.trials])

    def check_duration(self) -> None:
        """Refuse a run that exceeds its budget. Raises: TooLong."""
        chosen, options = self.chosen, self.chosen.options
        check_duration(
            chosen.run, self.rows, lambda: self.pace, options.budget, chosen.source.trained, free_grade=options.limits is None
        )  # fmt: skip

    def measure(self, tell: Progress) -> tuple[dict[str, Raw], dict[int, Raw]]:
        """Return the figures of each trial by its name, and of the source by reach; both are kept in the journal."""
        chosen, options = self.chosen, self.chosen.options
        models, documents = {SOURCE: chosen.source.checkpoint}, chosen.documents
        key = run_key(models, documents, ("compare", options.device, options.dtype))
        decides = conditions(models, documents, {}, options.device)
        with kept_on_disk(key, decides, options.resume, chosen.notes) as wrap:
            return measure(self.runner, self.trials, self.field, wrap, tell)

    def result(self, raw: Mapping[str, Raw], own: Mapping[int, Raw]) -> Comparison:
        """Return the result of every candidate, and the rankings. raw, own: the figures that `measure` returned."""
        chosen, field, last = self.chosen, self.field, self.field.last
        setting, lengths = field.setting, chosen.run.lengths
        name = hub.name_of(chosen.source.checkpoint.path)
        results = [_result(trial, field, raw[trial.name], own[trial.reach], name) for trial in self.trials]
        results += [CandidateResult(each.name, None, None, each.reason) for each in self.refused]
        notes = [*chosen.notes, *(note for each in results if each.measured for note in each.measured.notes)]
        return Comparison(
            source=name,
            trained_length=chosen.source.trained,
            lengths=lengths,
            suite=setting.suite.name,
            grade=setting.limits.grade,
            scored=last.scored if last else 0,
            seed=setting.seed,
            baseline=_baseline(field, own),
            candidates=tuple(results),
            rankings=tuple(_rankings(field, self.able, raw)),
            beside=_ranked(field, self.trials, raw, lengths[-1]) if self.beside else None,
            documents=last.documents() if last else setting.corpus.names,
            text_fingerprint=fingerprint(chosen.documents),
            texts=catalogue.described(chosen.documents, bundled=not chosen.options.texts),
            runtime=self.runner.description,
            notes=tuple(dict.fromkeys(notes)),
        )


def _named(names: str | None, trained: int, longest: int, candidates: Sequence[Candidate]) -> Sequence[Any]:
    """Return the reference attention variants of a list of names. trained, longest: lengths in tokens.

    Raises: ConfigError for an unknown name, and for a candidate with the name of a variant.
    """
    if not names:
        return ()
    named: Sequence[Any] = addition("yardsticks_named")(names, trained, longest)
    for name in {each.name for each in candidates} & {each.name for each in named}:
        raise ConfigError(
            "a reference attention variant has the same name", where=f"--plan {name}", try_="rename the plan"
        )
    return named


def _result(trial: Trial, field: Field, raw: Raw, own: Raw, baseline: str) -> CandidateResult:
    """Return the result of a candidate, with the checks that `verify` would run on its output."""
    candidate = trial.candidate
    context = trial.reach if candidate is None else candidate.target_length
    measurements = [replace(m, context_length=context) if isinstance(m, LastSegment) else m for m in field.of(trial)]
    setting = replace(field.setting, context_length=context)
    results = results_of(measurements, setting, raw, own)
    lengths = [length for length in setting.lengths if length <= trial.reach]
    checks = [*missing_comparisons(True, lengths, setting.trained_length, context), *checks_of(results, setting)]
    result = result_of(results, measurements, checks, setting)
    result = replace(result, target=trial.name, baseline=baseline)
    if candidate is None:
        return CandidateResult(trial.name, None, result, note=YARDSTICK)
    extension = {"method": candidate.plan.method, "factor": candidate.plan.factor, "params": candidate.plan.params}
    return CandidateResult(trial.name, candidate.plan, replace(result, extension=extension), note=candidate.note)


def _rankings(field: Field, trials: Sequence[Trial], raw: Mapping[str, Raw]) -> Iterator[Ranking]:
    """Yield the ranking at each length up to which a candidate is scored."""
    for length in sorted({trial.reach for trial in trials}):
        ranking = _ranked(field, trials, raw, length)
        if ranking is not None:
            yield ranking


def _ranked(field: Field, trials: Sequence[Trial], raw: Mapping[str, Raw], length: int) -> Ranking | None:
    if field.last is None:
        return None
    losses = {trial.name: raw[trial.name][field.last.name][length] for trial in trials if trial.reach >= length}
    return ranked(length, losses, [segment.document for segment in field.last.chosen[length]])


def _baseline(field: Field, own: Mapping[int, Raw]) -> dict[int, Estimate]:
    """Return the losses of the unchanged source, at the lengths at which it was scored."""
    if field.last is None:
        return {}
    losses = own[max(own)][field.last.name]
    return {
        length: clustered(losses[length], [segment.document for segment in field.last.chosen[length]])
        for length in field.last.asked
        if length in losses
    }
