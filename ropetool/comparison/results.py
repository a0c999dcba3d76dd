"""The result of a comparison as plain data: facts side by side, a relation for each tensor, and the differences."""

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
    """One of the two checkpoints.

    source: its path.
    format: "hf" or "gguf".
    family: the family's model type. None if it is unknown.
    arch: the model type or architecture in the file.
    runtime: the runtime that decoded its tables. Empty if no runtime did.
    config_style: the style of its rope keys.
    tensors: the number of tensors. 0 if only its config was compared.
    """

    source: str
    format: str
    family: str | None
    arch: str
    runtime: str
    config_style: str
    tensors: int


@dataclass(frozen=True)
class Fact:
    """A value in both files, as plain data.

    layer_type: the layer type. Empty for the whole model.
    name: the name of the value.
    a, b: the values.
    differs: whether the values differ in meaning.
    """

    layer_type: str
    name: str
    a: Any
    b: Any
    differs: bool


@dataclass(frozen=True)
class TensorDiff:
    """The relation of a tensor in both checkpoints.

    name: its name in A, or in B if only B has it.
    relation: the relation between the numbers in A and in B.
    differs: whether they differ in meaning.
    other: its name in B. Empty if it is the same.
    reason: why they differ or not, if the relation does not show that.
    """

    name: str
    relation: Relation
    differs: bool
    other: str = ""
    reason: str = ""


@dataclass(frozen=True)
class NetScore:
    """The attention score of B as a multiple of the score of A, in one layer type.

    layer_type: the layer type.
    part: "rotary", or "plain" for the channels that do not rotate.
    tables: the multiple that follows from the tables.
    rows: the multiple that follows from the scaled rows of the weights.
    net: the product of both.
    same: whether the product is 1 within the rounding of the rows.
    """

    layer_type: str
    part: str
    tables: float
    rows: float
    net: float
    same: bool


@dataclass(frozen=True)
class Diff(Shown):
    """Two checkpoints compared.

    a, b: the checkpoints.
    facts: the values of both, side by side.
    tensors: the relation of each tensor.
    scores: the multiples of the attention score, if weights were scaled.
    differences: the differences in meaning, a short message each.
    notes: messages about anything else.
    """

    a: Side
    b: Side
    facts: tuple[Fact, ...]
    tensors: tuple[TensorDiff, ...]
    scores: tuple[NetScore, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Return whether both have the same meaning."""
        return not self.differences

    def counts(self) -> dict[str, int]:
        """Return the number of tensors with each relation that occurs."""
        relations = [tensor.relation.kind for tensor in self.tensors]
        return {relation: relations.count(relation) for relation in KINDS if relation in relations}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as `diff --json` prints it. Identical tensors are only counted."""
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
    relation = tensor.relation
    return {
        "name": tensor.name, "name_in_b": tensor.other or tensor.name, "relation": relation.kind, "differs": tensor.differs,
        "dtypes": list(relation.dtypes), "order": {"name": relation.order, "run": relation.runs} if relation.order else None,
        "scales": [_scale_json(scale) for scale in relation.scales], "rows": relation.total,
        "changed_rows": [list(stretch) for stretch in relation.rows],
        "largest": _plain(relation.largest), "mean": _plain(relation.mean), "rms": _plain(relation.rms),
        "reason": tensor.reason or relation.detail,
    }  # fmt: skip


def _scale_json(scale: Scale) -> dict[str, Any]:
    return {
        "value": scale.value, "low": scale.low, "high": scale.high, "spread": scale.spread,
        "rows": [list(stretch) for stretch in scale.rows],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return the value with infinities and NaN as text, because JSON cannot contain them."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
