"""Losses of the same last tokens behind ever longer context, and what they say of a target and its baseline.

Works on any `Runner`; knows nothing of torch, files or how results are shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ropetool.errors import CheckpointError
from ropetool.spec import Array
from ropetool.verification.segments import MIN_DOCUMENTS, MIN_SEGMENTS, Segment, enough
from ropetool.verification.statistics import Estimate, clustered, paired_difference

SCHEMA = 1


class Runner(Protocol):
    """A checkpoint that can be asked for losses. `prefix`: the ids that its tokenizer puts in front (BOS)."""

    @property
    def prefix(self) -> tuple[int, ...]: ...

    @property
    def description(self) -> str: ...

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""

    def losses(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Array:
        """Return the loss of each of the last `scored` tokens of every row.

        Every row is computed as by a fresh model. `done` is told how many tokens each step took.

        Shapes: rows of one length -> (rows, scored). Units: nats.
        """

    def close(self) -> None:
        """Free the model."""


@dataclass(frozen=True)
class LengthResult:
    """What was found at one length, in tokens of model input.

    target, baseline: the loss in nats. difference_to_truncation: the target's loss minus the baseline's on the last
    min(length, trained length) tokens of the same segments. ratio: the target's perplexity over the baseline's
    there. holds: the ratio is within its limit. useful: the difference has its whole interval below zero.
    partial: too few segments or documents for a verdict.
    """

    length: int
    target: Estimate
    baseline: Estimate | None
    difference_to_truncation: Estimate | None
    ratio: float
    holds: bool
    useful: bool | None
    segments: int
    documents: int
    partial: bool
    note: str


@dataclass(frozen=True)
class VerifyResult:
    """All lengths, and what was compared on what. `baseline` is None when the target is its own."""

    target: str
    baseline: str | None
    trained_length: int
    scored: int
    seed: int
    max_ratio: float
    documents: tuple[str, ...]
    lengths: tuple[LengthResult, ...]
    runtime: str
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`fail` if a length does not hold, else `partial` if one has too little text, else `pass`."""
        if not all(entry.holds for entry in self.lengths):
            return "fail"
        return "partial" if any(entry.partial for entry in self.lengths) else "pass"

    @property
    def exit_code(self) -> int:
        """0 for a pass, 3 for a fail, 1 for partial."""
        return {"pass": 0, "fail": 3, "partial": 1}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file; what is infinite there (an interval over one document) is null."""
        plain = _plain(dataclasses.asdict(self))
        return {"schema": SCHEMA, "verdict": self.verdict, **plain}


def perplexity(loss: float) -> float:
    """Return e to the loss, infinite where that is beyond a float."""
    return math.exp(loss) if loss < 709 else math.inf


def row(tokens: Sequence[int], segment: Segment, length: int, prefix: tuple[int, ...]) -> list[int]:
    """Return the model input of `length` tokens that ends where the segment does: the prefix, then the text."""
    return [*prefix, *tokens[segment.end - length + len(prefix) : segment.end]]


def measure(
    runner: Runner,
    documents: Sequence[Sequence[int]],
    names: Sequence[str],
    chosen: Mapping[int, Sequence[Segment]],
    scored: int,
    done: Callable[[int, int], None],
) -> dict[int, Array]:
    """Return the losses for each length, short ones first.

    `done` is told the length and how many tokens a step took.

    Shapes: a value is (segments of that length, scored). Units: nats.
    Raises: CheckpointError if a loss is not finite.
    """
    losses = {}
    for length in sorted(chosen):
        rows = [row(documents[s.document], s, length, runner.prefix) for s in chosen[length]]
        losses[length] = runner.losses(rows, scored, partial(done, length))
        _refuse_nan(losses[length], chosen[length], names, length)
    return losses


def _refuse_nan(losses: Array, segments: Sequence[Segment], names: Sequence[str], length: int) -> None:
    bad = np.argwhere(~np.isfinite(losses))
    if bad.size:
        index, column = (int(i) for i in bad[0])
        segment, position = segments[index], length - losses.shape[1] + column
        raise CheckpointError(
            f"the loss is {losses[index, column]} at position {position} of {length} in segment {index} "
            f"({names[segment.document]}, before token {segment.end}); the logits there are not finite",
            try_="--dtype float32, if the checkpoint was loaded in a narrower type",
        )


def judge(
    length: int,
    chosen: Mapping[int, Sequence[Segment]],
    target: Mapping[int, Array],
    baseline: Mapping[int, Array] | None,
    trained_length: int,
    context_length: int | None,
    max_ratio: float,
) -> LengthResult:
    """Return the result at one length from the losses at all of them; without a baseline the target is its own."""
    segments = chosen[length]
    documents = [segment.document for segment in segments]
    truncated = min(length, trained_length)
    # The segments of a length are the first ones of every shorter length, so these are the same tokens.
    reference = (target if baseline is None else baseline)[truncated][: len(segments)]
    own_figure = baseline is None and length <= trained_length
    if baseline is not None:
        baseline_estimate: Estimate | None = clustered(baseline[length], documents)
    else:
        baseline_estimate = clustered(reference, documents) if own_figure else None
    difference = None if own_figure else paired_difference(target[length], reference, documents)
    ratio = perplexity(float(target[length].mean() - reference.mean()))
    return LengthResult(
        length=length,
        target=clustered(target[length], documents),
        baseline=baseline_estimate,
        difference_to_truncation=difference,
        ratio=ratio,
        holds=ratio <= max_ratio,
        useful=None if difference is None else difference.high < 0,
        segments=len(segments),
        documents=len(set(documents)),
        partial=not enough(segments),
        note=_note(length, segments, context_length),
    )


def _note(length: int, segments: Sequence[Segment], context_length: int | None) -> str:
    notes = []
    if context_length is not None and length > context_length:
        notes.append(f"beyond the {context_length} tokens that the file states")
    if not enough(segments):
        documents = len({segment.document for segment in segments})
        notes.append(
            f"partial: the texts give {len(segments)} segments of {documents} documents, "
            f"a verdict needs {MIN_SEGMENTS} of {MIN_DOCUMENTS}"
        )
    return "; ".join(notes)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
