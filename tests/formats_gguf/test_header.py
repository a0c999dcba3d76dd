"""Headers as we read them against the gguf package's reader, on files that its writer made."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gguf import GGUFReader
from gguf_files import contents, mixed, mixed_tensors, packed, tensor, u32, vocabulary

from ropetool.errors import CorruptFile, NotACheckpoint, UnsupportedDtype
from ropetool.files.gguf import GgufHeader, ValueType, read_header, read_vector
from ropetool.files.gguf.header import MAX_HEADER_BYTES


def assert_same(header: GgufHeader, path) -> None:
    theirs = contents(path)
    assert (header.version, header.alignment) == (theirs["version"], theirs["alignment"])
    assert list(header.values) == list(theirs["values"])
    for key, (types, value) in theirs["values"].items():
        ours = header.values[key]
        decoded = ours.decode()
        assert (decoded.tolist() if isinstance(decoded, np.ndarray) else decoded) == value, key
        assert [ours.type, *([ours.element] if ours.count and ours.element is not None else [])] == types, key
    raw = path.read_bytes()
    assert [info.name for info in header.tensors] == list(theirs["tensors"])
    for info in header.tensors:
        kind, shape, data = theirs["tensors"][info.name]
        assert (info.type_name, list(info.shape), info.nbytes) == (kind, shape, len(data))
        assert raw[header.data_start + info.offset : header.data_start + info.end] == data


@pytest.mark.parametrize("alignment", [None, 1, 8, 32, 256, 4096])
def test_every_type_at_every_alignment_reads_as_the_package_reads_it(tmp_path, alignment):
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    assert_same(read_header(path), path)


def test_version_2_has_the_same_layout(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\x02" + raw[5:])
    assert read_header(path).version == 2
    assert_same(read_header(path), path)


def test_a_file_of_metadata_alone_ends_with_its_keys(tmp_path):
    path = vocabulary(tmp_path / "v.gguf")
    header = read_header(path)
    assert_same(header, path)
    assert header.header_end == header.data_start == header.file_size == path.stat().st_size
    assert header.tensors == ()


def test_an_empty_model_is_a_header_alone(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(packed())
    header = read_header(path)
    assert (dict(header.values), header.tensors, header.alignment) == ({}, (), 32)


def test_keys_and_names_that_are_not_utf8_are_kept_apart(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(packed([u32("a", 1).replace(b"a", b"\xff"), u32("a", 2)], [tensor(b"\xfe", [8])], bytes(32)))
    header = read_header(path)
    assert [key.encode("utf-8", "surrogateescape") for key in header.values] == [b"\xff", b"a"]
    assert header.tensors[0].name.encode("utf-8", "surrogateescape") == b"\xfe"


def test_bytes_after_the_last_tensor_and_a_missing_last_padding_are_allowed(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    raw = path.read_bytes()
    header = read_header(path)
    end = header.data_start + header.tensors[-1].end
    assert end < len(raw), "the writer pads the last tensor"
    for content in (raw[:end], raw + b"left over"):
        path.write_bytes(content)
        assert read_header(path).tensors == header.tensors


def test_a_tensor_may_have_no_dimension_or_no_element(tmp_path):
    path = tmp_path / "m.gguf"
    infos = [tensor("scalar", []), tensor("nothing", [0, 4], offset=32), tensor("last", [1], offset=32)]
    path.write_bytes(packed([], infos, bytes(36)))
    assert [(info.shape, info.nbytes) for info in read_header(path).tensors] == [((), 4), ((0, 4), 0), ((1,), 4)]


def test_get_wants_the_type_that_llama_cpp_wants(tmp_path):
    path = mixed(tmp_path / "m.gguf", tensors=False)
    header = read_header(path)
    assert header.get("llama.context_length", ValueType.U32) == 2048
    assert header.get("llama.rope.freq_base", ValueType.F32) == 10000.0
    assert header.get("absent", ValueType.U32) is None
    with pytest.raises(CorruptFile, match=r"llama\.context_length has type u32; llama\.cpp requires i32"):
        header.get("llama.context_length", ValueType.I32)
    with pytest.raises(CorruptFile, match=r"has type arr of i8; llama\.cpp requires i8"):
        header.get("test.int8.list", ValueType.I8)


def test_a_vector_is_read_back(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    header = read_header(path)
    wanted = mixed_tensors()["rope_freqs.weight"][0]
    assert np.array_equal(read_vector(header, header.tensor("rope_freqs.weight")), wanted)
    assert header.tensor("rope") is None
    for name, what in (("token_embd.weight", r"F32 of shape \[7, 3\]"), ("integers", "I32"), ("scalar_like", "F16")):
        with pytest.raises(UnsupportedDtype, match=f"{name} is {what}"):
            read_vector(header, header.tensor(name))


def test_a_vector_of_a_file_that_was_cut_since_is_an_error(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    header = read_header(path)
    info = header.tensor("rope_freqs.weight")
    other = tmp_path / "cut.gguf"  # a file cut in place would take its mapping away
    other.write_bytes(path.read_bytes()[: header.data_start + info.end - 1])
    other.replace(path)
    with pytest.raises(CorruptFile, match=r"became shorter and ends inside tensor rope_freqs\.weight"):
        read_vector(header, info)


def test_what_is_no_file_is_no_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("absent", "does not exist"), ("", "is a directory"), ("pipe", "is a named pipe")):
        with pytest.raises(NotACheckpoint, match=message):
            read_header(tmp_path / name)
    with pytest.raises(NotACheckpoint, match="null"):
        read_header("a\0b")


def test_the_data_is_never_mapped_beyond_the_bound_of_headers(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER_BYTES + 10)
    header = read_header(path)
    assert len(header.infos.obj) == MAX_HEADER_BYTES
    assert len(GGUFReader(path).data) == MAX_HEADER_BYTES + 10
