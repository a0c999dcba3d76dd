"""Importance matrices of llama-imatrix: the weight of each input channel of a matrix.

Reads both formats: a GGUF file with sums and counts, and the older format without a header.
Source: common/imatrix-loader.cpp and load_imatrix in tools/quantize/quantize.cpp of llama.cpp.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, CorruptFile
from ropetool.files.gguf import GgufHeader, TensorInfo, Value, ValueType, read_header
from ropetool.files.gguf.header import MAGIC
from ropetool.files.regular import open_regular, read_regular
from ropetool.gguf_model.tensors import Layout

Vector = npt.NDArray[np.float32]
Weights = dict[str, Vector]
SUMS, COUNTS = ".in_sum2", ".counts"
MAX_NAME, MAX_ENTRIES = 2**10, 2**16
MAX_FILE = 2**31  # bytes; the largest known file has 0.7 GB, for 58 layers with 256 experts
AGAIN = "llama-imatrix -m MODEL.gguf -f TEXT"
_FOR_THIS_MODEL = "llama-imatrix -m FILE, where FILE is an unquantised export of this model"


def read_imatrix(path: Path) -> Weights:
    """Return the weights by the name of their tensor.

    Raises: MissingFile if the file does not exist; CorruptFile if it is not an importance matrix; CheckpointError.
    """
    with open_regular(path) as file:
        start, size = file.read(len(MAGIC)), os.fstat(file.fileno()).st_size
    if size > MAX_FILE:
        raise CorruptFile(f"has {size:,} bytes; the maximum is {MAX_FILE:,}", where=str(path), try_=AGAIN)
    weights = _of_gguf(path) if start == MAGIC else _of_legacy(path)
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise CheckpointError(f"the importance of {name} is not finite", where=str(path))
    if not weights:
        raise CorruptFile("does not contain an importance matrix", where=str(path), try_=AGAIN)
    return weights


def _of_gguf(path: Path) -> Weights:
    header = read_header(path)
    infos = {info.name: info for info in header.tensors}
    weights: Weights = {}
    with open_regular(path, buffering=0) as file:
        for name in [name.removesuffix(SUMS) for name in infos if name.endswith(SUMS)]:
            if name + COUNTS not in infos:
                raise CorruptFile(f"has sums of {name}, but no counts", where=str(path))
            sums, times = (_values(file, header, infos[name + part]) for part in (SUMS, COUNTS))
            if not times.size or not sums.size or sums.size % times.size:
                raise CorruptFile(f"has {sums.size} sums of {name} for {times.size} counts", where=str(path))
            weights[name] = _means(sums, np.rint(times))
    return weights


def _means(sums: Vector, times: Vector) -> Vector:
    """Return the mean of each channel. For an expert that was never called, it is 1."""
    by_expert, called = sums.reshape(times.size, -1), times[:, None]
    means = np.ones_like(by_expert)
    with np.errstate(all="ignore"):
        np.divide(by_expert, called, out=means, where=called > 0)
    return means.reshape(-1)


def _values(file: BinaryIO, header: GgufHeader, info: TensorInfo) -> Vector:
    if info.type_name != "F32":
        raise CorruptFile(f"{info.name} is {info.type_name}; it must be F32", where=str(header.path))
    file.seek(header.data_start + info.offset)
    raw = file.read(info.nbytes)
    if len(raw) < info.nbytes:
        raise CorruptFile(f"shrank while ropetool read it, and ends inside {info.name}", where=str(header.path))
    return np.frombuffer(raw, "<f4")


def _of_legacy(path: Path) -> Weights:
    """Return the weights of the older format: a count of entries, then each entry's name, calls and values."""
    raw = read_regular(path, MAX_FILE)
    weights: Weights = {}
    at = 4
    try:
        entries = _whole(raw, 0, MAX_ENTRIES)
        for _ in range(entries):
            length = _whole(raw, at, MAX_NAME)
            name = raw[at + 4 : at + 4 + length].decode()
            at += 4 + length
            calls, count = int.from_bytes(raw[at : at + 4], "little", signed=True), _whole(raw, at + 4, len(raw) // 4)
            values = np.frombuffer(raw, "<f4", count, at + 8)
            weights[name] = values / np.float32(calls) if calls > 0 else values
            at += 8 + 4 * count
    except ValueError as error:  # UnicodeDecodeError is one
        raise CorruptFile(f"is not an importance matrix: {error}", where=str(path), try_=AGAIN) from None
    return weights


def _whole(raw: bytes, at: int, most: int) -> int:
    value = int.from_bytes(raw[at : at + 4], "little", signed=True)
    if not 1 <= value <= most:
        raise ValueError(f"the number at byte {at} is {value}; it must be from 1 to {most}")
    return value


def check_fit(imatrix: Path, entries: Weights, layout: Layout) -> tuple[str, ...]:
    """Return a note on matrices of the model without an entry in the importance matrix.

    Raises: CheckpointError for an importance matrix of a different model, or for an entry of a different size.
    """
    shapes = {placed.info.name: placed.info.shape for placed in layout.tensors if len(placed.info.shape) > 1}
    if entries.keys().isdisjoint(shapes):
        raise CheckpointError(
            f"none of its {len(entries)} entries, the first {min(entries)}, is for a matrix of this model",
            where=str(imatrix), try_=_FOR_THIS_MODEL,
        )  # fmt: skip
    for name in entries.keys() & shapes.keys():
        columns, _, *experts = shapes[name]
        if entries[name].size != columns * math.prod(experts):
            raise CheckpointError(
                f"has {entries[name].size} numbers for {name}; it must have {columns * math.prod(experts)}, one for each column",
                where=str(imatrix), try_=_FOR_THIS_MODEL,
            )  # fmt: skip
    # By default, llama-imatrix leaves out the embedding and the head.
    lacking = [
        name for name in shapes if name.startswith("blk.") and name not in entries and "ffn_gate_inp" not in name
    ]
    if not lacking:
        return ()
    return (f"the importance matrix has no entry for {len(lacking)} matrices, the first {lacking[0]}",)


def imatrix_keys(imatrix: Path, entries: Weights) -> dict[str, Value]:
    """Return the keys that llama-quantize writes about the importance matrix of a file."""
    return {
        "quantize.imatrix.file": Value.of(ValueType.STR, imatrix.name),
        "quantize.imatrix.entries_count": Value.of(ValueType.I32, len(entries)),
    }  # fmt: skip
