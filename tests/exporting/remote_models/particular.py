"""Models with parts that no other has, of classes that only remote code has."""

from __future__ import annotations

import numpy as np

from exporting.remote_models.making import ATTENTION, ENDS, LLAMA, NORMS, PLAIN, Remote, Twin


def _thirds(array: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values of cogvlm, one after the other."""
    return {f"{name}_proj.weight": part for name, part in zip("qkv", np.split(array, 3), strict=True)}


def _left_out(array: np.ndarray) -> dict[str, np.ndarray]:
    """What only images go through."""
    return {}


LIGHTNING = """
model.layers.{i}.self_attn.qkv_proj.weight 384 hidden
model.layers.{i}.self_attn.out_proj.weight hidden hidden
model.layers.{i}.self_attn.output_gate.weight hidden hidden
model.layers.{i}.self_attn.norm.weight hidden
"""
PARTICULAR: dict[str, Remote] = {
    # It turns the other way round, normalises behind the rotation, and adds the embedding to each layer.
    "TalkieForCausalLM": Remote(
        {
            "model_type": "talkie", "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "head_dim": 32, "max_position_embeddings": 2048, "rope_theta": 1000000.0,
            "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
        },
        """
        model.embed.weight vocab hidden
        lm_head vocab hidden
        lm_head_gain.w_g 1
        model.blocks.{i}.attn.attn_query.weight q hidden
        model.blocks.{i}.attn.attn_key.weight q hidden
        model.blocks.{i}.attn.attn_value.weight q hidden
        model.blocks.{i}.attn.attn_resid.weight hidden q
        model.blocks.{i}.attn.head_gain.head_g 4
        model.blocks.{i}.attn_gain.a_g 1
        model.blocks.{i}.mlp.mlp_gate.weight inner hidden
        model.blocks.{i}.mlp.mlp_linear.weight inner hidden
        model.blocks.{i}.mlp.mlp_resid.weight hidden inner
        model.blocks.{i}.mlp_gain.a_g 1
        model.blocks.{i}.embed_skip.a_g 1
        """,
    ),
    # Seven layers of eight keep a state that decays; residuals are of what is normalised.
    "MiniMaxText01ForCausalLM": Remote(
        {
            **PLAIN, "model_type": "minimax_text_01", "num_hidden_layers": 8, "head_dim": 32, "rotary_dim": 32,
            "rope_theta": 10000000, "attn_type_list": [0] * 7 + [1], "num_local_experts": 4, "num_experts_per_tok": 2,
            **dict.fromkeys(("layernorm_full_attention_alpha", "layernorm_linear_attention_alpha", "layernorm_mlp_alpha"), 3.5),
            **dict.fromkeys(("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"), 1.0),
            "postnorm": True, "shared_intermediate_size": 0, "sliding_window": None,
        },
        NORMS + ENDS
        + "".join(LIGHTNING.replace("{i}", str(layer)) for layer in range(7)) + ATTENTION.replace("{i}", "7")
        + """
        model.layers.{i}.block_sparse_moe.gate.weight 4 hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight inner hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight hidden inner
        model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight inner hidden
        """,
        Twin(
            "MiniMaxForCausalLM",
            {
                **LLAMA, "num_hidden_layers": 8, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
                "layer_types": ["linear_attention"] * 7 + ["full_attention"], "sliding_window": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
                **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 3.5),
                **dict.fromkeys(("full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"), 1.0),
            },
        ),
        sizes={"layers": 8}, experts=4, indexed=True,
    ),
    # Each kind of layer has a base and a share of its own; a gate for each head.
    "Spark2_5ForCausalLM": Remote(
        {
            **{key: value for key, value in PLAIN.items() if key != "rope_theta"}, "model_type": "spark2_5",
            "num_hidden_layers": 4, "head_dim": 64, "hidden_act": "gelu", "attention_bias": False, "mlp_bias": False,
            "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True, "sliding_window": 64,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 5000000, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_theta": 10000, "partial_rotary_factor": 1.0},
            },
        },
        NORMS
        + """
        model.embedding.weight vocab hidden
        model.norm.weight hidden
        lm_head.weight vocab hidden
        model.layers.{i}.self_attn.q_k_v_proj.weight 512 hidden
        model.layers.{i}.self_attn.g_proj.weight 4 hidden
        model.layers.{i}.self_attn.out_proj.weight hidden 256
        model.layers.{i}.mlp.gate_proj.weight inner hidden
        model.layers.{i}.mlp.up_proj.weight inner hidden
        model.layers.{i}.mlp.down_proj.weight hidden inner
        """,
        sizes={"layers": 4},
    ),
    # A llama with matrices of its own for images.
    "CogVLMForCausalLM": Remote(
        {
            **{key: value for key, value in PLAIN.items() if key not in ("rope_theta", "num_key_value_heads")},
            "model_type": "cogvlm",
        },
        NORMS + ENDS
        + """
        model.layers.{i}.self_attn.language_expert_query_key_value.weight 384 hidden
        model.layers.{i}.self_attn.vision_expert_query_key_value.weight 384 hidden
        model.layers.{i}.self_attn.language_expert_dense.weight hidden hidden
        model.layers.{i}.self_attn.vision_expert_dense.weight hidden hidden
        model.layers.{i}.mlp.language_mlp.gate_proj.weight inner hidden
        model.layers.{i}.mlp.language_mlp.up_proj.weight inner hidden
        model.layers.{i}.mlp.language_mlp.down_proj.weight hidden inner
        model.layers.{i}.mlp.vision_mlp.gate_proj.weight inner hidden
        model.layers.{i}.mlp.vision_mlp.up_proj.weight inner hidden
        model.layers.{i}.mlp.vision_mlp.down_proj.weight hidden inner
        model.vision.linear_proj.linear_proj.weight hidden hidden
        """,
        Twin(
            "LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4},
            (("language_expert_dense", "o_proj"), (r"mlp\.language_mlp", "mlp")),
            {
                "language_expert_query_key_value.weight": _thirds,
                **dict.fromkeys(
                    ("vision_expert_query_key_value.weight", "vision_expert_dense.weight", "linear_proj.weight",
                     "vision_mlp.gate_proj.weight", "vision_mlp.up_proj.weight", "vision_mlp.down_proj.weight"),
                    _left_out,
                ),
            },
        ),
    ),
}  # fmt: skip
