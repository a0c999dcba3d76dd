"""Other people's tasks: the commands that run lm-evaluation-harness on both models, and its logs of every sample, compared.

Reads what `lm_eval run --log_samples` writes, one line a sample, and keeps of it scores and hashes alone. Computes no model and
judges nothing. Source: EleutherAI/lm-evaluation-harness 0.4.13, lm_eval/evaluator.py and loggers/evaluation_tracker.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files.regular import open_regular
from ropetool.rope.tables import Array
from ropetool.verification.results import (
    EXACT,
    NO_WORSE,
    NOT_JUDGED,
    NUMERIC,
    UNDECIDED,
    UNPAIRED,
    WORSE,
    HarnessResult,
    HarnessScore,
)
from ropetool.verification.scoring import BASELINE, TARGET
from ropetool.verification.shares import ONE_SIDED, chance_of_so_few, paired_bounds
from ropetool.verification.statistics import chance_of_more, clustered, lower_bound, rejected, upper_bound

WHERE = "--lm-eval"
SHORT_TASKS = (
    "hellaswag",
    "arc_challenge",
    "winogrande",
    "gsm8k",
)  # choices and an answer in words, within the trained length
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


@dataclass
class _Task:
    """The samples of a task. scores: by metric and filter, then by sample; hashes: of each sample's document and prompt."""

    path: Path
    scores: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    hashes: dict[str, tuple[str, str]] = field(default_factory=dict)


def command_lines(target: Path, baseline: Path, folder: Path, trained_length: int, context_length: int) -> list[str]:
    """Return the commands whose logs `compared` reads: short tasks and RULER, for both models.

    RULER is made at the trained length for both, and beyond it for the target alone.
    """
    lengths = [trained_length]
    while lengths[-1] < context_length:
        lengths.append(min(2 * lengths[-1], context_length))
    lines = []
    for role, path, own in ((TARGET, target, lengths), (BASELINE, baseline, lengths[:1])):
        model = f"pretrained={path},max_length={own[-1]}"
        if not path.is_dir():
            model = f"pretrained={path.parent},gguf_file={path.name},max_length={own[-1]}"
        for tasks, more in (
            (",".join(SHORT_TASKS), ()),
            (LONG_TASKS, ("--metadata", json.dumps({"max_seq_lengths": own}))),
        ):
            lines.append(
                command(
                    "lm_eval", "run", "--model", "hf", "--model_args", model, "--tasks", tasks, *more, "--log_samples",
                    "--output_path", str(folder / role),
                )
            )  # fmt: skip
    return lines


def has_logs(folder: Path) -> bool:
    """Return whether there is a log of samples for either model."""
    return any(_files(folder / role) for role in (TARGET, BASELINE))


def compared(folder: Path, target: Path, baseline: Path, max_lost: float) -> HarnessResult:
    """Return each task, metric and filter with the scores of both models and the bounds of their difference.

    Samples are paired by number where both models have it. Lengths of RULER that the target alone has are held against the
    baseline's shortest one, unpaired. max_lost: of a full score, by which one is worse; by Holm's rule over all of them.

    Raises: ConfigError for logs that are missing, broken, of other models, or of other documents and prompts.
    """
    found = {role: _read(folder / role, path) for role, path in ((TARGET, target), (BASELINE, baseline))}
    one_sided = sorted(found[TARGET].keys() ^ found[BASELINE].keys())
    if one_sided:
        role = TARGET if one_sided[0] in found[TARGET] else BASELINE
        raise _refusal(
            folder, f"only the {role} has a log of {', '.join(one_sided[:3])}; both models are compared task by task"
        )
    falling = _falling(folder)
    scores: list[tuple[HarnessScore, float]] = []
    unread: list[str] = []
    for name in sorted(found[TARGET]):
        ours, theirs = found[TARGET][name], found[BASELINE][name]
        _check_alike(name, ours, theirs)
        for key in sorted(ours.scores):
            scored = _score(name, key, ours, theirs, falling.get((name, key[0]), key[0] in FALLING), max_lost)
            if scored is None:
                unread.append(f"{name} {key[0]}")
            else:
                scores.append(scored)
    note = f"no scores between 0 and 1 or 0 and 100, so they are left out: {', '.join(unread)}" if unread else ""
    if not scores:
        raise _refusal(folder, note or "the logs hold no score that both models have")
    worse = rejected([chance for _, chance in scores])
    return HarnessResult(
        tuple(
            replace(score, verdict=_verdict(score, sure, max_lost))
            for (score, _), sure in zip(scores, worse, strict=True)
        ),
        note,
    )


# --- reading


def _files(folder: Path) -> dict[str, Path]:
    """Return the newest log of each task."""
    found: dict[str, tuple[str, Path]] = {}
    for path in folder.rglob("samples_*.jsonl") if folder.is_dir() else ():
        match = FILE.fullmatch(path.name)
        if match and match[2] >= found.get(match[1], ("",))[0]:
            found[match[1]] = match[2], path
    return {task: path for task, (_, path) in found.items()}


def _read(folder: Path, model: Path) -> dict[str, _Task]:
    files = _files(folder)
    if not files:
        raise _refusal(
            folder, "there is no log of samples, samples_TASK_TIME.jsonl", "lm_eval run --log_samples --output_path DIR"
        )
    for path in files.values():
        _check_model(path, model)
    return {task: _samples(path) for task, path in files.items()}


def _check_model(path: Path, model: Path) -> None:
    """Raise ConfigError where the results beside a log name another model that is on this machine."""
    results = path.with_name(f"results_{FILE.fullmatch(path.name)[2]}.json")  # type: ignore[index]
    named = Path(str(_results(results).get("model_name", "")))
    ours = {model.resolve(), *([] if model.is_dir() else [model.parent.resolve()])}
    if named.is_absolute() and named.exists() and named.resolve() not in ours:
        raise _refusal(results, f"it is of {named}, not of {model}")


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


def _samples(path: Path) -> _Task:
    task = _Task(path)
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(_lines(path), 1):
        sample = _sample(line, f"{path}:{number}")
        at, chosen = str(sample["doc_id"]), str(sample.get("filter", "none"))
        if (at, chosen) in seen:
            raise _refusal(path, f"sample {at} is there twice, so runs are mixed")
        seen.add((at, chosen))
        task.hashes[at] = str(sample.get("doc_hash", "")), str(sample.get("prompt_hash", ""))
        listed = sample.get("metrics")
        names = listed if isinstance(listed, list) else sorted(sample.keys() - NOT_SCORES)
        for name in map(str, names):
            value = sample.get(name)
            if (
                isinstance(value, (bool, int, float))
                and math.isfinite(value)
                and not (name.isdigit() and value == LEFT_OUT)
            ):
                task.scores.setdefault((name, chosen), {})[at] = float(value)
    return task


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise _refusal(path, f"a line is longer than {LINE:,} bytes")
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


def _check_alike(name: str, ours: _Task, theirs: _Task) -> None:
    """Raise ConfigError unless the samples that both have are of the same documents, asked for in the same words."""
    for at in ours.hashes.keys() & theirs.hashes.keys():
        for what, here, there in zip(("document", "prompt"), ours.hashes[at], theirs.hashes[at], strict=True):
            if here and there and here != there:
                raise _refusal(
                    ours.path,
                    f"sample {at} of {name} has another {what} than in the baseline's log: {theirs.path.name}",
                )
    missing = theirs.hashes.keys() - ours.hashes.keys()
    if missing:
        raise _refusal(
            ours.path, f"{len(missing)} samples of {name} are in the baseline's log alone, first {min(missing)}"
        )
    extra = {at for scores in ours.scores.values() for at in scores} - theirs.hashes.keys()
    lengths = {at for (metric, _), scores in ours.scores.items() if metric.isdigit() for at in scores}
    if extra - lengths:
        raise _refusal(
            ours.path,
            f"{len(extra - lengths)} samples of {name} are in the target's log alone, first {min(extra - lengths)}",
        )


# --- comparing


def _score(
    name: str, key: tuple[str, str], ours: _Task, theirs: _Task, falling: bool, max_lost: float
) -> tuple[HarnessScore, float] | None:
    """Return one metric of a task, and the p value of a loss of no more than is allowed; None where its scale is not known."""
    metric, chosen = key
    other = theirs.scores.get(key, {})
    both = [at for at in ours.scores[key] if at in other]
    apart = not both and metric.isdigit()
    if apart:
        other = next(
            (theirs.scores[k] for k in sorted(theirs.scores, key=_length) if k[0].isdigit() and k[1] == chosen), {}
        )
    here = np.array([ours.scores[key][at] for at in (ours.scores[key] if apart else both)])
    there = np.array(list(other.values()) if apart else [other[at] for at in both])
    scale = _scale(np.concatenate([here, there]))
    if scale is None:
        return None
    here, there = (values / scale for values in (here, there))
    sign = -1.0 if falling else 1.0
    few = min(len(here), len(there)) < FEWEST
    exact = not apart and bool(np.isin(np.concatenate([here, there]), (0.0, 1.0)).all())
    if apart:
        lower, upper, chance = _unpaired(here, there, max_lost)
    elif exact:
        gained, lost = (int((sign * (here - there) == side).sum()) for side in (1.0, -1.0))
        lower, upper = paired_bounds(gained, lost, len(here))
        chance = chance_of_so_few(gained, lost, len(here), -max_lost)
    else:
        documents = [ours.hashes[at][0] or at for at in both]
        numbers = {document: index for index, document in enumerate(dict.fromkeys(documents))}
        few = len(numbers) < FEWEST
        found = clustered(sign * (here - there), [numbers[document] for document in documents])
        lower, upper, chance = lower_bound(found), upper_bound(found), chance_of_more(found, -max_lost)
    scored = HarnessScore(
        name, metric, chosen, len(here), float(there.mean()), float(here.mean()), sign * float(here.mean() - there.mean()),
        lower, upper, UNPAIRED if apart else EXACT if exact else NUMERIC, NOT_JUDGED if few else "",
    )  # fmt: skip
    return scored, 1.0 if few else chance


def _length(key: tuple[str, str]) -> int:
    return int(key[0]) if key[0].isdigit() else 0


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
