"""The logs of lm-evaluation-harness: read the scores of each sample.

Reads the output of `lm_eval run --log_samples`, one line per sample, and keeps only scores and hashes.
Source: EleutherAI/lm-evaluation-harness 0.4.13, lm_eval/evaluator.py and loggers/evaluation_tracker.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError
from ropetool.files.regular import open_regular
from ropetool.rope.tables import is_number
from ropetool.verification.scoring import BASELINE, TARGET

WHERE = "--lm-eval"
FILE = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl")
NOT_SCORES = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
}  # fmt: skip
LINE = 256 * 2**20  # bytes; a prompt of a million tokens takes 6 MB, and is logged twice
RESULTS = 64 * 2**20
LEFT_OUT = -1.0  # a sample of RULER has a metric per length, with this value for all lengths but its own

ScoreKey = tuple[str, str, str]  # task, metric and filter


@dataclass(frozen=True)
class HarnessSample:
    """A score, and the hashes of the document and the prompt. A hash is empty if the log does not contain it."""

    score: float
    document: str
    prompt: str


@dataclass(frozen=True)
class HarnessLog:
    """A log of samples, and the task and the time in its name."""

    path: Path
    task: str
    time: str


@dataclass(frozen=True)
class HarnessSeries:
    """All samples of one metric and filter, by their numbers."""

    path: Path
    samples: Mapping[str, HarnessSample]


def has_logs(folder: Path) -> bool:
    """Return whether either model has a log of samples."""
    return any(_logs(folder / role) for role in (TARGET, BASELINE))


def _logs(folder: Path) -> list[HarnessLog]:
    """Return the logs of samples, old ones first."""
    paths = folder.rglob("samples_*.jsonl") if folder.is_dir() else ()
    logs = [HarnessLog(path, match[1], match[2]) for path in paths if (match := FILE.fullmatch(path.name))]
    return sorted(logs, key=lambda log: (log.time, log.path))


def series_of(folder: Path, model: Path) -> dict[ScoreKey, HarnessSeries]:
    """Return all series of a model. If several runs have the same series, return the newest."""
    series: dict[ScoreKey, HarnessSeries] = {}
    logs = _logs(folder)
    for log in logs:
        _check_model(log, model)
        series.update({key: HarnessSeries(log.path, samples) for key, samples in _samples(log).items()})
    if not logs:
        raise refusal(
            folder,
            "no log of samples (samples_TASK_TIME.jsonl) in this folder",
            "lm_eval run --log_samples --output_path DIR",
        )
    return series


def _check_model(log: HarnessLog, model: Path) -> None:
    """Raise ConfigError if the results next to a log name a different model that is on this machine."""
    results = log.path.with_name(f"results_{log.time}.json")
    named = Path(str(_results(results).get("model_name", "")))
    ours = {model.resolve(), *([] if model.is_dir() else [model.parent.resolve()])}
    if named.is_absolute() and os.path.exists(named) and named.resolve() not in ours:
        raise refusal(results, f"these are results of {named}, not of {model}")


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


def falling_scores(folder: Path) -> dict[tuple[str, str], bool]:
    """Return whether a lower value is better, for each task and metric in the results files."""
    lower_is_better = {}
    for path in sorted(folder.rglob("results_*.json")):
        by_task = _results(path).get("higher_is_better")
        for task, metrics in by_task.items() if isinstance(by_task, dict) else ():
            for metric, higher in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(higher, bool):
                    lower_is_better[str(task), str(metric)] = not higher
    return lower_is_better


def _samples(log: HarnessLog) -> dict[ScoreKey, dict[str, HarnessSample]]:
    series: dict[ScoreKey, dict[str, HarnessSample]] = {}
    seen: set[tuple[str, str]] = set()
    for line_number, line in enumerate(_lines(log.path), 1):
        sample = _sample(line, f"{log.path}:{line_number}")
        sample_id, filter_name = str(sample["doc_id"]), str(sample.get("filter", "none"))
        if (sample_id, filter_name) in seen:
            raise refusal(log.path, f"sample {sample_id} occurs twice; the log must contain only one run")
        seen.add((sample_id, filter_name))
        hashes = [str(sample.get(name, "")) for name in ("doc_hash", "prompt_hash")]
        metrics = sample.get("metrics")
        for name in map(str, metrics if isinstance(metrics, list) else sorted(sample.keys() - NOT_SCORES)):
            value = sample.get(name)
            left_out = name.isdigit() and value == LEFT_OUT
            if (isinstance(value, bool) or is_number(value)) and not left_out:
                series.setdefault((log.task, name, filter_name), {})[sample_id] = HarnessSample(float(value), *hashes)
    return series


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise refusal(path, f"a line is longer than the limit of {LINE:,} bytes")
            if line.strip():
                yield line


def _sample(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        raise refusal(where, "the line is not JSON, so it is not a log of samples") from None
    if not isinstance(sample, dict) or not isinstance(sample.get("doc_id"), (int, str)):
        raise refusal(where, "the line has no doc_id, so it is not a sample of lm-evaluation-harness")
    return sample


def refusal(where: Path | str, sentence: str, step: str = "") -> ConfigError:
    return ConfigError(f"{where}: {sentence}", where=WHERE, try_=step)
