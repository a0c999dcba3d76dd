"""Models whose layers are all alike, of classes that only remote code has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from exporting.remote_models.making import ATTENTION, ENDS, GATED, LLAMA, NORMS, PLAIN, Remote, Twin, Written
from exporting.remote_models.operations import attended, heads, rms, rotated


def _packed_by_group(array: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values of internlm2: for each key head its queries, the key, the value."""
    groups = array.reshape(2, 4, 32, -1)
    return {
        "self_attn.q_proj.weight": groups[:, :2].reshape(128, -1),
        "self_attn.k_proj.weight": groups[:, 2].reshape(64, -1),
        "self_attn.v_proj.weight": groups[:, 3].reshape(64, -1),
    }


BIASES = """
model.layers.{i}.self_attn.q_proj.bias q
model.layers.{i}.self_attn.k_proj.bias kv
model.layers.{i}.self_attn.v_proj.bias kv
model.layers.{i}.self_attn.o_proj.bias hidden
"""


def without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


def _plamo3(tensors: Mapping[str, Any], config: Mapping[str, Any], ids: Any) -> Any:
    """PLaMo 3: norms around both halves, offsets on their weights, windows in all layers but every n-th."""
    from torch.nn import functional

    eps, count, groups = config["rms_norm_eps"], config["num_attention_heads"], config["num_key_value_heads"]
    width = config["head_dim"]
    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):

        def weight(name: str, place: str = f"model.layers.layers.{layer}") -> Any:
            return tensors[f"{place}.{name}.weight"]

        full = (layer + 1) % config["sliding_window_pattern"] == 0
        base = config["rope_theta" if full else "rope_local_theta"]
        h = rms(x, weight("pre_mixer_norm") + 1, eps) @ weight("mixer.qkv_proj").T
        q, k, v = (heads(part, width) for part in h.split((count * width, groups * width, groups * width), -1))
        q = rotated(rms(q, weight("mixer.q_norm") + 1, eps), base)
        k = rotated(rms(k, weight("mixer.k_norm") + 1, eps), base)
        h = attended(q, k, v, window=0 if full else config["window_size"]) @ weight("mixer.o_proj").T
        x = x + rms(h, weight("post_mixer_norm") + 1 / 5, eps)
        gate, up = (rms(x, weight("pre_mlp_norm") + 1, eps) @ weight("mlp.gate_up_proj").T).chunk(2, -1)
        x = x + rms((functional.silu(gate) * up) @ weight("mlp.down_proj").T, weight("post_mlp_norm") + 1 / 5**1.5, eps)
    return rms(x, tensors["model.norm.weight"] + 1, eps) @ tensors["model.embed_tokens.weight"].T


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
    "PanguEmbeddedForCausalLM": Remote(
        {"model_type": "PanguEmbedded", "bias": True, "attention_dropout": 0.0, **PLAIN, "rope_theta": 16000000.0},
        ATTENTION + BIASES + NORMS + GATED + ENDS,
        Twin(
            "LlamaForCausalLM",
            {**LLAMA, "attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 16000000.0}},
        ),
    ),
    # A llama whose layers run twice, with the last norm behind each run.
    "NanbeigeForCausalLM": Remote(
        {
            "model_type": "nanbeige", "num_loops": 2, "loop_loss_weights": [], "skip_loop_final_norm": False,
            "attention_bias": False, "head_dim": 32, "kv_channels": 32, "rope_scaling": None, "pretraining_tp": 1,
            **PLAIN, "rope_theta": 70000000,
        },
        ATTENTION + NORMS + GATED + ENDS,
    ),
    "MiniCPMForCausalLM": Remote(
        {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 64, **PLAIN},
        ATTENTION + NORMS + GATED + ENDS,
    ),
    "Plamo3ForCausalLM": Remote(
        {
            "model_type": "plamo3", "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
            "window_size": 64, "sliding_window_pattern": 4, "rope_theta": 1000000, "rope_local_theta": 10000,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        },
        """
        model.embed_tokens.weight vocab hidden
        model.norm.weight hidden
        model.layers.layers.{i}.mixer.qkv_proj.weight 256 hidden
        model.layers.layers.{i}.mixer.o_proj.weight hidden q
        model.layers.layers.{i}.mixer.q_norm.weight head
        model.layers.layers.{i}.mixer.k_norm.weight head
        model.layers.layers.{i}.mlp.gate_up_proj.weight 192 hidden
        model.layers.layers.{i}.mlp.down_proj.weight hidden inner
        model.layers.layers.{i}.pre_mixer_norm.weight hidden
        model.layers.layers.{i}.post_mixer_norm.weight hidden
        model.layers.layers.{i}.pre_mlp_norm.weight hidden
        model.layers.layers.{i}.post_mlp_norm.weight hidden
        """,
        Written("vLLM's plamo3.py", _plamo3),
        {"layers": 4},
    ),
    # The first layer keeps a state, the second attends.
    "Plamo2ForCausalLM": Remote(
        {
            "model_type": "plamo2", "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_head": 32, "max_position_embeddings": 512,
            "attention_window_size": 2048, "full_attention_idx": None, "mamba_d_state": 16, "mamba_d_conv": 4,
            "mamba_num_heads": 4, "mamba_step": 2, "mamba_chunk_size": 256, "mamba_enabled": True, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        """
        model.embed_tokens.weight vocab hidden
        model.norm.weight hidden
        model.layers.layers.0.mixer.in_proj.weight 256 hidden
        model.layers.layers.0.mixer.conv1d.weight 128 1 4
        model.layers.layers.0.mixer.bcdt_proj.weight 96 128
        model.layers.layers.0.mixer.dt_proj.weight 4 64
        model.layers.layers.0.mixer.dt_bias 4
        model.layers.layers.0.mixer.A_log 4
        model.layers.layers.0.mixer.D 4
        model.layers.layers.0.mixer.dt_norm_weight 64
        model.layers.layers.0.mixer.B_norm_weight 16
        model.layers.layers.0.mixer.C_norm_weight 16
        model.layers.layers.0.mixer.out_proj.weight hidden 128
        model.layers.layers.1.mixer.qkv_proj.weight 256 hidden
        model.layers.layers.1.mixer.o_proj.weight hidden q
        model.layers.layers.1.mixer.q_weight 4 head
        model.layers.layers.1.mixer.k_weight 2 head
        model.layers.layers.{i}.mlp.gate_up_proj.weight 192 hidden
        model.layers.layers.{i}.mlp.down_proj.weight hidden inner
        model.layers.layers.{i}.pre_mixer_norm.weight hidden
        model.layers.layers.{i}.post_mixer_norm.weight hidden
        model.layers.layers.{i}.pre_mlp_norm.weight hidden
        model.layers.layers.{i}.post_mlp_norm.weight hidden
        """,
    ),
}  # fmt: skip
