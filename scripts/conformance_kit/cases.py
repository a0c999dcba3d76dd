"""The cases of the kit: for each a config as it is published, and what engines make of it by mistake. Data alone.

Where nothing else is the point, rope keys stand under rope_theta and rope_scaling, which every release of every engine reads.
A mistake that the tables of `identify` do not have is a change of the config after which transformers computes it; a key
whose value is GONE is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1  # of the kit: raised by whatever changes a checkpoint, a prompt or a golden value
SEED = 20261123  # of the weights and the prompt
TRAINED, FACTOR = 512, 4
CONTEXT = TRAINED * FACTOR
# Tokens of the prompts: within the trained length, at it, just beyond, and up to four times as many. One more is asked for.
LENGTHS = (255, 512, 513, 1023, 1535, CONTEXT - 1)
VOCABULARY = 264  # 256 bytes, and tokens that stand for none up to a multiple of 8
BEGIN, END = 256, 257

# The mistakes that the kit takes from `ropetool identify`, which may learn others: every case has those that its config allows.
MISTAKES = (
    "scaling dropped", "attention factor dropped", "attention factor squared", "attention factor doubled",
    "attention factor by default", "mscale not read", "betas not read", "truncate the other way", "original length lost",
    "original length doubled", "factor halved", "factor doubled", "short list always", "long list always", "base 10000",
    "sliding_attention as full_attention", "full_attention as sliding_attention", "kinds swapped",
)  # fmt: skip

GONE = object()
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A checkpoint. asks: what it finds out, in words. wrong: mistakes by name, each with the changes of the config.

    gguf: why there is no GGUF file of it, nothing where there is one. not_asked: of MISTAKES, those that `wrong` has in full.
    """

    asks: str
    config: Config
    wrong: Mapping[str, Config] = field(default_factory=dict)
    gguf: str = ""
    not_asked: tuple[str, ...] = ()


SIZES: Config = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
    "bos_token_id": BEGIN, "eos_token_id": END, "tie_word_embeddings": False,
}  # fmt: skip
HEAD = {"head_dim": 32}
LAYER_TYPES = {
    "num_hidden_layers": 3, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
YARN: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LLAMA3: Config = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}  # fmt: skip
LOCAL: Config = {"rope_type": "default", "rope_theta": 10000.0}
BETAS = {"beta_fast": 8.0, "beta_slow": 2.0}


def llama(scaling: Config | None, theta: float = 10000.0, **more: Any) -> Config:
    return {"model_type": "llama", **SIZES, **HEAD, "rope_theta": theta, "rope_scaling": scaling, **more}


def longrope(pairs: int) -> Config:
    """Return two lists like those of Phi-3: short ones near 1, long ones that grow with the wavelength."""
    return {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": TRAINED,
        "short_factor": [round(1.0 + 0.05 * i, 4) for i in range(pairs)],
        "long_factor": [round(1.0 + 5.0 * i / (pairs - 1), 4) for i in range(pairs)],
    }  # fmt: skip


def dynamic_at(length: int, channels: int, theta: float = 10000.0) -> float:
    """Return the base that dynamic scaling comes to at a length."""
    return theta * (FACTOR * length / TRAINED - (FACTOR - 1)) ** (channels / (channels - 2))


def yarn_of(family: str, **more: Any) -> Config:
    return {"model_type": family, **SIZES, **HEAD, "rope_theta": 10000.0, "rope_scaling": YARN, **more}


MLA: Config = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "bos_token_id": BEGIN,
    "eos_token_id": END, "tie_word_embeddings": False, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip

GEMMA3: Config = {
    "model_type": "gemma3_text", **SIZES, **HEAD, "query_pre_attn_scalar": 32, "pad_token_id": 0,
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 128,
    "sliding_window_pattern": 2, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def without(scaling: Config, *keys: str) -> Config:
    """Return a change of the config that leaves keys of the scaling out."""
    return {"rope_scaling": {key: value for key, value in scaling.items() if key not in keys}}


def mscale(share: float) -> float:
    """Return YaRN's factor on cos and sin, as DeepSeek's code computes it from mscale or mscale_all_dim."""
    return 1.0 + 0.1 * share * math.log(FACTOR)


MSCALES = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
# Such that the factor, its square, 1 and the factor of YaRN's own all differ.
MSCALES_APART = {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}
NESTED_YARN = {"full_attention": {**YARN, "rope_theta": 1000000.0}, "sliding_attention": LOCAL}

CASES: Mapping[str, Case] = {
    # Methods.
    "llama-base": Case("rope_theta", llama(None, 500000.0)),
    "llama-linear": Case("linear scaling", llama({"rope_type": "linear", "factor": 4.0})),
    "llama-dynamic": Case(
        "dynamic NTK: a table for each length",
        {**llama({"rope_type": "dynamic", "factor": 4.0}), "max_position_embeddings": TRAINED},
        {"computed once, for the factor times the trained length": {
            "rope_theta": dynamic_at(CONTEXT, 32), "rope_scaling": None}},
        gguf="a GGUF file has no key for a table that follows the length",
    ),
    "llama-llama3": Case("llama3 scaling", llama(LLAMA3, 500000.0)),
    "llama-yarn": Case("YaRN", llama(YARN)),
    "llama-longrope": Case(
        "longrope lists, by length", llama(longrope(16)),
        {"the original length not read": without(longrope(16), "original_max_position_embeddings")},
    ),
    # Keys.
    "llama-type": Case("the method under type, as older configs have it", llama({**YARN, "rope_type": GONE, "type": "yarn"})),
    "llama-parameters": Case(
        "rope_parameters, as transformers 5 writes it",
        {**llama(None), "rope_theta": GONE, "rope_scaling": GONE,
         "rope_parameters": {**YARN, "rope_theta": 500000.0}},
        {"rope_parameters not read": {"rope_parameters": GONE, "rope_theta": 10000.0, "rope_scaling": None}},
    ),
    "llama-attention-factor": Case("attention_factor", llama({**YARN, "attention_factor": 1.0})),
    "llama-betas": Case("beta_fast and beta_slow", llama({**YARN, **BETAS})),
    "llama-truncate": Case("truncate: false", llama({**YARN, "truncate": False})),
    "llama-mscale": Case(
        "mscale and mscale_all_dim",
        llama(MSCALES_APART),
    ),
    # Families.
    "mistral-yarn": Case("YaRN in Mistral", yarn_of("mistral", sliding_window=None)),
    "qwen2-yarn": Case("YaRN in Qwen2", yarn_of("qwen2", head_dim=GONE)),
    "qwen3-yarn": Case("YaRN in Qwen3, norms of heads before the rotation", yarn_of("qwen3")),
    "qwen3-moe-yarn": Case(
        "YaRN in Qwen3-MoE",
        yarn_of(
            "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[],
        ),
    ),
    "granite-yarn": Case("YaRN in Granite", yarn_of(
        "granite", head_dim=GONE, attention_multiplier=0.125, embedding_multiplier=1.0, residual_multiplier=1.0,
        logits_scaling=1.0, attention_bias=False, mlp_bias=False,
    )),
    "olmo2-yarn": Case("YaRN in OLMo 2", yarn_of("olmo2", head_dim=GONE)),
    "cohere-linear": Case(
        "linear scaling of neighbouring channels",
        {"model_type": "cohere", **SIZES, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
         "layer_norm_eps": 1e-5, "rms_norm_eps": GONE, "logit_scale": 1.0, "tie_word_embeddings": True},
    ),
    "smollm3-yarn": Case(
        "layers without positions beside YaRN",
        yarn_of("smollm3", head_dim=GONE, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], pad_token_id=0),
        {"every layer rotates": {"no_rope_layers": [1, 1, 1, 1]}},
    ),
    "stablelm-partial": Case(
        "partial_rotary_factor under YaRN",
        yarn_of(
            "stablelm", head_dim=GONE, partial_rotary_factor=0.5, layer_norm_eps=1e-5, rms_norm_eps=GONE,
            use_qkv_bias=False, use_parallel_residual=False, qk_layernorm=False,
        ),
        {"the whole head rotates": {"partial_rotary_factor": 1.0}},
    ),
    "glm4-partial": Case(
        "partial_rotary_factor of neighbouring channels",
        yarn_of("glm4", partial_rotary_factor=0.5, attention_bias=False, pad_token_id=0),
        {"the whole head rotates": {"partial_rotary_factor": 1.0}},
    ),
    "phi3-longrope": Case(
        "longrope with a share of the head, by length",
        {"model_type": "phi3", **SIZES, "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "pad_token_id": 0,
         "original_max_position_embeddings": TRAINED, "sliding_window": None,
         "rope_scaling": {"type": "longrope", **{
             key: value for key, value in longrope(12).items() if key.endswith("_factor")}}},
    ),
    "gemma3-linear": Case(
        "a base for each kind of layer, and linear scaling of the full ones alone",
        {**GEMMA3, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gemma3-nested": Case(
        "rope_parameters for each kind of layer, YaRN in the full ones", {**GEMMA3, "rope_parameters": NESTED_YARN}
    ),
    "olmo3-yarn": Case(
        "YaRN in the full layers of OLMo 3 alone",
        yarn_of("olmo3", head_dim=GONE, rope_theta=500000.0, **LAYER_TYPES),
    ),
    "gpt-oss-yarn": Case(
        "truncate: false beside attention sinks",
        {"model_type": "gpt_oss", **SIZES, **HEAD, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2,
         "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 150000.0,
         "rope_scaling": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
        gguf="llama.cpp computes YaRN with truncated edges, and reads no frequency vector for gpt-oss",
    ),
    "deepseek-v3-mscale": Case(
        "MLA: YaRN with mscale and mscale_all_dim, which multiply the score",
        {"model_type": "deepseek_v3", **MLA, "attention_bias": False, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
         "norm_topk_prob": True, "rope_theta": 10000.0, "rope_scaling": MSCALES},
        {"mscale and mscale_all_dim not read": without(MSCALES, "mscale", "mscale_all_dim"),
         "the score not multiplied": {"rope_scaling": {**YARN, "attention_factor": 1.0}},
         "scaling not read": {"rope_scaling": None}},
        not_asked=("mscale not read",),
    ),
    "deepseek-v2-mscale": Case(
        "MLA: mscale and mscale_all_dim that differ",
        {"model_type": "deepseek_v2", **MLA, "attention_bias": False, "topk_method": "greedy",
         "rope_theta": 10000.0, "rope_scaling": MSCALES_APART},
        {"mscale and mscale_all_dim not read": without(MSCALES_APART, "mscale", "mscale_all_dim"),
         "mscale not read": without(MSCALES_APART, "mscale"),
         "the score not multiplied": {"rope_scaling": {**YARN, "attention_factor": mscale(0.5) / mscale(1.0)}},
         "scaling not read": {"rope_scaling": None}},
    ),
}  # fmt: skip


def config(case: Case, changes: Config | None = None) -> dict[str, Any]:
    """Return the config of a case, with the changes of a mistake."""
    return {key: _kept(value) for key, value in {**case.config, **(changes or {})}.items() if value is not GONE}


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _kept(one) for key, one in value.items() if one is not GONE}
    return value
