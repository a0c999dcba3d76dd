"""What two classes compute that neither mlx-lm nor transformers has as it is, written out in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporting.remote_models.operations import attended, heads, rms, rotated

Tensors = Mapping[str, Any]


def plamo3(tensors: Tensors, config: Mapping[str, Any], ids: Any) -> Any:
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
