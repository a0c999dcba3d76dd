"""The bakes of a Hugging Face checkpoint, each as tensor edits with the config edits that belong to them.

Plans what changes; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ropetool import names, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport
from ropetool.families.rows import K, Q
from ropetool.files.hf import Edit
from ropetool.rope.tables import LayerRope, RopeTable
from ropetool.runtimes import Refuses
from ropetool.weights import operations as ops
from ropetool.weights import settings
from ropetool.weights.block_scales import on_scales
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets


@dataclass(frozen=True)
class Bake:
    """What a bake changes: the rows of tensors, the keys of config.json that belong to them, and what to know."""

    tensors: tuple[TensorEdit, ...]
    config: tuple[Edit, ...]
    notes: tuple[str, ...] = ()


def view_of(checkpoint: HfCheckpoint) -> FoldTargets:
    """Return a checkpoint as bakes look at it.

    Raises: LossyExport if transformers cannot read its config; CorruptFile for a broken weight file.
    """
    try:
        rope = runtimes.get(checkpoint.runtime, "hf").decode(checkpoint)
    except Refuses as refusal:
        raise LossyExport(f"transformers stops on this config: {refusal}", where=checkpoint.where) from None
    quantization = checkpoint.config.get("quantization_config")
    return FoldTargets(
        checkpoint.family, checkpoint.section, rope, checkpoint.stored,
        quantization if isinstance(quantization, Mapping) else {}, checkpoint.where,
    )  # fmt: skip


def attention_factor(
    targets: FoldTargets, checkpoint: HfCheckpoint, side: str = K, *, config_only: bool = False
) -> Bake:
    """Return the bake of the factor on cos and sin: its square into keys or queries, or the factor into both.

    config_only: into the config key that multiplies the score, where the family has one (granite).
    Raises: ConfigError if the factor is 1 already; LossyExport where the weights cannot hold it.
    """
    factors = {kind: f for kind, entry in targets.rope.entries.items() if (f := _one_factor(targets, entry)) != 1}
    if not factors:
        raise ConfigError("the attention factor is 1 already: there is nothing to bake", where=targets.where)
    config = settings.factor_edits(targets, checkpoint.config, dict.fromkeys(factors, 1.0), keep_softmax=True)
    wanted = targets.rope
    for kind in factors:
        wanted = wanted.with_entry(kind, _with_factor(targets.rope.entries[kind], 1.0))
    settings.check_reading(checkpoint, config, wanted)
    if config_only:
        return Bake((), (*config, _score_edit(targets, factors)))
    tensors: list[TensorEdit] = []
    for kind, factor in factors.items():
        pairs = targets.rope.entries[kind].rotary_dim // 2
        tensors += ops.gain_edits(targets, kind, [factor**2] * pairs, side, f"attention factor {factor:.6g} of {kind}")
    return Bake(on_scales(tensors, targets), tuple(config))


def _one_factor(targets: FoldTargets, entry: LayerRope) -> float:
    if entry.table is None:
        return 1.0
    factors = {regime.attention_factor for regime in entry.table.regimes}
    if len(factors) > 1:
        raise LossyExport(
            f"the attention factor depends on the length ({', '.join(f'{f:.6g}' for f in sorted(factors))}), weights "
            "do not", where=targets.where,
        )  # fmt: skip
    return factors.pop()


def _with_factor(entry: LayerRope, factor: float) -> LayerRope:
    assert entry.table is not None
    regimes = tuple(replace(regime, attention_factor=factor) for regime in entry.table.regimes)
    return replace(entry, table=RopeTable(regimes, entry.table.rule, entry.table.rule_key))


def _score_edit(targets: FoldTargets, factors: Mapping[str, float]) -> Edit:
    """Return the edit of the family's own score multiplier, which holds a factor on all channels of all layers."""
    key = targets.steps.score_key
    (entry,) = targets.rope.entries.values() if len(targets.rope.entries) == 1 else (None,)
    if not key or entry is None or entry.rotary_dim != entry.head_dim:
        raise LossyExport(
            f"{targets.family.model_type} has no config key that multiplies the score of whole heads",
            where=targets.where, try_="bake into the weights",
        )  # fmt: skip
    (factor,) = factors.values()
    if key not in targets.config:
        raise ConfigError(f"{key} must be stated to be multiplied", where=targets.where)
    return settings.number_edit(targets, key, targets.config[key] * factor**2)


def softmax_scale(targets: FoldTargets, checkpoint: HfCheckpoint, side: str = "") -> Bake:
    """Return the bake of MLA's softmax multiplier: into the query latent's norm, else all query or all key rows.

    side: norm, q, k or both; by default norm where the model has a query latent, else q. The factor on cos and sin
    stays asked for by an attention_factor of its own.
    Raises: ConfigError if the multiplier is 1 already; LossyExport.
    """
    entry = targets.rope.entries[names.FULL_ATTENTION]
    multiplier = entry.softmax_multiplier
    if multiplier == 1:
        raise ConfigError("the softmax multiplier is 1 already: there is nothing to bake", where=targets.where)
    factor = _one_factor(targets, entry)
    config = settings.factor_edits(targets, checkpoint.config, {names.FULL_ATTENTION: factor}, keep_softmax=False)
    wanted = targets.rope.with_entry(names.FULL_ATTENTION, replace(entry, softmax_multiplier=1.0))
    settings.check_reading(checkpoint, config, wanted)
    chosen = side or (ops.NORM if targets.steps.score and targets.config.get("q_lora_rank") else Q)
    reason = f"softmax multiplier {multiplier:.6g}"
    tensors = ops.score_edits(targets, names.FULL_ATTENTION, multiplier, chosen, reason)
    return Bake(on_scales(tensors, targets), tuple(config))


def pair_gain(targets: FoldTargets, gains: Mapping[str, Sequence[float]], side: str = K) -> Bake:
    """Return the bake of one gain per rotary pair, by kind of layer; the config stays as it is."""
    tensors: list[TensorEdit] = []
    for kind, values in gains.items():
        tensors += ops.gain_edits(targets, kind, values, side, f"gain of each rotary pair of {kind}")
    return Bake(on_scales(tensors, targets), ())


def score_gain(targets: FoldTargets, multipliers: Mapping[str, float], side: str = K) -> Bake:
    """Return the bake of a multiplier of the whole score, by kind of layer; the config stays as it is."""
    tensors: list[TensorEdit] = []
    for kind, value in multipliers.items():
        tensors += ops.score_edits(targets, kind, value, side, f"the score of {kind} times {value:.6g}")
    return Bake(on_scales(tensors, targets), ())


def layout(targets: FoldTargets, checkpoint: HfCheckpoint, to: str) -> Bake:
    """Return the bake that changes the order of the rotary channels.

    Where the family has a key for it (rope_interleave) the config follows; elsewhere the result is for runtimes that
    rotate in the other order, and transformers would misread it.
    """
    tensors: list[TensorEdit] = []
    for kind, entry in targets.rope.entries.items():
        if entry.table is not None:
            tensors += ops.layout_edits(targets, kind, to, f"rotary channels from {entry.layout} to {to}")
    key = targets.family.interleave_key
    if key:
        return Bake(on_scales(tensors, targets), (settings.number_edit(targets, key, to == "interleaved"),))
    note = (
        f"transformers rotates a {targets.family.model_type} in the order that it had; this one is for other runtimes"
    )
    return Bake(on_scales(tensors, targets), (), (note,))
