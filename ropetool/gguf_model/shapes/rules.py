"""Rules that an export table cannot express: checks that compare settings, and keys that depend on several sizes.

A family's file names its rules under `rules`. Source: transformers 5.23.0, models/*/configuration_*.py and
modeling_*.py; src/models/*.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.errors import ConfigError
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_model.shapes.base import Filed, ModelShape, Rules
from ropetool.rope.tables import is_number

# --- cohere

COHERE_NORMS = 64  # number of layers; from here on, llama.cpp expects norms of queries and keys in a command-r


def _check_cohere(model: ModelShape) -> None:
    normed = model.switches["use_qk_norm"]
    if normed != (model.layers >= COHERE_NORMS):
        raise model.lossy(
            f"use_qk_norm is {str(normed).lower()}, but the model has {model.layers} layers; llama.cpp uses these norms if "
            f"and only if a command-r model has {COHERE_NORMS} layers or more"
        )


def _cohere_norms(filed: Filed) -> Mapping[str, Any]:
    return {"use_qk_norm": filed.sizes["layers"] >= COHERE_NORMS}


# --- gemma

LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, which llama.cpp identifies by this number


def _divided(sizes: Mapping[str, int], arch: str) -> int:
    """Return the number whose square root llama.cpp divides a gemma's scores by."""
    return sizes["hidden"] // sizes["heads"] if sizes["layers"] == LARGEST[arch] else sizes["head_dim"]


def _check_score(model: ModelShape) -> None:
    """Raise LossyExport if query_pre_attn_scalar is not the number that llama.cpp uses."""
    scalar, divided = model.number("query_pre_attn_scalar", 256.0), _divided(model.counts, model.arch)
    if scalar != divided:
        raise model.lossy(
            f"query_pre_attn_scalar is {scalar:g}; llama.cpp uses {divided} for a {model.arch} of this size"
        )


def _score(filed: Filed) -> Mapping[str, Any]:
    return {"query_pre_attn_scalar": _divided(filed.sizes, filed.arch)}


def _check_capped(model: ModelShape) -> None:
    _check_score(model)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if model.config.get(key, 0) is None:
            raise model.lossy(f"{key} is null; llama.cpp always caps the scores and logits of gemma2")


# --- experts


def _check_last_sparse(model: ModelShape) -> None:
    """Raise LossyExport if the experts end before the last layer."""
    last = model.config.get("moe_layer_end_index")
    if last not in (None, -1) and (not isinstance(last, int) or last < model.layers - 1):
        raise model.lossy(
            f"moe_layer_end_index is {shown(last)}; llama.cpp assumes experts in all layers from moe_layer_start_index on"
        )


def _of_shared(filed: Filed) -> Mapping[str, Any]:
    """Return the number of experts in the shared one. A hy_v3 file has only the size of the shared expert."""
    one, whole = filed.sizes.get("expert_intermediate", 0), filed.sizes.get("all_shared", 0)
    return {"num_shared_experts": whole // one} if one else {}


WITHOUT_NORMS = 128  # experts of the llama4 model without norms of queries and keys in llama.cpp


def _check_llama4(model: ModelShape) -> None:
    """Raise LossyExport if norms or experts are not where llama.cpp assumes them."""
    normed, step = model.config.get("use_qk_norm", True) is True, model.counts["step"]
    if normed != (model.experts != WITHOUT_NORMS):
        raise model.lossy(
            f"use_qk_norm is {str(normed).lower()}, but the model has {model.experts} experts; llama.cpp normalises queries and "
            f"keys of a llama4 model unless it has {WITHOUT_NORMS} experts"
        )
    routed = [layer for layer in range(model.layers) if (layer + 1) % step == 0]
    if model.config.get("moe_layers") not in (None, routed):
        raise model.lossy(
            f"moe_layers is {shown(model.config['moe_layers'])}; llama.cpp assumes experts in every layer whose "
            f"number is a multiple of interleave_moe_layer_step, {step}"
        )


def _of_llama4(filed: Filed) -> Mapping[str, Any]:
    return {"use_qk_norm": filed.sizes.get("experts") != WITHOUT_NORMS}


# --- DeepSeek: queries, keys and values through latents, experts after some dense layers

SOFTMAX, SIGMOID = 1, 2  # llama_expert_gating_func_type in src/llama-hparams.h
WITHOUT_QUERY_LATENT = (26, 27)  # layers of the Lite models, which llama.cpp identifies by this number
KANANA = (48, 128256)  # layers and vocabulary of Kanana, the other model without a latent of queries
LATENT_EPS = 1e-6  # of q_a_layernorm and kv_a_layernorm; the config does not affect it
# Random logits change by 0.5 to 5 times eps / (mean square of a latent). With a mean square of 2, this is about 1e-4.
MOST_EPS = 1e-4


def _without_query_latent(sizes: Mapping[str, int]) -> bool:
    """Return whether llama.cpp assumes that a deepseek2 of these sizes has no latent of queries."""
    return sizes["layers"] in WITHOUT_QUERY_LATENT or (sizes["layers"], sizes["vocabulary"]) == KANANA


def _query_latent_key(model: ModelShape) -> dict[str, Value]:
    c = model.counts
    if _without_query_latent(c) and not c["query_latent"]:
        return {}
    return {"attention.q_lora_rank": Value.of(ValueType.U32, c["query_latent"])}


def _latent_keys(model: ModelShape, gating: int, scale: float) -> dict[str, Value]:
    """Return the keys of the latents and of the selection of experts."""
    c = model.counts
    numbers = {"leading_dense_block_count": c["dense_layers"], "expert_gating_func": gating}
    values = {key: Value.of(ValueType.U32, number) for key, number in numbers.items()} | _query_latent_key(model)
    return values | {"expert_weights_scale": Value.of(ValueType.F32, model.number("routed_scaling_factor", scale))}


def _v2_keys(model: ModelShape) -> Mapping[str, Value]:
    return _latent_keys(model, SOFTMAX, 1.0)


def _v3_keys(model: ModelShape) -> Mapping[str, Value]:
    c, normed = model.counts, model.config.get("norm_topk_prob", True) is True
    numbers = {"expert_group_count": c["groups"], "expert_group_used_count": c["groups_used"]}
    # A choice among all groups is the same as no groups, and llama.cpp aborts on it (src/llama-model.cpp), so the keys
    # are left out.
    groups = numbers if c["groups_used"] < c["groups"] else {}
    return {
        **_latent_keys(model, SIGMOID, 2.5), "expert_weights_norm": Value.of(ValueType.BOOL, normed),
        **{key: Value.of(ValueType.U32, number) for key, number in groups.items()},
    }  # fmt: skip


def _latent_eps(model: ModelShape) -> tuple[str, ...]:
    """Return a note if llama.cpp uses a different eps in the norms of latents.

    Raises: LossyExport if the difference is large.
    """
    eps = model.number("rms_norm_eps", model.table.eps)
    if eps == LATENT_EPS:
        return ()
    note = f"rms_norm_eps is {eps:g}; llama.cpp also uses it for the latent norms, but transformers uses {LATENT_EPS:g} there"
    if eps > MOST_EPS:
        raise model.lossy(note)
    return (note,)


def _of_plain_latents(filed: Filed) -> dict[str, Any]:
    """Return the config keys for the sizes of latents and heads."""
    return {
        "q_lora_rank": filed.keys.get("attention.q_lora_rank"), "qk_rope_head_dim": filed.sizes["head_dim"],
        "num_key_value_heads": filed.sizes["heads"],
        "qk_nope_head_dim": filed.keys.get("attention.key_length_mla", 0) - filed.sizes["head_dim"],
    }  # fmt: skip


def _of_latents(filed: Filed) -> dict[str, Any]:
    """Return the config keys for the GGUF keys of _latent_keys and of expert groups."""
    read = filed.keys.get
    return {
        **_of_plain_latents(filed), "first_k_dense_replace": read("leading_dense_block_count", 0),
        "routed_scaling_factor": read("expert_weights_scale", 1.0), "n_group": read("expert_group_count", 1),
        "topk_group": read("expert_group_used_count", 1),
    }  # fmt: skip


def _of_v2(filed: Filed) -> Mapping[str, Any]:
    return {**_of_latents(filed), "topk_method": "greedy"}


def _of_v3(filed: Filed) -> Mapping[str, Any]:
    return {**_of_latents(filed), "norm_topk_prob": filed.keys.get("expert_weights_norm", False)}


def _check_latents(model: ModelShape) -> None:
    _latent_eps(model)
    if model.counts["query_latent"] and _without_query_latent(model.counts):
        raise model.lossy(
            f"q_lora_rank is set; llama.cpp does not support it for a deepseek2 model of {model.layers} layers"
        )
    if model.config.get("rope_interleave", True) is False:
        raise model.lossy(
            "rope_interleave is false; llama.cpp always pairs neighbouring channels of deepseek2",
            "ropetool bake layout",
        )


def _check_v2(model: ModelShape) -> None:
    _check_latents(model)
    c, method = model.counts, model.config.get("topk_method", "greedy")
    if method != "greedy" and c["groups"] > max(1, c["groups_used"]):
        raise model.lossy(
            "topk_method is group_limited_greedy; llama.cpp ranks groups by their two best experts, transformers by the best one"
        )


def _check_v3(model: ModelShape) -> None:
    """Raise ConfigError for groups that transformers cannot compute; llama.cpp aborts on them."""
    _check_latents(model)
    experts, groups, used = (model.counts[name] for name in ("experts", "groups", "groups_used"))
    if groups > 1 and (experts % groups or experts < 2 * groups or not 0 < used <= groups):
        raise ConfigError(
            f"{experts} experts cannot form {groups} equal groups of at least 2 with {used} of the groups in use",
            where=f"{model.where}: n_group, topk_group",
        )


def _check_eps(model: ModelShape) -> None:
    _latent_eps(model)


def _of_minicpm3(filed: Filed) -> Mapping[str, Any]:
    turning, whole = filed.keys.get("rope.dimension_count"), filed.keys.get("attention.key_length")
    if turning is None or whole is None:
        return {}  # then the class's default sizes apply, which are compared with the sizes that llama.cpp assumes
    return {"qk_rope_head_dim": turning, "qk_nope_head_dim": whole - turning}


# --- gemma4: heads of two sizes

GEMMA4_CAP = 30.0  # f_final_logit_softcapping in src/llama-hparams.h


def _gemma4_heads(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the number of key heads in full-attention layers, and 0 for a missing cap of the logits.

    If values are keys (attention_k_eq_v), full-attention layers have their own number of key heads. A missing cap must
    become 0, because llama.cpp caps at GEMMA4_CAP if a file lacks the key.
    """
    own = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    common = config.get(names.NUM_KEY_VALUE_HEADS, 4)
    capped = config.get("final_logit_softcapping") or 0.0
    return {
        **config, "num_global_key_value_heads": common if own is None else own, "final_logit_softcapping": capped
    }  # fmt: skip


def _check_gemma4(model: ModelShape) -> None:
    """Raise an error for sizes that are set per layer, and for sizes that contradict each other."""
    c = model.counts
    if model.config.get("per_layer_config") is not None:
        raise model.lossy(
            "per_layer_config sets sizes for each layer; export reads only global_head_dim and num_global_key_value_heads",
            "set global_head_dim and num_global_key_value_heads instead, as published gemma4 configs do",
        )
    if c["per_layer"] and c["per_layer_vocabulary"] != c["vocabulary"]:
        raise model.lossy(
            f"vocab_size_per_layer_input is {c['per_layer_vocabulary']} and vocab_size {c['vocabulary']}; llama.cpp requires "
            f"equal numbers for {model.arch}"
        )
    if not 0 <= c["own_layers"] <= c["layers"]:
        raise ConfigError(
            f"{c['shared_layers']} is more than the {c['layers']} layers of the model",
            where=f"{model.where}: num_kv_shared_layers",
        )
    if model.switches["enable_moe_block"] and not 0 < c["used"] <= c["experts"]:
        raise ConfigError(
            f"{c['used']} must be from 1 to num_experts, {c['experts']}", where=f"{model.where}: top_k_experts"
        )


def _gemma4_experts(model: ModelShape) -> Mapping[str, Value]:
    if not model.switches["enable_moe_block"]:
        return {}
    sizes = {
        "expert_count": "experts", "expert_used_count": "used", "expert_feed_forward_length": "expert_intermediate"
    }  # fmt: skip
    return {key: Value.of(ValueType.U32, model.counts[size]) for key, size in sizes.items()}


def _of_gemma4(filed: Filed) -> Mapping[str, Any]:
    """Return the config keys for sizes that depend on the layer type, read from the first layer of each type."""
    read = filed.keys.get
    slides = read("attention.sliding_window_pattern")
    slides = slides if isinstance(slides, list) else []
    full = slides.index(False) if False in slides else 0
    wide, heads = read("feed_forward_length"), read("attention.head_count_kv")
    config = {
        "head_dim": read("attention.key_length_swa"),
        "global_head_dim": filed.sizes["head_dim"],
        "final_logit_softcapping": read("final_logit_softcapping", GEMMA4_CAP) or None,
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in filed.tensors,
        "use_double_wide_mlp": isinstance(wide, list),
        "intermediate_size": next(iter(wide), None) if isinstance(wide, list) else wide,
        "top_k_experts": read("expert_used_count"),
    }
    if not isinstance(heads, list):
        return config
    heads_by_sliding = dict(zip(reversed(slides), reversed(heads[: len(slides)]), strict=False))
    return {
        **config,
        names.NUM_KEY_VALUE_HEADS: heads_by_sliding.get(True),
        "num_global_key_value_heads": heads_by_sliding.get(False),
    }


# --- layers with a state


def _lfm2_sizes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the width that Lfm2MLP computes, and with tie_embedding under its newer name."""
    renamed = _tie_embedding(config)
    width = config.get("block_ff_dim", config.get("intermediate_size"))
    if config.get("block_auto_adjust_ff_dim", True) and isinstance(width, int):
        width, share = int(2 * width / 3), config.get("block_ffn_dim_multiplier", 1.0)
        step = config.get("block_multiple_of", 256)
        if (
            is_number(share) and isinstance(step, int) and step > 0
        ):  # if the multiplier is null, the class keeps the width
            width = -(-int(share * width) // step) * step
    return {**renamed, "intermediate_size": width}


def _tie_embedding(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**config, "tie_word_embeddings": config["tie_embedding"]} if "tie_embedding" in config else config


def _of_lfm2(filed: Filed) -> Mapping[str, Any]:
    return {"block_auto_adjust_ff_dim": False}


INTERVAL = "full_attention_interval"


def _interval(model: ModelShape) -> Mapping[str, Value]:
    """Return the key that older releases of llama.cpp use to find the full-attention layers."""
    interval = model.config.get(INTERVAL, 4)
    return {INTERVAL: Value.of(ValueType.U32, interval if isinstance(interval, int) and interval > 0 else 4)}


def _of_delta(filed: Filed) -> Mapping[str, Any]:
    return {INTERVAL: filed.keys.get(INTERVAL)}


def _check_delta(model: ModelShape) -> None:
    """Raise ConfigError if the value heads are not a multiple of the key heads."""
    c = model.counts
    if c["linear_values"] % c["linear_keys"]:
        raise ConfigError(
            f"{c['linear_values']} must be a multiple of linear_num_key_heads, {c['linear_keys']}",
            where=f"{model.where}: linear_num_value_heads",
        )


# --- falcon


def _of_falcon(filed: Filed) -> Mapping[str, Any]:
    """Return the form of a falcon file, of three forms, by its groups and its norms."""
    groups, two = filed.sizes.get("kv_heads", filed.sizes["heads"]), "blk.0.attn_norm_2.weight" in filed.tensors
    new = two or 1 < groups < filed.sizes["heads"]
    form = {"new_decoder_architecture": new, "multi_query": not new and groups == 1}
    return {**form, "num_ln_in_parallel_attn": 2 if two else 1} if new else form


RULES: Mapping[str, Rules] = {
    "": Rules(),
    "cohere": Rules(check=_check_cohere, from_file=_cohere_norms),
    "gemma2": Rules(check=_check_capped, from_file=_score),
    "gemma3": Rules(check=_check_score, from_file=_score),
    "gemma4": Rules(_gemma4_experts, _check_gemma4, from_file=_of_gemma4, config=_gemma4_heads),
    "ernie4_5_moe": Rules(check=_check_last_sparse),
    "hy_v3": Rules(from_file=_of_shared),
    "llama4": Rules(check=_check_llama4, from_file=_of_llama4),
    "lfm2": Rules(from_file=_of_lfm2, config=_lfm2_sizes),
    "lfm2_moe": Rules(config=_tie_embedding),
    "gated_delta": Rules(keys=_interval, check=_check_delta, from_file=_of_delta),
    "latents": Rules(_query_latent_key, _check_latents, _latent_eps, _of_plain_latents),
    "deepseek_v2": Rules(_v2_keys, _check_v2, _latent_eps, _of_v2),
    "deepseek_v3": Rules(_v3_keys, _check_v3, _latent_eps, _of_v3),
    "minicpm3": Rules(check=_check_eps, caveats=_latent_eps, from_file=_of_minicpm3),
    "falcon": Rules(from_file=_of_falcon),
}
