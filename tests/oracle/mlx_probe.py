"""Ask the real model files of an mlx-lm what they rotate by: python mlx_probe.py SOURCE, jobs on stdin.

A job is {"path": DIR, "lengths": [...]}. An answer is {"layers": [one for each layer]} or {"error"}. A layer is
{"lengths": {n: {"inv_freq", "attention_factor", "row": cos and sin of position n - 1}}, "half", "softmax", "slides"}:
the rope is applied to ones and zeros in a sequence of n tokens, and what comes out are cos and sin. Needs mlx.
"""

import importlib
import json
import math
import sys

import peer_stand_ins as stand_ins

SAME_FILE = {"mistral": "llama"}
stand_ins.install(sys.argv[1], ["mlx_lm.models"], {})


def built(config):
    """Return the model of a config, with random weights."""
    name = SAME_FILE.get(config["model_type"], config["model_type"])
    file = importlib.import_module(f"mlx_lm.models.{name}")
    return file.Model(file.ModelArgs.from_dict(config))


def own_scale(config):
    if "qk_nope_head_dim" in config:
        return (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
    if config["model_type"].startswith("gemma3"):
        return config.get("query_pre_attn_scalar", 256) ** -0.5
    return config.get("attention_multiplier") or (width(config)) ** -0.5


def width(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def turned(rope, length, channels, half):
    """Return cos and sin of every position of a sequence: what the rope makes of the first channel of each pair."""
    import mlx.core as mx

    first = [1.0] * (channels // 2) + [0.0] * (channels // 2) if half else [1.0, 0.0] * (channels // 2)
    x = mx.broadcast_to(mx.array(first), (1, 1, length, channels))
    out = rope(x + 0.0)[0, 0].tolist()
    if half:
        return [(row[: channels // 2], row[channels // 2 :]) for row in out]
    return [(row[0::2], row[1::2]) for row in out]


def table(rope, length, channels, half):
    rows = turned(rope, length, channels, half)
    (cos, _), (cos1, sin1), last = rows[0], rows[1], rows[-1]
    inv_freq = [math.atan2(s, c) for c, s in zip(cos1, sin1, strict=True)]
    return {"inv_freq": inv_freq, "attention_factor": cos[0], "row": [*last[0], *last[1]]}


def layer(made, config, lengths):
    attention = made.self_attn
    rope = attention.rope
    half = not getattr(rope, "traditional", type(rope).__name__.startswith("DeepseekV2"))
    channels = config.get("qk_rope_head_dim") or int(getattr(rope, "dims", getattr(rope, "dim", width(config))))
    slides = next(
        (getattr(m, n) for m in (made, attention) for n in ("use_sliding", "is_sliding") if hasattr(m, n)), None
    )
    return {
        "lengths": {str(n): table(rope, n, channels, half) for n in lengths}, "half": half,
        "softmax": attention.scale / own_scale(config), "slides": slides,
    }  # fmt: skip


def answer(job):
    try:
        with open(f"{job['path']}/config.json") as file:
            config = json.load(file)
        return {"layers": [layer(made, config, job["lengths"]) for made in built(config).layers]}
    except Exception as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    import mlx.core

    mlx.core.set_default_device(mlx.core.cpu)
    print(json.dumps([answer(job) for job in json.load(sys.stdin)]))
