"""Compare the scores of two models in lm-evaluation-harness, from its logs, and print the commands that write the logs.

Reads the output of `lm_eval run --log_samples`, one line per sample, and keeps only scores and hashes.
Source: EleutherAI/lm-evaluation-harness 0.4.13, lm_eval/evaluator.py and loggers/evaluation_tracker.py.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.files.regular import open_regular
from ropetool.rope.tables import Array, is_number
from ropetool.runtimes.inspection import inspect_checkpoint
from ropetool.sections import Cell, Section, Table, number, row
from ropetool.verification.gate import Grade
from ropetool.verification.measure import TONES
from ropetool.verification.results import (
    FAIL,
    NO_WORSE,
    NOT_JUDGED,
    NOT_RUN,
    PASS,
    UNDECIDED,
    WORSE,
    Check,
)
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


WHERE = "--lm-eval"
# Three tasks with choices and one with an answer in words. All fit into the trained length.
SHORT_TASKS = ("hellaswag", "arc_challenge", "winogrande", "gsm8k")
LONG_TASKS = "ruler"
FILE = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl")
NOT_SCORES = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
}  # fmt: skip
FALLING = {
    "perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
    "ter",
    "brier_score",
    "mse",
    "mae",
    "wer",
    "cer",
}
LINE = 256 * 2**20  # bytes; a prompt of a million tokens takes 6 MB, and is logged twice
RESULTS = 64 * 2**20
FEWEST = 8  # samples or documents that a verdict needs
LEFT_OUT = -1.0  # a sample of RULER has a metric per length, with this value for all lengths but its own


@dataclass(frozen=True)
class _Sample:
    """A score, and the hashes of the document and the prompt. A hash is empty if the log does not contain it."""

    score: float
    document: str
    prompt: str


@dataclass(frozen=True)
class _Log:
    """A log of samples, and the task and the time in its name."""

    path: Path
    task: str
    time: str


@dataclass(frozen=True)
class _Series:
    """All samples of one metric and filter, by their numbers."""

    path: Path
    samples: Mapping[str, _Sample]


_Key = tuple[str, str, str]  # task, metric and filter


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


def has_logs(folder: Path) -> bool:
    """Return whether either model has a log of samples."""
    return any(_logs(folder / role) for role in (TARGET, BASELINE))


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
        raise ConfigError(
            "comparing its scores needs a baseline",
            where=WHERE,
            try_="--baseline SOURCE",
        )
    return original


def compared(folder: Path, target: Path, baseline: Path, max_lost: float) -> HarnessResult:
    """Return the scores of both models for each task, metric and filter, with bounds of their difference.

    Samples are paired by their numbers. If only the target has a length of RULER, it is compared with the baseline's
    shortest length, unpaired.
    max_lost: the largest allowed loss, as a share of a full score. Holm's rule corrects for the number of scores.
    Raises: ConfigError if logs are missing or broken, or belong to different models, documents or prompts.
    """
    ours, theirs = _read(folder / TARGET, target), _read(folder / BASELINE, baseline)
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        unmatched = [key for key in here if key not in there and not (role == TARGET and _own_length(key, there))]
        if unmatched:
            task, metric, _ = unmatched[0]
            raise _refusal(
                here[unmatched[0]].path, f"only the {role} has {metric} of {task}; both models need the same scores"
            )
    falling = _falling(folder)
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
        raise _refusal(folder, note or "the logs do not contain any score")
    worse = rejected([chance for _, chance in scores])
    return HarnessResult(
        tuple(
            replace(score, verdict=_verdict(score, sure, max_lost))
            for (score, _), sure in zip(scores, worse, strict=True)
        ),
        note,
    )


# --- reading


def _logs(folder: Path) -> list[_Log]:
    """Return the logs of samples, old ones first."""
    paths = folder.rglob("samples_*.jsonl") if folder.is_dir() else ()
    logs = [_Log(path, match[1], match[2]) for path in paths if (match := FILE.fullmatch(path.name))]
    return sorted(logs, key=lambda log: (log.time, log.path))


def _read(folder: Path, model: Path) -> dict[_Key, _Series]:
    """Return all series of a model. If several runs have the same series, return the newest."""
    series: dict[_Key, _Series] = {}
    logs = _logs(folder)
    for log in logs:
        _check_model(log, model)
        series.update({key: _Series(log.path, samples) for key, samples in _samples(log).items()})
    if not logs:
        raise _refusal(
            folder,
            "no log of samples (samples_TASK_TIME.jsonl) in this folder",
            "lm_eval run --log_samples --output_path DIR",
        )
    return series


def _check_model(log: _Log, model: Path) -> None:
    """Raise ConfigError if the results next to a log name a different model that is on this machine."""
    results = log.path.with_name(f"results_{log.time}.json")
    named = Path(str(_results(results).get("model_name", "")))
    ours = {model.resolve(), *([] if model.is_dir() else [model.parent.resolve()])}
    if named.is_absolute() and os.path.exists(named) and named.resolve() not in ours:
        raise _refusal(results, f"these are results of {named}, not of {model}")


def _results(path: Path) -> Mapping[str, Any]:
    """Return the results file of a run. Empty if it is missing or not JSON, because it is optional."""
    if not path.is_file() or path.stat().st_size > RESULTS:
        return {}
    try:
        with open_regular(path) as file:
            content = json.load(file)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _falling(folder: Path) -> dict[tuple[str, str], bool]:
    """Return whether a lower value is better, for each task and metric in the results files."""
    lower_is_better = {}
    for path in sorted(folder.rglob("results_*.json")):
        by_task = _results(path).get("higher_is_better")
        for task, metrics in by_task.items() if isinstance(by_task, dict) else ():
            for metric, higher in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(higher, bool):
                    lower_is_better[str(task), str(metric)] = not higher
    return lower_is_better


def _samples(log: _Log) -> dict[_Key, dict[str, _Sample]]:
    series: dict[_Key, dict[str, _Sample]] = {}
    seen: set[tuple[str, str]] = set()
    for line_number, line in enumerate(_lines(log.path), 1):
        sample = _sample(line, f"{log.path}:{line_number}")
        sample_id, filter_name = str(sample["doc_id"]), str(sample.get("filter", "none"))
        if (sample_id, filter_name) in seen:
            raise _refusal(log.path, f"sample {sample_id} occurs twice; the log must contain only one run")
        seen.add((sample_id, filter_name))
        hashes = [str(sample.get(name, "")) for name in ("doc_hash", "prompt_hash")]
        metrics = sample.get("metrics")
        for name in map(str, metrics if isinstance(metrics, list) else sorted(sample.keys() - NOT_SCORES)):
            value = sample.get(name)
            left_out = name.isdigit() and value == LEFT_OUT
            if (isinstance(value, bool) or is_number(value)) and not left_out:
                series.setdefault((log.task, name, filter_name), {})[sample_id] = _Sample(float(value), *hashes)
    return series


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise _refusal(path, f"a line is longer than the limit of {LINE:,} bytes")
            if line.strip():
                yield line


def _sample(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        raise _refusal(where, "the line is not JSON, so it is not a log of samples") from None
    if not isinstance(sample, dict) or not isinstance(sample.get("doc_id"), (int, str)):
        raise _refusal(where, "the line has no doc_id, so it is not a sample of lm-evaluation-harness")
    return sample


def _check_alike(task: str, ours: _Series, theirs: _Series) -> None:
    """Raise ConfigError unless both have the same samples, with the same documents and prompts."""
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        unmatched = sorted(
            here.samples.keys() - there.samples.keys(), key=lambda sample_id: (len(sample_id), sample_id)
        )
        if unmatched:
            raise _refusal(
                here.path,
                f"only the log of the {role} contains {len(unmatched)} samples of {task}, first {unmatched[0]}",
            )
    for sample_id, sample in ours.samples.items():
        other = theirs.samples[sample_id]
        pairs = {"document": (sample.document, other.document), "prompt": (sample.prompt, other.prompt)}
        changed = [what for what, hashes in pairs.items() if all(hashes) and hashes[0] != hashes[1]]
        if changed:
            problem = f"the {changed[0]} of sample {sample_id} of {task} differs from the log of the baseline, {theirs.path.name}"
            raise _refusal(ours.path, problem)


# --- comparing


def _score(
    key: _Key,
    ours: Mapping[str, _Sample],
    theirs: Mapping[str, _Sample],
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


def _length(key: _Key) -> int:
    """Return the length of a metric of RULER in tokens, or 0 for any other metric."""
    return int(key[1]) if key[1].isdigit() else 0


def _own_length(key: _Key, theirs: Mapping[_Key, _Series]) -> list[_Key]:
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


def _refusal(where: Path | str, sentence: str, step: str = "") -> ConfigError:
    return ConfigError(f"{where}: {sentence}", where=WHERE, try_=step)


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
