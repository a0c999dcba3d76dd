"""Importance matrices as llama-imatrix writes them: how much each input channel of a matrix counts.

Reads both formats, a GGUF file with sums and counts and the older one without a header. Knows nothing of models.
Source: common/imatrix-loader.cpp and load_imatrix in tools/quantize/quantize.cpp of llama.cpp.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, CorruptFile, NotACheckpoint
from ropetool.formats.gguf import GgufHeader, TensorInfo, read_header
from ropetool.formats.gguf.header import MAGIC

Weights = dict[str, npt.NDArray[np.float32]]
SUMS, COUNTS = ".in_sum2", ".counts"
MAX_NAME, MAX_ENTRIES = 2**10, 2**16


def read_imatrix(path: Path) -> Weights:
    """Return the weights by the tensor that they belong to.

    Raises: NotACheckpoint if there is no such file; CorruptFile if it is no importance matrix.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
        weights = _of_gguf(path) if start == MAGIC else _of_legacy(path)
    except OSError as error:
        raise NotACheckpoint(f"cannot be read: {error.strerror}", where=str(path)) from None
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise CheckpointError(f"the importance of {name} is not finite", where=str(path))
    if not weights:
        raise CorruptFile("holds no importance matrix", where=str(path), try_="llama-imatrix -m MODEL.gguf -f TEXT")
    return weights


def _of_gguf(path: Path) -> Weights:
    header = read_header(path)
    found: Weights = {}
    for info in header.tensors:
        name = info.name.removesuffix(SUMS)
        counts = header.tensor(name + COUNTS)
        if name == info.name:
            continue
        if counts is None:
            raise CorruptFile(f"has sums of {name} and no counts", where=str(path))
        sums, times = _values(header, info), _values(header, counts)
        if not times.size or sums.size % times.size:
            raise CorruptFile(f"has {sums.size} sums of {name}, and {times.size} counts", where=str(path))
        times = np.rint(times)[:, None]
        by_expert = sums.reshape(len(times), -1)
        with np.errstate(all="ignore"):
            found[name] = np.where(times > 0, by_expert / times, np.float32(1)).reshape(-1)
    return found


def _values(header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float32]:
    if info.type_name != "F32":
        raise CorruptFile(f"{info.name} is {info.type_name}; it must be F32", where=str(header.path))
    return np.fromfile(header.path, "<f4", info.nbytes // 4, offset=header.data_start + info.offset)


def _of_legacy(path: Path) -> Weights:
    """Return the weights of the older format: a count of entries, then name, calls and values of each."""
    raw = path.read_bytes()
    found: Weights = {}
    at = 4
    try:
        entries = _whole(raw, 0, MAX_ENTRIES)
        for _ in range(entries):
            length = _whole(raw, at, MAX_NAME)
            name = raw[at + 4 : at + 4 + length].decode()
            at += 4 + length
            calls, count = int.from_bytes(raw[at : at + 4], "little", signed=True), _whole(raw, at + 4, len(raw) // 4)
            values = np.frombuffer(raw, "<f4", count, at + 8)
            found[name] = values / np.float32(calls) if calls > 0 else values
            at += 8 + 4 * count
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptFile(
            f"is no importance matrix: {error}", where=str(path), try_="llama-imatrix -m MODEL.gguf -f TEXT"
        ) from None
    return found


def _whole(raw: bytes, at: int, most: int) -> int:
    value = int.from_bytes(raw[at : at + 4], "little", signed=True)
    if not 1 <= value <= most:
        raise ValueError(f"{value} stands at byte {at}, where a number from 1 to {most} belongs")
    return value
