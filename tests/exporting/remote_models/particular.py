"""Models with parts that no other has, of classes that only remote code has."""

from __future__ import annotations

from exporting.remote_models.making import ATTENTION, ENDS, LLAMA, NORMS, PLAIN, Remote, Twin

LIGHTNING = """
model.layers.{i}.self_attn.qkv_proj.weight 384 hidden
model.layers.{i}.self_attn.out_proj.weight hidden hidden
model.layers.{i}.self_attn.output_gate.weight hidden hidden
model.layers.{i}.self_attn.norm.weight hidden
"""
PARTICULAR: dict[str, Remote] = {
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
}  # fmt: skip
