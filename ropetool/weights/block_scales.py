"""FP8 weights: a factor changes the scales of whole blocks, and a new row order must stay within a block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ropetool.errors import UnsupportedDtype
from ropetool.files.dtypes import STORAGE
from ropetool.weights.edits import SCALE, TensorEdit, by_tensor
from ropetool.weights.fold_targets import FoldTargets, Stored, packed

# Suffixes of the weight's name: DeepSeek's block scales; a scale for the whole tensor, or for each row.
SCALES = ("_scale_inv", "_scale")
FP8 = ("F8_E4M3", "F8_E5M2")
E8M0 = "F8_E8M0"


def on_scales(edits: list[TensorEdit], targets: FoldTargets) -> tuple[TensorEdit, ...]:
    """Return the edits with an effect. Edits of block-scaled weights become edits of their scales.

    Raises: UnsupportedDtype in these cases:
    - A factor would also scale other rows.
    - The file has no scales for the weight, or their number does not match the blocks.
    - A new order of rows would move rows between blocks, or each row has its own scale.
    - The scales are powers of two, but a factor is not.
    - The weight is packed.
    """
    change = by_tensor(edits)
    return tuple(_placed(edit, targets) for edit in edits if edit.tensor in change)


def _placed(edit: TensorEdit, targets: FoldTargets) -> TensorEdit:
    stored = targets.tensors[edit.tensor]
    if stored.dtype in STORAGE:
        return edit
    if stored.dtype not in FP8:
        raise packed(f"has type {stored.dtype}", edit.tensor)
    name = next((f"{edit.tensor}{end}" for end in SCALES if f"{edit.tensor}{end}" in targets.tensors), None)
    if name is None:
        raise UnsupportedDtype(f"has type {stored.dtype}, but the file has no scales for it", where=edit.tensor)
    block = _block_rows(targets, edit, targets.tensors[name])
    if edit.operation == SCALE:
        return _scaled(edit, name, targets, block)
    if block == 1:
        raise UnsupportedDtype("has a scale for each row, so its rows cannot be reordered", where=edit.tensor)
    old = edit.rows.reshape(-1, edit.length)[:, list(edit.order)].reshape(-1)
    if np.any(edit.rows // block != old // block):
        raise UnsupportedDtype(
            f"needs rows to move between blocks of {block} rows with different scales", where=edit.tensor
        )
    return edit


def _block_rows(targets: FoldTargets, edit: TensorEdit, scales: Stored) -> int:
    """Return the number of rows that share a scale."""
    count = scales.shape[0] if scales.shape else 1
    block_size = _block_size(targets.quantization, edit.tensor)
    block = int(block_size[0]) if isinstance(block_size, list) and len(scales.shape) == 2 else -(-edit.height // count)
    if block < 1 or -(-edit.height // block) != count:
        raise UnsupportedDtype(
            f"has {count} rows of scales for {edit.height} rows in blocks of {block}", where=edit.tensor
        )
    return block


def _block_size(quantization: Mapping[str, Any], where: str) -> Any:
    """Return the rows and columns of a block, by DeepSeek's key or by compressed-tensors' groups; None if it has no blocks.

    Raises: UnsupportedDtype for groups with different blocks.
    """
    groups = quantization.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    sizes = [one["block_structure"] for one in weights if isinstance(one, Mapping) and one.get("block_structure")]
    if any(size != sizes[0] for size in sizes):
        raise UnsupportedDtype("is in a checkpoint whose groups have blocks of different sizes", where=where)
    return quantization.get("weight_block_size") or next(iter(sizes), None)


def _scaled(edit: TensorEdit, name: str, targets: FoldTargets, block: int) -> TensorEdit:
    """Return the edit of the scales. All rows of a block must have the same factor."""
    factor = np.ones(edit.height)
    factor[edit.rows] = np.resize(np.array(edit.factors), edit.rows.size)
    count = -(-edit.height // block)
    rows, factors = [], []
    for i in range(count):
        block_factors = set(factor[i * block : (i + 1) * block].tolist())
        if len(block_factors) > 1:
            raise UnsupportedDtype(
                f"rows {i * block} to {min(edit.height, (i + 1) * block) - 1} share a scale, but only some of them need "
                "the factor", where=edit.tensor, try_="bake a different --side, or a copy in bfloat16",
            )  # fmt: skip
        rows.append(i)
        factors.append(block_factors.pop())
    stored = targets.tensors[name]
    powers = stored.dtype == E8M0 or targets.quantization.get("scale_fmt") == "ue8m0"
    if powers and not all(f > 0 and math.frexp(f)[0] == 0.5 for f in factors):
        raise UnsupportedDtype(
            f"stores only powers of two, and {max(factors, key=lambda f: abs(math.log2(f) % 1)):.6g} is not a power of two", where=name,
            try_="bake a power of two, or bake a copy in bfloat16",
        )  # fmt: skip
    return replace(
        edit, tensor=name, height=count, starts=(0,), length=count, factors=tuple(factors), offset=0.0,
        reason=f"{edit.reason}, in the scales of {edit.tensor}",
    )  # fmt: skip
