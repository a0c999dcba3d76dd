"""Our header reader against the safetensors package: what it writes is read alike, what it refuses is refused."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ropetool.errors import CorruptFile, MissingFile
from ropetool.files.hf.safetensors import DTYPE_BITS, read_header

F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def file_bytes(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# --- files that the package writes


def test_a_file_of_the_package_is_read_as_the_package_reads_it(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    arrays = {
        "model.layers.0.q": random.standard_normal((4, 6)).astype(np.float16),
        "z": random.standard_normal((3,)),
        "scalar": np.array(2.5, dtype=np.float32),
        "empty": np.zeros((0, 5), dtype=np.int64),
        "é 东": random.integers(0, 255, (2, 2, 2)).astype(np.uint8),
        "flags": np.array([True, False]),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt", "né": "€"})

    header = read_header(path)

    content = path.read_bytes()
    with safetensors.safe_open(path, "np") as theirs:
        assert set(header.tensors) == set(theirs.keys())
        assert header.metadata == theirs.metadata()
        for name, info in header.tensors.items():
            piece = theirs.get_slice(name)
            assert (info.name, info.dtype, list(info.shape)) == (name, piece.get_dtype(), piece.get_shape())
            assert content[info.begin : info.end] == arrays[name].tobytes()
    assert header.path == path
    assert header.data_start == min(info.begin for info in header.tensors.values())


def test_the_dtypes_of_torch_files_have_the_packages_spelling(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    types = "bfloat16 float16 float32 float64 int8 int16 int32 int64 uint8 bool complex64 float8_e4m3fn float8_e5m2"
    types += " float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64"
    tensors = {name: torch.zeros((3, 5), dtype=getattr(torch, name)) for name in types.split()}
    save_file(tensors, tmp_path / "t.safetensors")
    header = read_header(tmp_path / "t.safetensors")
    assert set(header.tensors) == set(tensors)
    assert {n: i.end - i.begin for n, i in header.tensors.items()} == {n: t.nbytes for n, t in tensors.items()}


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_is_one_of_the_packages_with_its_width(dtype: str, tmp_path: Path) -> None:
    nbytes = DTYPE_BITS[dtype]  # eight elements
    good = file_bytes({"t": {"dtype": dtype, "shape": [8], "data_offsets": [0, nbytes]}}, bytes(nbytes))
    assert safetensors.deserialize(good)[0][1]["dtype"] == dtype
    info = read_header(written(tmp_path / "f", good)).tensors["t"]
    assert (info.dtype, info.end - info.begin) == (dtype, nbytes)


def test_the_package_knows_no_other_dtype() -> None:
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.deserialize(file_bytes({"t": dict(F32, dtype="none")}, bytes(4)))
    listed = str(refused.value).partition("expected one of ")[2].partition(" at line")[0]
    assert set(listed.replace("`", "").split(", ")) == set(DTYPE_BITS)


# --- one text for each way a file can be wrong

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
TWO = {"a": F32, "b": dict(F32, data_offsets=[4, 8])}

HOSTILE = [
    (file_bytes(b'{"__metadata__": {}, "__metadata__": {}}'), "the header contains '__metadata__' twice"),
    (b"", "is 0 bytes long; a safetensors file begins with the 8-byte length of its header"),
    (b"\x02\0\0", "is 3 bytes long; a safetensors file begins with the 8-byte length of its header"),
    (
        file_bytes({}, length=1 << 60),
        "declares a header of 1,152,921,504,606,846,976 bytes; ropetool reads at most 48,000,000",
    ),
    (file_bytes({}, length=3), "declares a header of 3 bytes, but only 2 follow"),
    (LFS, "is a Git LFS pointer, not the weights"),
    (file_bytes(b""), "the header does not begin with '{', at character 0"),
    (file_bytes(b"\0" * 64), "the header does not begin with '{', at character 0"),
    (file_bytes(b"[]"), "the header does not begin with '{', at character 0"),
    (file_bytes(b'{"a": \xff}'), "the header is not UTF-8 (invalid start byte), at character 0"),
    (file_bytes(b"{1: 2}"), "the header has '1' instead of a name in quotes, at character 1"),
    (file_bytes(b'{"a" 1}'), "the header has '1' where ':' belongs, at character 5"),
    (file_bytes(b'{"a": }'), "the header is not valid JSON (Expecting value), at character 6"),
    (file_bytes(b'{"__metadata__": {} "a": 1}'), "the header has '\"' where ',' or '}' belongs, at character 20"),
    (file_bytes(b'{"__metadata__": {}, }'), "the header has '}' instead of a name in quotes, at character 21"),
    (file_bytes(b'{"__metadata__": {}'), "the header has '' where ',' or '}' belongs, at character 19"),
    (file_bytes(b"{}\0\0"), "the header has '\\x00' after its object; only spaces may follow, at character 2"),
    (file_bytes(b'{"a": ' + b"[" * 100_000), "the header is nested too deeply, at character 6"),
    (
        file_bytes(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"),
        "tensor 'a' is deeply nested; it needs dtype, shape and data_offsets",
    ),
    (
        file_bytes(b'{"a": "' + b"x" * (3 << 20)),
        "the header has an entry of more than 2,097,152 characters, or a broken one, at character 6",
    ),
    (file_bytes({"__metadata__": {"a": 1}}), '__metadata__ is {"a": 1}; it must map names to text'),
    (file_bytes({"__metadata__": []}), "__metadata__ is []; it must map names to text"),
    (file_bytes({"a": 5}), "tensor 'a' is 5; it needs dtype, shape and data_offsets"),
    (file_bytes({"a": {"dtype": "F32", "shape": [1]}}), "tensor 'a' has no data_offsets"),
    (file_bytes({"a": {"dtype": "F32", "data_offsets": [0, 4]}}), "tensor 'a' has no shape"),
    (file_bytes({"a": {"shape": [1], "data_offsets": [0, 4]}}), "tensor 'a' has no dtype"),
    (
        file_bytes({"a": dict(F32, dtype="F31")}, bytes(4)),
        "tensor 'a' has dtype \"F31\"; known types are " + ", ".join(DTYPE_BITS),
    ),
    (
        file_bytes({"a": dict(F32, dtype=["F32"])}, bytes(4)),
        "tensor 'a' has dtype [\"F32\"]; known types are " + ", ".join(DTYPE_BITS),
    ),
    (
        file_bytes({"a": dict(F32, shape=[-1])}, bytes(4)),
        "tensor 'a' has shape [-1]; a shape must list whole numbers of at least 0",
    ),
    (
        file_bytes({"a": dict(F32, shape=[1.0])}, bytes(4)),
        "tensor 'a' has shape [1.0]; a shape must list whole numbers of at least 0",
    ),
    (
        file_bytes({"a": dict(F32, shape=[True])}, bytes(4)),
        "tensor 'a' has shape [true]; a shape must list whole numbers of at least 0",
    ),
    (
        file_bytes({"a": dict(F32, shape=1)}, bytes(4)),
        "tensor 'a' has shape 1; a shape must list whole numbers of at least 0",
    ),
    (
        file_bytes({"a": dict(F32, shape=[2**62, 8])}, bytes(4)),
        f"tensor 'a' has shape [{2**62}, 8], which is too large for a file",
    ),
    (
        file_bytes({"a": dict(F32, data_offsets=[0])}, bytes(4)),
        "tensor 'a' has data_offsets [0]; they must be two whole numbers",
    ),
    (
        file_bytes({"a": dict(F32, data_offsets=[0, 4, 4])}, bytes(4)),
        "tensor 'a' has data_offsets [0, 4, 4]; they must be two whole numbers",
    ),
    (
        file_bytes({"a": dict(F32, data_offsets=[0, "4"])}, bytes(4)),
        "tensor 'a' has data_offsets [0, \"4\"]; they must be two whole numbers",
    ),
    (file_bytes({"a": dict(F32, data_offsets=[4, 0])}, bytes(4)), "tensor 'a' ends at 0, before it begins at 4"),
    (file_bytes({"a": dict(F32, shape=[2])}, bytes(4)), "tensor 'a' spans 4 bytes, but F32 [2] needs 8"),
    (
        file_bytes({"a": dict(F32, dtype="F4", shape=[3], data_offsets=[0, 2])}, bytes(2)),
        "tensor 'a' is 12 bits long (F4 [3]), not a whole number of bytes",
    ),
    (
        file_bytes({"a": F32, "b": dict(F32, data_offsets=[8, 12])}, bytes(12)),
        "tensor 'b' leaves a hole: it begins at 8 of the data, but the tensors before it end at 4",
    ),
    (
        file_bytes({"a": dict(F32, data_offsets=[4, 8])}, bytes(8)),
        "tensor 'a' leaves a hole: it begins at 4 of the data, but the tensors before it end at 0",
    ),
    (
        file_bytes({"a": F32, "b": dict(F32, data_offsets=[2, 6])}, bytes(6)),
        "tensor 'b' overlaps: it begins at 2 of the data, but the tensors before it end at 4",
    ),
    (
        file_bytes({"a": F32, "b": F32}, bytes(4)),
        "tensor 'b' overlaps: it begins at 0 of the data, but the tensors before it end at 4",
    ),
    (file_bytes(TWO, bytes(7)), "the tensors end at byte 138, but the file ends at byte 137"),
    (file_bytes(TWO, bytes(9)), "1 extra bytes follow the last tensor"),
    (file_bytes({}, bytes(1)), "1 extra bytes follow the last tensor"),
]

# Stricter than the package: the README of the format forbids these, the package reads them.
FORBIDDEN = [
    (file_bytes(b" {}"), "the header does not begin with '{', at character 0"),
    (
        file_bytes(b'{"a": ' + json.dumps(F32).encode() + b', "a": ' + json.dumps(F32).encode() + b"}", bytes(4)),
        "the header contains 'a' twice",
    ),
    (file_bytes(b'{"__metadata__": {"a": "b", "a": "c"}}'), "contains the key 'a' twice in one object"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE + FORBIDDEN, ids=lambda value: repr(value)[:40])
def test_a_broken_file_is_refused_with_its_own_text(content: bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.safetensors", content)
    with pytest.raises(CorruptFile) as refused:
        read_header(path)
    assert (refused.value.where, refused.value.message) == (str(path), message)


@pytest.mark.parametrize("content", [content for content, _ in HOSTILE], ids=lambda value: repr(value[8:50]))
def test_the_package_refuses_the_same_files(content: bytes) -> None:
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(content)


@pytest.mark.parametrize("content", [content for content, _ in FORBIDDEN], ids=lambda value: repr(value[8:50]))
def test_the_package_reads_what_only_the_readme_forbids(content: bytes) -> None:
    assert len(safetensors.deserialize(content)) <= 1


def test_a_file_that_cannot_be_read_is_no_corrupt_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="does not exist"):
        read_header(tmp_path / "missing.safetensors")
    with pytest.raises(CorruptFile, match="is a directory, not a regular file"):
        read_header(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "model.safetensors", file_bytes(TWO, bytes(8)))
    size = path.stat()
    monkeypatch.setattr("ropetool.files.hf.safetensors.os.fstat", lambda _: size)
    os.truncate(path, 40)
    with pytest.raises(CorruptFile):
        read_header(path)


def hostile_header(path: Path, body: bytes, repeat: bytes, length: int = 100_000_000) -> Path:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length) + body + repeat * (8_000_000 // max(1, len(repeat))))
        file.truncate(8 + length)  # zeros behind it
    return path


@pytest.mark.parametrize(
    ("body", "repeat"),
    [
        (b"", b""),
        (b"{", b" "),
        (b'{"a": ', b"[],"),
        (b'{"a": [', b"[],"),
        (b'{"', b"\\n"),
        (b'{"a": {"shape": [', b"9,"),
    ],
)
def test_a_header_of_the_largest_size_costs_little_memory(body: bytes, repeat: bytes, tmp_path: Path) -> None:
    path = hostile_header(tmp_path / "model.safetensors", body, repeat)
    tracemalloc.start()
    with pytest.raises(CorruptFile):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 << 20


def test_a_long_shape_of_large_numbers_is_refused_at_once(tmp_path: Path) -> None:
    """The full product would have six million bits and take minutes; the suite would hang."""
    content = file_bytes({"a": dict(F32, shape=[2**63] * 90_000)})
    with pytest.raises(CorruptFile, match="which is too large for a file"):
        read_header(written(tmp_path / "f", content))


def test_entries_longer_than_one_read_and_split_characters_are_joined(tmp_path: Path) -> None:
    metadata = {"long": "é€" * 300_000, "key é": '\\"}{'}
    names = [f"layer.{i}.é" for i in range(5_000)]
    header = {"__metadata__": metadata}
    header |= {name: dict(F32, data_offsets=[4 * i, 4 * i + 4]) for i, name in enumerate(names)}
    raw = json.dumps(header, ensure_ascii=False).encode()
    read = read_header(written(tmp_path / "f", file_bytes(raw + b"  ", bytes(4 * len(names)))))
    assert read.metadata == metadata
    assert list(read.tensors) == names
    assert read.tensors[names[-1]].end == (tmp_path / "f").stat().st_size


# --- any small change to a good file

GOOD = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]},
    "c": {"dtype": "U8", "shape": [0, 7], "data_offsets": [20, 20]},
    "d": {"dtype": "BOOL", "shape": [1, 4], "data_offsets": [20, 24]},
}
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 12, 20, 24, -1, 2**32, 2**63, 1.0, "4", None])


def _with_offsets(name: str, offsets: list[Any]) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(data_offsets=offsets)


CHANGES = st.one_of(
    st.builds(_with_offsets, st.sampled_from("abcd"), st.lists(NUMBERS, min_size=1, max_size=3)),
    st.builds(
        lambda name, shape: lambda header: header[name].update(shape=shape),
        st.sampled_from("abcd"),
        st.lists(NUMBERS, max_size=3),
    ),
    st.builds(
        lambda name, dtype: lambda header: header[name].update(dtype=dtype),
        st.sampled_from("abcd"),
        st.sampled_from([*DTYPE_BITS, "f16", "", None]),
    ),
    st.builds(lambda name: lambda header: header.pop(name), st.sampled_from("abcd")),
    st.builds(lambda name: lambda header: header[name].update(more=[1]), st.sampled_from("abcd")),
)


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(changes=[], extra=0)
@given(changes=st.lists(CHANGES, max_size=2), extra=st.sampled_from([0, 0, 0, -4, 4]))
def test_what_the_package_takes_is_taken_and_what_it_refuses_is_refused(
    changes: list[Callable[[dict[str, Any]], Any]], extra: int, tmp_path: Path
) -> None:
    header = json.loads(json.dumps(GOOD))
    for change in changes:
        try:
            change(header)
        except KeyError:  # the tensor is gone already
            continue
    content = file_bytes(header, bytes(24 + extra))
    path = written(tmp_path / "f", content)
    try:
        theirs = {
            name: (info["dtype"], info["shape"], len(info["data"])) for name, info in safetensors.deserialize(content)
        }
    except safetensors.SafetensorError:
        with pytest.raises(CorruptFile):
            read_header(path)
    else:
        ours = read_header(path).tensors.values()
        assert {info.name: (info.dtype, list(info.shape), info.end - info.begin) for info in ours} == theirs


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_taken_or_refused_as_by_the_package(position: int, byte: int, tmp_path: Path) -> None:
    content = bytearray(file_bytes(GOOD, bytes(24)))
    content[position % (len(content) - 24)] = byte
    path = written(tmp_path / "f", bytes(content))
    try:
        theirs = {name for name, _ in safetensors.deserialize(bytes(content))}
    except safetensors.SafetensorError:
        with pytest.raises(CorruptFile):
            read_header(path)
    else:
        assert set(read_header(path).tensors) == theirs
