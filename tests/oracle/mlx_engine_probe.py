"""Ask real models of mlx-lm and mlx-vlm what they rotate by: python mlx_engine_probe.py, jobs as JSON lines on stdin.

Needs an interpreter with mlx, mlx-lm and mlx-vlm. A job is {"program", "config", "lengths"}; an answer is {"file",
"lengths": {n: [a layer that attends, ...]}} or {"error"}. Nothing of a model file is read: the model is built as the
program builds it, with random weights, and runs on one token repeated. Then every position holds the same vector before
the rotation, and what keys look like at the attention kernel says how they were turned. A layer is {"inv_freq": of
each pair, "amplitude": of the rotated channels, "layout", "window", "scale", "growth": queries at the last position
over those at the first}; one that does not turn has no inv_freq. Layers whose kernel is not asked for the decoupled
keys are asked for their rope module instead.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

STATEFUL = ("conv", "short_conv", "mamba", "linear_attn", "mixer", "ssm", "recurrent", "attn_linear")
TOWERS = ("Vision", "Audio", "Projector", "Vit", "ViT", "Resampler", "Embedder", "Aligner")
PAIRS = 8  # those that turn fastest, whose size is told
STILL = 3e-5  # of a channel's own size: what has moved less has not turned
seen: list[dict[str, Any]] = []


def recorded(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None, **_: Any) -> Any:
    """Stand in for the kernel: every position holds the same value, so that is what attention gives."""
    seen.append({"q": q, "k": k, "scale": scale, "mask": mask})
    return mx.repeat(v, q.shape[1] // v.shape[1], axis=1)


def quiet_states(model: nn.Module) -> None:
    """Let layers that keep a state add nothing, for their output is not the same at each position."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last not in STATEFUL or (last == "mixer" and "q_proj" in module):
            continue
        for key in ("out_proj", "o_proj"):
            if key in module:
                module[key].weight = mx.zeros_like(module[key].weight)


class Tower(nn.Module):
    """Stands in for what reads images and sound, which text does not go through."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def stand_in_for_towers(package: Any) -> None:
    """Replace what a model file builds beside its language model."""
    file = sys.modules[package.Model.__module__]
    for name, kind in list(vars(file).items()):
        other = isinstance(kind, type) and issubclass(kind, nn.Module) and name not in ("Model", "LanguageModel")
        if other and any(part in name for part in TOWERS):
            setattr(file, name, Tower)


def built(program: str, config: dict[str, Any]) -> tuple[str, nn.Module, Any]:
    """Return the file, the model and what is called with tokens."""
    mx.random.seed(0)
    config = json.loads(json.dumps(config))
    if program == "mlx-lm":
        from mlx_lm import utils

        kind, arguments = utils._get_classes(config)
        model = kind(arguments.from_dict(config))
        return kind.__module__.rpartition(".")[2], model, model
    from mlx_vlm import utils

    package, name = utils.get_model_and_args(config=config)
    config.setdefault("text_config", config.pop("llm_config", {}))
    for part in ("vision_config", "audio_config"):
        config[part] = config.get(part) or {}
    stand_in_for_towers(package)
    found = package.ModelConfig.from_dict(config)
    parts = ["text", "vision", "perceiver", "projector", "audio"]
    model = package.Model(utils.update_module_configs(found, package, config, parts))
    return name, model, getattr(model, "language_model", model)


def phases(rows: np.ndarray, positions: list[int]) -> np.ndarray:
    """Return the angle a position of complex channels, refined from position to doubled position."""
    turned = np.angle(rows[1:] * np.conj(rows[0]))
    rate = turned[0] / positions[1]
    for angle, position in zip(turned[1:], positions[2:], strict=True):
        rate = (angle + 2 * np.pi * np.round((rate * position - angle) / (2 * np.pi))) / position
    return rate


def turning(k: np.ndarray, positions: list[int]) -> dict[str, Any]:
    """Return how keys turn, from rows of one head at these positions."""
    size = np.abs(k).max()
    moved = np.where(np.abs(k - k[0]).max(axis=0) > STILL * size)[0]
    if moved.size == 0:
        return {}
    width = k.shape[1]
    for layout, start, stop in _shapes(width, int(moved[0]), int(moved[-1])):
        part = k[:, start:stop]
        half = (stop - start) // 2
        rows = part[:, :half] + 1j * part[:, half:] if layout == "half" else part[:, 0::2] + 1j * part[:, 1::2]
        sizes = np.abs(rows)
        if np.all(np.abs(sizes - sizes[0]) < 1e-4 * size):
            rate = phases(rows, positions)
            amplitude = float(np.sqrt((sizes[0][:PAIRS] ** 2).sum()))
            return {"inv_freq": [float(x) for x in rate], "amplitude": amplitude, "layout": layout}
    return {"odd": f"channels {moved[0]} to {moved[-1]} of {width}"}


def _shapes(width: int, first: int, last: int) -> Any:
    """Yield layouts and the channels that they may take up, the likeliest first."""
    yield "half", 0, width
    for stop in range(last + 1, width + 1):
        if stop % 2 == 0:
            yield "half", 0, stop
    for start in range(first, -1, -1):
        if (width - start) % 2 == 0:
            yield "half", start, width
    yield "interleaved", first - first % 2, last + 1 + (last + 1) % 2


def window_of(mask: Any, length: int) -> int | None:
    """Return how many tokens the last position sees, None for all."""
    if mask is None or isinstance(mask, str):
        return None
    row = np.array(mask.astype(mx.float32))[..., -1, -length:].reshape(-1, length)[0]
    sees = row > (0.5 if mask.dtype == mx.bool_ else -1e4)
    return None if sees.all() else int(sees.sum())


def layer(one: dict[str, Any], length: int, positions: list[int]) -> dict[str, Any]:
    at = mx.array(positions)
    k, q = (np.array(one[name][0, 0][at].astype(mx.float32)).astype(np.float64) for name in ("k", "q"))
    sizes = np.linalg.norm(q, axis=1)
    return {
        **turning(k, positions), "window": window_of(one["mask"], length), "scale": one["scale"],
        "growth": float(sizes[-1] / sizes[0]),
    }  # fmt: skip


def of_module(rope: Any, length: int, positions: list[int], channels: int) -> dict[str, Any]:
    """Return the same of a rope module that is applied to noise."""
    x = mx.broadcast_to(mx.random.normal((1, 1, 1, channels), key=mx.random.key(7)), (1, 1, length, channels))
    return turning(np.array(rope(x + 0.0)[0, 0])[positions].astype(np.float64), positions)


def decoupled(model: nn.Module, length: int, positions: list[int], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the rope modules of the layers do; where their kernel takes the rotated part as a mask."""
    found = []
    for made in model.layers:
        attention = next((made[key] for key in ("self_attn", "attention", "attn") if key in made), None)
        rope = None if attention is None else getattr(attention, "rope", getattr(attention, "rotary_emb", None))
        if rope is None:
            continue
        channels = config.get("qk_rope_head_dim") or getattr(attention, "head_dim", None) or getattr(rope, "dims", 0)
        found.append({
            **of_module(rope, length, positions, channels), "window": None, "scale": float(attention.scale), "growth": 1.0,
        })  # fmt: skip
    return found


def text(config: dict[str, Any]) -> dict[str, Any]:
    return next((config[key] for key in ("text_config", "llm_config", "language_config") if config.get(key)), config)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        file, model, language = built(job["program"], job["config"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    try:
        quiet_states(model)
        found = {}
        for length in job["lengths"]:
            positions = [0, *(1 << i for i in range(20) if 1 << i < length - 1), length - 1]
            seen.clear()
            language(mx.full((1, length), 5))  # evaluated as far as the keys and queries need it
            kernels = [one for one in seen if not (_is_score(one["mask"]) and "kv_lora_rank" in text(job["config"]))]
            if kernels and len(kernels) == len(seen):
                found[str(length)] = [layer(one, length, positions) for one in kernels]
            else:
                found[str(length)] = decoupled(language, length, positions, text(job["config"]))
        return {"file": file, "lengths": found}
    except Exception as error:  # noqa: BLE001
        return {"file": file, "stopped": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}


def _is_score(mask: Any) -> bool:
    return isinstance(mask, mx.array) and mask.dtype != mx.bool_


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # which asks the system's C++ compiler, seconds for each kernel
    mx.fast.scaled_dot_product_attention = recorded
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
        mx.clear_cache()
