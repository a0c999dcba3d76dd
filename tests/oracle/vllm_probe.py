"""Ask the real rotary and model classes of a vLLM what they rotate by: python vllm_probe.py SOURCE, jobs on stdin.

A job is {"path": DIR, "positions": [...]}: the config in DIR, and where there is one the value of --hf-overrides as
"overrides". An answer is {"layers": [one for each layer], "context":
the default one, "longest": the largest that --max-model-len may ask for}, or {"transformers": true} with the lengths
where vLLM runs transformers' own model code, or {"error"}. A layer is {"regimes": [{"inv_freq", "attention_factor",
"rows": {position: cos and sin}, "reach"}], "half", "softmax", "window"}; of two regimes the first is the short list,
and "long" says whether the second serves at a context of the trained length, and of one token more. Runs on a CPU;
what needs a GPU is a stand-in, see peer_stand_ins.py.
"""

import importlib
import json
import logging
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Space

import peer_stand_ins as stand_ins
import torch
import transformers
from transformers import AutoConfig

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
transformers.logging.set_verbosity_error()
torch.compile = lambda function=None, **_: function if function is not None else lambda inner: inner

ROOT = sys.argv[1]
MODELS = "vllm.model_executor.models."
LAYERS = {
    "llama": ("llama", "LlamaDecoderLayer"), "mistral": ("mistral", "MistralDecoderLayer"),
    "mixtral": ("mixtral", "MixtralDecoderLayer"), "qwen2": ("qwen2", "Qwen2DecoderLayer"),
    "qwen2_moe": ("qwen2_moe", "Qwen2MoeDecoderLayer"), "qwen3": ("qwen3", "Qwen3DecoderLayer"),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeDecoderLayer"), "phi3": ("llama", "LlamaDecoderLayer"),
    "gemma2": ("gemma2", "Gemma2DecoderLayer"), "gemma3_text": ("gemma3", "Gemma3DecoderLayer"),
    "granite": ("granite", "GraniteDecoderLayer"), "stablelm": ("stablelm", "StablelmDecoderLayer"),
    "glm4": ("glm4", "Glm4DecoderLayer"), "cohere": ("commandr", "CohereDecoderLayer"),
    "gpt_neox": ("gpt_neox", "GPTNeoXLayer"), "phi": ("phi", "PhiLayer"),
    "gpt_oss": ("gpt_oss", "OAIAttention"), "olmo3": ("olmo3", "Olmo3DecoderLayer"),
    "olmo2": ("olmo2", "Olmo2DecoderLayer"),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2DecoderLayer"), "deepseek_v3": ("deepseek_v2", "DeepseekV2DecoderLayer"),
}  # fmt: skip


class CustomOp(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    @classmethod
    def register(cls, *_, **__):
        return lambda inner: inner

    @classmethod
    def enabled(cls):
        return False


class Attention(torch.nn.Module):
    """Keeps the scale and the window that a model hands to its attention."""

    def __init__(self, num_heads, head_size, scale, **named):
        super().__init__()
        cache = named.get("cache_config")
        own = named.get("per_layer_sliding_window")
        self.scale, self.window = scale, own if own is not None else cache.sliding_window


def index(prefix, num_attn_module=1):
    return int(next(part for part in prefix.split(".") if part.isdigit()))


current = Space(model_config=Space(max_model_len=0))
given = {
    "vllm.model_executor.custom_op": {"CustomOp": CustomOp, "PluggableLayer": CustomOp},
    "vllm._aiter_ops": {"rocm_aiter_ops": Space(is_triton_rotary_embed_enabled=lambda: False)},
    "vllm.distributed": {
        "get_tensor_model_parallel_world_size": lambda: 1,
        "get_tensor_model_parallel_rank": lambda: 0,
    },
    "vllm.config": {"get_current_vllm_config": lambda: current},
    "vllm.model_executor.layers.attention": {"Attention": Attention},
    "vllm.model_executor.layers.attention.encoder_only_attention": {"Attention": Attention},
    MODELS + "utils": {"extract_layer_index": index, "maybe_prefix": lambda a, b: f"{a}.{b}"},
}
real = ["vllm.model_executor.layers.rotary_embedding", "vllm.transformers_utils.config", "vllm.config.utils"]
stand_ins.install(
    ROOT, [*real, *(MODELS + name for name, _ in LAYERS.values())], given,
    ("flashinfer", "vllm_flash_attn", "triton", "einops", "compressed_tensors", "gguf"),
)  # fmt: skip


def forget():
    """Forget the tables that were made: they are shared by equal keys, and 4 is equal to 4.0."""
    importlib.import_module("vllm.model_executor.layers.rotary_embedding")._ROPE_DICT.clear()


def config_of(job):
    """Return the text config after vLLM's own patching of it, and what --hf-overrides makes of it."""
    forget()
    config, overrides = AutoConfig.from_pretrained(job["path"]), job.get("overrides", {})
    config.update({key: value for key, value in overrides.items() if not isinstance(value, dict)})
    patch = importlib.import_module("vllm.transformers_utils.config").patch_rope_parameters
    patch(config)
    patch(config.get_text_config())
    model_config, file = Space(), f"{ROOT}/vllm/config/model.py"
    for name in ("_update_nested", "_apply_dict_overrides"):
        vars(model_config)[name] = partial(stand_ins.function(file, name), model_config)
    model_config._apply_dict_overrides(config, {k: v for k, v in overrides.items() if isinstance(v, dict)})
    return config.get_text_config()


def context(config, wanted):
    """Return what _get_and_verify_max_len makes of a --max-model-len, None for none."""
    utils = importlib.import_module("vllm.transformers_utils.config")
    scope = {
        "logger": stand_ins.stand_in("logger"), "current_platform": Space(check_max_model_len=lambda n: n),
        "envs": Space(VLLM_ALLOW_LONG_MAX_MODEL_LEN=False),
        "is_rope_parameters_nested": utils.is_rope_parameters_nested,
        "iter_rope_parameters": getattr(utils, "iter_rope_parameters", None),
    }  # fmt: skip
    file = f"{ROOT}/vllm/transformers_utils/model_arch_config_convertor.py"
    derive = stand_ins.function(file, "derive_max_model_len_and_key")
    limit = stand_ins.function(f"{ROOT}/vllm/config/model.py", "_get_and_verify_max_len", **scope)
    arch = Space(derived_max_model_len_and_key=derive(Space(hf_text_config=config)))
    return limit(
        hf_config=config, model_arch_config=arch, tokenizer_config=None, max_model_len=wanted,
        disable_sliding_window=False, sliding_window=None,
    )  # fmt: skip


def longest(config):
    """Return the largest --max-model-len that is accepted."""
    low, high = context(config, None), 1 << 31
    while high - low > 1:
        middle = (low + high) // 2
        try:
            context(config, middle)
            low = middle
        except ValueError:
            high = middle
    return low


def on_transformers(config):
    """Return whether the registry has transformers' own code for the architecture."""
    registry = Path(ROOT, "vllm/model_executor/models/registry.py").read_text()
    return f'"{config.architectures[0]}": ("transformers"' in registry


def layer(config, number, max_model_len):
    """Return a layer of the model, built as its own __init__ builds it."""
    module, name = LAYERS[config.model_type]
    if config.model_type == "olmo3" and not Path(ROOT, "vllm/model_executor/models/olmo3.py").is_file():
        module, name = LAYERS["olmo2"]  # before 0.26 both run on it
    kinds = getattr(config, "layer_types", None)
    everywhere = kinds is None or all(kind == "sliding_attention" for kind in kinds)
    cache = Space(sliding_window=getattr(config, "sliding_window", None) if everywhere else None, cache_dtype="auto")
    current.model_config = Space(
        max_model_len=max_model_len, hf_config=config, hf_text_config=config, use_mla=False, dtype=torch.float32
    )
    whole = Space(
        model_config=current.model_config, cache_config=cache, quant_config=None,
        parallel_config=stand_ins.stand_in("parallel")(), compilation_config=stand_ins.stand_in("compilation")(),
    )  # fmt: skip
    vars(current).update(vars(whole))
    return stand_ins.called(
        getattr(importlib.import_module(MODELS + module), name),
        {
            "vllm_config": whole, "config": config, "cache_config": cache, "quant_config": None,
            "prefix": f"model.layers.{number}", "layer_id": number, "layer_idx": number,
        },
    )  # fmt: skip


def attention_of(made):
    found = [m for m in made.modules() if hasattr(m, "rotary_emb") and hasattr(m, "attn")]
    return found[0]


def regimes(rotary, positions):
    """Return what the cache of cos and sin holds: one table, or the short one and the long one behind it."""
    if not hasattr(rotary, "long_short_cos_sin_cache"):
        return [stand_ins.table(rotary.cos_sin_cache, positions)]
    cache, length = rotary.long_short_cos_sin_cache, rotary.original_max_position_embeddings
    return [stand_ins.table(cache[:length], positions), stand_ins.table(cache[length:], positions)]


def long_serves(config, number, rotary):
    """Return whether the long list serves with a context of the trained length, and with one token more."""
    if not hasattr(rotary, "use_long_rope"):
        return None
    length = rotary.original_max_position_embeddings
    found = []
    for context_length in (length, length + 1):
        forget()
        found.append(attention_of(layer(config, number, context_length)).rotary_emb.use_long_rope)
    return found


def answer(job):
    try:
        config = config_of(job)
        found = {"context": context(config, None), "longest": longest(config)}
        if on_transformers(config):
            return {**found, "transformers": True}
        layers = []
        for number in range(config.num_hidden_layers):
            attention = attention_of(layer(config, number, found["longest"]))
            rotary = attention.rotary_emb
            layers.append({
                "regimes": regimes(rotary, job["positions"]), "half": getattr(rotary, "is_neox_style", True),
                "long": long_serves(config, number, rotary), "rotary_dim": rotary.rotary_dim,
                "softmax": attention.attn.scale / stand_ins.own_scale(config), "window": attention.attn.window,
            })  # fmt: skip
        return {**found, "layers": layers}
    except Exception as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps([answer(job) for job in json.load(sys.stdin)]))
