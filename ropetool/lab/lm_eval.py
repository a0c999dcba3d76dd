"""Other people's tasks: the commands that run lm-evaluation-harness on both models, and its logs of every sample, compared.

Reads what `lm_eval run --log_samples` writes, one line a sample, and keeps of it scores and hashes alone. Computes no model and
judges nothing. Source: EleutherAI/lm-evaluation-harness 0.4.13, lm_eval/evaluator.py and loggers/evaluation_tracker.py.
"""

from __future__ import annotations

import json
import math
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
from ropetool.rope.tables import Array
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
    """One metric of a task of lm-evaluation-harness, for both models. Scores are parts of a full score.

    filter: the harness's name for its way to extract answers from generated text.
    samples: the number of the target's samples.
    own, score: of the baseline and of the target.
    difference: the gain of the target. It is positive for a better target, also if a lower score is better.
    lower, upper: bounds of the true difference, with 95 % confidence each.
    kind: pairs of right and wrong answers, pairs of numbers, or unpaired.
    verdict: `worse` if the loss exceeds the limit of the grade with confidence over all scores together, `no worse` if the
      lower bound is within the limit, else `undecided`. `not judged` if the samples are too few.
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
    """What other people's tasks gave. note: which metrics are left out."""

    scores: tuple[HarnessScore, ...]
    note: str


WHERE = "--lm-eval"
# Choices and an answer in words, within the trained length.
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
FEWEST = 8  # samples, or documents, below which nothing is said
LEFT_OUT = -1.0  # RULER's tasks give every length of theirs a metric, and this to those that a sample has not


@dataclass(frozen=True)
class _Sample:
    """A score, and the hashes of what was asked and in which words; empty where the log has none."""

    score: float
    document: str
    prompt: str


@dataclass(frozen=True)
class _Log:
    """A log of samples, with the task and the time in its name."""

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
    """Return the commands whose logs `compared` reads: short tasks, RULER at the trained length, for the target beyond it too.

    The last is a run of its own: RULER draws its samples one after the other, so more lengths would make other samples.
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
    """Return whether there is a log of samples for either model."""
    return any(_logs(folder / role) for role in (TARGET, BASELINE))


def lm_eval_lines(
    target: str | Path, folder: Path, *, baseline: str | Path | None = None, trained_length: int | None = None
) -> list[str]:
    """Return the commands of lm-evaluation-harness whose logs `verify_checkpoint` reads; none where there are logs.

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
    """Return the baseline. Raises: ConfigError without one."""
    if original is None:
        raise ConfigError(
            "comparing its scores needs a baseline",
            where=WHERE,
            try_="--baseline SOURCE",
        )
    return original


def compared(folder: Path, target: Path, baseline: Path, max_lost: float) -> HarnessResult:
    """Return each task, metric and filter with the scores of both models and the bounds of their difference.

    Samples are paired by their numbers. Lengths of RULER that the target alone has are held against the baseline's shortest one,
    unpaired. max_lost: of a full score, by which one is worse; by Holm's rule over all of them.

    Raises: ConfigError for logs that are missing, broken, of other models, or of other documents and prompts.
    """
    ours, theirs = _read(folder / TARGET, target), _read(folder / BASELINE, baseline)
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        alone = [key for key in here if key not in there and not (role == TARGET and _own_length(key, there))]
        if alone:
            task, metric, _ = alone[0]
            raise _refusal(
                here[alone[0]].path, f"only the {role} has {metric} of {task}; both models need the same scores"
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
    logs = [_Log(path, found[1], found[2]) for path in paths if (found := FILE.fullmatch(path.name))]
    return sorted(logs, key=lambda log: (log.time, log.path))


def _read(folder: Path, model: Path) -> dict[_Key, _Series]:
    """Return all series of a model; of one that several runs have, the newest run's."""
    found: dict[_Key, _Series] = {}
    logs = _logs(folder)
    for log in logs:
        _check_model(log, model)
        found.update({key: _Series(log.path, samples) for key, samples in _samples(log).items()})
    if not logs:
        raise _refusal(
            folder,
            "no log of samples (samples_TASK_TIME.jsonl) in this folder",
            "lm_eval run --log_samples --output_path DIR",
        )
    return found


def _check_model(log: _Log, model: Path) -> None:
    """Raise ConfigError where the results beside a log name another model that is on this machine."""
    results = log.path.with_name(f"results_{log.time}.json")
    named = Path(str(_results(results).get("model_name", "")))
    ours = {model.resolve(), *([] if model.is_dir() else [model.parent.resolve()])}
    if named.is_absolute() and named.exists() and named.resolve() not in ours:
        raise _refusal(results, f"these are results of {named}, not of {model}")


def _results(path: Path) -> Mapping[str, Any]:
    """Return what lm_eval says of a run; empty where it is not there or not JSON, for it only tells more."""
    if not path.is_file() or path.stat().st_size > RESULTS:
        return {}
    try:
        with open_regular(path) as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _falling(folder: Path) -> dict[tuple[str, str], bool]:
    """Return which metrics are better when they are lower, as the results say."""
    found = {}
    for path in sorted(folder.rglob("results_*.json")):
        stated = _results(path).get("higher_is_better")
        for task, metrics in stated.items() if isinstance(stated, dict) else ():
            for metric, higher in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(higher, bool):
                    found[str(task), str(metric)] = not higher
    return found


def _samples(log: _Log) -> dict[_Key, dict[str, _Sample]]:
    found: dict[_Key, dict[str, _Sample]] = {}
    seen: set[tuple[str, str]] = set()
    for at_line, line in enumerate(_lines(log.path), 1):
        sample = _sample(line, f"{log.path}:{at_line}")
        at, chosen = str(sample["doc_id"]), str(sample.get("filter", "none"))
        if (at, chosen) in seen:
            raise _refusal(log.path, f"sample {at} occurs twice; the log must contain only one run")
        seen.add((at, chosen))
        hashes = [str(sample.get(name, "")) for name in ("doc_hash", "prompt_hash")]
        listed = sample.get("metrics")
        for name in map(str, listed if isinstance(listed, list) else sorted(sample.keys() - NOT_SCORES)):
            value = sample.get(name)
            left_out = name.isdigit() and value == LEFT_OUT
            if isinstance(value, (bool, int, float)) and math.isfinite(value) and not left_out:
                found.setdefault((log.task, name, chosen), {})[at] = _Sample(float(value), *hashes)
    return found


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise _refusal(path, f"a line is longer than the limit of {LINE:,} bytes")
            if line.strip():
                yield line


def _sample(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise _refusal(where, "the line is not JSON, so it is not a log of samples") from None
    if not isinstance(found, dict) or not isinstance(found.get("doc_id"), (int, str)):
        raise _refusal(where, "the line has no doc_id, so it is not a sample of lm-evaluation-harness")
    return found


def _check_alike(task: str, ours: _Series, theirs: _Series) -> None:
    """Raise ConfigError unless both have the same samples, of the same documents, asked for in the same words."""
    for here, there, role in ((ours, theirs, TARGET), (theirs, ours, BASELINE)):
        alone = sorted(here.samples.keys() - there.samples.keys(), key=lambda at: (len(at), at))
        if alone:
            raise _refusal(
                here.path, f"only the log of the {role} contains {len(alone)} samples of {task}, first {alone[0]}"
            )
    for at, sample in ours.samples.items():
        other = theirs.samples[at]
        pairs = {"document": (sample.document, other.document), "prompt": (sample.prompt, other.prompt)}
        changed = [what for what, hashes in pairs.items() if all(hashes) and hashes[0] != hashes[1]]
        if changed:
            said = f"the {changed[0]} of sample {at} of {task} differs from the log of the baseline, {theirs.path.name}"
            raise _refusal(ours.path, said)


# --- comparing


def _score(
    key: _Key,
    ours: Mapping[str, _Sample],
    theirs: Mapping[str, _Sample],
    paired: bool,
    falling: bool,
    max_lost: float,
) -> tuple[HarnessScore, float] | None:
    """Return one metric of a task, and the p value of a loss of no more than is allowed; None where its scale is not known."""
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
        found = clustered(sign * (here - there), [numbers[document] for document in documents])
        lower, upper, chance = lower_bound(found), upper_bound(found), chance_of_more(found, -max_lost)
    scored = HarnessScore(
        *key, len(here), float(there.mean()), float(here.mean()), sign * float(here.mean() - there.mean()),
        lower, upper, UNPAIRED if not paired else EXACT if exact else NUMERIC, NOT_JUDGED if few else "",
    )  # fmt: skip
    return scored, 1.0 if few else chance


def _length(key: _Key) -> int:
    """Return the length that a metric of RULER is of; 0 of any other."""
    return int(key[1]) if key[1].isdigit() else 0


def _own_length(key: _Key, theirs: Mapping[_Key, _Series]) -> list[_Key]:
    """Return the baseline's shortest length of the same task of RULER, where it has none as long."""
    shorter = [other for other in theirs if other[::2] == key[::2] and 0 < _length(other) < _length(key)]
    return sorted(shorter, key=_length)[:1]


def _scale(values: Array) -> float | None:
    """Return what a full score is: 1, or 100 where there are scores above 1; None for no scores, or another scale."""
    if not len(values) or values.min() < 0 or values.max() > 100:
        return None
    return 1.0 if values.max() <= 1 else 100.0


def _unpaired(here: Array, there: Array, max_lost: float) -> tuple[float, float, float]:
    """Return the bounds of the difference of two means of scores from 0 to 1, and the p value; one of each added to both sides.

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


def lm_eval_check(found: HarnessResult, grade: Grade) -> Check:
    """Return whether other people's tasks lose no more than the grade allows, each by its own bounds."""
    name, limit = "lm-eval", -grade.max_lost
    judged = [score for score in found.scores if score.verdict != NOT_JUDGED]
    if not judged:
        return Check(name, None, limit, NOT_RUN, "all scores have too few samples")
    worse = [score for score in judged if score.verdict == WORSE]
    unsure = [score for score in judged if score.verdict == UNDECIDED]
    at = min(worse or judged, key=lambda score: score.lower)
    told = f"lowest 95 % lower bound of {len(judged)} gains: {at.task}, {at.metric}"
    if worse:
        told = f"95 % upper bound of the gain in {at.task}, {at.metric}; {len(worse)} of {len(judged)} scores are significantly worse"
        return Check(name, at.upper, limit, FAIL, told)
    if unsure and grade.reads_far:
        names = ", ".join(dict.fromkeys(score.task for score in unsure))
        return Check(name, at.lower, limit, UNDECIDED, f"{told}; more samples can decide {names}")
    return Check(name, at.lower, limit, PASS, f"{told}; not significantly worse" if unsure else told)


def lm_eval_section(found: HarnessResult) -> Section:
    """Return what lm-evaluation-harness logged of both models, task by task."""
    rows = tuple(
        row(
            score.task, f"{score.metric}{'' if score.filter == 'none' else f', {score.filter}'}", str(score.samples),
            number(score.own), number(score.score), f"{score.difference:+.3f}", f"{score.lower:+.3f}..{score.upper:+.3f}",
            score.kind, Cell(score.verdict, TONES[score.verdict]),
        )
        for score in found.scores
    )  # fmt: skip
    legend = (
        ("own", "share of the full score that the baseline reaches; score: the same for the target"),
        ("gain", "improvement from baseline to target, paired by sample, with 95 % bounds"),
        ("kind", "exact: right or wrong; numeric: by documents; unpaired: the baseline was measured only at its own length"),
    )  # fmt: skip
    notes = (found.note,) if found.note else ()
    head = ("task", "metric", "samples", "own", "score", "gain", "95 % bounds", "kind", "verdict")
    return Section("lm-eval", "Tasks of lm-evaluation-harness", Table(head, rows, words=(0, 1, 7)), legend, notes)
