"""Tiny random checkpoints of every family that can be baked, and what the real transformers computes from them.

float64 throughout: the casts to float32 inside transformers are replaced, so that a true identity shows about 1e-13.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import family_making
import numpy as np
import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from ropetool.checkpoint.edits import edits_of_file
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.files.hf import apply_edits, read_header
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.hf_bakeable import HfBakeable
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import Baked, write_weights

TRAINED, FACTOR = 512, 4.0
LENGTH = int(TRAINED * FACTOR)
BEYOND = 640  # tokens: LENGTH costs ten times as much, and scripts/bake_grid/grid.py runs every family there
VOCABULARY = 96
YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
MLA: dict[str, Any] = {
    **SMALL, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 32, "v_head_dim": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
BOTH_KINDS: dict[str, Any] = {
    **SMALL, "head_dim": 32, "num_hidden_layers": 3, "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
FALCON: dict[str, Any] = {
    **{k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "intermediate_size")}, "bias": True,
    "alibi": False, "rope_parameters": YARN,
}  # fmt: skip
ALL_DIM = {"mscale": 1.0, "mscale_all_dim": 1.0}


def nested(full: Mapping[str, Any]) -> dict[str, Any]:
    return {"full_attention": dict(full), "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


# By name: model_type and config, in the v5 style and asking for YaRN's factor.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL, "rope_parameters": YARN, "attention_bias": True},
    "mistral": {"model_type": "mistral", **SMALL, "head_dim": 32, "sliding_window": None, "rope_parameters": YARN},
    "ministral3": {
        "model_type": "ministral3", **SMALL, "head_dim": 32, "sliding_window": None,
        "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3},
    },
    "mixtral": {
        "model_type": "mixtral", **SMALL, "head_dim": 32, "sliding_window": None, "num_local_experts": 2,
        "num_experts_per_tok": 1, "rope_parameters": YARN,
    },
    "qwen2": {"model_type": "qwen2", **SMALL, "rope_parameters": YARN},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 32, "rope_parameters": YARN},
    "gemma3_text": {
        "model_type": "gemma3_text", **BOTH_KINDS, "query_pre_attn_scalar": 24, "rope_parameters": nested(YARN),
    },
    "olmo3": {
        "model_type": "olmo3", **{k: v for k, v in BOTH_KINDS.items() if k != "head_dim"},
        "rope_parameters": nested(YARN),
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2", **MLA, "topk_method": "greedy", "rope_parameters": {**YARN, **ALL_DIM},
    },
    "deepseek_v2-no-query-latent": {
        "model_type": "deepseek_v2", **MLA, "q_lora_rank": None, "topk_method": "greedy",
        "rope_parameters": {**YARN, **ALL_DIM},
    },
    "deepseek_v3": {"model_type": "deepseek_v3", **MLA, "attention_bias": True, "rope_parameters": {**YARN, **ALL_DIM}},
    "deepseek_v3-half": {
        "model_type": "deepseek_v3", **MLA, "rope_interleave": False, "rope_parameters": {**YARN, **ALL_DIM},
    },
    "deepseek_v3-no-query-latent": {
        "model_type": "deepseek_v3", **MLA, "q_lora_rank": None, "rope_parameters": {**YARN, **ALL_DIM},
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", **SMALL, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "rope_parameters": YARN,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SMALL, "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "rope_parameters": YARN,
    },
    "phi3": {
        "model_type": "phi3", **SMALL, "original_max_position_embeddings": TRAINED,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "factor": FACTOR,
            "original_max_position_embeddings": TRAINED, "short_factor": [1.0] * 12,
            "long_factor": [1.0 + 0.2 * i for i in range(12)],
        },
    },
    "gemma2": {
        "model_type": "gemma2", **SMALL, "head_dim": 32, "sliding_window": 64, "attn_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 24, "rope_parameters": YARN,
    },
    "gpt_oss": {
        "model_type": "gpt_oss", **SMALL, "head_dim": 32, "sliding_window": 64, "num_local_experts": 2,
        "num_experts_per_tok": 1, "rope_parameters": {**YARN, "truncate": False},
    },
    "gpt_neox": {
        "model_type": "gpt_neox", **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "hidden_size": 256,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "falcon-groups": {
        "model_type": "falcon", **FALCON, "new_decoder_architecture": True, "multi_query": False, "num_kv_heads": 2,
    },
    "falcon-one-key": {"model_type": "falcon", **FALCON, "new_decoder_architecture": False, "multi_query": True},
    "falcon-per-head": {"model_type": "falcon", **FALCON, "new_decoder_architecture": False, "multi_query": False},
    "stablelm": {
        "model_type": "stablelm", **SMALL, "hidden_size": 256, "use_qkv_bias": True,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "stablelm-norms": {
        "model_type": "stablelm", **SMALL, "hidden_size": 256, "qk_layernorm": True,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "phi": {
        "model_type": "phi", **SMALL, "hidden_size": 256, "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "phi-norms": {
        "model_type": "phi", **SMALL, "hidden_size": 256, "qk_layernorm": True,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "starcoder2": {"model_type": "starcoder2", **SMALL, "sliding_window": None, "rope_parameters": YARN},
    "olmo": {"model_type": "olmo", **SMALL, "rope_parameters": YARN},
    "olmo2": {"model_type": "olmo2", **SMALL, "rope_parameters": YARN},
    "granite": {"model_type": "granite", **SMALL, "attention_multiplier": 0.25, "rope_parameters": YARN},
    "smollm3": {
        "model_type": "smollm3", **SMALL, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "rope_parameters": YARN,
    },
    "cohere": {"model_type": "cohere", **SMALL, "logit_scale": 1.0, "rope_parameters": YARN},
    "cohere-norms": {
        "model_type": "cohere", **SMALL, "logit_scale": 1.0, "use_qk_norm": True, "rope_parameters": YARN,
    },
    "cohere2": {
        "model_type": "cohere2", **SMALL, "num_hidden_layers": 3, "sliding_window": 64, "logit_scale": 1.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": YARN,
    },
    "glm4": {
        "model_type": "glm4", **SMALL, "head_dim": 64, "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
    },
    "exaone4": {
        "model_type": "exaone4", **SMALL, "head_dim": 32, "num_hidden_layers": 3, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": YARN,
    },
    "deepseek_v32": {
        "model_type": "deepseek_v32", **MLA, "index_topk": 96, "index_head_dim": 48, "index_n_heads": 2,
        "rope_parameters": {**YARN, **ALL_DIM},
    },
    "mistral4": {
        "model_type": "mistral4", **MLA, "qk_nope_head_dim": 32,
        "rope_parameters": {
            **YARN, **ALL_DIM, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5,
            "max_position_embeddings": LENGTH,
        },
    },
    "minicpm3": {
        "model_type": "minicpm3", **{k: v for k, v in MLA.items() if "expert" not in k}, "scale_emb": 1,
        "dim_model_base": 128, "rope_parameters": {**YARN, **ALL_DIM},
    },
}  # fmt: skip
for _name in family_making.others({config["model_type"]: name for name, config in MODELS.items()}, baked=True):
    _rope = {**YARN, **family_making.rope_keys(_name)}
    MODELS[_name] = {"model_type": _name, **family_making.config(_name, SMALL), "rope_parameters": _rope}
EAGER = {"gemma2", "gpt_oss"}  # no sdpa for soft caps and sinks


def v4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config in the v4 style: rope_theta beside rope_scaling."""
    data = {key: value for key, value in config.items() if key != "rope_parameters"}
    keys = dict(config["rope_parameters"])
    local = {}
    if "full_attention" in keys:
        local = {"rope_local_base_freq": keys["sliding_attention"]["rope_theta"]}
        keys = dict(keys["full_attention"])
    return {**data, "rope_theta": keys.pop("rope_theta"), **local, "rope_scaling": keys}


def write(directory: Path, config: Mapping[str, Any], seed: int = 0, shards: int = 1) -> Path:
    """Write a random checkpoint in float64, with the config as given."""
    made = AutoConfig.for_model(**json.loads(json.dumps(config)))
    with default_dtype(torch.float64):
        model = _class_of(made)._from_config(made, attn_implementation="eager")
    _randomize(model.double(), seed)
    size = sum(p.numel() for p in model.parameters()) * 8
    model.save_pretrained(directory, max_shard_size=f"{math.ceil(size / shards / 1000) + 100}KB")
    stated = {"architectures": made.architectures or [type(model).__name__], "dtype": "float64", **config}
    (directory / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
    return directory


def _class_of(config: Any) -> Any:
    """Return the model class; transformers maps mistral4 to its multimodal one alone."""
    if config.model_type == "mistral4":
        return importlib.import_module("transformers.models.mistral4.modeling_mistral4").Mistral4ForCausalLM
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _randomize(model: Any, seed: int) -> None:
    """Draw weights by which every logit depends on every position."""
    generator = torch.Generator().manual_seed(seed)
    added_one = "gemma" in type(model).__name__.lower()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(0.3 * drawn if added_one else 1 + 0.3 * drawn)
            elif name.endswith("bias") or "sinks" in name:
                parameter.copy_(0.5 * drawn)
            elif "embed" in name:
                parameter.copy_(drawn)
            else:
                parameter.copy_(drawn * max(0.12, 1.6 / math.sqrt(parameter.shape[-1])))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def everything_in_float64() -> Iterator[None]:
    """Let what transformers casts to float32 become float64: norms, rotary angles, softmax."""
    float32, short, method = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = lambda self, *_, **__: self.double()  # type: ignore[assignment, method-assign]
    try:
        with default_dtype(torch.float64):
            yield
    finally:
        torch.float32, torch.float = float32, short
        torch.Tensor.float = method  # type: ignore[method-assign]


def tokens(length: int = LENGTH, seed: int = 5) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def load(directory: Path, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> Any:
    config = AutoConfig.from_pretrained(directory)
    attention = "eager" if config.model_type in EAGER else attention
    return (
        _class_of(config)
        .from_pretrained(directory, dtype=dtype, attn_implementation=attention, experts_implementation="eager")
        .eval()
    )


def logits(
    directory: Path, length: int = BEYOND, *, exact: bool = True, change: Callable[[Any], None] | None = None
) -> np.ndarray[Any, Any]:
    """Return the logits of fixed tokens in float64, or in float32 as transformers has it; `change` edits the model."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    everywhere = everything_in_float64() if exact else contextlib.nullcontext()  # also tables, computed with the model
    with torch.no_grad(), everywhere:
        model = load(directory, torch.float64 if exact else torch.float32)
        if change is not None:
            change(model)
        found: np.ndarray[Any, Any] = model(tokens(length), use_cache=False).logits[0].double().numpy()
    return found


@contextlib.contextmanager
def rotated_interleaved(model_type: str) -> Iterator[None]:
    """Let a half-layout family of transformers rotate neighbouring channels: an oracle for the other order."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    before = module.apply_rotary_pos_emb

    def neighbours(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any) -> Any:
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].repeat_interleave(2, -1).unsqueeze(1) for t in (cos, sin))

        def turned(x: torch.Tensor) -> torch.Tensor:
            return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)

        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    module.apply_rotary_pos_emb = neighbours
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = before


def opened(directory: Path) -> HfBakeable:
    return HfBakeable.of(HfCheckpoint.open(directory))


def reordered(model: HfBakeable, to: str) -> Bake:
    """Return the bake to another order of channels, also where no key says which it is: for runtimes that rotate in it."""
    if model.targets.family.interleave_key:
        return bakes.layout(model, to)
    return Bake(model.placed(bakes.reordered(model.targets, to)))


def carry_out(bake: Bake, source: Path, target: Path, **options: Any) -> Baked:
    """Write the baked checkpoint: the touched shards by ropetool, everything else copied."""
    checkpoint = HfCheckpoint.open(source)
    files = weight_files(checkpoint)
    target.mkdir()
    baked = write_weights(bake.tensors, files, [target / file.path.name for file in files], **options)
    for file in source.iterdir():
        if not (target / file.name).exists():
            shutil.copy(file, target / file.name)
    text = apply_edits(checkpoint.text, edits_of_file(bake.edits, "config.json"), "config.json")
    (target / "config.json").write_text(text)
    return baked


def stored(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the type, shape and bytes of every tensor of a checkpoint."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        for name, info in read_header(path).tensors.items():
            found[name] = (info.dtype, info.shape, data[info.begin : info.end])
    return found
