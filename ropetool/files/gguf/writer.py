"""Writing of a patched copy of a GGUF file. All bytes that the patch does not name stay unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from itertools import accumulate, takewhile
from math import prod
from pathlib import Path

from ropetool.errors import ConfigError, PlanMismatch
from ropetool.files.copying import copy_range, write_all
from ropetool.files.digests import forget, new_file
from ropetool.files.gguf.codec import Buffer, Value, encode_text
from ropetool.files.gguf.entries import I32, I64, U32, U64, TensorInfo, padded
from ropetool.files.gguf.header import MAGIC, VERSIONS, GgufHeader, read_header, reading
from ropetool.files.gguf.kinds import GGML_TYPES
from ropetool.files.gguf.patch import Patch, appended, overwritten, patched_values
from ropetool.files.output import output_error


@dataclass(frozen=True)
class Span:
    """Bytes of the source that are copied unchanged."""

    start: int
    end: int


@dataclass(frozen=True)
class FileLayout:
    """The planned content of the copy.

    size: in bytes.
    pieces: positions and contents, in the order of the file, with zeros between them. A text is the name of a tensor
      with new data.
    """

    size: int
    pieces: tuple[tuple[int, Buffer | Span | str], ...]


@dataclass(frozen=True)
class Rewritten:
    """New data of a tensor.

    ggml_type: a key of GGML_TYPES.
    chunks: the bytes, in order.
    """

    ggml_type: int
    chunks: Iterable[Buffer]


def write_patched(
    header: GgufHeader, patch: Patch, destination: Path, rewritten: Mapping[str, Rewritten] | None = None
) -> None:
    """Write the patched copy of the header's file to a new path. The caller gives the complete copy its final name.

    The memory use does not depend on the size of the file, because data is copied in the kernel if possible.

    rewritten: tensors with new data, by name.
    Raises: ConfigError, PlanMismatch or UnsupportedDtype if the patch does not fit the file; PlanMismatch if the file
    has changed since its header was read; OutputError if the path exists or cannot be written.
    """
    new = rewritten or {}
    layout = lay_out(header, patch, {name: tensor.ggml_type for name, tensor in new.items()})
    with reading(header.path) as source, creating(destination, layout.size) as target:
        check_unchanged(header, source)
        for position, piece in layout.pieces:
            if isinstance(piece, Span):
                copy_range(source, target, piece.start, position, piece.end - piece.start)
            elif isinstance(piece, str):
                _write_chunks(target, position, new[piece].chunks)
            else:
                write_all(target, position, piece)
        check_unchanged(header, source)


def _write_chunks(target: FileIO, at: int, chunks: Iterable[Buffer]) -> None:
    for chunk in chunks:
        write_all(target, at, chunk)
        at += len(memoryview(chunk).cast("B"))


def lay_out(header: GgufHeader, patch: Patch, rewritten: Mapping[str, int] | None = None) -> FileLayout:
    """Return the layout of the patched copy without writing it.

    rewritten: the types of tensors with new data, by name.
    Raises: ConfigError, PlanMismatch or UnsupportedDtype if the patch does not fit the file.
    """
    if patch.drop:
        raise ConfigError("tensors can be removed only in place, not in a copy", where=min(patch.drop))
    types = rewritten or {}
    retyped = any(types.get(info.name, info.ggml_type) != info.ggml_type for info in header.tensors)
    after = _moved(header, types) if retyped else header
    values = patched_values(header, patch)
    new = appended(after, patch)
    head = _head(after, values, [info for info, _ in new])
    starts = [0, *accumulate(map(len, head))]
    head_end = starts.pop()
    data_start = padded(head_end, header.alignment) if header.tensors or new else head_end
    pieces: list[tuple[int, Buffer | Span | str]] = list(zip(starts, head, strict=True))
    if (head_end, data_start) == (header.header_end, header.data_start):
        pieces.append((head_end, Span(head_end, data_start)))  # the padding of the source, which may not be zero
    body, tail = _body_and_tail(header, grows=bool(new or retyped))
    changed: dict[str, Buffer | str] = {name: name for name in types}
    changed |= {info.name: data for info, data in overwritten(after, patch)}
    pieces += _one_by_one(header, after, data_start, changed) if retyped else _body(header, body, data_start, changed)
    pieces += [(data_start + info.offset, data) for info, data in new]
    end = body.end - body.start
    if new or retyped:
        end = padded((new[-1][0] if new else after.tensors[-1]).end, header.alignment)
    pieces.append((data_start + end, tail))
    return FileLayout(data_start + end + tail.end - tail.start, tuple(pieces))


def _moved(header: GgufHeader, retyped: Mapping[str, int]) -> GgufHeader:
    """Return the header with new types of some tensors, and with the offsets for the new sizes."""
    tensors: list[TensorInfo] = []
    for info in header.tensors:
        number = retyped.get(info.name, info.ggml_type)
        nbytes = prod(info.shape) // GGML_TYPES[number].block * GGML_TYPES[number].nbytes
        offset = padded(tensors[-1].end, header.alignment) if tensors else 0
        tensors.append(replace(info, ggml_type=number, offset=offset, nbytes=nbytes))
    return replace(header, tensors=tuple(tensors), infos=b"".join(map(encode_info, tensors)))


def _one_by_one(
    header: GgufHeader, after: GgufHeader, data_start: int, changed: Mapping[str, Buffer | str]
) -> Iterator[tuple[int, Buffer | Span | str]]:
    """Yield the data of each tensor with its position in the copy."""
    for old, new in zip(header.tensors, after.tensors, strict=True):
        kept = Span(header.data_start + old.offset, header.data_start + old.end)
        yield data_start + new.offset, changed.get(old.name, kept)


def _body(
    header: GgufHeader, body: Span, data_start: int, changed: Mapping[str, Buffer | str]
) -> Iterator[tuple[int, Buffer | Span | str]]:
    """Yield the data section with its padding and positions: spans of the source, cut only at changed tensors."""
    at, shift = body.start, data_start - header.data_start
    for info in sorted(header.tensors, key=lambda info: info.offset):
        if info.name in changed:
            begin = header.data_start + info.offset
            yield from [(at + shift, Span(at, begin))] if begin > at else []
            yield begin + shift, changed[info.name]
            at = begin + info.nbytes
    yield at + shift, Span(at, body.end)


def _head(header: GgufHeader, values: Mapping[str, Value], new: list[TensorInfo]) -> list[Buffer]:
    """Return the bytes before the padding: counts, keys and values, tensor table."""
    head = encode_head(values, len(header.tensors) + len(new), header.version)
    return [*head, header.infos, b"".join(map(encode_info, new))]


def encode_head(values: Mapping[str, Value], tensors: int, version: int = max(VERSIONS)) -> list[Buffer]:
    """Return the bytes before a table of this number of tensors: counts, keys and values."""
    head: list[Buffer] = [MAGIC + U32.pack(version) + I64.pack(tensors) + I64.pack(len(values))]
    for key, value in values.items():
        head += (encode_text(key) + I32.pack(value.type), value.raw)
    return head


def overwrite_value(path: Path, key: str, value: Value) -> None:
    """Overwrite the number of a key in a new file, before the file gets its final name.

    Raises: OutputError if it cannot be written.
    """
    values = read_header(path).values
    assert values[key].type == value.type
    assert len(values[key].raw) == len(value.raw)
    before = {name: values[name] for name in takewhile(lambda name: name != key, values)}
    at = sum(len(memoryview(part).cast("B")) for part in encode_head(before, 0)) + len(encode_text(key)) + I32.size
    forget(path)
    try:
        with FileIO(path, "r+") as file:
            file.seek(at)
            file.write(value.raw)
    except OSError as error:
        raise output_error(error, path) from error


def encode_info(info: TensorInfo) -> bytes:
    """Return an entry of the tensor table: name, shape, type and offset."""
    shape = b"".join(map(I64.pack, info.shape))
    return encode_text(info.name) + U32.pack(len(info.shape)) + shape + I32.pack(info.ggml_type) + U64.pack(info.offset)


def _body_and_tail(header: GgufHeader, *, grows: bool) -> tuple[Span, Span]:
    """Return the data with its padding, and the bytes after it, which move if tensors are appended.

    The last padding may be missing. A file without tensors may have padding before the start of data.
    """
    end = header.file_size
    if not grows:
        return Span(header.data_start, end), Span(end, end)
    if header.tensors:
        used = min(end, header.data_end)
        return Span(header.data_start, used), Span(used, end)
    used = min(end, padded(header.header_end, header.alignment))
    return Span(used, used), Span(used, end)


def check_unchanged(header: GgufHeader, source: FileIO) -> None:
    """Raise PlanMismatch if the size or time of the file has changed since its header was read."""
    status = os.fstat(source.fileno())
    if (status.st_size, status.st_mtime_ns) != (header.file_size, header.mtime_ns):
        raise PlanMismatch("the file has changed since its header was read", where=str(header.path))


@contextmanager
def creating(destination: Path, size: int) -> Iterator[FileIO]:
    """Yield a new file of this size, filled with zeros. The padding between tensors stays zero."""
    try:
        with new_file(destination) as target:
            target.truncate(size)
            yield target
    except OSError as error:
        raise output_error(error, destination, need=size) from error
