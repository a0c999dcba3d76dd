"""Ask the real rotary and model classes of an SGLang what they rotate by: python sglang_probe.py SOURCE, jobs on stdin.

Jobs and answers are those of vllm_probe.py, but for "longest" and "long": the context is not a limit here, and a call
chooses its list by its positions.
"""

import importlib
import json
import logging
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Optional

import peer_stand_ins as stand_ins
import torch
import transformers
from transformers import AutoConfig

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
transformers.logging.set_verbosity_error()
torch.compile = lambda function=None, **_: function if function is not None else lambda inner: inner

ROOT = sys.argv[1]
MODELS = "sglang.srt.models."
LAYERS = {
    "llama": ("llama", "LlamaDecoderLayer"), "mistral": ("llama", "LlamaDecoderLayer"),
    "phi3": ("llama", "LlamaDecoderLayer"), "mixtral": ("mixtral", "MixtralDecoderLayer"),
    "qwen2": ("qwen2", "Qwen2DecoderLayer"), "qwen2_moe": ("qwen2_moe", "Qwen2MoeDecoderLayer"),
    "qwen3": ("qwen3", "Qwen3DecoderLayer"), "qwen3_moe": ("qwen3_moe", "Qwen3MoeDecoderLayer"),
    "gemma2": ("gemma2", "Gemma2DecoderLayer"), "gemma3_text": ("gemma3_causal", "Gemma3TextModel"),
    "granite": ("granite", "GraniteDecoderLayer"), "glm4": ("glm4", "Glm4DecoderLayer"),
    "cohere": ("commandr", "CohereDecoderLayer"), "starcoder2": ("starcoder2", "Starcoder2DecoderLayer"),
    "olmo2": ("olmo2", "Olmo2DecoderLayer"), "gpt_oss": ("gpt_oss", "GptOssDecoderLayer"),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2DecoderLayer"), "deepseek_v3": ("deepseek_v2", "DeepseekV2DecoderLayer"),
    "olmoe": ("olmoe", "OlmoeDecoderLayer"), "arcee": ("arcee", "ArceeDecoderLayer"),
    "apertus": ("apertus", "ApertusDecoderLayer"), "afmoe": ("afmoe", "AfmoeDecoderLayer"),
    "gemma": ("gemma", "GemmaDecoderLayer"), "olmo": ("olmo", "OlmoDecoderLayer"),
    "glm4_moe": ("glm4_moe", "Glm4MoeDecoderLayer"), "ernie4_5_moe": ("ernie4", "Ernie4DecoderLayer"),
    "lfm2": ("lfm2", "Lfm2DecoderLayer"), "hunyuan_v1_dense": ("hunyuan", "HunYuanDecoderLayer"),
    "granitemoe": ("granitemoe", "GraniteMoeDecoderLayer"),
    "gemma3n_text": ("gemma3n_causal", "Gemma3nDecoderLayer"),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteDecoderLayer"),
"hunyuan_v1_moe": ("hunyuan", "HunYuanDecoderLayer"),
    "hy_v3": ("hunyuan_v3", "HYV3DecoderLayer"),
    "lfm2_moe": ("lfm2_moe", "Lfm2MoeDecoderLayer"), "llama4_text": ("llama4", "Llama4DecoderLayer"),
"minimax_m2": ("minimax_m2", "MiniMaxM2DecoderLayer"),

    "glm_moe_dsa": ("deepseek_v2", "DeepseekV2DecoderLayer"),
    "mellum": ("mellum", "MellumDecoderLayer"),
    "internlm3": ("llama", "LlamaDecoderLayer"), "iquestcoder": ("llama", "LlamaDecoderLayer"),
    "qwen2_vl_text": ("qwen2", "Qwen2DecoderLayer"), "qwen2_5_vl_text": ("qwen2", "Qwen2DecoderLayer"),
    "qwen3_vl_text": ("qwen3", "Qwen3DecoderLayer"), "qwen3_vl_moe_text": ("qwen3_moe", "Qwen3MoeDecoderLayer"),
    "glm4v_moe_text": ("glm4_moe", "Glm4MoeDecoderLayer"),
}  # fmt: skip


class Op(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    @classmethod
    def register(cls, *_, **__):
        return lambda inner: inner


class Norm(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def fuse_input_quant(self, *_):
        pass


class Attention(torch.nn.Module):
    """Keeps the scale and the window that a model hands to its attention."""

    def __init__(self, num_heads, head_dim, scaling, **named):
        super().__init__()
        window = named.get("sliding_window_size", -1)
        # Tokens before the present one, which vLLM and transformers count too.
        self.scale, self.window = scaling, None if window in (-1, None) else window + 1


def make_layers(count, make, *_, **__):
    return torch.nn.ModuleList([make(idx=number, prefix=f"layers.{number}") for number in range(count)])


def no(*_, **__):
    return False


class Alone:
    """A process group of one, whatever it is asked for; and no option is on."""

    rl_on_policy_target = None

    def __getattr__(self, name):
        if name.endswith("_size"):
            return 1
        return 0 if name.endswith(("_rank", "_redundant_experts")) else stand_ins.stand_in(name)()


class Settings:
    def __getattr__(self, name):
        return Alone()


platforms = ("is_cuda", "is_hip", "is_npu", "is_cpu", "is_xpu", "is_musa", "is_hpu", "is_mps", "cpu_has_amx_support",
             "get_bool_env_var", "is_gfx95_supported", "use_intel_amx_backend", "is_blackwell", "is_sm100_supported")  # fmt: skip
given = {
    "sglang.kernels.fused_op": {"BaseFusedOp": Op},
    "sglang.srt.layers.utils": {"MultiPlatformOp": Op},
    "sglang.srt.layers.utils.multi_platform": {"MultiPlatformOp": Op},
    "sglang.srt.layers.layernorm": {"RMSNorm": Norm},
    "sglang.srt.layers.radix_attention": {"RadixAttention": Attention},
    "sglang.srt.utils": {
        **dict.fromkeys(platforms, no), "get_device": lambda: "cpu", "add_prefix": lambda a, b: f"{b}.{a}",
        "make_layers": make_layers, "is_non_idle_and_non_empty": no,
    },
    "sglang.srt.distributed": {
        "get_tensor_model_parallel_world_size": lambda: 1, "get_tensor_model_parallel_rank": lambda: 0,
        "get_pp_group": lambda: Space(is_first_rank=True, is_last_rank=True, rank_in_group=0, world_size=1),
    },
    "sglang.srt.runtime_context": {
        "get_parallel": Alone, "get_exec": Settings, "get_flags": Settings, "get_model": Settings,
        "get_server_args": Alone,
    },
    "sglang.srt.server_args": {"get_global_server_args": Alone, "get_server_args": Alone},
}  # fmt: skip
real = [
    "sglang.srt.layers.rotary_embedding", "sglang.srt.utils.hf_transformers.common",
    *(MODELS + name for name, _ in LAYERS.values()),
]  # fmt: skip
absent = ("triton", "flashinfer", "sgl_kernel", "aiter", "vllm", "orjson", "zmq", "msgspec", "einops", "deep_gemm")


def two_nothings(*_, **__):
    return None, None


def inert_where_absent(self, name):
    try:
        return torch.nn.Module.__getattr__(self, name)
    except AttributeError:
        if name.startswith(("init_", "stage_")):
            return two_nothings
        raise


def config_of(job):
    importlib.import_module("sglang.srt.layers.rotary_embedding.factory")._ROPE_DICT.clear()
    whole = loaded(job["path"], job.get("overrides"))
    config = whole.get_text_config()
    config.architectures = whole.architectures
    if not hasattr(config, "moe_layer_freq"):
        config.moe_layer_freq = 1  # published DeepSeek configs state it; it has no part in rotation
    return config


def loaded(path, overrides):
    """Return what SGLang's get_config makes of a config and --json-model-override-args; transformers loads it."""
    scope = {
        **dict.fromkeys(("check_gguf_file", "is_remote_url", "is_mistral_model"), no), "Optional": Optional,
        "resolve_runai_obj_uri": str, "PretrainedConfig": transformers.PretrainedConfig, "DeepseekV41Config": (),
        "get_model_config_parser": lambda _: Space(parse=lambda model, **_: AutoConfig.from_pretrained(model)),
    }  # fmt: skip
    get_config = stand_ins.function(f"{ROOT}/sglang/srt/utils/hf_transformers/config.py", "get_config", **scope)
    return get_config(path, False, model_override_args=overrides)


def context(config):
    file = f"{ROOT}/sglang/srt/utils/hf_transformers/common.py"
    keys = importlib.import_module("sglang.srt.utils.hf_transformers.common").CONTEXT_LENGTH_KEYS
    return stand_ins.function(file, "get_context_length", CONTEXT_LENGTH_KEYS=keys)(config)


def on_transformers(config):
    """Return whether no model file has the architecture: then transformers' own code runs."""
    name = config.architectures[0]
    files = Path(ROOT, "sglang/srt/models").glob("*.py")
    return not any(f"class {name}(" in file.read_text() for file in files)


def layers_of(config):
    """Return the attention of each layer, built as the model's own __init__ builds it."""
    module, name = LAYERS[config.model_type]
    file = importlib.import_module(MODELS + module)
    vars(file).update({name: two_nothings for name in ("append_stages",) if hasattr(file, name)})
    for kind in (value for value in vars(file).values() if isinstance(value, type)):
        if issubclass(kind, torch.nn.Module) and kind.__module__.startswith(MODELS):
            # What mixins bring, which are stand-ins here.
            kind.__getattr__ = inert_where_absent
    kind = getattr(file, name)
    if name.endswith("Model"):
        whole = kind(config)
        return [attention_of(inner) for inner in whole.layers], whole
    values = {"config": config, "quant_config": None, "prefix": "model.layers"}
    found = []
    for number in range(config.num_hidden_layers):
        made = stand_ins.called(
            kind, {**values, "layer_id": number, "layer_idx": number, "prefix": f"model.layers.{number}"}
        )
        found.append(attention_of(made))
    return found, None


def attention_of(made):
    wanted = ("attn", "attn_mha", "attn_mqa")
    return next(m for m in made.modules() if hasattr(m, "rotary_emb") and any(hasattr(m, name) for name in wanted))


def regimes(rotary, positions):
    if hasattr(rotary, "long_short_cos_sin_cache"):
        return [
            stand_ins.table(rotary.short_cos_sin_cache, positions),
            stand_ins.table(rotary.long_cos_sin_cache, positions),
        ]
    return [stand_ins.table(rotary.cos_sin_cache, positions)]


def of_transformers(rotary, positions):
    """Return what a class with transformers' forward computes: gemma3's."""
    asked = torch.tensor([[0, 1, *positions]])
    cos, sin = (values[0].double() for values in rotary(torch.zeros(1, 1, 1), asked))
    half = cos.shape[-1] // 2
    cache = torch.cat([cos[:, :half], sin[:, :half]], dim=-1)
    return [
        {**stand_ins.table(cache[:2], []), "rows": {str(p): cache[2 + i].tolist() for i, p in enumerate(positions)}}
    ]


def answer(job):
    try:
        config = config_of(job)
        if on_transformers(config):
            return {"context": context(config), "transformers": True}
        answers = []
        found, whole = layers_of(config)
        for number, attention in enumerate(found):
            rotary = attention.rotary_emb
            tables = regimes(rotary, job["positions"])
            if whole is not None:
                sliding = config.layer_types[number] == "sliding_attention"
                tables = of_transformers(whole.rotary_emb_local if sliding else whole.rotary_emb, job["positions"])
            inner = next(getattr(attention, n) for n in ("attn", "attn_mha", "attn_mqa") if hasattr(attention, n))
            answers.append({
                "regimes": tables, "half": getattr(rotary, "is_neox_style", True), "rotary_dim": rotary.rotary_dim,
                "softmax": inner.scale / stand_ins.own_scale(config), "window": inner.window,
            })  # fmt: skip
        return {"context": context(config), "layers": answers}
    except Exception as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    file = f"{ROOT}/sglang/srt/configs/model_config.py"
    magnitude = stand_ins.function(file, "yarn_get_mscale", math=math)
    scaled = stand_ins.function(
        file, "compute_mla_mscale_scaling", yarn_get_mscale=magnitude, logger=stand_ins.stand_in("logger")
    )
    given["sglang.srt.configs.model_config"] = {"compute_mla_mscale_scaling": scaled}
    stand_ins.install(ROOT, real, given, absent)
    common = importlib.import_module("sglang.srt.utils.hf_transformers.common")
    vars(importlib.import_module("sglang.srt.utils.hf_transformers_utils"))["get_rope_config"] = common.get_rope_config
    print(json.dumps([answer(job) for job in json.load(sys.stdin)]))
