"""Ask a real transformers what it rotates by: for each JSON list of jobs, a line of stdin, prints a line of answers.

A job is {"path": DIR, "lengths": [n, ...]}: the config in DIR, and the sequence lengths to ask at, ascending. An
answer is {"layers": {LAYER_TYPE: [{"inv_freq", "attention_factor"} per length]}, "softmax": multiplier} or {"error"}.
Runs under transformers 5 and 4.57 alike, so it stands alone and imports nothing of ropetool.
"""

import copy
import importlib
import json
import logging
import sys
import warnings

import torch
import transformers
from transformers import AutoConfig

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
transformers.logging.set_verbosity_error()
FULL, SLIDING = "full_attention", "sliding_attention"


def text_config(config):
    return config.get_text_config(decoder=True)


def modeling(config):
    """Return the module with the classes of this config's model, which some types have from another one."""
    if type(config) in transformers.AutoModel._model_mapping:
        return importlib.import_module(transformers.AutoModel._model_mapping[type(config)].__module__)
    return importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))


def rotary_class(config):
    module = modeling(config)
    found = {k: v for k, v in vars(module).items() if k.endswith("RotaryEmbedding") and "Vision" not in k}
    own = type(config).__name__.removesuffix("Config") + "RotaryEmbedding"  # a protein's encoder may stand before it
    return found.get(own) or next(iter(found.values()))


def modules(config):
    """Return the rotary module of each layer type, built as the model's own __init__ builds it."""
    make = rotary_class(config)
    if not transformers.__version__.startswith("4."):
        module = make(config)
        nested = isinstance(module.rope_type, dict)
        return dict.fromkeys(sorted(module.rope_type) if nested else [FULL], module)
    if config.model_type == "gemma3_text":
        local = copy.deepcopy(config)
        local.rope_theta = local.rope_local_base_freq
        local.rope_scaling = {"rope_type": "default"}
        return {FULL: make(config), SLIDING: make(local)}
    if config.model_type == "olmo3":
        return {FULL: make(config), SLIDING: make(config, rope_type="default")}
    return {FULL: make(config)}


def read(module, kind, length):
    x, positions = torch.zeros(1, 1, 1), torch.arange(length)[None]
    if isinstance(module.rope_type, dict):
        module(x, positions, kind)
        return getattr(module, f"{kind}_inv_freq"), getattr(module, f"{kind}_attention_scaling")
    module(x, positions)
    return module.inv_freq, module.attention_scaling


def applied(module, length):
    """Return what a module of one table really turns the second of so many tokens by, and its factor: from cos and sin."""
    cos, sin = module(torch.zeros(1, 1, 1), torch.tensor([[0, 1, length - 1]]))
    pairs = cos.shape[-1] // 2
    return torch.atan2(sin[0, 1, :pairs], cos[0, 1, :pairs]), cos[0, 0, 0]


def softmax_multiplier(config):
    """Return what an MLA attention multiplies its softmax scale by, from the attention class itself."""
    if not hasattr(config, "qk_nope_head_dim"):
        return 1.0
    module = modeling(config)
    name = next(k for k in vars(module) if k.endswith(("Attention", "MLA")))
    with torch.device("meta"):
        attention = vars(module)[name](config, layer_idx=0)
    return attention.scaling * (config.qk_nope_head_dim + config.qk_rope_head_dim) ** 0.5


def answer(job):
    try:
        config = text_config(AutoConfig.from_pretrained(job["path"]))
        layers = {}
        for kind, module in modules(config).items():
            layers[kind] = []
            for length in job["lengths"]:
                own = "short_mscale" in config.to_dict().get("rope_parameters", {})  # a factor that no attribute holds
                inv_freq, factor = applied(module, length) if own else read(module, kind, length)
                layers[kind].append({"inv_freq": inv_freq.double().tolist(), "attention_factor": float(factor)})
        return {"layers": layers, "softmax": softmax_multiplier(config)}
    except Exception as error:  # noqa: BLE001 - whatever stops the runtime is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is not an answer
    for line in sys.stdin:
        print(json.dumps([answer(job) for job in json.loads(line)]), file=answers, flush=True)
