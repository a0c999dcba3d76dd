"""FP8 weights: the scales of each weight, and the numbers that weight and scales represent.

The multiplication is in float32, as in transformers and in llama.cpp's converter.
Source: DeepSeek-V3, inference/kernel.py; transformers 5.23.0, integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CorruptFile, UnsupportedDtype
from ropetool.files import dtypes
from ropetool.files.hf.jsontext import shown
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.packed.base import PackedFormat, Part, Singles, Unpacked

METHOD = "fp8"  # quant_method of DeepSeek's format: the scales of a weight are a separate tensor
SCALES = "_scale_inv"  # suffix of the weight's name; despite "inv", the weight is multiplied by the scales
UNUSED = (".activation_scale", "_activation_scale", ".input_scale")  # scales of inputs, which llama.cpp does not round
E8M0 = "F8_E8M0"


def _table(exponent_bits: int, bias: int) -> Singles:
    """Return the numbers of all 256 bytes.

    A byte has a sign bit, the exponent bits, and the fraction in the remaining bits.
    """
    bits = np.arange(256)
    fraction_bits = 7 - exponent_bits
    exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = (bits & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    values = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    return np.where(bits < 128, values, -values).astype(np.float32)


def _e4m3() -> Singles:
    """Return the numbers of the OCP's finite format (fn): no infinities, and NaN if all seven low bits are set."""
    values = _table(4, 7)
    values[[0x7F, 0xFF]] = np.nan
    return values


def _e5m2() -> Singles:
    values = _table(5, 15)
    values[[0x7C, 0xFC]] = np.inf, -np.inf
    values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return values


TABLES = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2()}


def is_fp8(quantization: Any) -> bool:
    """Return whether a config's quantization_config has the quant_method fp8."""
    return isinstance(quantization, Mapping) and quantization.get("quant_method") == METHOD


@dataclass(frozen=True)
class Blocks:
    """The unpacking of a weight. block: the rows and columns that share a scale."""

    weight: Part
    scales: Part
    block: tuple[int, int]
    nearest: str = "bf16"
    together: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.stored.shape
        return rows, columns

    @property
    def dtype(self) -> str:
        return self.weight.stored.dtype

    @property
    def parts(self) -> Mapping[str, Part]:
        return {SCALES: self.scales}

    def numbers(self, raw: npt.NDArray[np.uint8], first: int, parts: Mapping[str, bytes]) -> Singles:
        rows = raw.reshape(-1, self.shape[1])
        down, across = self.block
        scales = _scale_grid(parts[SCALES], self.scales)[(first + np.arange(len(rows))) // down]
        columns = np.repeat(scales, across, axis=1)[:, : rows.shape[1]]
        scaled: Singles = TABLES[self.dtype][rows] * columns
        return scaled


def _unpack(held: Mapping[str, Part], quantization: Mapping[str, Any]) -> Unpacked:
    """Return the FP8 matrices.

    Raises: UnsupportedDtype for weights without scales; CorruptFile for scales that do not cover their weight.
    """
    weights = {
        name: (part, _with_scales(part, held.get(name + SCALES), quantization))
        for name, part in held.items()
        if part.stored.dtype in TABLES and not name.endswith((SCALES, *UNUSED))
    }
    return Unpacked(weights, frozenset(weights) | {name for name in held if name.endswith((SCALES, *UNUSED))})


def _with_scales(source: Part, scales: Part | None, quantization: Mapping[str, Any]) -> Blocks:
    stored, where = source.stored, str(source.path)
    if scales is None or len(stored.shape) != 2:
        raise UnsupportedDtype(
            f"{stored.name} has type {stored.dtype} and shape {list(stored.shape)}; {stored.dtype} weights must be matrices "
            f"with scales in {stored.name}{SCALES}",
            where=where,
        )
    if scales.stored.dtype not in (*dtypes.STORAGE, E8M0):
        raise UnsupportedDtype(
            f"{scales.stored.name} has type {scales.stored.dtype}; supported: {', '.join((*dtypes.STORAGE, E8M0))}",
            where=str(scales.path),
        )
    grid = scales.stored.shape
    block = _block(quantization.get("weight_block_size"), stored.shape, grid, where)
    if (
        grid not in ((), (1,))
        and tuple(-(-size // step) for size, step in zip(stored.shape, block, strict=True)) != grid
    ):
        raise CorruptFile(
            f"{scales.stored.name} has shape {list(grid)}; blocks of {list(block)} over {list(stored.shape)} require "
            f"{[-(-size // step) for size, step in zip(stored.shape, block, strict=True)]}",
            where=str(scales.path),
        )
    return Blocks(source, scales, block)


def _block(block_size: Any, shape: tuple[int, ...], grid: tuple[int, ...], where: str) -> tuple[int, int]:
    """Return the number of rows and of columns that share a scale. A single scale covers the whole matrix."""
    if grid in ((), (1,)):
        return shape[0], shape[1]
    if not (
        isinstance(block_size, list) and len(block_size) == 2 and all(isinstance(n, int) and n > 0 for n in block_size)
    ):
        raise CorruptFile(
            f"weight_block_size is {shown(block_size)}; it must be two whole numbers, the rows and columns that share a scale",
            where=where,
        )
    return block_size[0], block_size[1]


def _scale_grid(raw: bytes, source: Part) -> Singles:
    """Return the scales of a weight from their bytes. Shapes: (blocks of rows, blocks of columns)."""
    stored = source.stored
    if stored.dtype == E8M0:
        exponents = np.frombuffer(raw, np.uint8).astype(np.int32) - 127
        values = np.ldexp(np.float32(1), exponents)
        values[exponents == 128] = np.nan
    else:
        values = dtypes.decode(raw, stored.dtype)
    return np.asarray(values, np.float32).reshape(stored.shape if len(stored.shape) == 2 else (1, 1))


def _not_run(checkpoint: HfCheckpoint, gpu: bool) -> str:
    """Return why transformers computes incorrect numbers: without a GPU, it takes all blocks of a matrix as equally large."""
    quantization = checkpoint.config[QUANTIZATION_CONFIG]
    size = quantization.get("weight_block_size")
    if gpu or not isinstance(size, list) or len(size) != 2:
        return ""
    for name, tensor in checkpoint.stored.items():
        scales = checkpoint.stored.get(name + SCALES)
        if tensor.dtype not in TABLES or scales is None or len(scales.shape) != 2:
            continue
        if any(
            length % step and blocks > 1 for length, step, blocks in zip(tensor.shape, size, scales.shape, strict=True)
        ):
            return (
                f"{name} has shape {list(tensor.shape)}, which blocks of {size} do not divide, and without a GPU "
                "transformers supports only whole blocks"
            )
    return ""


FORMAT = PackedFormat(METHOD, lambda quantization, where: None, _unpack, not_run=_not_run, dequantize=True, gpu=True)
