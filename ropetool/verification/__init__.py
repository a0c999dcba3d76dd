"""Verification: measure what a longer context does to a checkpoint, and judge it against its baseline.

Puts texts, segments, a runner and statistics together; knows nothing of options or of how results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Protocol

from ropetool.errors import ConfigError
from ropetool.spec import Array
from ropetool.verification.loss import LengthResult, Runner, VerifyResult, judge, measure
from ropetool.verification.segments import MIN_SEGMENTS, Segment, choose_segments, scored_tokens
from ropetool.verification.texts import Document, embedded_documents, read_documents
from ropetool.verification.torch_runner import TorchRunner

__all__ = [
    "Document",
    "LengthResult",
    "MakeRunner",
    "Progress",
    "Runner",
    "TorchRunner",
    "VerifyResult",
    "default_lengths",
    "embedded_documents",
    "read_documents",
    "verify",
]

MIN_LENGTH = 8

Progress = Callable[[str, int, int], None]
"""Told the stage in words, the tokens computed so far, and those of the whole run (0: not known yet)."""


class MakeRunner(Protocol):
    """What opens a checkpoint; `report` is told in words what the runner had to change on the way."""

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner: ...


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
    max_ratio: float = 1.5,
    segments: int = 32,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    runner: MakeRunner = TorchRunner,
) -> VerifyResult:
    """Return the losses of target and baseline at each length, on the same tokens, with both verdicts.

    Without a baseline the target itself within its trained length is the baseline. Lengths beyond the trained
    length, and beyond the file's `context_length`, are measured like any other. The models are loaded one after
    the other.

    Raises: ConfigError if an option is out of range, the texts are too short, or the two tokenizers differ;
    CheckpointError if a checkpoint cannot be read or its logits are not finite.
    """
    _check(lengths, trained_length, max_ratio, segments)
    tell = progress or _ignore
    paths = {"target": target}
    if baseline is not None and baseline.resolve() != target.resolve():
        paths["baseline"] = baseline
    measured = sorted({*lengths, *(min(length, trained_length) for length in lengths)})
    scored = scored_tokens(trained_length, measured)
    names = [document.name for document in texts]
    notes: list[str] = []
    with ExitStack() as stack:
        runners = {
            role: stack.enter_context(closing(runner(path, device=device, dtype=dtype, report=notes.append)))
            for role, path in paths.items()
        }
        tell("reading the texts", 0, 0)
        tokens = _tokens(texts, runners, paths)
        chosen = choose_segments(
            [len(ids) for ids in tokens], measured, scored, segments, seed, len(runners["target"].prefix)
        )
        losses = _measure_each(runners, tokens, names, chosen, scored, tell)
    used = sorted({segment.document for of_length in chosen.values() for segment in of_length})
    return VerifyResult(
        target=target.resolve().name,
        baseline=paths["baseline"].resolve().name if "baseline" in paths else None,
        trained_length=trained_length,
        scored=scored,
        seed=seed,
        max_ratio=max_ratio,
        documents=tuple(names[index] for index in used),
        lengths=tuple(
            judge(length, chosen, losses["target"], losses.get("baseline"), trained_length, context_length, max_ratio)
            for length in lengths
        ),
        runtime=runners["target"].description,
        notes=tuple(notes),
    )


def _measure_each(
    runners: Mapping[str, Runner],
    tokens: Sequence[Sequence[int]],
    names: Sequence[str],
    chosen: Mapping[int, Sequence[Segment]],
    scored: int,
    tell: Progress,
) -> dict[str, dict[int, Array]]:
    """Return the losses of each model; a model is freed before the next one is loaded."""
    total = len(runners) * sum(length * len(segments) for length, segments in chosen.items())
    finished = 0
    losses = {}
    for role, runner in runners.items():

        def done(length: int, count: int, role: str = role) -> None:
            nonlocal finished
            finished += count
            tell(f"{role} at {length} tokens", finished, total)

        tell(f"loading the {role}", finished, total)
        losses[role] = measure(runner, tokens, names, chosen, scored, done)
        runner.close()
    return losses


def _tokens(texts: Sequence[Document], runners: Mapping[str, Runner], paths: Mapping[str, Path]) -> list[list[int]]:
    """Return the ids of each document.

    Raises: ConfigError unless the baseline reads the texts as the target does, id by id.
    """
    target = runners["target"]
    tokens = [target.tokenize(document.text) for document in texts]
    if "baseline" not in runners:
        return tokens
    baseline = runners["baseline"]
    found = [baseline.tokenize(document.text) for document in texts]
    names = ["special tokens in front", *(document.name for document in texts)]
    for name, ours, theirs in zip(names, [target.prefix, *tokens], [baseline.prefix, *found], strict=True):
        if list(ours) != list(theirs):
            pairs = enumerate(zip_longest(ours, theirs, fillvalue="nothing"))
            at, our, their = next((i, our, their) for i, (our, their) in pairs if our != their)
            raise ConfigError(
                f"its tokenizer is not that of {paths['target']}: in {name}, token {at} is {their} instead of {our}; "
                "losses are compared token by token",
                where=str(paths["baseline"]),
            )
    return tokens


def _ignore(stage: str, done: int, total: int) -> None:
    """Be told of progress, and do nothing."""


def _check(lengths: Sequence[int], trained_length: int, max_ratio: float, segments: int) -> None:
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
    if not (math.isfinite(max_ratio) and max_ratio > 0):
        raise ConfigError(f"{max_ratio} is no limit for a ratio; it must be finite and above 0", where="--max-ratio")


def _check_count(where: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{value!r} is not a whole number of at least {at_least}", where=where)
