"""FP8 weights of a checkpoint: the scales of each weight, and the numbers that weight and scales represent.

The multiplication is in float32, as in transformers and in llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CorruptFile, UnsupportedDtype
from ropetool.files import dtypes
from ropetool.files.hf.jsontext import shown

if TYPE_CHECKING:
    from ropetool.gguf_model.sources import SourceTensor

Singles = npt.NDArray[np.float32]
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


def paired(held: Mapping[str, SourceTensor], quantization: Any) -> dict[str, SourceTensor]:
    """Return the tensors by name, with the scales of FP8 weights as `scales` of their weight, not as separate entries.

    Without an fp8 quantization_config, returns the tensors unchanged.
    Raises: UnsupportedDtype for weights without scales; CorruptFile for scales that do not cover their weight.
    """
    if not is_fp8(quantization):
        return dict(held)
    weights_and_others = {name: source for name, source in held.items() if not name.endswith((SCALES, *UNUSED))}
    for name, source in weights_and_others.items():
        if source.stored.dtype in TABLES:
            weights_and_others[name] = _with_scales(source, held.get(name + SCALES), quantization)
    return weights_and_others


def _with_scales(source: SourceTensor, scales: SourceTensor | None, quantization: Mapping[str, Any]) -> SourceTensor:
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
    if len(grid) == 2 and tuple(-(-size // step) for size, step in zip(stored.shape, block, strict=True)) != grid:
        raise CorruptFile(
            f"{scales.stored.name} has shape {list(grid)}; blocks of {list(block)} over {list(stored.shape)} require "
            f"{[-(-size // step) for size, step in zip(stored.shape, block, strict=True)]}",
            where=str(scales.path),
        )
    return replace(source, scales=scales, block=block)


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


def scale_grid(raw: bytes | bytearray, source: SourceTensor) -> Singles:
    """Return the scales of a weight from their bytes. Shapes: (blocks of rows, blocks of columns)."""
    stored = source.stored
    if stored.dtype == E8M0:
        exponents = np.frombuffer(raw, np.uint8).astype(np.int32) - 127
        values = np.ldexp(np.float32(1), exponents)
        values[exponents == 128] = np.nan
    else:
        values = dtypes.decode(raw, stored.dtype)
    return np.asarray(values, np.float32).reshape(stored.shape if len(stored.shape) == 2 else (1, 1))


def weights(rows: npt.NDArray[np.uint8], first: int, source: SourceTensor, grid: Singles) -> Singles:
    """Return the numbers of consecutive rows.

    first: the number of the first row.
    Shapes: (rows, columns) -> same.
    """
    down, across = source.block
    scales = grid[(first + np.arange(len(rows))) // down]
    columns = np.repeat(scales, across, axis=1)[:, : rows.shape[1]]
    scaled: Singles = TABLES[source.stored.dtype][rows] * columns
    return scaled
