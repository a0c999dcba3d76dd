"""Tiny random checkpoints of every family that is exported, and the logits that transformers and llama.cpp give them.

Written by transformers; float32 on both sides.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import family_making
import numpy as np

from exporting import composed_models, maker

TRAINED, FACTOR = 512, 4
LENGTH = TRAINED * FACTOR
SHORT = 720  # tokens beyond the trained length, at a tenth of the cost
ROWS = maker.ROWS
SMALL: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": ROWS, "max_position_embeddings": TRAINED, "bos_token_id": 256,
    "eos_token_id": 257, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
HALF_WINDOW = {"sliding_window": TRAINED // 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
HALF_ROTATES = {
    "num_attention_heads": 2, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
MLA: dict[str, Any] = {
    **SMALL, **EXPERTS, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 32, "v_head_dim": 24, "n_routed_experts": 4, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    **SMALL, **EXPERTS, "num_hidden_layers": 3, "n_routed_experts": 4, "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}  # fmt: skip

GRANITE = {
    "attention_multiplier": 0.25, "embedding_multiplier": 1.5, "residual_multiplier": 0.7, "logits_scaling": 3.0,
    "attention_bias": True,
}  # fmt: skip

MIXED = {"n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace",
         "routed_scaling_factor"}  # fmt: skip

Drawn = Callable[[str, Any, str, Any], Any]

# By family: its config, which says what the class would otherwise assume.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "attention_bias": True, "mlp_bias": True},
    "mistral": {**SMALL, "head_dim": 32, "sliding_window": None},
    "ministral3": {
        **SMALL, "head_dim": 32, "sliding_window": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.3,
            "original_max_position_embeddings": TRAINED,
        },
    },
    "mixtral": {**SMALL, "head_dim": 32, "sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": SMALL,
    "qwen3": {**SMALL, "head_dim": 32},
    "qwen2_moe": {**SMALL, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {**SMALL, **EXPERTS, "head_dim": 32, "num_experts": 4, "norm_topk_prob": True},
    "phi3": {
        **SMALL, **HALF_ROTATES, "original_max_position_embeddings": TRAINED,
    },
    "gemma2": {
        **SMALL, **HALF_WINDOW, "head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 3,
        "tie_word_embeddings": True, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 400.0,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3_text": {
        **SMALL, **HALF_WINDOW, "head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 3,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "olmo2": SMALL,
    "olmo3": {
        **SMALL, **HALF_WINDOW, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40000.0},
        },
    },
    "granite": {
        **SMALL, **GRANITE, "mlp_bias": True,
    },
    "smollm3": {**SMALL, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "starcoder2": {**SMALL, "sliding_window": None, "use_bias": True},
    "glm4": {**SMALL, **HALF_ROTATES, "num_attention_heads": 4, "head_dim": 64, "attention_bias": True},
    "exaone4": {**SMALL, "head_dim": 32, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "stablelm": {**SMALL, **HALF_ROTATES, "use_qkv_bias": True},
    "gpt_neox": {
        **{key: value for key, value in {**SMALL, **HALF_ROTATES}.items() if key != "num_key_value_heads"},
        "hidden_act": "gelu_new",
    },
    "cohere": {**SMALL, "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere2": {
        **SMALL, **HALF_WINDOW, "num_hidden_layers": 4, "logit_scale": 0.25, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
    "granite_swa": {
        **SMALL, **HALF_WINDOW, "num_hidden_layers": 3, "attention_multiplier": 0.25, "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7, "logits_scaling": 3.0, "attention_bias": True, "mlp_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "falcon": {
        **{key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "intermediate_size")},
        "ffn_hidden_size": 64, "multi_query": True, "new_decoder_architecture": False, "activation": "gelu_new",
    },
    "mellum": {
        **SMALL, **EXPERTS, **HALF_WINDOW, "head_dim": 32, "num_experts": 4, "norm_topk_prob": True, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40000.0},
        },
    },
    "ministral": {**SMALL, "head_dim": 32, "sliding_window": 2 * LENGTH},
    "minicpm3": {
        **SMALL, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 32, "v_head_dim": 24, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
        "rms_norm_eps": 1e-6,
    },
    "gpt_oss": {
        **SMALL, **HALF_WINDOW, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "olmoe": {**SMALL, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        **ROUTED, **HALF_ROTATES, "num_attention_heads": 4, "head_dim": 64, "attention_bias": True, "use_qk_norm": True,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    },
    "solar_open": {**ROUTED, "head_dim": 32, "norm_topk_prob": False},
    "dots1": {**ROUTED, "first_k_dense_replace": 1, "num_key_value_heads": 4, "sliding_window": None, "norm_topk_prob": True},
    "ernie4_5_moe": {
        **SMALL, "num_hidden_layers": 3, "moe_intermediate_size": 16, "moe_num_shared_experts": 2, "moe_num_experts": 4,
        "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1,
    },
    "granitemoe": {**SMALL, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": {
        **SMALL, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
    },
    "hunyuan_v1_moe": {
        **SMALL, "head_dim": 32, "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [64, 64],
        "num_shared_expert": [1, 1],
    },
    "exaone_moe": {
        **SMALL, **HALF_WINDOW, **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "hy_v3": {
        **SMALL, **EXPERTS, "num_hidden_layers": 3, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "router_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "minimax_m2": {**SMALL, "head_dim": 32, "rotary_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "scoring_func": "sigmoid"},
    "glm4_moe_lite": {**MLA, "mlp_layer_types": ["dense", "sparse", "sparse"], "n_group": 1, "topk_group": 1},
    # transformers loads the padding token's embedding as 0
    "youtu": {**{key: value for key, value in MLA.items() if key not in MIXED}, "pad_token_id": None},
    "afmoe": {
        **SMALL, **HALF_WINDOW, **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "num_dense_layers": 1, "route_scale": 1.5, "route_norm": True, "mup_enabled": True, "score_func": "sigmoid",
    },
    "llama4_text": {
        **SMALL, "num_hidden_layers": 4, "head_dim": 32, "intermediate_size_mlp": 96, "num_local_experts": 4,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 1, 0],
    },
    "mistral4": {
        **MLA, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": TRAINED,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
        "max_position_embeddings": 2 * TRAINED,
    },
    "deepseek_v2": {**MLA, "topk_method": "greedy", "norm_topk_prob": False},
    "deepseek_v3": {**MLA, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 0},
}  # fmt: skip
CONFIGS |= composed_models.configs(SMALL, CONFIGS)
IN_TABLE = {*CONFIGS}
for _name in family_making.others(CONFIGS, exported=True):
    _rope = {"rope_type": "default", "rope_theta": 10000.0, **family_making.rope_keys(_name)}
    CONFIGS[_name] = {**family_making.config(_name, SMALL), "rope_parameters": _rope}
SCALED = ("mistral4",)  # whose class computes no table without a scaling
SILENT = object()
MULTIPLIED = ("gemma", "gemma2", "gemma3_text", "gemma3")  # embeddings, by the root of the hidden size
ADDED_ONE = (*MULTIPLIED, "nemotron", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
# llama.cpp takes gelu from a table of float16 numbers: with full weights that alone would be 1e-3 of the largest logit.
TABLED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4_text", "starcoder2", "gpt_neox", "phi", "falcon")
TOKENS = [256, *(int(token) for token in np.random.default_rng(3).integers(0, 256, LENGTH - 1))]
PLACES = (5, 300, 511, 512, 700, 1023, 1500, 2046, 2047)


def write(
    path: Path,
    family: str,
    changes: Mapping[str, Any] | None = None,
    seed: int = 7,
    wrapper: str | None = None,
    drawn: Drawn | None = None,
) -> Path:
    """Write a random checkpoint by which every logit depends on every position, with a tokenizer.

    changes: to its config, which is silent where they are SILENT. wrapper: the type of the config around it; None: that
    of the families which have no class alone. drawn: returns the numbers of a tensor; None: those of `_drawn`.
    """
    if changes or drawn:
        return _write(path, family, changes or {}, seed, wrapper, drawn or _drawn)
    return Path(shutil.copytree(_unchanged(family, seed, wrapper), path, dirs_exist_ok=True))


@cache
def _unchanged(family: str, seed: int, wrapper: str | None) -> Path:
    """Write the checkpoint of a family once: its class takes longer than a copy."""
    return _write(Path(_folder().name, f"{family} {seed} {wrapper}"), family, {}, seed, wrapper, _drawn)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _write(path: Path, family: str, changes: Mapping[str, Any], seed: int, wrapper: str | None, drawn: Drawn) -> Path:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig

    config = {"model_type": family, **CONFIGS[family], **changes}
    config = {key: value for key, value in config.items() if value is not SILENT}
    wrapper = composed_models.WRAPPERS.get(family, "") if wrapper is None else wrapper
    if wrapper:
        config = composed_models.wrapped(config, wrapper)
    made = AutoConfig.for_model(**json.loads(json.dumps(config)))
    model = auto_class(made).from_config(made, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            tied = config["tie_word_embeddings"] and name.startswith("lm_head")
            if weight.is_floating_point() and "rotary" not in name and not tied:
                weight.copy_(drawn(name, weight, family, generator))
    model.save_pretrained(path)
    if wrapper:
        config["architectures"] = [type(model).__name__]
        stored = load_file(path / "model.safetensors")
        save_file(composed_models.as_published(stored, wrapper), path / "model.safetensors", metadata={"format": "pt"})
    maker.save(path / "config.json", config)
    maker.save(path / "tokenizer.json", maker.tokenizer())
    maker.save(path / "tokenizer_config.json", maker.TOKENIZER_CONFIG)
    (path / "generation_config.json").unlink(missing_ok=True)
    return path


def _drawn(name: str, weight: Any, family: str, generator: Any) -> Any:
    import torch

    drawn = torch.randn(weight.shape, generator=generator)
    if name.endswith("layer_scalar"):
        return 1 + 0.2 * drawn
    if "norm" in name and name.endswith("weight"):
        return 0.2 * drawn if family in ADDED_ONE else 1 + 0.2 * drawn
    if weight.ndim == 1:
        return 0.3 * drawn
    if "embed" in name:  # attention alone would make much of the last bits of float32 angles
        return (0.5 if family in (*MULTIPLIED, "gemma4_text") else 2.0) * drawn
    if family in TABLED and any(part in name for part in ("mlp", "per_layer", "experts")):
        return 0.02 * drawn
    return max(0.12, 1.4 / math.sqrt(weight.shape[-1])) * drawn


def auto_class(config: Any) -> Any:
    """Return the auto class that has a model with a head for a config."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    images = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def torch_logits(path: Path, length: int = LENGTH) -> np.ndarray:
    import torch
    from transformers import AutoConfig

    auto = auto_class(AutoConfig.from_pretrained(path))
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS[:length]]), use_cache=False).logits[0]
    found: np.ndarray = logits[[place for place in PLACES if place < length]].double().numpy()
    return found


def llama_logits(path: Path, length: int = LENGTH) -> np.ndarray:
    from ropetool.verification.runners.llama_runner import LlamaRunner

    with closing(LlamaRunner(path)) as runner:
        rows = [piece.copy() for _, piece in runner.logits(TOKENS[:length])]
    return np.concatenate(rows)[[place for place in PLACES if place < length]].astype(np.float64)


def apart(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest logit."""
    return float(np.abs(wanted - found).max() / np.abs(wanted).max())
