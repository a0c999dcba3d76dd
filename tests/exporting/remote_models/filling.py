"""Models that fill in text, each token of which attends to all others, of classes that only remote code has."""

from __future__ import annotations

from exporting.remote_models.making import ATTENTION, ENDS, GATED, LLAMA, NORMS, PLAIN, Remote, Twin

BIASES = """
model.layers.{i}.self_attn.q_proj.bias q
model.layers.{i}.self_attn.k_proj.bias kv
model.layers.{i}.self_attn.v_proj.bias kv
"""
EXPERTS = """
model.layers.{i}.mlp.gate.weight 4 hidden
model.layers.{i}.mlp.experts.{e}.gate_proj.weight inner hidden
model.layers.{i}.mlp.experts.{e}.up_proj.weight inner hidden
model.layers.{i}.mlp.experts.{e}.down_proj.weight hidden inner
"""
HEAD_NORMS = """
model.layers.{i}.self_attn.q_norm.weight head
model.layers.{i}.self_attn.k_norm.weight head
"""
OF_QWEN = {**LLAMA, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}

FILLING: dict[str, Remote] = {
    # A qwen2 without the causal mask.
    "DreamModel": Remote(
        {"model_type": "Dream", "mask_token_id": 264, **PLAIN},
        ATTENTION + BIASES + NORMS + GATED + ENDS,
        Twin("Qwen2ForCausalLM", LLAMA, sees_all=True),
    ),
    # A llama under OLMo's names, without the causal mask.
    "LLaDAModelLM": Remote(
        {
            "model_type": "llada", "d_model": 128, "mlp_hidden_size": 96, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2,
            "max_sequence_length": 512, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "embedding_size": 265,
            "activation_type": "silu", "block_type": "llama", "block_group_size": 1, "layer_norm_type": "rms",
            "alibi": False, "rope": True, "attention_layer_norm": False, "include_bias": False, "include_qkv_bias": False,
            "input_emb_norm": False, "scale_logits": False, "weight_tying": False, "mlp_ratio": 4,
            "mask_token_id": 264, "eos_token_id": 257, "pad_token_id": 257,
        },
        """
        model.transformer.wte.weight vocab hidden
        model.transformer.ln_f.weight hidden
        model.transformer.ff_out.weight vocab hidden
        model.transformer.blocks.{i}.attn_norm.weight hidden
        model.transformer.blocks.{i}.ff_norm.weight hidden
        model.transformer.blocks.{i}.q_proj.weight q hidden
        model.transformer.blocks.{i}.k_proj.weight kv hidden
        model.transformer.blocks.{i}.v_proj.weight kv hidden
        model.transformer.blocks.{i}.attn_out.weight hidden q
        model.transformer.blocks.{i}.ff_proj.weight inner hidden
        model.transformer.blocks.{i}.up_proj.weight inner hidden
        model.transformer.blocks.{i}.ff_out.weight hidden inner
        """,
        Twin(
            "LlamaForCausalLM", {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            (
                (r"transformer\.wte", "embed_tokens"), (r"transformer\.ln_f", "norm"),
                (r"model\.transformer\.ff_out", "lm_head"), (r"transformer\.blocks", "layers"),
                ("attn_norm", "input_layernorm"), ("ff_norm", "post_attention_layernorm"),
                (r"([qkv]_proj)", r"self_attn.\1"), ("attn_out", "self_attn.o_proj"), ("ff_proj", "mlp.gate_proj"),
                ("up_proj", "mlp.up_proj"), (r"(layers\.\d+)\.ff_out", r"\1.mlp.down_proj"),
            ),
            sees_all=True,
        ),
    ),
    # A qwen3_moe whose chosen experts' weights do not sum to 1, without the causal mask.
    "LLaDAMoEModelLM": Remote(
        {
            **{key: value for key, value in PLAIN.items() if key != "intermediate_size"},
            "model_type": "llada", "dense_intermediate_size": 160, "expert_intermediate_size": 96,
            "shared_expert_intermediate_size": None, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": None,
            "qk_layernorm": True, "moe_layer_freq": [1, 1], "moe_router_score_function": "softmax",
            "moe_router_enable_expert_bias": False, "routed_scaling_factor": 1, "router_num_group": None,
            "router_topk_group": None, "clip_qkv": None, "attention_bias": False, "partial_rotary_factor": 1,
            "rope_theta": 50000.0, "rope_scaling": None, "sliding_window": None,
        },
        ATTENTION + HEAD_NORMS + NORMS + EXPERTS + ENDS,
        Twin(
            "Qwen3MoeForCausalLM",
            {**OF_QWEN, "norm_topk_prob": False, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
            sees_all=True,
        ),
        experts=4,
    ),
    # A qwen3_moe without the causal mask.
    "RND1": Remote(
        {
            **PLAIN, "model_type": "rnd1", "head_dim": 32, "moe_intermediate_size": 96, "num_experts": 4,
            "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "rope_theta": 1000000.0, "rope_scaling": False, "sliding_window": False, "use_sliding_window": False,
            "attention_bias": False, "mask_token_id": 264,
        },
        ATTENTION + HEAD_NORMS + NORMS + EXPERTS + ENDS,
        Twin(
            "Qwen3MoeForCausalLM",
            {**OF_QWEN, "norm_topk_prob": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
            sees_all=True,
        ),
        experts=4,
    ),
}  # fmt: skip
