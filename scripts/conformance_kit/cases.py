"""The cases of the kit as data: for each a config as it is published, how an engine is called, and the mistakes of engines.

If a case does not test the place of the rope keys, they are under rope_theta and rope_scaling, which every engine reads.
A mistake comes from one of three places:

- the tables of `ropetool identify` (MISTAKES)
- a changed config, which transformers then computes (`Case.wrong`); the value GONE removes a key
- a changed rotation or changed positions, in mistakes.py (`Case.engines`)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 2  # of the kit: raised by whatever changes a checkpoint, a prompt or a golden value
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

# Mistakes of mistakes.py, by name.
PAIRS, OFF_BY_ONE, KEYS = "pairs in the other layout", "positions off by one", "keys not rotated"
RESTART, LONGEST = "each turn starts at position 0", "positions of the longest request"
CLAMPED, WRAPPED = "rows of cos and sin end at 4096", "rows of cos and sin repeat after 4096"
INDEXER, ATTENTION = "indexer paired as the attention", "attention paired as the indexer"
UNROTATED_BLOCKS, WRONG_TYPE = "compressed keys not rotated", "scaling on the wrong layer type"
PARTIAL = "partial instead of proportional"
EVERYWHERE = (PAIRS, OFF_BY_ONE, KEYS)

GONE = object()
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Calls:
    """How an engine computes the prompts of a case.

    lengths: tokens of each prompt; all prompts are beginnings of one text.
    context: tokens for which the engine has room.
    share: whether a prompt continues the cache of the prompt before it in its row.
    together: prompts in one batch; prompt i is in row i modulo this number.
    """

    lengths: tuple[int, ...] = LENGTHS
    context: int = CONTEXT
    share: bool = False
    together: int = 1

    def rows(self) -> list[list[int]]:
        """Return the indexes of the prompts that share a row; without a shared cache, a longer prompt covers the others."""
        width = self.together if self.share else 1
        return [list(range(row, len(self.lengths), width)) for row in range(width)]

    def kept(self, prompt: int) -> int:
        """Return the number of tokens in the cache before a prompt is computed."""
        before = prompt - self.together
        return self.lengths[before] if self.share and before >= 0 else 0


@dataclass(frozen=True)
class Case:
    """A checkpoint.

    asks: what the case tests.
    wrong: mistakes by name, each with the changes of the config.
    gguf: why there is no GGUF file, or empty.
    not_asked: names of MISTAKES that the case leaves out.
    engines: mistakes of mistakes.py.
    calls: how an engine is called.
    quantised: the type of the matrices in the GGUF file, or empty for f32.
    """

    asks: str
    config: Config
    wrong: Mapping[str, Config] = field(default_factory=dict)
    gguf: str = ""
    not_asked: tuple[str, ...] = ()
    engines: tuple[str, ...] = EVERYWHERE
    calls: Calls = Calls()
    quantised: str = ""


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


LINEAR8: Config = {"rope_type": "linear", "factor": 8.0}
MSCALES = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
# Such that the factor, its square, 1 and the factor of YaRN's own all differ.
MSCALES_APART = {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}
NESTED_YARN = {"full_attention": {**YARN, "rope_theta": 1000000.0}, "sliding_attention": LOCAL}
QWEN35_YARN: Config = {
    **YARN, "rope_theta": 500000.0, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": True,
}  # fmt: skip
# DeepSeek V4 as it is published: its layers with compressed keys have a base and a scaling that windowed layers do not have.
V4_SCALING: Config = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0}
V4_SHARE = {"partial_rotary_factor": 0.5}
GEMMA4_FULL: Config = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 30000.0}


def v4_groups(main: Config, compress: Config) -> Config:
    """Return a change of a DeepSeek V4 config: the keys of windowed layers, and of layers with compressed keys."""
    groups = {"main": {**main, **V4_SHARE}, "compress": {**compress, **V4_SHARE}}
    return {"rope_scaling": GONE, "rope_parameters": groups}


def v4_yarn(theta: float) -> Config:
    return {**V4_SCALING, "rope_theta": theta, "attention_factor": 1.0}


def plain(theta: float) -> Config:
    return {"rope_type": "default", "rope_theta": theta}


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
        {**GEMMA3, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": LINEAR8},
        {WRONG_TYPE: {"rope_theta": GONE, "rope_local_base_freq": GONE, "rope_scaling": GONE, "rope_parameters": {
            "full_attention": {**LOCAL, "rope_theta": 1000000.0}, "sliding_attention": {**LINEAR8, "rope_theta": 10000.0}}}},
    ),
    "gemma3-nested": Case(
        "rope_parameters for each kind of layer, YaRN in the full ones", {**GEMMA3, "rope_parameters": NESTED_YARN},
        {WRONG_TYPE: {"rope_parameters": {
            "full_attention": {**LOCAL, "rope_theta": 1000000.0}, "sliding_attention": {**YARN, "rope_theta": 10000.0}}}},
    ),
    "olmo3-yarn": Case(
        "YaRN in the full layers of OLMo 3 alone",
        yarn_of("olmo3", head_dim=GONE, rope_theta=500000.0, **LAYER_TYPES),
        # Both layer types have the same base, so the table is that of "kinds swapped".
        {WRONG_TYPE: {"rope_scaling": GONE, "rope_theta": GONE, "rope_parameters": {
            "full_attention": {**LOCAL, "rope_theta": 500000.0}, "sliding_attention": {**YARN, "rope_theta": 500000.0}}}},
        not_asked=("kinds swapped",),
    ),
    "gpt-oss-yarn": Case(
        "truncate: false beside attention sinks",
        {"model_type": "gpt_oss", **SIZES, **HEAD, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2,
         "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 150000.0,
         "rope_scaling": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
        gguf="llama.cpp computes YaRN with truncated edges, and reads no frequency vector for gpt-oss",
        engines=(*EVERYWHERE, WRONG_TYPE),
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
    "qwen3-5-yarn": Case(
        "YaRN in a share of the head, with layers of the gated delta rule",
        {"model_type": "qwen3_5_text", **SIZES, "head_dim": 256, "rope_parameters": QWEN35_YARN,
         "layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2,
         "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
         "linear_conv_kernel_dim": 4},
        {"the whole head rotates": {"rope_parameters": {**QWEN35_YARN, "partial_rotary_factor": 1.0}}},
    ),
    "gemma4-proportional": Case(
        "proportional rotation of the full layers, whose heads are wider",
        {"model_type": "gemma4_text", **SIZES, **HEAD, "global_head_dim": 64, "hidden_activation": "gelu_pytorch_tanh",
         "pad_token_id": 0, "tie_word_embeddings": True, "sliding_window": 128, "num_kv_shared_layers": 0,
         "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
         "vocab_size_per_layer_input": VOCABULARY, "final_logit_softcapping": 30.0,
         "rope_parameters": {"full_attention": GEMMA4_FULL, "sliding_attention": LOCAL}},
        {"the whole head rotates": {"rope_parameters": {"full_attention": plain(30000.0), "sliding_attention": LOCAL}},
         PARTIAL: {"rope_parameters": {
             "full_attention": {**GEMMA4_FULL, "rope_theta": 30000.0 ** 4}, "sliding_attention": LOCAL}},
         WRONG_TYPE: {"rope_parameters": {
             "full_attention": plain(30000.0), "sliding_attention": {**GEMMA4_FULL, "rope_theta": 10000.0}}}},
    ),
    "deepseek-v32-indexer": Case(
        "the indexer of sparse attention, which pairs channels otherwise than the attention",
        {"model_type": "deepseek_v32", **MLA, "attention_bias": False, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
         "norm_topk_prob": True, "index_topk": 128, "index_head_dim": 128, "index_n_heads": 16,
         "rope_theta": 500000.0, "rope_scaling": None},
        gguf="`ropetool export` does not write DeepSeek V3.2",
        engines=(*EVERYWHERE, INDEXER, ATTENTION),
    ),
    "deepseek-v4-groups": Case(
        "a base and YaRN of the layers with compressed keys, another base of the windowed ones",
        {"model_type": "deepseek_v4", **SIZES, "intermediate_size": GONE, "moe_intermediate_size": 32, "head_dim": 64,
         "num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "qk_rope_head_dim": 32, "sliding_window": 128,
         "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 4, "index_head_dim": 64, "index_topk": 512,
         "n_routed_experts": 2, "num_experts_per_tok": 2, "n_shared_experts": 1, "num_hash_layers": 0,
         "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "scoring_func": "sqrtsoftplus",
         "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
         "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "num_nextn_predict_layers": 0,
         "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "rope_scaling": V4_SCALING},
        {"YaRN in the windowed layers too": v4_groups(v4_yarn(10000.0), v4_yarn(160000.0)),
         WRONG_TYPE: v4_groups(v4_yarn(10000.0), plain(160000.0)),
         "the base of the windowed layers and YaRN everywhere": v4_groups(v4_yarn(10000.0), v4_yarn(10000.0))},
        gguf="`ropetool export` does not write DeepSeek V4",
        engines=(PAIRS, OFF_BY_ONE, UNROTATED_BLOCKS),
    ),
    # Ways to call an engine.
    "llama-long": Case(
        "a prompt of 5,000 tokens: enough rows of cos and sin",
        {**llama(None, 500000.0), "max_position_embeddings": 8192},
        engines=(*EVERYWHERE, CLAMPED, WRAPPED), calls=Calls((5000,), 8192),
    ),
    "llama-turns": Case(
        "later turns on a kept cache",
        llama(None, 500000.0),
        engines=(*EVERYWHERE, RESTART), calls=Calls((512, 513, 1023, CONTEXT - 1), share=True),
    ),
    "llama-batch": Case(
        "two requests of different lengths in a batch, then a second turn of both",
        llama(None, 500000.0),
        engines=(*EVERYWHERE, RESTART, LONGEST), calls=Calls((255, 1023, 767, 1535), share=True, together=2),
    ),
    "llama-quantised": Case(
        "matrices in q8_0: the GGUF file holds the numbers of the checkpoint", llama(None, 500000.0), quantised="q8_0"
    ),
}  # fmt: skip


def config(case: Case, changes: Config | None = None) -> dict[str, Any]:
    """Return the config of a case, with the changes of a mistake."""
    return {key: _kept(value) for key, value in {**case.config, **(changes or {})}.items() if value is not GONE}


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _kept(one) for key, one in value.items() if one is not GONE}
    return value
