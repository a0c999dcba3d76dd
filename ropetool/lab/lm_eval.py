"""Compare the scores of two models in lm-evaluation-harness, and print the commands that write its logs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.lab.lm_eval_logs import (
    WHERE,
    HarnessSample,
    HarnessSeries,
    ScoreKey,
    falling_scores,
    has_logs,
    refusal,
    series_of,
)
from ropetool.rope.tables import Array
from ropetool.runtimes.inspection import inspect_checkpoint
from ropetool.sections import Cell, Section, Table, number, row
from ropetool.verification.gate import Grade
from ropetool.verification.measure import TONES
from ropetool.verification.results import FAIL, NO_WORSE, NOT_JUDGED, NOT_RUN, PASS, UNDECIDED, WORSE, Check
from ropetool.verification.scoring import BASELINE, TARGET
from ropetool.verification.session import lengths_of, unchanged_source
from ropetool.verification.shares import ONE_SIDED, chance_of_so_few, paired_bounds
from ropetool.verification.statistics import chance_of_more, clustered, lower_bound, rejected, upper_bound

EXACT, NUMERIC, UNPAIRED = "exact", "numeric", "unpaired"


@dataclass(frozen=True)
class HarnessScore:
    """One metric of a task of lm-evaluation-harness, for both models. Scores are shares of a full score.

    task, metric: the harness's names.
    filter: the harness's name for its way to extract answers from generated text.
    samples: the number of the target's samples.
    own, score: of the baseline and of the target.
    difference: the gain of the target. It is positive for a better target, also if a lower score is better.
    lower, upper: bounds of the true difference, with 95 % confidence each.
    kind: pairs of right and wrong answers, pairs of numbers, or unpaired.
    verdict: `worse` if the loss exceeds the limit of the grade with confidence over all scores together, `no worse` if
      the lower bound is within the limit, else `undecided`. `not judged` if the samples are too few.
    """

    task: str
    metric: str
    filter: str
    samples: int
    own: float
    score: float
    difference: float
    lower: float
    upper: float
    kind: str
    verdict: str


@dataclass(frozen=True)
class HarnessResult:
    """The scores of both models in lm-evaluation-harness.

    scores: a score per task, metric and filter.
    note: the metrics that are left out, or an empty string.
    """

    scores: tuple[HarnessScore, ...]
    note: str


# Three tasks with choices and one with an answer in words. All fit into the trained length.
SHORT_TASKS = ("hellaswag", "arc_challenge", "winogrande", "gsm8k")
LONG_TASKS = "ruler"
FALLING = {
    "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "ter", "brier_score", "mse", "mae", "wer", "cer",
}  # fmt: skip
FEWEST = 8  # samples or documents that a verdict needs


def command_lines(target: Path, baseline: Path, folder: Path, trained_length: int, context_length: int) -> list[str]:
    """Return the commands that write the logs: short tasks, RULER at the trained length, and RULER beyond it.

    Only the target runs RULER beyond the trained length. RULER draws its samples one after the other, so a run with
    more lengths has different samples. So the longer lengths get a separate run.
    """
    longer = [trained_length]
    while longer[-1] < context_length:
        longer.append(min(2 * longer[-1], context_length))
    runs: list[tuple[str, Path, Sequence[int]]] = [
        (role, path, lengths)
        for role, path in ((TARGET, target), (BASELINE, baseline))
        for lengths in ((), longer[:1], *([longer[1:]] if role == TARGET and len(longer) > 1 else []))
    ]
    lines = []
    for role, path, lengths in runs:
        named = f"pretrained={path}" if path.is_dir() else f"pretrained={path.parent},gguf_file={path.name}"
        model = f"{named},max_length={max(lengths, default=trained_length)}"
        tasks = (
            [LONG_TASKS, "--metadata", json.dumps({"max_seq_lengths": lengths})] if lengths else [",".join(SHORT_TASKS)]
        )
        lines.append(
            command(
                "lm_eval", "run", "--model", "hf", "--model_args", model, "--tasks", *tasks, "--log_samples",
                "--output_path", str(folder / role),
            )
        )  # fmt: skip
    return lines


def lm_eval_lines(
    target: str | Path, folder: Path, *, baseline: str | Path | None = None, trained_length: int | None = None
) -> list[str]:
    """Return the commands that write the logs that `verify_checkpoint` reads. Empty if there are logs already.

    Raises: CheckpointError, ConfigError.
    """
    if has_logs(folder):
        return []
    checkpoint = open_checkpoint(hub.local(target))
    source = hub.local(baseline) if baseline is not None else unchanged_source(checkpoint.path, [])
    original = _needed(None if source is None else open_checkpoint(source))
    context, _ = lengths_of(inspect_checkpoint(checkpoint), checkpoint)
    known = lengths_of(inspect_checkpoint(original), original)[1]
    return command_lines(checkpoint.path, original.path, folder, trained_length or known, context)


def lm_eval_result(folder: Path, target: Path, original: Checkpoint | None, max_lost: float) -> HarnessResult:
    """Return the comparison of a target and its baseline from the logs in a folder.

    Raises: ConfigError as `compared`, and without a baseline.
    """
    return compared(folder, target, _needed(original).path, max_lost)


def _needed(original: Checkpoint | None) -> Checkpoint:
    """Return the baseline. Raises: ConfigError if it is None."""
    if original is None:
        raise ConfigError("comparing its scores needs a baseline", where=WHERE, try_="--baseline SOURCE")
    return original


def compared(folder: Path, target: Path, baseline: Path, max_lost: float) -> HarnessResult:
    """Return the scores of both models for each task, metric and filter, with bounds of their difference.

    Samples are paired by their numbers. If only the target has a length of RULER, it is compared with the baseline's
    shortest length, unpaired.
    max_lost: the largest allowed loss, as a share of a full score. Holm's rule corrects for the number of scores.
    Raises: ConfigError if logs are missing or broken, or belong to different models, documents or prompts.
    """
    ours, theirs = series_of(folder / TARGET, target), series_of(folder / BASELINE, baseline)
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        unmatched = [key for key in here if key not in there and not (role == TARGET and _own_length(key, there))]
        if unmatched:
            task, metric, _ = unmatched[0]
            raise refusal(
                here[unmatched[0]].path, f"only the {role} has {metric} of {task}; both models need the same scores"
            )
    falling = falling_scores(folder)
    scores: list[tuple[HarnessScore, float]] = []
    unread: list[str] = []
    for key in sorted(ours, key=lambda key: (key[0], _length(key), key)):
        task, metric, _ = key
        other = theirs.get(key)
        if other is not None:
            _check_alike(task, ours[key], other)
        twin = other or theirs[_own_length(key, theirs)[0]]
        down = falling.get((task, metric), metric in FALLING)
        scored = _score(key, ours[key].samples, twin.samples, other is not None, down, max_lost)
        if scored is None:
            unread.append(f"{task} {metric}")
        else:
            scores.append(scored)
    note = f"left out, because their scores are not between 0 and 1 or 0 and 100: {', '.join(unread)}" if unread else ""
    if not scores:
        raise refusal(folder, note or "the logs do not contain any score")
    worse = rejected([chance for _, chance in scores])
    return HarnessResult(
        tuple(
            replace(score, verdict=_verdict(score, sure, max_lost))
            for (score, _), sure in zip(scores, worse, strict=True)
        ),
        note,
    )


def _check_alike(task: str, ours: HarnessSeries, theirs: HarnessSeries) -> None:
    """Raise ConfigError unless both have the same samples, with the same documents and prompts."""
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        unmatched = sorted(
            here.samples.keys() - there.samples.keys(), key=lambda sample_id: (len(sample_id), sample_id)
        )
        if unmatched:
            raise refusal(
                here.path,
                f"only the log of the {role} contains {len(unmatched)} samples of {task}, first {unmatched[0]}",
            )
    for sample_id, sample in ours.samples.items():
        other = theirs.samples[sample_id]
        pairs = {"document": (sample.document, other.document), "prompt": (sample.prompt, other.prompt)}
        changed = [what for what, hashes in pairs.items() if all(hashes) and hashes[0] != hashes[1]]
        if changed:
            problem = f"the {changed[0]} of sample {sample_id} of {task} differs from the log of the baseline, {theirs.path.name}"
            raise refusal(ours.path, problem)


def _score(
    key: ScoreKey,
    ours: Mapping[str, HarnessSample],
    theirs: Mapping[str, HarnessSample],
    paired: bool,
    falling: bool,
    max_lost: float,
) -> tuple[HarnessScore, float] | None:
    """Return a metric of a task, and the p-value of a loss within the limit. None if the scale is unknown."""
    here = np.array([sample.score for sample in ours.values()])
    there = np.array([theirs[at].score for at in ours] if paired else [sample.score for sample in theirs.values()])
    scale = _scale(np.concatenate([here, there]))
    if scale is None:
        return None
    here, there = (values / scale for values in (here, there))
    sign = -1.0 if falling else 1.0
    few = min(len(here), len(there)) < FEWEST
    exact = paired and bool(np.isin(np.concatenate([here, there]), (0.0, 1.0)).all())
    if not paired:
        lower, upper, chance = _unpaired(here, there, max_lost)
    elif exact:
        gained, lost = (int((sign * (here - there) == side).sum()) for side in (1.0, -1.0))
        lower, upper = paired_bounds(gained, lost, len(here))
        chance = chance_of_so_few(gained, lost, len(here), -max_lost)
    else:
        documents = [sample.document or at for at, sample in ours.items()]
        numbers = {document: index for index, document in enumerate(dict.fromkeys(documents))}
        few = len(numbers) < FEWEST
        difference = clustered(sign * (here - there), [numbers[document] for document in documents])
        lower, upper, chance = lower_bound(difference), upper_bound(difference), chance_of_more(difference, -max_lost)
    scored = HarnessScore(
        *key, len(here), float(there.mean()), float(here.mean()), sign * float(here.mean() - there.mean()),
        lower, upper, UNPAIRED if not paired else EXACT if exact else NUMERIC, NOT_JUDGED if few else "",
    )  # fmt: skip
    return scored, 1.0 if few else chance


def _length(key: ScoreKey) -> int:
    """Return the length of a metric of RULER in tokens, or 0 for any other metric."""
    return int(key[1]) if key[1].isdigit() else 0


def _own_length(key: ScoreKey, theirs: Mapping[ScoreKey, HarnessSeries]) -> list[ScoreKey]:
    """Return the baseline's shortest length of the same task of RULER that is shorter than this length.

    Empty or one key.
    """
    shorter = [other for other in theirs if other[::2] == key[::2] and 0 < _length(other) < _length(key)]
    return sorted(shorter, key=_length)[:1]


def _scale(values: Array) -> float | None:
    """Return the full score: 1, or 100 if a score exceeds 1. None without scores, or for a different scale."""
    if not len(values) or values.min() < 0 or values.max() > 100:
        return None
    return 1.0 if values.max() <= 1 else 100.0


def _unpaired(here: Array, there: Array, max_lost: float) -> tuple[float, float, float]:
    """Return the bounds of the difference of two means of scores from 0 to 1, and the p-value.

    Adds a score of 0 and a score of 1 to each side.
    Source: Agresti and Caffo, The American Statistician 54 (2000) 280.
    """
    sides = [np.append(values, (0.0, 1.0)) for values in (here, there)]
    mean = float(sides[0].mean() - sides[1].mean())
    error = math.sqrt(sum(float(values.var()) / len(values) for values in sides))
    chance = (1 + math.erf((mean + max_lost) / error / math.sqrt(2))) / 2
    return mean - ONE_SIDED * error, mean + ONE_SIDED * error, chance


def _verdict(score: HarnessScore, worse: bool, max_lost: float) -> str:
    if score.verdict:
        return score.verdict
    return WORSE if worse else NO_WORSE if score.lower >= -max_lost else UNDECIDED


def lm_eval_check(result: HarnessResult, grade: Grade) -> Check:
    """Return the check that no score falls by more than the grade allows, by the bounds of each score."""
    name, limit = "lm-eval", -grade.max_lost
    judged = [score for score in result.scores if score.verdict != NOT_JUDGED]
    if not judged:
        return Check(name, None, limit, NOT_RUN, "all scores have too few samples")
    worse = [score for score in judged if score.verdict == WORSE]
    unsure = [score for score in judged if score.verdict == UNDECIDED]
    first = min(worse or judged, key=lambda score: score.lower)
    detail = f"lowest 95 % lower bound of {len(judged)} gains: {first.task}, {first.metric}"
    if worse:
        detail = (
            f"95 % upper bound of the gain in {first.task}, {first.metric}; "
            f"{len(worse)} of {len(judged)} scores are significantly worse"
        )
        return Check(name, first.upper, limit, FAIL, detail)
    if unsure and grade.reads_far:
        names = ", ".join(dict.fromkeys(score.task for score in unsure))
        return Check(name, first.lower, limit, UNDECIDED, f"{detail}; more samples can decide {names}")
    return Check(name, first.lower, limit, PASS, f"{detail}; not significantly worse" if unsure else detail)


def lm_eval_section(result: HarnessResult) -> Section:
    """Return the report section with the scores of both models."""
    rows = tuple(
        row(
            score.task, f"{score.metric}{'' if score.filter == 'none' else f', {score.filter}'}", str(score.samples),
            number(score.own), number(score.score), f"{score.difference:+.3f}", f"{score.lower:+.3f}..{score.upper:+.3f}",
            score.kind, Cell(score.verdict, TONES[score.verdict]),
        )
        for score in result.scores
    )  # fmt: skip
    legend = (
        ("own", "share of the full score that the baseline reaches; score: the same for the target"),
        ("gain", "improvement from baseline to target, paired by sample, with 95 % bounds"),
        ("kind", "exact: right or wrong; numeric: by documents; unpaired: the baseline was measured only at its own length"),
    )  # fmt: skip
    notes = (result.note,) if result.note else ()
    head = ("task", "metric", "samples", "own", "score", "gain", "95 % bounds", "kind", "verdict")
    return Section("lm-eval", "Tasks of lm-evaluation-harness", Table(head, rows, words=(0, 1, 7)), legend, notes)
