"""The bakes of a checkpoint of either format: tensor edits and the matching edits of keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ropetool import names
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import ConfigError, LossyExport
from ropetool.families.rows import K
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.weights import operations as ops
from ropetool.weights.bakeable import Bakeable, check_computed, computed
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets

SHIFT_NOTE = "cos and sin now have magnitude 1, so llama.cpp can shift cached keys without changing their size"
DROP_NOTE = "dropping pairs removes positions at large distances: this is an experiment and does not extend the context"


@dataclass(frozen=True)
class Bake:
    """The changes of a bake.

    tensors: the edits of tensors.
    edits: the edits of keys and vectors.
    notes: notes for the user.
    """

    tensors: tuple[TensorEdit, ...] = ()
    edits: tuple[FileEdit, ...] = ()
    notes: tuple[str, ...] = ()


def attention_factor(source: Bakeable, side: str = K, *, config_only: bool = False) -> Bake:
    """Return the bake of the factor on cos and sin: its square into keys or queries, or the factor into both.

    Layers without a separate key get the factor in the key of a different layer type, and their weights get the rest.

    side: K, Q or both.
    config_only: put the factor into the config key that multiplies the score, if the family has one (granite).
    Raises: ConfigError if the factor is already 1; LossyExport or UnsupportedDtype if the weights cannot store it.
    """
    targets = source.targets
    factors = {layer_type: _one_factor(targets, entry) for layer_type, entry in targets.rotating.items()}
    wanted_factors = {layer_type: factor for layer_type, factor in factors.items() if not _is_one(factor)}
    if not wanted_factors:
        raise ConfigError("the attention factor is 1 already: there is nothing to bake", where=targets.where)
    edits = source.factor_edits(dict.fromkeys(wanted_factors, 1.0), keep_softmax=True)
    after = _after(source, edits, dict.fromkeys(wanted_factors, 1.0))
    if config_only:
        return Bake((), (*edits, source.score_edit(wanted_factors)))
    tensors: list[TensorEdit] = []
    for layer_type, factor in factors.items():
        rest = factor / after.entries[layer_type].attention_factor
        if not _is_one(rest):
            pairs = targets.rope.entries[layer_type].rotary_dim // 2
            tensors += ops.gain_edits(
                targets, layer_type, [rest**2] * pairs, side, f"attention factor {rest:.6g} of {layer_type}"
            )
        score = targets.rope.entries[layer_type].softmax_multiplier / after.entries[layer_type].softmax_multiplier
        if not _is_one(score):
            reason = f"softmax multiplier {score:.6g}, which has the factor's key"
            tensors += ops.score_edits(targets, layer_type, score, ops.query_side(targets), reason)
    return Bake(source.placed(tensors), tuple(edits))


def shift_safe(source: Bakeable, side: str = K) -> Bake:
    """Return the bake that makes llama.cpp multiply cos and sin by 1, in every layer that rotates.

    A context shift, cache reuse and self-extend rotate cached keys a second time with the same cos and sin. The keys
    keep their size only with factor 1 (src/llama-kv-cache.cpp, build_rope_shift).
    Raises: the errors of `attention_factor`; LossyExport if some layers would keep a factor.
    """
    bake = attention_factor(source, side)
    for layer_type, entry in computed(source.checkpoint.edited(bake.edits)).entries.items():
        if not _is_one(entry.attention_factor):
            raise LossyExport(
                f"{layer_type} would keep the factor {entry.attention_factor:.6g}: llama.cpp scales the layer types differently, but "
                "has one key for all of them", where=source.targets.where,
            )  # fmt: skip
    return replace(bake, notes=(*bake.notes, SHIFT_NOTE))


def softmax_scale(source: Bakeable, side: str = "") -> Bake:
    """Return the bake of MLA's multiplier of the whole score.

    It goes into the norm of the query latent, else into all query or key rows. The keys of the file keep the factor on
    cos and sin.

    side: norm, q, k or both; by default norm if the model has a query latent, else q.
    Raises: ConfigError if the multiplier is already 1; LossyExport or UnsupportedDtype if the weights cannot store it.
    """
    targets = source.targets
    layer_type, entry = targets.leading
    multiplier = entry.softmax_multiplier
    if _is_one(multiplier):
        raise ConfigError("the softmax multiplier is 1 already: there is nothing to bake", where=targets.where)
    factors = {layer_type: _one_factor(targets, entry)}
    edits = source.factor_edits(factors, keep_softmax=False)
    _after(source, edits, factors, softmax=1.0)
    reason = f"softmax multiplier {multiplier:.6g}"
    tensors = ops.score_edits(targets, layer_type, multiplier, side or ops.query_side(targets), reason)
    return Bake(source.placed(tensors), tuple(edits))


def pair_gain(source: Bakeable, gains: Mapping[str, Sequence[float]], side: str = K) -> Bake:
    """Return the bake of one gain per rotary pair, by layer type, without edits of keys."""
    tensors: list[TensorEdit] = []
    for layer_type, values in gains.items():
        tensors += ops.gain_edits(source.targets, layer_type, values, side, f"gain of each rotary pair of {layer_type}")
    return Bake(source.placed(tensors))


def score_gain(source: Bakeable, multipliers: Mapping[str, float], side: str = "") -> Bake:
    """Return the bake of a multiplier of the whole score, by layer type, without edits of keys.

    side: k, q or both, or norm for MLA's query latent. The default is k, or the default of `softmax_scale` if keys
      cannot store it.
    """
    tensors: list[TensorEdit] = []
    chosen = side or ops.score_side(source.targets)
    for layer_type, value in multipliers.items():
        tensors += ops.score_edits(
            source.targets, layer_type, value, chosen, f"the score of {layer_type} times {value:.6g}"
        )
    return Bake(source.placed(tensors))


def layout(source: Bakeable, to: str) -> Bake:
    """Return the bake that changes the order of the rotary channels, if a key sets this order.

    Raises: LossyExport if there is no such key, because runtimes would rotate the wrong channels; ConfigError for an
    invalid order.
    """
    edit = source.layout_edit(to)
    return Bake(source.placed(reordered(source.targets, to)), (edit,))


def reordered(targets: FoldTargets, to: str) -> list[TensorEdit]:
    """Return the edits that put the rotary channels of all layers into this order.

    Raises: ConfigError if they already have this order.
    """
    tensors: list[TensorEdit] = []
    for layer_type, entry in targets.rotating.items():
        tensors += ops.layout_edits(targets, layer_type, to, f"rotary channels from {entry.layout} to {to}")
    return tensors


def drop_pairs(source: Bakeable, pairs: Iterable[int], mode: str) -> Bake:
    """Return the bake that stops pairs of the full-attention layers, or mutes them in the key rows.

    It is lossy by design.
    mode: still sets the frequency to zero, or so low that the pair does not rotate. mute sets the key rows to zero.
    Raises: ConfigError for an invalid mode or pair; LossyExport if the keys cannot store such a table.
    """
    targets, layer_type, dropped = source.targets, names.FULL_ATTENTION, sorted(set(pairs))
    if mode == "mute":
        muted = ops.mute_edits(targets, layer_type, dropped, f"pairs {', '.join(map(str, dropped))} muted")
        return Bake(source.placed(muted), (), (DROP_NOTE,))
    if mode != "still":
        raise ConfigError(f"{mode!r} must be still or mute", where="--mode")
    entry = targets.rope.entries[layer_type]
    ops.kept_first(entry.rotary_dim, dropped, entry.layout)  # checks the numbers
    tensors, edits = source.still(dropped)
    return Bake(source.placed(tensors), tuple(edits), (DROP_NOTE,))


def rearch_llama(source: Bakeable) -> Bake:
    """Return the bake that turns a qwen2 file into a llama file, which supports frequency vectors.

    It renames keys and reorders rows.
    Raises: LossyExport for any other architecture, or a tensor that llama files do not have.
    """
    targets, model = source.targets, source.checkpoint
    assert isinstance(model, GgufCheckpoint)
    if model.name != "qwen2":
        raise LossyExport(f"is a {model.name} file; only qwen2 files compute the same as llama", where=targets.where)
    if "output.bias" in model.tensors:
        raise LossyExport("has output.bias, which llama.cpp ignores in llama files", where=targets.where)
    edits = model.edits_of(_renamed(model, "qwen2", "llama"))
    (layer_type,) = targets.rope.entries
    target = targets.rope.with_entry(layer_type, replace(targets.rope.entries[layer_type], layout="interleaved"))
    difference = target.disagreement(computed(source.checkpoint.edited(edits)))
    if difference:
        raise LossyExport(f"as a llama file it would compute something else: {difference}", where=targets.where)
    tensors = ops.layout_edits(targets, layer_type, "interleaved", "rows from the order of qwen2 to the order of llama")
    return Bake(source.placed(tensors), tuple(edits))


def _renamed(model: GgufCheckpoint, old: str, new: str) -> Patch:
    """Return the patch that changes the architecture of a model in all its keys."""
    keys = {key: value for key, value in model.values.items() if key.startswith(f"{old}.")}
    values = {f"{new}.{key.removeprefix(f'{old}.')}": value for key, value in keys.items()}
    return Patch({archs.ARCHITECTURE: Value.of(ValueType.STR, new), **values}, frozenset(keys))


# --- shared by several bakes


def _one_factor(targets: FoldTargets, entry: LayerRope) -> float:
    assert entry.table is not None
    factors = {regime.attention_factor for regime in entry.table.regimes}
    if len(factors) > 1:
        raise LossyExport(
            f"the attention factor depends on the length ({', '.join(f'{f:.6g}' for f in sorted(factors))}), but "
            "weights cannot", where=targets.where,
        )  # fmt: skip
    return factors.pop()


def _after(
    source: Bakeable, edits: Sequence[FileEdit], factors: Mapping[str, float], softmax: float | None = None
) -> RopeSet:
    """Return the tables of the runtime after the edits.

    Checks that only these factors and this multiplier change. The factor of layers without a separate key may also
    change, and so may MLA's multiplier of the whole score.
    Raises: LossyExport with the difference.
    """
    after = computed(source.checkpoint.edited(edits))
    target = source.targets.rope
    for layer_type, entry in source.targets.rotating.items():
        if layer_type not in source.own_factors:
            target = target.with_entry(layer_type, entry.with_factor(after.entries[layer_type].attention_factor))
        elif layer_type in factors:
            target = target.with_entry(layer_type, entry.with_factor(factors[layer_type]))
        if source.score_follows and softmax is None:
            follows = after.entries[layer_type].softmax_multiplier
            target = target.with_entry(layer_type, replace(target.entries[layer_type], softmax_multiplier=follows))
    if softmax is not None:
        layer_type, _ = source.targets.leading
        target = target.with_entry(layer_type, replace(target.entries[layer_type], softmax_multiplier=softmax))
    check_computed(source.checkpoint, edits, target)
    return after


def _is_one(factor: float) -> bool:
    return math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE)
