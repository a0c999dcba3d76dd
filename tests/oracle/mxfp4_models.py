"""Tiny gpt_oss checkpoints whose experts are MXFP4, as the published ones, and the numbers that those stand for.

The numbers are by transformers, or by the gguf package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import models
import numpy as np
from models import Tensors

QUANTIZATION = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
EXPERTS = "model.layers.{}.mlp.experts.{}"


def read(path: Path) -> Tensors:
    """Return the tensors of a checkpoint with their types, BF16 as its bits."""
    return models.read_safetensors(path / "model.safetensors")


def packed(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes and scales for experts whose matrices by columns have this shape."""
    experts, columns, rows = shape
    grid = (experts, rows, columns // 32)
    return rng.integers(0, 256, (*grid, 16)).astype(np.uint8), rng.integers(121, 125, grid).astype(np.uint8)


def write(path: Path, dtype: str = "F32", changes: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint with MXFP4 experts; dtype: that of everything else."""
    models.write(path, "gpt_oss", changes)
    rng = np.random.default_rng(12)
    tensors: Tensors = {}
    for name, (kind, values) in read(path).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            codes, scales = packed(rng, values.shape)
            tensors |= {f"{name}_blocks": ("U8", codes), f"{name}_scales": ("U8", scales)}
        else:
            assert kind == "F32"
            tensors[name] = (dtype, models.stored(values, dtype))
    models.write_safetensors(path / "model.safetensors", tensors)
    return models.set_config(path, quantization_config=QUANTIZATION)


def change(path: Path, **tensors: tuple[str, np.ndarray] | None) -> Path:
    """Change tensors of the first layer's experts, or take them away."""
    found = read(path)
    for name, tensor in tensors.items():
        place = EXPERTS.format(0, name)
        found.pop(place, None)
        if tensor is not None:
            found[place] = tensor
    models.write_safetensors(path / "model.safetensors", found)
    return path


def dequantised(path: Path) -> dict[str, np.ndarray]:
    """Return the numbers of each expert tensor by transformers, under the names of a GGUF file."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, found = read(path), {}
    for layer in range(2):
        both, down = (
            convert_moe_packed_tensors(
                *(
                    torch.from_numpy(tensors[EXPERTS.format(layer, name) + end][1].copy())
                    for end in ("_blocks", "_scales")
                ),
                dtype=torch.float32,
            ).numpy()
            for name in ("gate_up_proj", "down_proj")
        )  # by columns, gate and up in turns: modeling_gpt_oss.py
        parts = {"gate": both[..., ::2], "up": both[..., 1::2], "down": down}
        found |= {f"blk.{layer}.ffn_{name}_exps.weight": part.swapaxes(1, 2) for name, part in parts.items()}
    return found


def numbers(kind: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    """Return the numbers of a tensor of a GGUF file, which `gguf_files.tensors` has read, by the gguf package."""
    quantised = gguf.GGMLQuantizationType[kind]
    block, nbytes = gguf.GGML_QUANT_SIZES[quantised]
    rows = np.frombuffer(raw, np.uint8).reshape(-1, shape[0] // block * nbytes)
    values: np.ndarray = gguf.quants.dequantize(rows, quantised).reshape(shape[::-1])
    return values
