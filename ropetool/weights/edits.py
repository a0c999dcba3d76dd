"""A change of one tensor as plain data: equal blocks of rows that are scaled or reordered, with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.files.hf.jsontext import shown
from ropetool.files.json_types import NUMBER, TEXT, JsonType, list_of, taken, whole
from ropetool.rope.tables import Array, is_number

SCALE, PERMUTE = "scale", "permute"
MAX_HEIGHT = 2**20  # rows of a tensor in a plan file
_ROW = whole(0, MAX_HEIGHT)
_ROWS, _FACTORS = list_of(_ROW, MAX_HEIGHT), list_of(NUMBER, MAX_HEIGHT)


@dataclass(frozen=True)
class TensorEdit:
    """Blocks of rows of a tensor that are scaled or reordered.

    tensor: its name.
    operation: SCALE or PERMUTE.
    height: the number of rows. For a vector, it is the number of elements; for a norm, it may be heads x channels.
    starts: the first row of each block.
    length: the number of rows in a block.
    factors: one factor for all rows of a block, or one for each row.
    order: new row i of a block is its old row order[i].
    offset: the number that the runtime adds to a stored number before multiplying (1 for gemma's norms).
    reason: the reason as text.
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
        rows_of_blocks: npt.NDArray[np.int64] = np.add.outer(np.array(self.starts), np.arange(self.length)).reshape(-1)
        return rows_of_blocks

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
        """Return an edit from a plan file.

        Raises: CorruptFile if a value has a wrong type; ConfigError if the edit is not possible.
        """
        place = f"the edit of {shown(data.get('tensor'))}"

        def value(key: str, json_type: JsonType, *absent: Any) -> Any:
            return taken(data, key, json_type, place, *absent)

        return cls(
            value("tensor", TEXT), value("operation", TEXT), value("height", _ROW), tuple(value("starts", _ROWS)),
            value("length", _ROW), tuple(map(float, value("factors", _FACTORS, ()))), tuple(value("order", _ROWS, ())),
            float(value("offset", NUMBER, 0.0)), value("reason", TEXT, ""),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RowChange:
    """All edits of a tensor combined: new row i is (old row source[i] + offset) * factor[i] - offset.

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
    """Return the edits of one tensor, in order, as one change, so that its numbers are rounded only once.

    Raises: ConfigError if the edits differ in height or offset.
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
    """Return each reason with the tensors that it affects, as text. Layer numbers become *, with a count."""
    touched: dict[str, dict[str, int]] = {}
    for edit in edits:
        counts = touched.setdefault(edit.reason.partition(", in the scales of ")[0], {})
        name = re.sub(r"\.\d+\.", ".*.", edit.tensor)
        counts[name] = counts.get(name, 0) + 1
    return tuple(
        f"{reason}: " + ", ".join(f"{name} ({count})" for name, count in counts.items())
        for reason, counts in touched.items()
    )


def by_tensor(edits: Sequence[TensorEdit]) -> dict[str, RowChange]:
    """Return the combined change of each tensor that really changes, by name."""
    grouped: dict[str, list[TensorEdit]] = {}
    for edit in edits:
        grouped.setdefault(edit.tensor, []).append(edit)
    changes = {name: row_change(group) for name, group in grouped.items()}
    return {name: change for name, change in changes.items() if change.touched.any()}
