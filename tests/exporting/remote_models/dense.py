"""Models whose layers are all alike, of classes that only remote code has."""

from __future__ import annotations

import numpy as np

from exporting.remote_models.making import LLAMA, PLAIN, Remote, Twin


def _packed_by_group(array: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values of internlm2: for each key head its queries, the key, the value."""
    groups = array.reshape(2, 4, 32, -1)
    return {
        "self_attn.q_proj.weight": groups[:, :2].reshape(128, -1),
        "self_attn.k_proj.weight": groups[:, 2].reshape(64, -1),
        "self_attn.v_proj.weight": groups[:, 3].reshape(64, -1),
    }


DENSE: dict[str, Remote] = {
    # A llama under GPT-2's names.
    "ExaoneForCausalLM": Remote(
        {
            "model_type": "exaone", "hidden_size": 128, "intermediate_size": 96, "num_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 512, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0,
            "activation_function": "silu", "bos_token_id": 256, "eos_token_id": 257, "tie_word_embeddings": False,
        },
        """
        transformer.wte.weight vocab hidden
        transformer.ln_f.weight hidden
        lm_head.weight vocab hidden
        transformer.h.{i}.ln_1.weight hidden
        transformer.h.{i}.ln_2.weight hidden
        transformer.h.{i}.attn.attention.q_proj.weight q hidden
        transformer.h.{i}.attn.attention.k_proj.weight kv hidden
        transformer.h.{i}.attn.attention.v_proj.weight kv hidden
        transformer.h.{i}.attn.attention.out_proj.weight hidden q
        transformer.h.{i}.mlp.c_fc_0.weight inner hidden
        transformer.h.{i}.mlp.c_fc_1.weight inner hidden
        transformer.h.{i}.mlp.c_proj.weight hidden inner
        """,
    ),
    "InternLM2ForCausalLM": Remote(
        {"model_type": "internlm2", "bias": False, **PLAIN},
        """
        model.tok_embeddings.weight vocab hidden
        model.norm.weight hidden
        output.weight vocab hidden
        model.layers.{i}.attention_norm.weight hidden
        model.layers.{i}.ffn_norm.weight hidden
        model.layers.{i}.attention.wqkv.weight 256 hidden
        model.layers.{i}.attention.wo.weight hidden q
        model.layers.{i}.feed_forward.w1.weight inner hidden
        model.layers.{i}.feed_forward.w2.weight hidden inner
        model.layers.{i}.feed_forward.w3.weight inner hidden
        """,
        Twin(
            "LlamaForCausalLM", LLAMA,
            (
                ("tok_embeddings", "embed_tokens"), ("^output", "lm_head"), ("attention_norm", "input_layernorm"),
                ("ffn_norm", "post_attention_layernorm"), (r"\battention\.wo", "self_attn.o_proj"),
                (r"feed_forward\.w1", "mlp.gate_proj"), (r"feed_forward\.w2", "mlp.down_proj"),
                (r"feed_forward\.w3", "mlp.up_proj"),
            ),
            {"attention.wqkv.weight": _packed_by_group},
        ),
    ),
}  # fmt: skip
