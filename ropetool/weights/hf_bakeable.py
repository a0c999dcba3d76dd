"""A Hugging Face checkpoint to bake into: the keys of config.json after a bake, in both config styles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import FileEdit, config_file_edits
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport
from ropetool.files.hf import ABSENT, Edit, read_optional_object
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.tables import LayerRope, RopeTable
from ropetool.runtimes.config_encodings import settled
from ropetool.weights import operations as ops
from ropetool.weights.bakeable import check_computed, computed
from ropetool.weights.block_scales import on_scales
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.writing import growth

LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True, eq=False)
class HfBakeable:
    """A Hugging Face checkpoint. Each layer type has a separate attention factor."""

    checkpoint: HfCheckpoint
    targets: FoldTargets
    bake_dtype: str = ""

    @classmethod
    def of(cls, checkpoint: HfCheckpoint, bake_dtype: str = "") -> HfBakeable:
        """Return the checkpoint with its fold targets.

        Raises: LossyExport if transformers cannot read its config; CorruptFile for an invalid weight file.
        """
        rope, quantization = computed(checkpoint), checkpoint.config.get(names.QUANTIZATION_CONFIG)
        targets = FoldTargets(
            checkpoint.family, checkpoint.section, rope, checkpoint.stored,
            quantization if isinstance(quantization, Mapping) else {}, checkpoint.where,
        )  # fmt: skip
        return cls(checkpoint, targets, bake_dtype)

    @property
    def own_factors(self) -> tuple[str, ...]:
        return tuple(self.targets.rope.entries)

    @property
    def score_follows(self) -> bool:
        return False

    def factor_edits(self, factors: Mapping[str, float], *, keep_softmax: bool) -> list[FileEdit]:
        current = style.read(self.checkpoint.config, self.targets.family, self.targets.where)
        keys = {
            layer_type: settled(current.keys[layer_type], factor, keep_softmax=keep_softmax)
            for layer_type, factor in factors.items()
        }
        return config_file_edits(self._keys(keys, current.style))

    def _keys(self, keys: Mapping[str, style.RopeKeys], config_style: str) -> list[Edit]:
        return style.edits(self.checkpoint.config, self.targets.family, keys, config_style, self.targets.where)

    def _number(self, key: str, value: float | bool) -> FileEdit:
        """Return the edit of one number or switch outside the rope keys."""
        path = (*self.targets.family.text_path, key)
        return FileEdit(names.CONFIG_JSON, path, self.targets.config.get(key, ABSENT), value)

    def score_edit(self, factors: Mapping[str, float]) -> FileEdit:
        targets = self.targets
        key, entries = targets.steps.score_key, list(targets.rope.entries.values())
        if not key or len(entries) > 1 or entries[0].rotary_dim != entries[0].head_dim:
            raise LossyExport(
                f"{targets.family.model_type} has no config key that multiplies the score of whole heads",
                where=targets.where, try_="bake into the weights",
            )  # fmt: skip
        (factor,) = factors.values()
        if key not in targets.config:
            raise ConfigError(f"{key} is missing; --config-only multiplies its value", where=targets.where)
        return self._number(key, targets.config[key] * factor**2)

    def layout_edit(self, to: str) -> FileEdit:
        key = self.targets.family.interleave_key
        if not key:
            raise LossyExport(
                f"a {self.targets.family.model_type} config has no key for the order of the channels, so every runtime would "
                "rotate the wrong pairs", where=self.targets.where,
            )  # fmt: skip
        if to not in LAYOUTS:
            raise ConfigError(f"{to!r} must be {' or '.join(LAYOUTS)}", where="--to")
        return self._number(key, to == "interleaved")

    def still(self, pairs: Sequence[int]) -> tuple[list[TensorEdit], list[FileEdit]]:
        """Return a narrower partial rotary with a row permutation, or else a table of longrope divisors.

        The first needs the family's key, a plain table, and the slowest pairs as those to stop.
        """
        targets, layer_type = self.targets, names.FULL_ATTENTION
        entry = targets.rope.entries[layer_type]
        first_gone = entry.rotary_dim // 2 - len(pairs)
        slowest = list(pairs) == list(range(first_gone, entry.rotary_dim // 2))
        plain = entry.rope_type == "default" and len(targets.rope.entries) == 1
        if not (slowest and plain and targets.family.partial_rotary_key):
            return [], self._stopped(entry, pairs)
        order = ops.kept_first(entry.rotary_dim, pairs, entry.layout)
        reason = f"pairs {', '.join(map(str, pairs))} moved behind the others, not rotated"
        return ops.order_edits(targets, layer_type, order.tolist(), reason), self._narrower(entry, len(pairs))

    def _narrower(self, entry: LayerRope, count: int) -> list[FileEdit]:
        """Return the edits for a table of only the fastest pairs.

        theta^(r/d) with r channels gives the same frequencies as theta with d channels.
        """
        assert entry.rope_theta is not None
        assert entry.table is not None
        rotary_dim = entry.rotary_dim - 2 * count
        theta = entry.rope_theta ** (rotary_dim / entry.rotary_dim)
        share = rotary_dim / entry.head_dim
        current = style.read(self.checkpoint.config, self.targets.family, self.targets.where)
        keys = replace(current.keys[names.FULL_ATTENTION], rope_theta=theta)
        changes = self._keys({names.FULL_ATTENTION: keys}, current.style)
        edits = config_file_edits([*changes, *self._share_edits(share)])
        table = RopeTable.fixed(entry.table.regimes[0].inv_freq[: rotary_dim // 2])
        target = replace(entry, table=table, rotary_dim=rotary_dim, rope_theta=theta)
        check_computed(self.checkpoint, edits, self.targets.rope.with_entry(names.FULL_ATTENTION, target))
        return edits

    def _share_edits(self, share: float) -> list[Edit]:
        """Return the edits of the rotary share at each place where the config sets it, or else of a new key."""
        targets = self.targets
        path, inner = targets.family.text_path, targets.config.get(names.ROPE_PARAMETERS)
        edits = []
        if isinstance(inner, Mapping):
            old = inner.get(names.PARTIAL_ROTARY_FACTOR, ABSENT)
            edits.append(Edit((*path, names.ROPE_PARAMETERS, names.PARTIAL_ROTARY_FACTOR), old, share))
        key = targets.family.partial_rotary_key
        if key in targets.config or not edits:
            edits.append(Edit((*path, key), targets.config.get(key, ABSENT), share))
        return edits

    def _stopped(self, entry: LayerRope, gone: Sequence[int]) -> list[FileEdit]:
        """Return the edits for the same table as longrope lists, in which the dropped pairs do not rotate."""
        if entry.table is None or not entry.table.is_fixed or entry.rope_theta is None:
            raise LossyExport(
                "pairs can be dropped only from a table that does not depend on the length", where=self.targets.where
            )
        regime = entry.table.regimes[0]
        divisors = base_inv_freq(entry.rope_theta, entry.rotary_dim) / regime.inv_freq
        divisors[list(gone)] = ops.STILL_DIVISOR
        current = style.read(self.checkpoint.config, self.targets.family, self.targets.where)
        length = entry.original_max_position_embeddings or self.targets.rope.max_position_embeddings
        keys: dict[str, Any] = {
            names.SHORT_FACTOR: divisors.tolist(), names.LONG_FACTOR: divisors.tolist(),
            names.FACTOR: max(1.0, self.targets.rope.max_position_embeddings / length),
            names.ORIGINAL_MAX_POSITION_EMBEDDINGS: length, names.ATTENTION_FACTOR: regime.attention_factor,
        }  # fmt: skip
        if self.targets.family.mla and entry.softmax_multiplier != 1:
            all_dim = (math.sqrt(entry.softmax_multiplier) - 1) / (0.1 * math.log(keys[names.FACTOR]))
            keys[names.MSCALE_ALL_DIM] = all_dim
        target = {names.FULL_ATTENTION: style.RopeKeys("longrope", entry.rope_theta, keys)}
        edits = config_file_edits(self._keys(target, current.style))
        still = regime.inv_freq.copy()
        still[list(gone)] = base_inv_freq(entry.rope_theta, entry.rotary_dim)[list(gone)] / ops.STILL_DIVISOR
        stopped = replace(
            entry, table=RopeTable.fixed(still, regime.attention_factor), rope_type="longrope",
            original_max_position_embeddings=length,
        )  # fmt: skip
        check_computed(self.checkpoint, edits, self.targets.rope.with_entry(names.FULL_ATTENTION, stopped))
        return edits

    def placed(self, edits: list[TensorEdit]) -> tuple[TensorEdit, ...]:
        return on_scales(edits, self.targets)

    def other_edits(self, tensors: Sequence[TensorEdit]) -> list[FileEdit]:
        """Return the edit of the total size of the weights in the shard index."""
        more = growth(tensors, self.checkpoint.stored, self.bake_dtype)
        index = read_optional_object(self.checkpoint.path / names.SAFETENSORS_INDEX_JSON) if more else None
        metadata = index[1].get("metadata") if index else None
        total_size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
        if type(total_size) is not int:
            return []
        return [FileEdit(names.SAFETENSORS_INDEX_JSON, ("metadata", "total_size"), total_size, total_size + more)]
