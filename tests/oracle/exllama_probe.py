"""Ask the real RoPE class of an exllamav3 what it rotates by: python exllama_probe.py SOURCE, jobs on stdin.

A job is {"path": DIR, "positions": [...]}. An answer is {"layers": {"full" and "sliding" where there are both}} or
{"error"}. The architecture's own config class reads the config; what needs a compiled kernel is a stand-in.
"""

import importlib
import json
import sys
from pathlib import Path

import peer_stand_ins as stand_ins
import torch

PACKAGE = "exllamav3"
CONFIGS = {
    "llama": ("llama", "LlamaConfig"), "mistral": ("mistral", "MistralConfig"), "mixtral": ("mixtral", "MixtralConfig"),
    "qwen2": ("qwen2", "Qwen2Config"), "qwen3": ("qwen3", "Qwen3Config"), "qwen3_moe": ("qwen3_moe", "Qwen3MoeConfig"),
    "phi3": ("phi3", "Phi3Config"), "gemma2": ("gemma2", "Gemma2Config"), "gemma3_text": ("gemma3", "Gemma3TextConfig"),
    "cohere": ("cohere", "CohereConfig"), "glm4": ("glm4", "Glm4Config"),
    "olmo3": ("olmo3", "Olmo3Config"), "deepseek_v3": ("deepseek_v3", "DeepseekV3Config"),
}  # fmt: skip


def install(root):
    real = [f"{PACKAGE}.util.rope", f"{PACKAGE}.util.file", f"{PACKAGE}.model.config"]
    real += [f"{PACKAGE}.architecture.{name}" for name, _ in CONFIGS.values()]
    stand_ins.install(root, real, {}, ("xformers", "flash_attn", "marisa_trie", "formatron", "kbnf", "pydantic"))


def settings_of(path):
    """Return the architecture's rope settings for each kind of layer, and its softmax scale where it has its own."""
    config = json.loads(Path(path, "config.json").read_text())
    module, name = CONFIGS[config["model_type"]]
    kind = getattr(importlib.import_module(f"{PACKAGE}.architecture.{module}"), name)
    found = kind(str(path))
    if hasattr(found, "rope_settings_global"):
        return {"full": found.rope_settings_global, "sliding": found.rope_settings_local}, found
    both = {"sliding": found.rope_settings_swa} if hasattr(found, "rope_settings_swa") else {}
    return {"full": found.rope_settings, **both}, found


def layer(settings, positions):
    rope = importlib.import_module(f"{PACKAGE}.util.rope").RoPE("cpu", settings)
    sin, cos = rope.compute_sincos(torch.tensor([0, 1, *positions]))
    half = settings.rope_style.name == "NEOX"
    pairs = sin.shape[-1] // 2
    chosen = slice(0, pairs) if half else slice(0, None, 2)
    sin, cos = sin[:, chosen].double(), cos[:, chosen].double()
    rows = {str(p): [*cos[i + 2].tolist(), *sin[i + 2].tolist()] for i, p in enumerate(positions)}
    return {
        "inv_freq": torch.atan2(sin[1], cos[1]).tolist(), "attention_factor": float(cos[0, 0]), "rows": rows, "half": half,
    }  # fmt: skip


def answer(job):
    try:
        settings, config = settings_of(job["path"])
        layers = {kind: layer(found, job["positions"]) for kind, found in settings.items()}
        own = getattr(config, "sm_scale", None)
        softmax = own * config.qk_head_dim**0.5 if isinstance(own, float) else 1.0
        return {"layers": layers, "softmax": softmax}
    except Exception as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    install(sys.argv[1])
    print(json.dumps([answer(job) for job in json.load(sys.stdin)]))
