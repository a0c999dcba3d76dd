"""The bakes of a checkpoint of either format, each as tensor edits with the edits of keys that belong to them.

Plans what changes; writes nothing.
"""

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
    """What a bake changes: the rows of tensors, the keys and vectors that belong to them, and what to know."""

    tensors: tuple[TensorEdit, ...] = ()
    edits: tuple[FileEdit, ...] = ()
    notes: tuple[str, ...] = ()


def attention_factor(source: Bakeable, side: str = K, *, config_only: bool = False) -> Bake:
    """Return the bake of the factor on cos and sin: its square into keys or queries, or the factor into both.

    Layers without a key of their own keep what they get by those of others, and their weights take the rest.
    config_only: into the config key that multiplies the score, where the family has one (granite).
    Raises: ConfigError if the factor is 1 already; LossyExport, UnsupportedDtype where the weights cannot hold it.
    """
    targets = source.targets
    factors = {kind: _one_factor(targets, entry) for kind, entry in targets.rotating.items()}
    asked = {kind: factor for kind, factor in factors.items() if not _is_one(factor)}
    if not asked:
        raise ConfigError("the attention factor is 1 already: there is nothing to bake", where=targets.where)
    edits = source.factor_edits(dict.fromkeys(asked, 1.0), keep_softmax=True)
    after = _after(source, edits, dict.fromkeys(asked, 1.0))
    if config_only:
        return Bake((), (*edits, source.score_edit(asked)))
    tensors: list[TensorEdit] = []
    for kind, factor in factors.items():
        rest = factor / after.entries[kind].attention_factor
        if not _is_one(rest):
            pairs = targets.rope.entries[kind].rotary_dim // 2
            tensors += ops.gain_edits(targets, kind, [rest**2] * pairs, side, f"attention factor {rest:.6g} of {kind}")
        score = targets.rope.entries[kind].softmax_multiplier / after.entries[kind].softmax_multiplier
        if not _is_one(score):
            reason = f"softmax multiplier {score:.6g}, which has the factor's key"
            tensors += ops.score_edits(targets, kind, score, ops.query_side(targets), reason)
    return Bake(source.placed(tensors), tuple(edits))


def shift_safe(source: Bakeable, side: str = K) -> Bake:
    """Return the bake after which llama.cpp multiplies cos and sin by 1, in every layer that rotates.

    A context shift, cache reuse and self-extend turn cached keys by the same cos and sin once more: only with length 1
    do the keys keep their size (src/llama-kv-cache.cpp, build_rope_shift).
    Raises: as `attention_factor`; LossyExport where some layers would keep a factor.
    """
    bake = attention_factor(source, side)
    for kind, entry in computed(source.checkpoint.edited(bake.edits)).entries.items():
        if not _is_one(entry.attention_factor):
            raise LossyExport(
                f"{kind} would keep the factor {entry.attention_factor:.6g}: llama.cpp scales the layer types differently, but "
                "has one key for all of them", where=source.targets.where,
            )  # fmt: skip
    return replace(bake, notes=(*bake.notes, SHIFT_NOTE))


def softmax_scale(source: Bakeable, side: str = "") -> Bake:
    """Return the bake of MLA's multiplier of the whole score: into the query latent's norm, else all query or key rows.

    side: norm, q, k or both; by default norm where the model has a query latent, else q. The factor on cos and sin
    is asked for as before.
    Raises: ConfigError if the multiplier is 1 already; LossyExport, UnsupportedDtype where the weights cannot hold it.
    """
    targets = source.targets
    kind, entry = targets.leading
    multiplier = entry.softmax_multiplier
    if _is_one(multiplier):
        raise ConfigError("the softmax multiplier is 1 already: there is nothing to bake", where=targets.where)
    factors = {kind: _one_factor(targets, entry)}
    edits = source.factor_edits(factors, keep_softmax=False)
    _after(source, edits, factors, softmax=1.0)
    reason = f"softmax multiplier {multiplier:.6g}"
    tensors = ops.score_edits(targets, kind, multiplier, side or ops.query_side(targets), reason)
    return Bake(source.placed(tensors), tuple(edits))


def pair_gain(source: Bakeable, gains: Mapping[str, Sequence[float]], side: str = K) -> Bake:
    """Return the bake of one gain per rotary pair, by kind of layer; the keys stay as they are."""
    tensors: list[TensorEdit] = []
    for kind, values in gains.items():
        tensors += ops.gain_edits(source.targets, kind, values, side, f"gain of each rotary pair of {kind}")
    return Bake(source.placed(tensors))


def score_gain(source: Bakeable, multipliers: Mapping[str, float], side: str = "") -> Bake:
    """Return the bake of a multiplier of the whole score, by kind of layer; the keys stay as they are.

    side: k, q or both, or norm for MLA's query latent; by default k, or where keys cannot take it as softmax_scale.
    """
    tensors: list[TensorEdit] = []
    chosen = side or ops.score_side(source.targets)
    for kind, value in multipliers.items():
        tensors += ops.score_edits(source.targets, kind, value, chosen, f"the score of {kind} times {value:.6g}")
    return Bake(source.placed(tensors))


def layout(source: Bakeable, to: str) -> Bake:
    """Return the bake that changes the order of the rotary channels, where a key says which it is.

    Raises: LossyExport where none does: runtimes would rotate the wrong channels; ConfigError for another order.
    """
    edit = source.layout_edit(to)
    return Bake(source.placed(reordered(source.targets, to)), (edit,))


def reordered(targets: FoldTargets, to: str) -> list[TensorEdit]:
    """Return the edits that put the rotary channels of all layers into this order.

    Raises: ConfigError if that is the order they have.
    """
    tensors: list[TensorEdit] = []
    for kind, entry in targets.rotating.items():
        tensors += ops.layout_edits(targets, kind, to, f"rotary channels from {entry.layout} to {to}")
    return tensors


def drop_pairs(source: Bakeable, pairs: Iterable[int], mode: str) -> Bake:
    """Return the bake that lets pairs of the full-attention layers stand still, or mutes them in the key rows.

    still: their frequency becomes zero, or so small that nothing turns. Lossy by design.
    Raises: ConfigError for another mode or pair; LossyExport where the keys cannot say such a table.
    """
    targets, kind, gone = source.targets, names.FULL_ATTENTION, sorted(set(pairs))
    if mode == "mute":
        muted = ops.mute_edits(targets, kind, gone, f"pairs {', '.join(map(str, gone))} muted")
        return Bake(source.placed(muted), (), (DROP_NOTE,))
    if mode != "still":
        raise ConfigError(f"{mode!r} must be still or mute", where="--mode")
    entry = targets.rope.entries[kind]
    ops.kept_first(entry.rotary_dim, gone, entry.layout)  # checks the numbers
    tensors, edits = source.still(gone)
    return Bake(source.placed(tensors), tuple(edits), (DROP_NOTE,))


def rearch_llama(source: Bakeable) -> Bake:
    """Return the bake that makes a qwen2 file one of llama, which takes frequency vectors: renamed keys, moved rows.

    Raises: LossyExport for another architecture, or a tensor that llama has no place for.
    """
    targets, model = source.targets, source.checkpoint
    assert isinstance(model, GgufCheckpoint)
    if model.name != "qwen2":
        raise LossyExport(f"is a {model.name} file; only qwen2 files compute the same as llama", where=targets.where)
    if "output.bias" in model.tensors:
        raise LossyExport("has output.bias, which llama.cpp ignores in llama files", where=targets.where)
    edits = model.edits_of(_renamed(model, "qwen2", "llama"))
    (kind,) = targets.rope.entries
    wanted = targets.rope.with_entry(kind, replace(targets.rope.entries[kind], layout="interleaved"))
    difference = wanted.disagreement(computed(source.checkpoint.edited(edits)))
    if difference:
        raise LossyExport(f"as a llama file it would compute something else: {difference}", where=targets.where)
    tensors = ops.layout_edits(targets, kind, "interleaved", "rows from the order of qwen2 to the order of llama")
    return Bake(source.placed(tensors), tuple(edits))


def _renamed(model: GgufCheckpoint, old: str, new: str) -> Patch:
    """Return the patch that gives a model another architecture's name, in all its keys."""
    keys = {key: value for key, value in model.values.items() if key.startswith(f"{old}.")}
    values = {f"{new}.{key.removeprefix(f'{old}.')}": value for key, value in keys.items()}
    return Patch({archs.ARCHITECTURE: Value.of(ValueType.STR, new), **values}, frozenset(keys))


# --- the same for several bakes


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
    """Return what the runtime computes after the edits: as before, but for these factors and this softmax multiplier.

    Layers whose factor has no key of its own may get another one, and so may MLA's whole score.
    Raises: LossyExport with the difference.
    """
    after = computed(source.checkpoint.edited(edits))
    target = source.targets.rope
    for kind, entry in source.targets.rotating.items():
        if kind not in source.own_factors:
            target = target.with_entry(kind, entry.with_factor(after.entries[kind].attention_factor))
        elif kind in factors:
            target = target.with_entry(kind, entry.with_factor(factors[kind]))
        if source.score_follows and softmax is None:
            follows = after.entries[kind].softmax_multiplier
            target = target.with_entry(kind, replace(target.entries[kind], softmax_multiplier=follows))
    if softmax is not None:
        kind, _ = source.targets.leading
        target = target.with_entry(kind, replace(target.entries[kind], softmax_multiplier=softmax))
    check_computed(source.checkpoint, edits, target)
    return after


def _is_one(factor: float) -> bool:
    return math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE)
