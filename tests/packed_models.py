"""Tiny Llama checkpoints with packed weights, in the layout that each format publishes, and the numbers they stand for.

No library of a format is used here: `write` packs with numpy, and `numbers` are computed from codes and scales before
they are packed. Sources of the layouts: AutoGPTQ 0.7.1, nn_modules/qlinear/qlinear_cuda_old.py (`pack`); AutoAWQ 0.2.9,
awq/modules/linear/gemm.py (`from_linear`); DeepSeek-V3, inference/kernel.py (`weight_dequant`); compressed-tensors 0.20.1,
compressors/pack_quantized and naive_quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
import tokenizer_making
from models import Tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "head_dim": 16, "torch_dtype": "bfloat16",
}  # fmt: skip
GROUP = 32  # columns that share a scale
WHOLE, RAGGED = (32, 16), (40, 48)  # rows and columns that share a scale of FP8; ragged blocks end after the tensor
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each nibble of a word holds, from the lowest


Pack = Callable[[str, tuple[int, int], np.random.Generator], tuple[Tensors, np.ndarray]]


@dataclass(frozen=True)
class Format:
    """One way to pack the matrices of the layers.

    quantization: the quantization_config.
    pack: returns the tensors that replace a matrix, and its numbers in float64, for its name, shape and a generator.
    """

    quantization: Mapping[str, Any]
    pack: Pack


def write(path: Path, name: str, **changes: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a checkpoint, and return it with the numbers of its packed matrices, by the names of plain weights."""
    form, rng = FORMATS[name], np.random.default_rng(5)
    config = {**CONFIG, "quantization_config": dict(form.quantization), **changes}
    source = models.checkpoint(path, "llama", dtype="BF16", **config)
    models.save(source / "tokenizer_config.json", {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"})
    tensors, numbers = models.weights({**models.BY_HAND["llama"], **config}, "BF16"), {}
    for tensor, (_, values) in list(tensors.items()):
        if values.ndim == 2 and ".layers." in tensor:
            del tensors[tensor]
            packed, numbers[tensor] = form.pack(tensor.removesuffix(".weight"), values.shape, rng)
            tensors |= packed
    models.write_safetensors(source / "model.safetensors", tensors)
    return source, numbers


def rounded(values: np.ndarray, dtype: str, *, nearest: bool = False) -> tuple[tuple[str, np.ndarray], np.ndarray]:
    """Return positive numbers as a tensor of this type, and the numbers that it holds, in float64.

    nearest: round bfloat16 to nearest, ties to even, instead of cutting off.
    """
    if nearest:
        bits = values.astype("<f4").view("<u4").astype(np.uint64)
        values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype("<u4").view("<f4")
    stored = models.stored(values, dtype)
    if dtype == "BF16":
        return (dtype, stored), (stored.astype("<u4") << 16).view("<f4").astype(np.float64)
    return (dtype, stored), stored.astype(np.float64)


def words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Return codes packed into 32-bit words along an axis, the first code in the lowest bits, padded with zeros."""
    codes = np.moveaxis(codes, axis, -1).astype(np.int64)
    padded = -(-codes.shape[-1] * bits // 32) * 32
    planes = (codes[..., None] >> np.arange(bits)) & 1
    flat = planes.reshape(*codes.shape[:-1], -1)
    flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], padded - flat.shape[-1]), np.int64)], axis=-1)
    whole = (flat.reshape(*flat.shape[:-1], -1, 32) << np.arange(32)).sum(-1)
    return np.ascontiguousarray(np.moveaxis(whole.astype(np.uint32).view(np.int32), -1, axis))


def fp8_numbers() -> np.ndarray:
    """Return the number of each byte of float8_e4m3fn, by its definition (OCP 8-bit floating point, 1.0, table 1)."""
    signs, exponents, fractions = np.arange(256) >> 7, (np.arange(256) >> 3) & 15, np.arange(256) & 7
    magnitudes = np.where(exponents, (8 + fractions) * 2.0 ** (exponents - 10), fractions * 2.0**-9)
    return np.where(signs, -magnitudes, magnitudes)


def fp8_codes(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 1  # NaN
    return codes


def _scales(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, largest: int
) -> tuple[tuple[str, np.ndarray], np.ndarray]:
    """Return scales that give codes up to `largest` the numbers of a sound model."""
    return rounded(rng.uniform(0.5, 1.5, shape) * 0.3 / largest, dtype)


def _spread(grid: np.ndarray, steps: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    return grid.repeat(steps[0], 0).repeat(steps[1], 1)[: shape[0], : shape[1]]


def _fp8(block: tuple[int, int], end: str = "_scale_inv") -> Pack:
    def pack(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        codes = fp8_codes(rng, shape)
        stored, scales = _scales(rng, (-(-shape[0] // block[0]), -(-shape[1] // block[1])), "F32", 448)
        tensors: Tensors = {f"{name}.weight": ("F8_E4M3", codes), f"{name}.weight{end}": stored}
        return tensors, fp8_numbers()[codes] * _spread(scales, block, shape)

    return pack


def _gptq(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """Pack as GPTQ with activation order: rows of the transposed matrix have their groups in g_idx, zeros are stored minus one."""
    rows, columns = shape
    groups = rng.permutation(np.arange(columns) // GROUP).astype(np.int32)
    codes = rng.integers(0, 16, (columns, rows))
    zeros = rng.integers(1, 16, (columns // GROUP, rows))
    stored, scales = _scales(rng, (columns // GROUP, rows), "F16", 8)
    tensors: Tensors = {
        f"{name}.qweight": ("I32", words(codes, 4, 0)), f"{name}.qzeros": ("I32", words(zeros - 1, 4, 1)),
        f"{name}.scales": stored, f"{name}.g_idx": ("I32", groups),
    }  # fmt: skip
    return tensors, ((codes - zeros[groups]) * scales[groups]).T


def _awq(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """Pack as AWQ GEMM: eight columns of the transposed matrix in a word, in an order of their own."""
    rows, columns = shape
    codes = rng.integers(0, 16, (columns, rows))
    zeros = rng.integers(0, 16, (columns // GROUP, rows))
    stored, scales = _scales(rng, (columns // GROUP, rows), "F16", 8)
    order = (np.arange(rows).reshape(-1, 8)[:, AWQ_ORDER]).reshape(-1)
    tensors: Tensors = {
        f"{name}.qweight": ("I32", words(codes[:, order], 4, 1)), f"{name}.qzeros": ("I32", words(zeros[:, order], 4, 1)),
        f"{name}.scales": stored,
    }  # fmt: skip
    return tensors, ((codes - zeros.repeat(GROUP, 0)) * scales.repeat(GROUP, 0)).T


def _packed_int(bits: int, *, symmetric: bool) -> Pack:
    """Pack codes of some bits in a row, and the zeros of asymmetric ones down a column; both are stored plus half their range."""
    half = 1 << (bits - 1)

    def pack(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        grid = (shape[0], shape[1] // GROUP)
        codes, zeros = rng.integers(-half, half, shape), rng.integers(-half, half, grid) * (not symmetric)
        stored, scales = _scales(rng, grid, "BF16", half)
        tensors: Tensors = {
            f"{name}.weight_packed": ("I32", words(codes + half, bits, 1)), f"{name}.weight_scale": stored,
            f"{name}.weight_shape": ("I64", np.array(shape, np.int64)),
        }  # fmt: skip
        if not symmetric:
            tensors[f"{name}.weight_zero_point"] = ("I32", words(zeros + half, bits, 0))
        return tensors, (codes - _spread(zeros, (1, GROUP), shape)) * _spread(scales, (1, GROUP), shape)

    return pack


def _int8(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    stored, scales = _scales(rng, (shape[0], 1), "BF16", 128)
    return {f"{name}.weight": ("I8", codes), f"{name}.weight_scale": stored}, codes * scales


def _float8(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    codes = fp8_codes(rng, shape)
    stored, scales = _scales(rng, (shape[0], 1), "BF16", 448)
    return {f"{name}.weight": ("F8_E4M3", codes), f"{name}.weight_scale": stored}, fp8_numbers()[codes] * scales


def _compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"dynamic": False, "symmetric": True, **weights},
        "input_activations": inputs,
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, "kv_cache_scheme": None,
    }  # fmt: skip


def _fp8_config(block: tuple[int, int]) -> dict[str, Any]:
    return {"quant_method": "fp8", "weight_block_size": list(block), "fmt": "e4m3", "activation_scheme": "dynamic"}


_TOKENS = {"strategy": "token", "dynamic": True, "symmetric": True}
_FP8_BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": list(RAGGED)}
FORMATS: dict[str, Format] = {
    "fp8": Format(_fp8_config(WHOLE), _fp8(WHOLE)),
    "fp8-ragged": Format(_fp8_config(RAGGED), _fp8(RAGGED)),
    "gptq": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
        _gptq,
    ),
    "awq": Format({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, _awq),
    "pack-quantized": Format(
        _compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}),
        _packed_int(4, symmetric=True),
    ),
    "pack-quantized-zeros": Format(
        _compressed(
            "pack-quantized",
            {"num_bits": 3, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False},
        ),
        _packed_int(3, symmetric=False),
    ),
    "int-quantized": Format(
        _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int", **_TOKENS}),
        _int8,
    ),
    "float-quantized": Format(
        _compressed(
            "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8, "type": "float", **_TOKENS}
        ),
        _float8,
    ),
    "float-quantized-blocks": Format(
        _compressed("float-quantized", _FP8_BLOCKS, {"num_bits": 8, "type": "float", **_TOKENS, "strategy": "group", "group_size": 32}),
        _fp8(RAGGED, "_scale"),
    ),
}  # fmt: skip
