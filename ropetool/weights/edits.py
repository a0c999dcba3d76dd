"""A change of one tensor as plain data: equal blocks of rows that are scaled or reordered, and why.

Knows rows and numbers; neither files, nor formats, nor what the rows mean to a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.rope.tables import Array, is_number

SCALE, PERMUTE = "scale", "permute"


@dataclass(frozen=True)
class TensorEdit:
    """Blocks of `length` rows from each of `starts` on, scaled by `factors` or put into `order`.

    height: how many rows the tensor is seen to have; a vector has as many as elements, a norm of heads x channels too.
    factors: one for all rows of a block, or one for each. order: new row i of a block is its old row order[i].
    offset: what the runtime adds to a stored number before it multiplies (1 for gemma's norms).
    """

    tensor: str
    operation: str
    height: int
    starts: tuple[int, ...]
    length: int
    factors: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    offset: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ConfigError(problem, where=self.tensor)

    def _problem(self) -> str:
        begins = sorted(self.starts)
        ends = [begin + self.length for begin in begins]
        if self.length < 1 or not begins or begins[0] < 0 or ends[-1] > self.height:
            return f"blocks of {self.length} rows do not fit in {self.height} rows"
        if any(end > begin for end, begin in zip(ends, begins[1:], strict=False)):
            return "two blocks of rows overlap"
        if self.operation == SCALE:
            good = len(self.factors) in (1, self.length) and all(is_number(f) and f >= 0 for f in self.factors)
            return "" if good else f"blocks of {self.length} rows need 1 or {self.length} factors of at least 0"
        if self.operation == PERMUTE:
            return "" if sorted(self.order) == list(range(self.length)) else "the order is not a permutation of a block"
        return f"{self.operation!r} must be {SCALE} or {PERMUTE}"

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Return the rows of all blocks, block by block."""
        found: npt.NDArray[np.int64] = np.add.outer(np.array(self.starts), np.arange(self.length)).reshape(-1)
        return found

    def to_json(self) -> dict[str, Any]:
        data = {
            "tensor": self.tensor, "operation": self.operation, "height": self.height, "starts": list(self.starts),
            "length": self.length,
        }  # fmt: skip
        chosen = {"factors": list(self.factors)} if self.operation == SCALE else {"order": list(self.order)}
        offset = {"offset": self.offset} if self.offset else {}
        return {**data, **chosen, **offset, "reason": self.reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorEdit:
        """Return the edit of a plan file.

        Raises: KeyError, TypeError, ValueError or ConfigError if it is none.
        """
        return cls(
            str(data["tensor"]), str(data["operation"]), int(data["height"]), tuple(map(int, data["starts"])),
            int(data["length"]), tuple(map(float, data.get("factors", ()))), tuple(map(int, data.get("order", ()))),
            float(data.get("offset", 0.0)), str(data.get("reason", "")),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RowChange:
    """What all edits of a tensor come to: new row i is (old row source[i] + offset) * factor[i] - offset.

    Shapes: source (height,), factor (height,).
    """

    source: npt.NDArray[np.int64]
    factor: Array
    offset: float = 0.0
    reasons: tuple[str, ...] = field(default=())

    @property
    def touched(self) -> npt.NDArray[np.bool_]:
        """Return which rows change."""
        changed: npt.NDArray[np.bool_] = (self.source != np.arange(self.source.size)) | (self.factor != 1)
        return changed


def row_change(edits: Sequence[TensorEdit]) -> RowChange:
    """Return the edits of one tensor, in order, as one change: its numbers are rounded once.

    Raises: ConfigError if they do not see the same tensor.
    """
    first = edits[0]
    source, factor = np.arange(first.height), np.ones(first.height)
    for edit in edits:
        if (edit.tensor, edit.height, edit.offset) != (first.tensor, first.height, first.offset):
            raise ConfigError(
                f"its edits disagree on its height or offset: {edit.reason}; {first.reason}", where=first.tensor
            )
        rows = edit.rows
        if edit.operation == SCALE:
            factor[rows] *= np.resize(np.array(edit.factors), rows.size)
        else:
            old = rows.reshape(-1, edit.length)[:, list(edit.order)].reshape(-1)
            source[rows], factor[rows] = source[old], factor[old]
    return RowChange(source, factor, first.offset, tuple(dict.fromkeys(edit.reason for edit in edits)))


def described(edits: Sequence[TensorEdit]) -> tuple[str, ...]:
    """Return the reasons in words, each with the tensors that it touches: layers by their number."""
    touched: dict[str, dict[str, int]] = {}
    for edit in edits:
        kinds = touched.setdefault(edit.reason.partition(", in the scales of ")[0], {})
        name = re.sub(r"\.\d+\.", ".*.", edit.tensor)
        kinds[name] = kinds.get(name, 0) + 1
    return tuple(
        f"{reason}: " + ", ".join(f"{name} ({count})" for name, count in kinds.items())
        for reason, kinds in touched.items()
    )


def by_tensor(edits: Sequence[TensorEdit]) -> dict[str, RowChange]:
    """Return what happens to each tensor that an edit names and really changes."""
    grouped: dict[str, list[TensorEdit]] = {}
    for edit in edits:
        grouped.setdefault(edit.tensor, []).append(edit)
    changes = {name: row_change(group) for name, group in grouped.items()}
    return {name: change for name, change in changes.items() if change.touched.any()}
