"""DeepSeek V2 and V3: queries, keys and values through latents, experts behind some dense layers.

Source: transformers 5.23.0, models/deepseek_v2 and deepseek_v3; src/models/deepseek2.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropetool.errors import ConfigError
from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_export.shapes.base import MAX_EXPERTS, Count, Family, Model
from ropetool.gguf_export.shapes.dense import NORMS
from ropetool.gguf_export.shapes.orders import latent_keys, latent_values
from ropetool.gguf_export.shapes.rows import Row, Rows, experts, gated, linear, vector
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp.architectures import MAX_LAYERS

SOFTMAX, SIGMOID = 1, 2  # llama_expert_gating_func_type in src/llama-hparams.h
WITHOUT_QUERY_LATENT = (26, 27)  # layers of the Lite models, which llama.cpp knows by that number
LATENT_EPS = 1e-6  # of q_a_layernorm and kv_a_layernorm, whatever the config says
# Random logits move by half of eps to five times eps over the mean square of a latent: by 1e-4 here where that is 2.
MOST_EPS = 1e-4
LATENT_SHAPE = "both_sides latent"
ATTENTION: Rows = (
    *linear("self_attn.q_proj", "attn_q", "whole_queries", "hidden", when="not query_latent"),
    *linear("self_attn.q_a_proj", "attn_q_a", "query_latent", "hidden", when="query_latent"),
    vector("self_attn.q_a_layernorm", "attn_q_a_norm", "query_latent", "query_latent"),
    *linear("self_attn.q_b_proj", "attn_q_b", "whole_queries", "query_latent", when="query_latent"),
    *linear("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "latent_and_key", "hidden"),
    vector("self_attn.kv_a_layernorm", "attn_kv_a_norm", "latent"),
    Row("self_attn.kv_b_proj.weight", "attn_k_b.weight", LATENT_SHAPE, order=latent_keys, written="heads latent plain"),
    Row(
        "self_attn.kv_b_proj.weight", "attn_v_b.weight", LATENT_SHAPE, order=latent_values, written="heads value latent"
    ),
    *linear("self_attn.o_proj", "attn_output", "hidden", "all_values"),
)
SPARSE: Rows = (
    *gated(when="dense"),
    *linear("mlp.gate", "ffn_gate_inp", "experts", "hidden", when="sparse"),
    *experts("mlp.experts", ("gate_proj", "up_proj", "down_proj"), "expert_intermediate", when="sparse"),
    *gated("mlp.shared_experts", "_shexp", "all_shared", when="sparse"),
)
CORRECTION = Row("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", "experts", "sparse")


def _derived(counts: Mapping[str, int]) -> Mapping[str, int]:
    c = counts
    whole = c["plain"] + c["head_dim"]
    return {
        "whole_head": whole, "whole_queries": c["heads"] * whole, "all_values": c["heads"] * c["value"],
        "both_sides": c["heads"] * (c["plain"] + c["value"]), "latent_and_key": c["latent"] + c["head_dim"],
        "all_shared": c["shared"] * c["expert_intermediate"],
    }  # fmt: skip


def _keys(model: Model, gating: int, scale: float) -> dict[str, Value]:
    """Return the keys of the latents and of the choice among experts."""
    c = model.counts
    numbers = {"leading_dense_block_count": c["dense_layers"], "expert_gating_func": gating}
    if c["layers"] not in WITHOUT_QUERY_LATENT or c["query_latent"]:
        numbers["attention.q_lora_rank"] = c["query_latent"]
    found = {key: Value.of(ValueType.U32, number) for key, number in numbers.items()}
    return found | {"expert_weights_scale": Value.of(ValueType.F32, model.number("routed_scaling_factor", scale))}


def _v2_keys(model: Model) -> Mapping[str, Value]:
    return _keys(model, SOFTMAX, 1.0)


def _v3_keys(model: Model) -> Mapping[str, Value]:
    c, normed = model.counts, model.config.get("norm_topk_prob", True) is True
    numbers = {"expert_group_count": c["groups"], "expert_group_used_count": c["groups_used"]}
    # All groups is the same choice as no groups, and llama.cpp aborts on it (src/llama-model.cpp).
    groups = numbers if c["groups_used"] < c["groups"] else {}
    return {
        **_keys(model, SIGMOID, 2.5), "expert_weights_norm": Value.of(ValueType.BOOL, normed),
        **{key: Value.of(ValueType.U32, number) for key, number in groups.items()},
    }  # fmt: skip


def _latent_eps(model: Model) -> tuple[str, ...]:
    """Return a note on norms of latents to which llama.cpp adds another number.

    Raises: LossyExport for one that is far off.
    """
    eps = model.number("rms_norm_eps", LATENT_EPS)
    if eps == LATENT_EPS:
        return ()
    note = f"rms_norm_eps is {eps:g}; llama.cpp adds it in the norms of the latents too, where transformers adds {LATENT_EPS:g}"
    if eps > MOST_EPS:
        raise model.lossy(note)
    return (note,)


def _check(model: Model) -> None:
    _latent_eps(model)
    if model.counts["query_latent"] and model.layers in WITHOUT_QUERY_LATENT:
        raise model.lossy(f"q_lora_rank is set; llama.cpp takes a deepseek2 of {model.layers} layers to have none")
    if model.config.get("rope_interleave", True) is False:
        raise model.lossy(
            "rope_interleave is false; llama.cpp pairs neighbouring channels of deepseek2", "ropetool bake layout"
        )


def _check_v2(model: Model) -> None:
    _check(model)
    c, method = model.counts, model.config.get("topk_method", "greedy")
    if method != "greedy" and c["groups"] > max(1, c["groups_used"]):
        raise model.lossy(
            "topk_method is group_limited_greedy; llama.cpp ranks groups by their two best experts, transformers by the best"
        )


def _check_v3(model: Model) -> None:
    """Refuse groups that transformers does not compute, and llama.cpp aborts on."""
    _check(model)
    experts, groups, used = (model.counts[name] for name in ("experts", "groups", "groups_used"))
    if groups > 1 and (experts % groups or experts < 2 * groups or not 0 < used <= groups):
        raise ConfigError(
            f"{experts} experts do not make {groups} groups of two and more, of which {used} are used",
            where=f"{model.where}: n_group, topk_group",
        )


_COUNTS = {
    "query_latent": Count("q_lora_rank", 1536, least=0, null=0), "latent": Count("kv_lora_rank", 512),
    "plain": Count("qk_nope_head_dim", 128), "value": Count("v_head_dim", 128),
    "expert_intermediate": Count("moe_intermediate_size"), "shared": Count("n_shared_experts", most=MAX_EXPERTS),
    "experts": Count("n_routed_experts", None, ("num_experts",), MAX_EXPERTS), "used": Count("num_experts_per_tok", most=MAX_EXPERTS),
    "dense_layers": Count("first_k_dense_replace", 0, least=0),
    "groups": Count("n_group", 0, least=0, null=0), "groups_used": Count("topk_group", 0, least=0, null=0),
}  # fmt: skip
_V3_COUNTS = {
    **_COUNTS, "experts": Count("n_routed_experts", None, ("num_local_experts",), MAX_EXPERTS),
    "dense_layers": Count("first_k_dense_replace", 3, least=0), "groups": Count("n_group", 8, least=0, null=0),
    "groups_used": Count("topk_group", 4, least=0, null=0),
    "drafts": Count("num_nextn_predict_layers", 1, ("num_mtp_layers",), MAX_LAYERS, least=0),
}  # fmt: skip
V2 = Family(
    (*NORMS, *ATTENTION, *SPARSE), counts=_COUNTS, derived=_derived, output_bias=False,
    sizes={
        keys.KEY_LENGTH: "latent_and_key", "attention.value_length": "latent", keys.HEAD_COUNT_KV: "one",
        "attention.kv_lora_rank": "latent", "attention.key_length_mla": "whole_head",
        "attention.value_length_mla": "value", "expert_feed_forward_length": "expert_intermediate",
        "expert_count": "experts", "expert_used_count": "used", "expert_shared_count": "shared",
    },
    fixed={"mlp_bias": (False, None)}, more=_v2_keys, check=_check_v2, caveats=_latent_eps,
)  # fmt: skip
FAMILIES = {
    "deepseek_v2": V2,
    "deepseek_v3": replace(
        V2, layer=(*V2.layer, CORRECTION), counts=_V3_COUNTS, more=_v3_keys, check=_check_v3, fixed={},
    ),
}  # fmt: skip
