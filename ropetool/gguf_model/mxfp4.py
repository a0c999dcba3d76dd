"""MXFP4 experts: the codes and scales of a checkpoint, which has them in two tensors, as blocks of ggml's MXFP4 type.

The bits change places, and no number is rounded.
Source: conversion/gpt_oss.py of llama.cpp 0c1e570; integrations/mxfp4.py of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, CorruptFile, UnsupportedDtype

if TYPE_CHECKING:
    from ropetool.gguf_model.shapes.orders import Permutation
    from ropetool.gguf_model.sources import SourceTensor

Bytes = npt.NDArray[np.uint8]
METHOD = "mxfp4"  # quant_method of gpt-oss
DTYPE, STORED = "MXFP4", "U8"  # ggml's name of the type; the safetensors type of the bytes
CODES, SCALES = "_blocks", "_scales"  # suffixes of the plain weight's name
EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
BLOCK, CODE_BYTES = 32, 16  # numbers that share a scale, and the bytes of their codes
LARGEST_SCALE = 252  # the largest number is 6 * 2^(scale - 127), and float32 ends at 2^128; 255 is NaN
NOTE = "experts stay in MXFP4; --outtype applies only to the other matrices"
_CODES = f"V{CODE_BYTES}"  # the codes of a block, as one element
_LOW, _HIGH = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0xF0F0F0F0F0F0F0F0)


def is_mxfp4(quantization: Any) -> bool:
    """Return whether a config's quantization_config has the quant_method mxfp4."""
    return isinstance(quantization, Mapping) and quantization.get("quant_method") == METHOD


def is_packed(source: SourceTensor) -> bool:
    """Return whether a tensor of a checkpoint contains the codes of MXFP4 experts."""
    return source.stored.dtype == STORED and source.scales is not None


def paired(held: Mapping[str, SourceTensor], quantization: Any) -> dict[str, SourceTensor]:
    """Return the tensors by name: experts' codes under the plain weight's name, with the scales as their `scales`.

    Without an mxfp4 quantization_config, returns the tensors unchanged.
    Raises: CorruptFile for codes without scales, scales without codes, or scales of a different shape; UnsupportedDtype
    for codes or scales that are not bytes.
    """
    sources = dict(held)
    if not is_mxfp4(quantization):
        return sources
    for name in held:
        plain = name.removesuffix(CODES if name.endswith(CODES) else SCALES)
        if plain != name and plain.endswith(EXPERTS) and plain not in held:
            sources[plain] = _pair(plain, held, name)
            del sources[name]
    return sources


def _pair(plain: str, held: Mapping[str, SourceTensor], name: str) -> SourceTensor:
    codes, scales = held.get(plain + CODES), held.get(plain + SCALES)
    if codes is None or scales is None:
        raise CorruptFile(
            f"no weight file contains {plain}{CODES if codes is None else SCALES}, which {name} requires",
            where=str(held[name].path),
        )
    for source in (codes, scales):
        if source.stored.dtype != STORED:
            raise UnsupportedDtype(
                f"{source.stored.name} has type {source.stored.dtype}; MXFP4 codes and scales must be {STORED}",
                where=str(source.path),
            )
    if scales.stored.shape != codes.stored.shape[:-1]:
        raise CorruptFile(
            f"{scales.stored.name} has shape {list(scales.stored.shape)}; the codes of shape "
            f"{list(codes.stored.shape)} require {list(codes.stored.shape[:-1])}",
            where=str(scales.path),
        )
    return replace(codes, scales=scales)


def check_shape(source: SourceTensor, shape: tuple[int, ...]) -> None:
    """Raise CorruptFile unless the codes' experts have this shape: (experts, columns, rows), as in config.json."""
    experts, columns, rows = shape
    stored = source.stored.shape
    if stored != (experts, rows, columns // BLOCK, CODE_BYTES) or columns % BLOCK:
        raise CorruptFile(
            f"{source.stored.name} has shape {list(stored)}, but config.json requires {experts} experts of {rows} rows "
            f"of {columns} numbers, {BLOCK} of them in {CODE_BYTES} bytes",
            where=str(source.path),
        )


def reordered(source: SourceTensor, order: Permutation | None) -> Permutation | None:
    """Return the order of a source's blocks for an order of its elements. Experts are not transposed in MXFP4."""
    if order is None or not is_packed(source):
        return order
    return replace(order, shape=source.stored.shape[:-1], axes=(0, 1, 2), axis=1)


def unit(source: SourceTensor) -> int:
    """Return how many bytes of codes must be converted together."""
    return CODE_BYTES * (source.order.unit if source.order is not None else 1)


def scales_of(source: SourceTensor, begin: int, nbytes: int) -> tuple[int, int]:
    """Return the place of some codes' scales in their file, and their number of bytes: one byte for each block."""
    assert source.scales is not None
    return source.scales.stored.begin + (begin - source.stored.begin) // CODE_BYTES, nbytes // CODE_BYTES


def blocks(codes: Bytes, scales: bytes, source: SourceTensor, begin: int) -> Bytes:
    """Return ggml's blocks for codes that begin at byte `begin` of their file, in the order of the source.

    A byte of a checkpoint has two neighbouring numbers. A byte of ggml has two numbers half a block apart. In both, the
    first number is in the low half.
    Shapes: (16 * blocks,) -> (17 * selected blocks,).
    Raises: CheckpointError for a scale that makes numbers infinite or NaN.
    """
    exponents = np.frombuffer(scales, np.uint8)
    if exponents.max(initial=0) > LARGEST_SCALE:
        raise _too_large(exponents, source, begin)
    whole = codes.view(_CODES)
    if source.order is not None:
        whole, exponents = source.order.apply(whole), source.order.apply(exponents)
    out = np.empty(len(whole), [("scale", np.uint8), ("codes", _CODES)])
    out["scale"] = exponents
    out["codes"] = _spread(whole.view("<u8").reshape(-1, 2)).reshape(-1).view(_CODES)
    return out.view(np.uint8)


def _spread(halves: npt.NDArray[np.uint64]) -> Bytes:
    """Return codes with numbers half a block apart in each byte. Shapes: (blocks, 2) of eight bytes -> (blocks, 16)."""
    first, second = np.ascontiguousarray(halves.T)
    out = np.empty((len(halves) * 8, 2), np.uint8)
    out[:, 0] = ((first & _LOW) | (second & _LOW) << np.uint64(4)).view(np.uint8)
    out[:, 1] = ((first & _HIGH) >> np.uint64(4) | (second & _HIGH)).view(np.uint8)
    return out.reshape(-1, CODE_BYTES)


def _too_large(exponents: Bytes, source: SourceTensor, begin: int) -> CheckpointError:
    first = int(np.flatnonzero(exponents > LARGEST_SCALE)[0])
    at = (begin - source.stored.begin) // CODE_BYTES + first
    expert, row, block = np.unravel_index(at, source.stored.shape[:-1])
    assert source.scales is not None
    return CheckpointError(
        f"{source.scales.stored.name} contains {exponents[first]} for expert {expert}, row {row}, block {block}; above "
        f"{LARGEST_SCALE} numbers become infinite or NaN",
        where=str(source.scales.path), try_="download the weights again",
    )  # fmt: skip
