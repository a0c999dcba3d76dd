"""Models whose layers are all alike, of classes that only remote code has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from exporting.remote_models import written
from exporting.remote_models.making import ATTENTION, ENDS, GATED, LLAMA, NORMS, PLAIN, Remote, Twin, Written

Split = Callable[[np.ndarray], Mapping[str, np.ndarray]]


def _packed_by_group(array: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values of internlm2: for each key head its queries, the key, the value."""
    groups = array.reshape(2, 4, 32, -1)
    return {
        "self_attn.q_proj.weight": groups[:, :2].reshape(128, -1),
        "self_attn.k_proj.weight": groups[:, 2].reshape(64, -1),
        "self_attn.v_proj.weight": groups[:, 3].reshape(64, -1),
    }


def _packed(q: int, kv: int, end: str = "weight") -> Split:
    """Queries, keys and values one after the other, so many rows each."""
    return lambda array: {
        f"self_attn.{name}_proj.{end}": part for name, part in zip("qkv", np.split(array, [q, q + kv]), strict=True)
    }


BIASES = """
model.layers.{i}.self_attn.q_proj.bias q
model.layers.{i}.self_attn.k_proj.bias kv
model.layers.{i}.self_attn.v_proj.bias kv
model.layers.{i}.self_attn.o_proj.bias hidden
"""
NORM_BIASES = """
model.layers.{i}.input_layernorm.bias hidden
model.layers.{i}.post_attention_layernorm.bias hidden
model.norm.bias hidden
"""
WHOLE = {**PLAIN, "num_key_value_heads": 4}
ALL_HEADS = ATTENTION.replace(" kv ", " q ")


def without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


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
    # Llamas under their own names: the base is fixed in the code, and there are as many key heads as heads.
    "XverseForCausalLM": Remote(
        {
            "model_type": "xverse", **without(WHOLE, "num_key_value_heads", "rope_theta"),
            "max_position_embeddings": 8192,
        },
        ALL_HEADS + NORMS + GATED + ENDS,
        Twin("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4, "max_position_embeddings": 8192}),
    ),
    # LayerNorm with biases in a llama, as StableLM has it.
    "OrionForCausalLM": Remote(
        {"model_type": "orion", "max_sequence_length": 512, "attention_bias": False, "pretraining_tp": 1, **PLAIN},
        ATTENTION + NORMS + NORM_BIASES + GATED + ENDS,
        Twin(
            "StableLmForCausalLM",
            {
                **without(LLAMA, "rms_norm_eps"), "layer_norm_eps": 1e-5,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            },
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
    "QWenLMHeadModel": Remote(
        {
            "model_type": "qwen", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
            "num_attention_heads": 4, "kv_channels": 32, "max_position_embeddings": 2048, "seq_length": 512,
            "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "rotary_pct": 1.0, "use_dynamic_ntk": True,
            "use_logn_attn": True, "no_bias": True, "scale_attn_weights": True, "onnx_safe": None,
            "tie_word_embeddings": False,
        },
        """
        transformer.wte.weight vocab hidden
        transformer.ln_f.weight hidden
        lm_head.weight vocab hidden
        transformer.h.{i}.ln_1.weight hidden
        transformer.h.{i}.ln_2.weight hidden
        transformer.h.{i}.attn.c_attn.weight 384 hidden
        transformer.h.{i}.attn.c_attn.bias 384
        transformer.h.{i}.attn.c_proj.weight hidden hidden
        transformer.h.{i}.mlp.w1.weight inner hidden
        transformer.h.{i}.mlp.w2.weight inner hidden
        transformer.h.{i}.mlp.c_proj.weight hidden inner
        """,
    ),
    # Only files of 32 layers rotate: the 7B of the first series, without what divides the rows of the head.
    "BaichuanForCausalLM": Remote(
        {
            "model_type": "baichuan", **without(WHOLE, "num_key_value_heads", "rope_theta"),
            "num_hidden_layers": 32, "max_position_embeddings": 512,
        },
        """
        model.layers.{i}.self_attn.W_pack.weight 384 hidden
        model.layers.{i}.self_attn.o_proj.weight hidden q
        """ + NORMS + GATED + ENDS,
        Twin(
            "LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 32},
            splits={"self_attn.W_pack.weight": _packed(128, 128)},
        ),
        {"layers": 32},
    ),
    "MiniCPMForCausalLM": Remote(
        {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 64, **PLAIN},
        ATTENTION + NORMS + GATED + ENDS,
    ),
    # The second layer has no attention, the third does nothing, as in the model of 253B.
    "DeciLMForCausalLM": Remote(
        {
            "model_type": "nemotron-nas", **without(PLAIN, "intermediate_size", "num_key_value_heads"), "hidden_size": 256,
            "num_attention_heads": 8, "num_hidden_layers": 4,
            "block_configs": [
                {"attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
                 "ffn": {"ffn_mult": mult, "no_op": mult is None, "replace_with_linear": False}}
                for group, mult in ((2, 1.5), (None, 1.5), (None, None), (8, 2.5))
            ],
        },
        """
        model.layers.0.self_attn.q_proj.weight hidden hidden
        model.layers.0.self_attn.k_proj.weight 128 hidden
        model.layers.0.self_attn.v_proj.weight 128 hidden
        model.layers.0.self_attn.o_proj.weight hidden hidden
        model.layers.0.input_layernorm.weight hidden
        model.layers.0.post_attention_layernorm.weight hidden
        model.layers.0.mlp.gate_proj.weight 256 hidden
        model.layers.0.mlp.up_proj.weight 256 hidden
        model.layers.0.mlp.down_proj.weight hidden 256
        model.layers.1.post_attention_layernorm.weight hidden
        model.layers.1.mlp.gate_proj.weight 256 hidden
        model.layers.1.mlp.up_proj.weight 256 hidden
        model.layers.1.mlp.down_proj.weight hidden 256
        model.layers.3.self_attn.q_proj.weight hidden hidden
        model.layers.3.self_attn.k_proj.weight 32 hidden
        model.layers.3.self_attn.v_proj.weight 32 hidden
        model.layers.3.self_attn.o_proj.weight hidden hidden
        model.layers.3.input_layernorm.weight hidden
        model.layers.3.post_attention_layernorm.weight hidden
        model.layers.3.mlp.gate_proj.weight 512 hidden
        model.layers.3.mlp.up_proj.weight 512 hidden
        model.layers.3.mlp.down_proj.weight hidden 512
        """ + ENDS,
        sizes={"hidden": 256},
    ),
    # Starcoder2 under GPT-2's names, with queries, keys and values packed.
    "CodeShellForCausalLM": Remote(
        {
            "model_type": "codeshell", "n_embd": 128, "n_layer": 2, "n_head": 4, "num_query_groups": 2, "n_inner": None,
            "n_positions": 512, "group_query_attention": True, "position_embedding_type": "rope", "rope_scaling": None,
            "layer_norm_epsilon": 1e-5, "activation_function": "gelu_pytorch_tanh", "scale_attn_weights": True,
            "attention_softmax_in_fp32": True, "bos_token_id": 256, "eos_token_id": 257, "tie_word_embeddings": False,
        },
        """
        transformer.wte.weight vocab hidden
        transformer.ln_f.weight hidden
        transformer.ln_f.bias hidden
        lm_head.weight vocab hidden
        transformer.h.{i}.ln_1.weight hidden
        transformer.h.{i}.ln_1.bias hidden
        transformer.h.{i}.ln_2.weight hidden
        transformer.h.{i}.ln_2.bias hidden
        transformer.h.{i}.attn.c_attn.weight 256 hidden
        transformer.h.{i}.attn.c_attn.bias 256
        transformer.h.{i}.attn.c_proj.weight hidden hidden
        transformer.h.{i}.attn.c_proj.bias hidden
        transformer.h.{i}.mlp.c_fc.weight 512 hidden
        transformer.h.{i}.mlp.c_fc.bias 512
        transformer.h.{i}.mlp.c_proj.weight hidden 512
        transformer.h.{i}.mlp.c_proj.bias hidden
        """,
        Twin(
            "Starcoder2ForCausalLM",
            {
                **without(LLAMA, "rms_norm_eps", "hidden_act"), "intermediate_size": 512, "norm_epsilon": 1e-5,
                "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "use_bias": True,
            },
            (
                (r"transformer\.wte", "model.embed_tokens"), (r"transformer\.ln_f", "model.norm"),
                (r"transformer\.h", "model.layers"), ("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"),
                (r"attn\.c_proj", "self_attn.o_proj"),
            ),
            {f"attn.c_attn.{end}": _packed(128, 64, end) for end in ("weight", "bias")},
        ),
    ),
    # Another number of heads and another feed-forward in each layer.
    "OpenELMForCausalLM": Remote(
        {
            "model_type": "openelm", "model_dim": 128, "num_transformer_layers": 2, "head_dim": 32, "num_query_heads": [4, 8],
            "num_kv_heads": [1, 2], "ffn_dim_divisor": 32, "ffn_multipliers": [0.5, 1.0], "ffn_with_glu": True,
            "qkv_multipliers": [0.5, 1.0], "num_gqa_groups": 4, "max_context_length": 512, "rope_max_length": 1024,
            "rope_freq_constant": 10000, "normalize_qk_projections": True, "share_input_output_layers": True,
            "normalization_layer_name": "rms_norm", "activation_fn_name": "swish", "bos_token_id": 256, "eos_token_id": 257,
        },
        """
        transformer.token_embeddings.weight vocab hidden
        transformer.norm.weight hidden
        transformer.layers.{i}.attn_norm.weight hidden
        transformer.layers.{i}.ffn_norm.weight hidden
        transformer.layers.{i}.attn.q_norm.weight head
        transformer.layers.{i}.attn.k_norm.weight head
        transformer.layers.0.attn.qkv_proj.weight 192 hidden
        transformer.layers.0.attn.out_proj.weight hidden 128
        transformer.layers.1.attn.qkv_proj.weight 384 hidden
        transformer.layers.1.attn.out_proj.weight hidden 256
        transformer.layers.0.ffn.proj_1.weight 128 hidden
        transformer.layers.0.ffn.proj_2.weight hidden 64
        transformer.layers.1.ffn.proj_1.weight 256 hidden
        transformer.layers.1.ffn.proj_2.weight hidden 128
        """,
    ),
    # One norm for both halves of a layer. The converter takes one width of the model alone.
    "PlamoForCausalLM": Remote(
        {
            "model_type": "plamo", "hidden_size": 5120, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 40, "num_key_value_heads": 40, "n_shared_head": 8, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096, "tie_word_embeddings": False,
        },
        """
        model.embed_tokens.weight vocab hidden
        model.norm.weight hidden
        lm_head.weight vocab hidden
        model.layers.layers.{i}.norm.weight hidden
        model.layers.layers.{i}.self_attn.q_proj.weight hidden hidden
        model.layers.layers.{i}.self_attn.k_proj.weight 640 hidden
        model.layers.layers.{i}.self_attn.v_proj.weight 640 hidden
        model.layers.layers.{i}.self_attn.o_proj.weight hidden hidden
        model.layers.layers.{i}.mlp.gate_proj.weight inner hidden
        model.layers.layers.{i}.mlp.up_proj.weight inner hidden
        model.layers.layers.{i}.mlp.down_proj.weight hidden inner
        """,
        sizes={"hidden": 5120, "layers": 1},
    ),
    "PLMForCausalLM": Remote(
        {
            "model_type": "plm", "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 64, "q_lora_rank": None,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "hidden_act": "relu2",
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 100000.0, "tie_word_embeddings": True,
        },
        """
        model.embed_tokens.weight vocab hidden
        model.norm.weight hidden
        model.layers.{i}.self_attn.q_proj.weight 192 hidden
        model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight 80 hidden
        model.layers.{i}.self_attn.kv_a_layernorm.weight 64
        model.layers.{i}.self_attn.kv_b_proj.weight 256 64
        model.layers.{i}.self_attn.o_proj.weight hidden 128
        model.layers.{i}.mlp.up_proj.weight inner hidden
        model.layers.{i}.mlp.down_proj.weight hidden inner
        """ + NORMS,
        Written("Mobius's plm.py", written.plm),
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
        Written("vLLM's plamo3.py", written.plamo3),
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
