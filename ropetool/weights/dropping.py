"""Pairs that lose their rotation or their keys: an experiment that people ask for, and that extends no context.

Plans what changes; writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport
from ropetool.files.hf import ABSENT, Edit
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.tables import LayerRope, RopeTable
from ropetool.weights import operations as ops
from ropetool.weights import settings
from ropetool.weights.bakes import Bake
from ropetool.weights.block_scales import on_scales
from ropetool.weights.fold_targets import FoldTargets

STILL_DIVISOR = 1e30  # a longrope divisor that stops a pair: inv_freq 1e-30 turns by nothing within any length
DROP_NOTE = "dropping pairs loses the position at large distances: an experiment, it extends no context"


def drop_pairs(targets: FoldTargets, checkpoint: HfCheckpoint, pairs: Iterable[int], mode: str) -> Bake:
    """Return the bake that lets pairs of the full-attention layers stand still, or mutes them in the key rows.

    still: their frequency becomes zero, by a narrower partial rotary after a row permutation where the family has
    the key and the slowest pairs of a plain table go; else by a table of longrope divisors. Lossy by design.
    Raises: ConfigError for another mode or pair; LossyExport where neither form holds the table.
    """
    kind = names.FULL_ATTENTION
    gone = sorted(set(pairs))
    shown = ", ".join(map(str, gone))
    if mode == "mute":
        edits = ops.mute_edits(targets, kind, gone, f"pairs {shown} muted")
        return Bake(on_scales(edits, targets), (), (DROP_NOTE,))
    if mode != "still":
        raise ConfigError(f"{mode!r} is neither still nor mute", where="--mode")
    entry = targets.rope.entries[kind]
    order = ops.kept_first(entry.rotary_dim, gone, entry.layout)
    slowest = gone == list(range(entry.rotary_dim // 2 - len(gone), entry.rotary_dim // 2))
    if (
        slowest
        and entry.rope_type == "default"
        and targets.family.partial_rotary_key
        and len(targets.rope.entries) == 1
    ):
        tensors = ops.order_edits(targets, kind, order.tolist(), f"pairs {shown} behind the others, unrotated")
        return Bake(on_scales(tensors, targets), _narrower(targets, checkpoint, entry, len(gone)), (DROP_NOTE,))
    return Bake((), _stopped(targets, checkpoint, entry, gone), (DROP_NOTE,))


def _narrower(targets: FoldTargets, checkpoint: HfCheckpoint, entry: LayerRope, count: int) -> tuple[Edit, ...]:
    """Return the edits for a table of the fastest pairs alone: theta^(r/d) over r channels is theta over d of them."""
    assert entry.rope_theta is not None
    assert entry.table is not None
    rotary_dim = entry.rotary_dim - 2 * count
    theta = entry.rope_theta ** (rotary_dim / entry.rotary_dim)
    share = rotary_dim / entry.head_dim
    found = style.read(checkpoint.config, targets.family, targets.where)
    keys = replace(found.keys[names.FULL_ATTENTION], rope_theta=theta)
    edits = style.edits(checkpoint.config, targets.family, {names.FULL_ATTENTION: keys}, found.style, targets.where)
    edits += _share_edits(targets, share)
    table = RopeTable.fixed(entry.table.regimes[0].inv_freq[: rotary_dim // 2])
    wanted = replace(entry, table=table, rotary_dim=rotary_dim, rope_theta=theta)
    settings.check_reading(checkpoint, edits, targets.rope.with_entry(names.FULL_ATTENTION, wanted))
    return tuple(edits)


def _share_edits(targets: FoldTargets, share: float) -> list[Edit]:
    """Return the edits of the rotary share wherever the file states it; beside the other keys where it does not."""
    path, inner = targets.family.text_path, targets.config.get(names.ROPE_PARAMETERS)
    found = []
    if isinstance(inner, Mapping):
        old = inner.get(names.PARTIAL_ROTARY_FACTOR, ABSENT)
        found.append(Edit((*path, names.ROPE_PARAMETERS, names.PARTIAL_ROTARY_FACTOR), old, share))
    key = targets.family.partial_rotary_key
    if key in targets.config or not found:
        found.append(Edit((*path, key), targets.config.get(key, ABSENT), share))
    return found


def _stopped(targets: FoldTargets, checkpoint: HfCheckpoint, entry: LayerRope, gone: list[int]) -> tuple[Edit, ...]:
    """Return the edits for the same table as longrope lists, in which the dropped pairs turn by nothing."""
    if entry.table is None or not entry.table.is_fixed or entry.rope_theta is None:
        raise LossyExport("only a table that does not follow the length can lose pairs", where=targets.where)
    regime = entry.table.regimes[0]
    divisors = base_inv_freq(entry.rope_theta, entry.rotary_dim) / regime.inv_freq
    divisors[gone] = STILL_DIVISOR
    found = style.read(checkpoint.config, targets.family, targets.where)
    length = entry.original_max_position_embeddings or targets.rope.max_position_embeddings
    keys: dict[str, Any] = {
        names.SHORT_FACTOR: divisors.tolist(), names.LONG_FACTOR: divisors.tolist(),
        names.FACTOR: max(1.0, targets.rope.max_position_embeddings / length),
        names.ORIGINAL_MAX_POSITION_EMBEDDINGS: length, names.ATTENTION_FACTOR: regime.attention_factor,
    }  # fmt: skip
    if targets.family.mla and entry.softmax_multiplier != 1:
        all_dim = (math.sqrt(entry.softmax_multiplier) - 1) / (0.1 * math.log(keys[names.FACTOR]))
        keys[names.MSCALE_ALL_DIM] = all_dim
    target = {names.FULL_ATTENTION: style.RopeKeys("longrope", entry.rope_theta, keys)}
    edits = style.edits(checkpoint.config, targets.family, target, found.style, targets.where)
    still = regime.inv_freq.copy()
    still[gone] = base_inv_freq(entry.rope_theta, entry.rotary_dim)[gone] / STILL_DIVISOR
    wanted = replace(
        entry, table=RopeTable.fixed(still, regime.attention_factor), rope_type="longrope",
        original_max_position_embeddings=length,
    )  # fmt: skip
    settings.check_reading(checkpoint, edits, targets.rope.with_entry(names.FULL_ATTENTION, wanted))
    return tuple(edits)
