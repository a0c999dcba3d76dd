"""The bakes of a GGUF model, each as tensor edits with the change of its metadata that belongs to them.

Plans what changes; writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import ConfigError, LossyExport
from ropetool.families.rows import K, Q
from ropetool.files.gguf import Patch
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet
from ropetool.runtimes.llama_cpp.layers import Model
from ropetool.weights import gguf_settings as settings
from ropetool.weights import operations as ops
from ropetool.weights.dropping import DROP_NOTE
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.gguf_fold_targets import decoded, gguf_view
from ropetool.weights.gguf_scales import on_blocks
from ropetool.weights.residual import without_residual

SHIFT_NOTE = "cos and sin have length 1 now: shifting cached keys turns them and changes no size"


@dataclass(frozen=True)
class GgufBake:
    """What a bake changes: the rows of tensors, the keys and vectors that belong to them, and what to know."""

    tensors: tuple[TensorEdit, ...]
    patch: Patch = field(default_factory=Patch)
    notes: tuple[str, ...] = ()


def attention_factor(targets: FoldTargets, model: GgufCheckpoint, side: str = K, *, bake_dtype: str = "") -> GgufBake:
    """Return the bake of the factor on cos and sin: its square into keys or queries, or the factor into both.

    Raises: ConfigError if the factor is 1 already; LossyExport, UnsupportedDtype where the weights cannot hold it.
    """
    factors = {
        kind: _one_factor(targets, entry) for kind, entry in targets.rope.entries.items() if entry.table is not None
    }
    if all(settings.is_one(factor) for factor in factors.values()):
        raise ConfigError("the attention factor is 1 already: there is nothing to bake", where=targets.where)
    entry = targets.rope.entries[_leading(targets)]
    patch = settings.factor_patch(model, entry, 1.0, math.sqrt(entry.softmax_multiplier))
    after = _checked(targets, decoded(model.after(patch)), softmax=entry.softmax_multiplier)
    tensors: list[TensorEdit] = []
    for kind, factor in factors.items():
        left = after.entries[kind].attention_factor
        if not settings.is_one(factor / left):
            pairs = targets.rope.entries[kind].rotary_dim // 2
            reason = f"attention factor {factor / left:.6g} of {kind}"
            tensors += ops.gain_edits(targets, kind, [(factor / left) ** 2] * pairs, side, reason)
    return GgufBake(on_blocks(tensors, targets, bake_dtype), patch)


def shift_safe(targets: FoldTargets, model: GgufCheckpoint, side: str = K, *, bake_dtype: str = "") -> GgufBake:
    """Return the bake after which llama.cpp multiplies cos and sin by 1, in every layer that rotates.

    A context shift, cache reuse and self-extend turn cached keys by the same cos and sin once more: only with length 1
    do the keys keep their size (src/llama-kv-cache.cpp, build_rope_shift).
    Raises: as `attention_factor`; LossyExport where some layers would keep a factor.
    """
    bake = attention_factor(targets, model, side, bake_dtype=bake_dtype)
    for kind, entry in decoded(model.after(bake.patch)).entries.items():
        if not settings.is_one(entry.attention_factor):
            raise LossyExport(
                f"{kind} would keep the factor {entry.attention_factor:.6g}: llama.cpp has one key for all layers, and "
                "scales them differently", where=targets.where,
            )  # fmt: skip
    return replace(bake, notes=(*bake.notes, SHIFT_NOTE))


def softmax_scale(targets: FoldTargets, model: GgufCheckpoint, side: str = "", *, bake_dtype: str = "") -> GgufBake:
    """Return the bake of MLA's multiplier of the whole score: into the query latent's norm, else all query rows.

    side: norm or q; by default norm where the model has a query latent.
    Raises: ConfigError if the multiplier is 1 already, or for another side; LossyExport, UnsupportedDtype.
    """
    kind = _leading(targets)
    entry = targets.rope.entries[kind]
    multiplier = entry.softmax_multiplier
    if settings.is_one(multiplier):
        raise ConfigError("the softmax multiplier is 1 already: there is nothing to bake", where=targets.where)
    patch = settings.factor_patch(model, entry, _one_factor(targets, entry), 1.0)
    _checked(targets, decoded(model.after(patch)), softmax=1.0)
    chosen = side or _whole_side(targets)
    tensors = _score(targets, kind, multiplier, chosen, f"softmax multiplier {multiplier:.6g}")
    return GgufBake(on_blocks(tensors, targets, bake_dtype), patch)


def pair_gain(
    targets: FoldTargets, gains: Mapping[str, Sequence[float]], side: str = K, *, bake_dtype: str = ""
) -> GgufBake:
    """Return the bake of one gain per rotary pair, by kind of layer; the metadata stays as it is."""
    tensors: list[TensorEdit] = []
    for kind, values in gains.items():
        tensors += ops.gain_edits(targets, kind, values, side, f"gain of each rotary pair of {kind}")
    return GgufBake(on_blocks(tensors, targets, bake_dtype))


def score_gain(
    targets: FoldTargets, multipliers: Mapping[str, float], side: str = "", *, bake_dtype: str = ""
) -> GgufBake:
    """Return the bake of a multiplier of the whole score, by kind of layer; the metadata stays as it is.

    side: k, q or both, or norm for MLA's query latent; by default the one that is exact everywhere, k or MLA's norm.
    """
    tensors: list[TensorEdit] = []
    chosen = side or (_whole_side(targets) if targets.family.mla else K)
    for kind, value in multipliers.items():
        tensors += _score(targets, kind, value, chosen, f"the score of {kind} times {value:.6g}")
    return GgufBake(on_blocks(tensors, targets, bake_dtype))


def drop_pairs(
    targets: FoldTargets, model: GgufCheckpoint, pairs: Iterable[int], mode: str, *, bake_dtype: str = ""
) -> GgufBake:
    """Return the bake that lets pairs of the full-attention layers stand still, or mutes them in the key rows.

    still: by frequency vectors, whose divisors at these pairs become so large that nothing turns. Lossy by design.
    Raises: ConfigError for another mode or pair; LossyExport where llama.cpp takes no vectors.
    """
    kind = names.FULL_ATTENTION
    gone = sorted(set(pairs))
    shown = ", ".join(map(str, gone))
    if mode == "mute":
        tensors = ops.mute_edits(targets, kind, gone, f"pairs {shown} muted")
        return GgufBake(on_blocks(tensors, targets, bake_dtype), notes=(DROP_NOTE,))
    if mode != "still":
        raise ConfigError(f"{mode!r} is neither still nor mute", where="--mode")
    entry = targets.rope.entries[kind]
    ops.kept_first(entry.rotary_dim, gone, entry.layout)  # checks the numbers
    return GgufBake((), Patch(tensors=settings.stopped(model, entry.rotary_dim // 2, gone)), (DROP_NOTE,))


def layout(targets: FoldTargets, to: str) -> GgufBake:
    """Refuse another order of the rotary channels: the architecture's name alone tells llama.cpp in which it rotates.

    Raises: LossyExport.
    """
    raise LossyExport(
        f"llama.cpp rotates the channels of these files in the {targets.rope.entries[_leading(targets)].layout} order, "
        f"whatever the file says; in the {to} one it would misread them", where=targets.where,
        try_="ropetool bake FILE rearch --to llama, for qwen2 files",
    )  # fmt: skip


def rearch_llama(model: GgufCheckpoint) -> GgufBake:
    """Return the bake that makes a qwen2 file one of llama, which takes frequency vectors: renamed keys, moved rows.

    Raises: LossyExport for another architecture, or a tensor that llama has no place for.
    """
    targets, reader = gguf_view(model), Model.of(model)
    if reader.arch.name != "qwen2":
        raise LossyExport(
            f"is a {reader.arch.name} file; llama's graph computes the same only for qwen2", where=targets.where
        )
    if "output.bias" in model.tensors:
        raise LossyExport("has output.bias, which llama.cpp does not read for llama", where=targets.where)
    patch = settings.renamed(model, "qwen2", "llama")
    (kind,) = targets.rope.entries
    found = decoded(model.after(patch))
    difference = targets.rope.with_entry(kind, replace(targets.rope.entries[kind], layout="interleaved")).disagreement(
        found
    )
    if difference:
        raise LossyExport(f"as llama it would compute something else: {difference}", where=targets.where)
    tensors = ops.layout_edits(targets, kind, "interleaved", "rows from qwen2's order to llama's")
    return GgufBake(on_blocks(tensors, targets), patch)


# --- the same for several bakes


def _leading(targets: FoldTargets) -> str:
    """Return the kind of layer that the metadata speaks of first: full attention, or the only one that rotates."""
    rotating = [kind for kind, entry in targets.rope.entries.items() if entry.table is not None]
    if not rotating:
        raise LossyExport("no layer rotates", where=targets.where)
    return names.FULL_ATTENTION if names.FULL_ATTENTION in rotating else rotating[0]


def _one_factor(targets: FoldTargets, entry: LayerRope) -> float:
    assert entry.table is not None
    factors = {regime.attention_factor for regime in entry.table.regimes}
    if len(factors) > 1:
        raise LossyExport("the attention factor depends on the length, weights do not", where=targets.where)
    return factors.pop()


def _checked(targets: FoldTargets, after: RopeSet, *, softmax: float) -> RopeSet:
    """Return what llama.cpp reads after the patch, if it differs by factors alone.

    Raises: LossyExport with the difference.
    """
    difference = without_residual(targets.rope, after).disagreement(after)
    left = after.entries[_leading(targets)].softmax_multiplier
    if not difference and not math.isclose(left, softmax, rel_tol=TABLE_TOLERANCE):
        difference = f"the whole score would be multiplied by {left:.6g} instead of {softmax:.6g}"
    if difference:
        raise LossyExport(f"llama.cpp would not read the rest from the metadata: {difference}", where=targets.where)
    return after


def _whole_side(targets: FoldTargets) -> str:
    return ops.NORM if targets.steps.score and targets.config.get("q_lora_rank") else Q


def _score(targets: FoldTargets, kind: str, multiplier: float, side: str, reason: str) -> list[TensorEdit]:
    if targets.family.mla and side not in (Q, ops.NORM):
        raise ConfigError(
            "MLA's keys stand transposed in attn_k_b in a GGUF file: the whole score goes into the queries",
            where="--side", try_="--side norm or --side q",
        )  # fmt: skip
    return ops.score_edits(targets, kind, multiplier, side, reason)
