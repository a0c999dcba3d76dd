"""What a comparison of two checkpoints found, as frozen data: facts side by side, a relation for each tensor, a verdict.

Knows nothing of how it was found or is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ropetool.comparison.relations import (
    CHANGED,
    CONVERTED,
    IDENTICAL,
    PERMUTED,
    REQUANTISED,
    ROWS_SCALED,
    SCALED,
    UNMOVED,
    Relation,
    Scale,
)
from ropetool.escaping import Shown

SCHEMA = 1
ONLY_IN_A, ONLY_IN_B, SKIPPED = "only in A", "only in B", "not computed with"
KINDS = (
    IDENTICAL,
    CONVERTED,
    SKIPPED,
    SCALED,
    ROWS_SCALED,
    PERMUTED,
    UNMOVED,
    REQUANTISED,
    CHANGED,
    ONLY_IN_A,
    ONLY_IN_B,
)


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints; tensors: how many it has, 0 where only its config was compared."""

    source: str
    format: str
    family: str | None
    arch: str
    runtime: str
    config_style: str
    tensors: int


@dataclass(frozen=True)
class Fact:
    """One thing that both files say, plain data; layer_type is empty for the whole model. differs: in meaning."""

    layer_type: str
    name: str
    a: Any
    b: Any
    differs: bool


@dataclass(frozen=True)
class TensorDiff:
    """One tensor: its name in A, or in B where only that has it; its name in B where that is another.

    differs: in meaning. reason: why it does, or does not, where the relation alone does not say.
    """

    name: str
    relation: Relation
    differs: bool
    other: str = ""
    reason: str = ""


@dataclass(frozen=True)
class NetScore:
    """How many times B's score is A's, in one kind of layer: by the tables, by the rows of the weights, and both.

    part: rotary, or plain for the channels that do not rotate. same: the product is 1 within the rounding of the rows.
    """

    layer_type: str
    part: str
    tables: float
    rows: float
    net: float
    same: bool


@dataclass(frozen=True)
class Diff(Shown):
    """Two checkpoints compared; `differences` say in a few words each what they do not have in common in meaning."""

    a: Side
    b: Side
    facts: tuple[Fact, ...]
    tensors: tuple[TensorDiff, ...]
    scores: tuple[NetScore, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both mean the same."""
        return not self.differences

    def counts(self) -> dict[str, int]:
        """Return how many tensors there are of each relation that occurs."""
        found = [tensor.relation.kind for tensor in self.tensors]
        return {kind: found.count(kind) for kind in KINDS if kind in found}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as `diff --json` prints it; identical tensors are counted alone."""
        return {
            "schema": SCHEMA,
            "same": self.same,
            "a": vars(self.a),
            "b": vars(self.b),
            "facts": [_plain(vars(fact)) for fact in self.facts],
            "tensors": {
                "counts": self.counts(),
                "not_identical": [_tensor_json(t) for t in self.tensors if t.relation.kind != IDENTICAL],
            },
            "scores": [vars(score) for score in self.scores],
            "differences": list(self.differences),
            "notes": list(self.notes),
        }


def _tensor_json(tensor: TensorDiff) -> dict[str, Any]:
    found = tensor.relation
    return {
        "name": tensor.name, "name_in_b": tensor.other or tensor.name, "relation": found.kind, "differs": tensor.differs,
        "dtypes": list(found.dtypes), "order": {"name": found.order, "run": found.runs} if found.order else None,
        "scales": [_scale_json(scale) for scale in found.scales], "rows": found.total,
        "changed_rows": [list(stretch) for stretch in found.rows],
        "largest": _plain(found.largest), "mean": _plain(found.mean), "rms": _plain(found.rms),
        "reason": tensor.reason or found.detail,
    }  # fmt: skip


def _scale_json(scale: Scale) -> dict[str, Any]:
    return {
        "value": scale.value, "low": scale.low, "high": scale.high, "spread": scale.spread,
        "rows": [list(stretch) for stretch in scale.rows],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return the value with infinities and NaN as text: JSON has none."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
