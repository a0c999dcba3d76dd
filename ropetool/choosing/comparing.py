"""`ropetool compare`: candidates beside each other in one loaded model, on the same tokens, with one baseline.

What is measured, and how it is judged, is verification's to say; nothing is written but the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source
from ropetool.choosing.candidates import Asked, Refused, candidates_of, check_beyond
from ropetool.choosing.measuring import (
    Field,
    Raw,
    Trial,
    checked,
    foretell,
    measure,
    prepare,
    views,
    whole_work,
)
from ropetool.choosing.ranking import Ranking, ranked
from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.registry import addition
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import inspection
from ropetool.verification import catalogue, estimate, suites
from ropetool.verification.conditions import SOURCE, conditions, run_key
from ropetool.verification.corpus import read_corpus
from ropetool.verification.duration import Run, check_duration
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Setting
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.opening import Open
from ropetool.verification.options import check_budget
from ropetool.verification.results import Estimate
from ropetool.verification.run import check_amounts, checks_of, default_lengths, result_of, results_of, with_proofs
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import TARGET, Progress
from ropetool.verification.session import documents_of, lengths_of
from ropetool.verification.statistics import clustered
from ropetool.verification.texts import fingerprint
from ropetool.verification.whole_suites import kept_on_disk, yardsticks

YARDSTICK = "a yardstick, put on the source: no file holds it"


def compare(
    source: str | Path | Checkpoint,
    *,
    methods: Sequence[str] = (),
    factors: Sequence[float] = (),
    target_lengths: Sequence[int] = (),
    plans: Sequence[str | Path] = (),
    reading: str | None = None,
    original_length: int | None = None,
    for_runtimes: Sequence[str] = (),
    texts: Sequence[str | Path] = (),
    lengths: Sequence[int] | None = None,
    baseline_beyond: bool = False,
    compare_with: str = "",
    suite: str | None = None,
    measures: Sequence[str] = (),
    segments: int | None = None,
    trials: int | None = None,
    limits: Limits | None = None,
    budget: float | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Measure one model with each method at each factor, and with each saved plan, and rank them.

    Loads the model once and changes its rotary table in memory. The unchanged source, within its trained length, is the
    baseline of every candidate. Candidates that cannot be written or measured stay in the result with the reason.

    lengths: tokens, for all candidates. None measures each candidate up to its context.
    baseline_beyond: also score the source beyond its trained length.
    compare_with: names of reference attention variants, separated by commas. They run on the source at all lengths, and
      stay out of the rankings, because a file cannot contain them.
    suite, measures: without both, the quick suite. The grade may add measures as proof.
    reading, original_length, for_runtimes: see `plan`.
    budget: minutes for the run. None allows an hour, `NO_BUDGET` any time.

    Raises: TooLong if the run exceeds the budget; ConfigError; CheckpointError; UnknownMethod; PlanMismatch for a plan
    of a different source; the first refusal if every candidate is refused.
    """
    check_budget(budget)
    checkpoint = opened(source)
    found = inspection.inspect_checkpoint(checkpoint)
    context, trained = lengths_of(found, checkpoint)
    for length in target_lengths:
        check_beyond(length, context, original_length or trained, reading, "compare")
    asked = Asked(reading, original_length, tuple(for_runtimes))
    candidates, refused = candidates_of(
        checkpoint, methods, factors=factors, target_lengths=target_lengths, plans=plans, asked=asked
    )
    free_grade, limits = limits is None, limits or Limits()
    chosen = suites.choose(suite or (None if measures else "quick"), measures, segments, trials)
    contexts = {each.target_length for each in candidates}
    wanted = list(lengths) if lengths is not None else sorted({*default_lengths(trained, max(contexts)), *contexts})
    check_amounts(wanted, trained, chosen)
    named = addition("yardsticks_named")(compare_with, trained, max(wanted)) if compare_with else []
    for name in {each.name for each in candidates} & {each.name for each in named}:
        raise ConfigError(
            "a yardstick of this comparison has the same name", where=f"--plan {name}", try_="rename the plan"
        )
    notes: list[str] = []
    documents = documents_of(texts, max(wanted), notes)
    asked_for = Run(chosen, tuple(wanted), limits.grade)
    chosen = with_proofs(chosen, limits, max(wanted) > trained, len(documents))
    runner = Open({})(checkpoint.path, device=device, dtype=dtype, report=notes.append)
    assert isinstance(runner, TorchRunner)
    assert found.rope is not None
    with closing(runner):
        able, unfit = views(runner, candidates, checkpoint, found.rope, wanted, everywhere=lengths is not None)
        (progress or nobody)("reading the texts", 0, 0)
        corpus = read_corpus(documents, {TARGET: runner}, {})
        setting = Setting(
            chosen, corpus, runner, tuple(wanted), trained, None, limits, seed,
            baseline_reach=None if baseline_beyond else trained,
        )  # fmt: skip
        field = prepare(setting, {*(trial.reach for trial in able), max(wanted)})
        able, unscaled = checked(able)
        beside, unfitting = _beside(named, runner, checkpoint, found.rope, max(wanted), trained)
        measured = [*able, *beside]

        @cache
        def pace() -> estimate.Pace:
            """Return the pace of the source, probed once."""
            return estimate.pace(runner, corpus, whole_work(field, measured), chosen.most_scored or 1)

        def rows(run: Run) -> Mapping[int, int]:
            """Return the rows of this run, or of a smaller one, whose lengths all candidates are measured at."""
            if run == asked_for:
                return whole_work(field, measured)
            grade, longest = replace(limits, grade=run.grade), run.lengths[-1]
            suite = with_proofs(run.suite, grade, longest > trained, len(documents))
            smaller = prepare(replace(setting, suite=suite, lengths=run.lengths, limits=grade), {longest})
            return whole_work(smaller, [replace(trial, reach=longest) for trial in measured])

        check_duration(asked_for, rows, pace, budget, trained, free_grade=free_grade)
        if say is not None:
            foretell(pace, field, measured, say)
        key = run_key({SOURCE: checkpoint}, documents, ("compare", device, dtype))
        with kept_on_disk(key, conditions({SOURCE: checkpoint}, documents, {}, device), resume, notes) as wrap:
            raw, own = measure(runner, measured, field, wrap, progress or nobody)
    name = hub.name_of(checkpoint.path)
    results = [_result(trial, field, raw[trial.name], own[trial.reach], name) for trial in (*able, *beside)]
    results += [
        CandidateResult(each.name, None, None, each.reason) for each in (*refused, *unfit, *unscaled, *unfitting)
    ]
    return Comparison(
        source=name,
        trained_length=trained,
        lengths=tuple(wanted),
        suite=chosen.name,
        grade=limits.grade,
        scored=field.last.scored if field.last else 0,
        seed=seed,
        baseline=_baseline(field, own),
        candidates=tuple(results),
        rankings=tuple(_rankings(field, able, raw)),
        beside=_ranked(field, [*able, *beside], raw, max(wanted)) if beside else None,
        documents=field.last.documents() if field.last else corpus.names,
        text_fingerprint=fingerprint(documents),
        texts=catalogue.described(documents, bundled=not texts),
        runtime=runner.description,
        notes=tuple(dict.fromkeys([*notes, *(note for each in results if each.found for note in each.found.notes)])),
    )


def opened(source: str | Path | Checkpoint) -> HfCheckpoint:
    """Return a source in which candidates can be measured. Raises: ConfigError for a GGUF file; CheckpointError."""
    checkpoint = open_source(source)
    if not isinstance(checkpoint, HfCheckpoint):
        raise ConfigError(
            "candidates are measured in a model that transformers runs, and this is a GGUF file", where=str(checkpoint.path),
            try_=f"{command('ropetool', 'import', checkpoint.path, '-o', 'DIR')}, then the same of DIR; or extend it by each "
            "method and verify each output",
        )  # fmt: skip
    return checkpoint


def _beside(
    named: Sequence[Any], runner: TorchRunner, source: HfCheckpoint, meant: RopeSet, reach: int, trained_length: int
) -> tuple[list[Trial], list[Refused]]:
    """Return the trials of reference attention variants, and refusals of those that do not fit the model."""
    if not named:
        return [], []
    trials: tuple[list[Trial], list[Refused]] = addition("yardstick_trials")(
        runner, named, source, meant, reach, trained_length
    )
    return trials


def _result(trial: Trial, field: Field, raw: Raw, own: Raw, baseline: str) -> CandidateResult:
    """Return what was found of a candidate, judged as `verify` would judge its output."""
    made = trial.candidate
    context = trial.reach if made is None else made.target_length
    measurements = [replace(m, context_length=context) if isinstance(m, LastSegment) else m for m in field.of(trial)]
    setting = replace(field.setting, context_length=context)
    found = results_of(measurements, setting, raw, own)
    lengths = [length for length in setting.lengths if length <= trial.reach]
    checks = [*yardsticks(True, lengths, setting.trained_length, context), *checks_of(found, setting)]
    result = result_of(found, measurements, checks, setting)
    result = replace(result, target=trial.name, baseline=baseline)
    if made is None:
        return CandidateResult(trial.name, None, result, note=YARDSTICK)
    extension = {"method": made.plan.method, "factor": made.plan.factor, "params": made.plan.params}
    return CandidateResult(trial.name, made.plan, replace(result, extension=extension), note=made.note)


def _rankings(field: Field, trials: Sequence[Trial], raw: Mapping[str, Raw]) -> Iterator[Ranking]:
    """Yield who is better than whom, at each length up to which some candidate is scored."""
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
    """Return the losses of the source as it is, at the lengths at which it was scored."""
    if field.last is None:
        return {}
    losses = own[max(own)][field.last.name]
    return {
        length: clustered(losses[length], [segment.document for segment in field.last.chosen[length]])
        for length in field.last.asked
        if length in losses
    }
