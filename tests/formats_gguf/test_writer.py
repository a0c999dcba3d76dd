"""Patched copies against the gguf package's reader: what was asked has changed, and no byte of anything else."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from gguf_files import contents, mixed, mixed_tensors, packed, tensor, u32, vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool.errors import ConfigError, OutputError, PlanMismatch, UnsupportedDtype
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched, writer

from .test_codec import LISTS, PAIRS

STR, U32, F32, I32 = ValueType.STR, ValueType.U32, ValueType.F32, ValueType.I32
ALIGNMENTS = [None, 1, 8, 64, 1024]


def patched(source, patch: Patch, name: str = "out.gguf"):
    """Return the path of the patched copy, after checking that the source is as it was."""
    before = source.read_bytes()
    destination = source.with_name(name)
    destination.unlink(missing_ok=True)
    write_patched(read_header(source), patch, destination)
    assert source.read_bytes() == before
    return destination


def plain(value: Value):
    """Return a value as `contents` of the maker gives it: the numbers of its types, and what it holds."""
    decoded = value.decode()
    types = [int(value.type)] + ([int(value.element)] if value.count and value.element is not None else [])
    return types, decoded.tolist() if isinstance(decoded, np.ndarray) else decoded


def assert_patched(source, output, patch: Patch) -> None:
    """Compare the two files through the package's reader, with the patch worked out independently."""
    wanted = contents(source)
    for key in patch.remove:
        del wanted["values"][key]
    for key, value in patch.set.items():
        wanted["values"][key] = plain(value)
    for name, vector in patch.tensors.items():
        wanted["tensors"][name] = ("F32", [len(vector)], vector.tobytes())
    found = contents(output)
    assert found == wanted
    assert list(found["values"]) == list(wanted["values"])
    assert list(found["tensors"]) == list(wanted["tensors"])
    read_header(output)


# --- nothing asked


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_rewrite_without_changes_is_the_same_file(tmp_path, alignment):
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    assert Patch().is_empty
    assert patched(path, Patch()).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", ["left over", "no last padding", "padding of ones", "version 2", "padded vocabulary"])
def test_a_rewrite_keeps_what_only_bytes_tell(tmp_path, case):
    path = mixed(tmp_path / "m.gguf", alignment=64) if case != "padded vocabulary" else vocabulary(tmp_path / "m.gguf")
    header = read_header(path)
    raw = bytearray(path.read_bytes())
    if case == "left over":
        raw += b"left over"
    elif case == "no last padding":
        del raw[header.data_start + header.tensors[-1].end :]
    elif case == "padding of ones":
        assert header.header_end < header.data_start
        raw[header.header_end : header.data_start] = b"\1" * (header.data_start - header.header_end)
    elif case == "version 2":
        raw[4] = 2
    else:
        raw += bytes(-len(raw) % 32)
    path.write_bytes(raw)
    assert patched(path, Patch()).read_bytes() == raw
    there = patched(path, Patch(set={"a.new.key": Value.of(U32, 1)}))
    back = patched(there, Patch(remove=frozenset({"a.new.key"})), "back.gguf")
    if case == "padding of ones":  # padding whose place has moved is zeros again
        raw[header.header_end : header.data_start] = bytes(header.data_start - header.header_end)
    assert back.read_bytes() == raw


# --- keys


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_keys_are_replaced_in_place_added_at_the_end_and_removed(tmp_path, alignment):
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    patch = Patch(
        set={
            "llama.context_length": Value.of(U32, 16384),
            "test.string.1": Value.of(STR, "a longer string than before"),
            "test.int32.list": Value.array(STR, ["another", "type", "altogether"]),
            "llama.rope.scaling.type": Value.of(STR, "yarn"),
            "llama.rope.scaling.factor": Value.of(F32, 8.0),
            "llama.rope.dimension_sections": Value.array(I32, [16, 24, 24, 0]),
        },
        remove=frozenset({"llama.rope.freq_base", "test.float64.list"}),
    )
    output = patched(path, patch)
    assert_patched(path, output, patch)
    keys = list(contents(output)["values"])
    assert keys.index("llama.context_length") == list(contents(path)["values"]).index("llama.context_length")
    assert keys[-3:] == ["llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.dimension_sections"]


def random_values():
    one = PAIRS.map(lambda pair: Value.of(*pair)) | LISTS.map(lambda pair: Value.array(*pair))
    return st.dictionaries(
        st.text(min_size=1, max_size=30).filter(lambda key: not key.startswith("GGUF.")), one, max_size=6
    )


@settings(max_examples=60, deadline=None)
@given(added=random_values(), whole=st.booleans())
def test_any_keys_can_be_added_and_taken_away_again(tmp_path_factory, added, whole):
    folder = tmp_path_factory.mktemp("random")
    path = mixed(folder / "m.gguf", values=False) if whole else vocabulary(folder / "m.gguf", tokens=5)
    patch = Patch(set=added)
    there = patched(path, patch)
    assert_patched(path, there, patch)
    assert {key: read_header(there).values[key] for key in added} == added
    back = patched(there, Patch(remove=frozenset(added)), "back.gguf")
    assert back.read_bytes() == path.read_bytes()


def test_a_value_set_to_what_it_is_changes_nothing(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    patch = Patch(set={"llama.context_length": Value.of(U32, 2048), "general.alignment": Value.of(U32, 32)})
    output = patched(path, Patch(set={"llama.context_length": Value.of(U32, 2048)}))
    assert output.read_bytes() == path.read_bytes()
    assert_patched(path, patched(path, patch), patch)


def test_keys_that_are_not_utf8_survive(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(packed([u32("a", 1).replace(b"a", b"\xff")], [tensor(b"\xfe", [8])], bytes(32)))
    output = patched(path, Patch(set={"b": Value.of(U32, 2)}))
    assert output.read_bytes()[24:].startswith(u32("a", 1).replace(b"a", b"\xff") + u32("b", 2) + tensor(b"\xfe", [8]))


@pytest.mark.parametrize(
    ("patch", "error", "message"),
    [
        (Patch(set={"": Value.of(U32, 1)}), ConfigError, "'' is not a key: it has 1 to 65535 bytes"),
        (Patch(set={"k" * 65536: Value.of(U32, 1)}), ConfigError, r"'k+\.\.\.' is not a key"),
        (Patch(set={"\ud800": Value.of(U32, 1)}), ConfigError, "is not text"),
        (Patch(remove=frozenset({"absent"})), PlanMismatch, "has no key 'absent' to remove"),
        (Patch(set={"general.architecture": Value.of(STR, "x")}, remove=frozenset({"general.architecture"})),
         ConfigError, "general.architecture: cannot be set and removed at once"),
        (Patch(set={"general.alignment": Value.of(U32, 64)}), ConfigError, "general.alignment: must stay 32, because"),
        (Patch(set={"general.alignment": Value.of(I32, 32)}), ConfigError, "must stay 32"),
        (Patch(tensors={"n" * 64: np.ones(4, np.float32)}), ConfigError, "'n+' is not a valid tensor name: .* 1 to 63"),
        (Patch(tensors={"": np.ones(4, np.float32)}), ConfigError, "'' is not a valid tensor name"),
        (Patch(tensors={"rope": np.ones(4)}), ConfigError, "rope: the new data must be a float32 vector"),
        (Patch(tensors={"rope": np.ones((2, 2), np.float32)}), ConfigError, "rope: .* a float32 vector"),
        (Patch(tensors={"rope": np.ones(0, np.float32)}), ConfigError, "rope: .* at least one entry"),
        (Patch(tensors={"rope_freqs.weight": [1.0]}), ConfigError, "rope_freqs.weight: .* a float32 vector"),
        (Patch(tensors={"rope_freqs.weight": np.ones(4, np.float32)}), PlanMismatch, r"has shape \[5\], the new .* \[4\]"),
        (Patch(tensors={"token_embd.weight": np.ones(21, np.float32)}), PlanMismatch, r"has shape \[7, 3\], the new"),
        (Patch(tensors={"scalar_like": np.ones(3, np.float32)}), UnsupportedDtype, "scalar_like is F16; only F32"),
    ],
)  # fmt: skip
def test_patches_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, patch, error, message):
    path = mixed(tmp_path / "m.gguf")
    with pytest.raises(error, match=message):
        write_patched(read_header(path), patch, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_an_alignment_of_the_files_own_cannot_be_removed(tmp_path):
    path = mixed(tmp_path / "m.gguf", alignment=64)
    with pytest.raises(ConfigError, match="must stay 64"):
        write_patched(read_header(path), Patch(remove=frozenset({"general.alignment"})), tmp_path / "out.gguf")
    same = mixed(tmp_path / "same.gguf", alignment=32)
    patch = Patch(remove=frozenset({"general.alignment"}))
    assert_patched(same, patched(same, patch), patch)


# --- tensors


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_vector_is_overwritten_where_it_lies(tmp_path, alignment):
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    patch = Patch(tensors={"rope_freqs.weight": np.ones(5, np.float32)})
    output = patched(path, patch)
    assert_patched(path, output, patch)
    differing = np.flatnonzero(np.frombuffer(path.read_bytes(), "u1") != np.frombuffer(output.read_bytes(), "u1"))
    header = read_header(path)
    start = header.data_start + header.tensor("rope_freqs.weight").offset
    assert differing.size
    assert differing.min() >= start
    assert differing.max() < start + 20


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_vectors_are_appended_behind_all_others(tmp_path, alignment):
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    patch = Patch(
        set={"llama.rope.scaling.type": Value.of(STR, "longrope")},
        tensors={
            "rope_factors_long.weight": np.arange(1, 8, dtype=np.float32),
            "rope_freqs.weight": np.full(5, 2, np.float32),
            "rope_factors_short.weight": np.arange(3, 10, dtype=np.float32),
        },
    )
    assert_patched(path, patched(path, patch), patch)


@pytest.mark.parametrize("cut", [False, True])
def test_what_lies_behind_the_data_moves_behind_the_new_tensor(tmp_path, cut):
    path = mixed(tmp_path / "m.gguf", alignment=64)
    header = read_header(path)
    raw = path.read_bytes()
    end = header.data_start + header.tensors[-1].end
    assert end < len(raw)
    path.write_bytes(raw[:end] if cut else raw + b"left over")
    patch = Patch(tensors={"new": np.ones(3, np.float32)})
    output = patched(path, patch)
    if cut:
        assert contents(output)["tensors"]["new"] == ("F32", [3], np.ones(3, "<f4").tobytes())
        assert output.read_bytes().endswith(bytes(52))
    else:
        assert_patched(path, output, patch)
        assert output.read_bytes().endswith(np.ones(3, "<f4").tobytes() + bytes(52) + b"left over")


@pytest.mark.parametrize("pad", [0, 5, 32])
def test_a_tensor_can_be_the_first_of_a_file(tmp_path, pad):
    path = vocabulary(tmp_path / "v.gguf", tokens=7)
    raw = path.read_bytes()
    path.write_bytes(raw + bytes(min(pad, -len(raw) % 32)))
    patch = Patch(tensors={"rope_freqs.weight": np.arange(1, 5, dtype=np.float32)})
    output = patched(path, patch)
    assert_patched(path, output, patch)
    header = read_header(output)
    assert header.data_start == -(-header.header_end // 32) * 32
    assert header.file_size == header.data_start + 32


# --- the checks above are not blind


@pytest.mark.parametrize("defect", ["order", "end of data", "count", "offset", "padding", "data start", "overwrite"])
def test_the_comparison_sees_a_planted_defect(tmp_path, monkeypatch, defect):
    path = mixed(tmp_path / "m.gguf", alignment=64)
    patch = Patch(
        set={"llama.context_length": Value.of(U32, 1), "a.b": Value.of(U32, 1)},
        tensors={"new": np.ones(3, np.float32), "rope_freqs.weight": np.ones(5, np.float32)},
    )
    assert_patched(path, patched(path, patch), patch)
    real = {name: getattr(writer, name) for name in ("patched_values", "copy_range", "_head", "appended", "padded")}
    planted = {
        "order": ("patched_values", lambda *a: dict(reversed(real["patched_values"](*a).items()))),
        "end of data": ("copy_range", lambda s, t, start, at, n: real["copy_range"](s, t, start, at, n and n - 64)),
        "count": ("_head", lambda *a: _with_one_more_key(real["_head"](*a))),
        "offset": ("appended", lambda *a: [(_moved(info), data) for info, data in real["appended"](*a)]),
        "padding": ("padded", lambda size, alignment: size),
        "data start": ("padded", lambda size, alignment: real["padded"](size, alignment) + alignment),
        "overwrite": ("overwritten", lambda *a: []),
    }
    monkeypatch.setattr(writer, *planted[defect])
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the package's reader fails in many ways)
        assert_patched(path, patched(path, patch), patch)
    assert not isinstance(caught.value, AttributeError | NameError)


def _with_one_more_key(head):
    count = struct.unpack_from("<q", head[0], 16)[0]
    return [head[0][:16] + struct.pack("<q", count + 1), *head[1:]]


def _moved(info):
    return type(info)(info.name, info.shape, info.ggml_type, info.offset + 64, info.nbytes)


# --- the file system


def test_a_path_that_exists_is_never_opened(tmp_path):
    path = mixed(tmp_path / "m.gguf")
    before = path.read_bytes()
    link, hard = tmp_path / "link.gguf", tmp_path / "hard.gguf"
    link.symlink_to(path)
    os.link(path, hard)
    for destination in (path, link, hard):
        with pytest.raises(OutputError, match="exists already"):
            write_patched(read_header(path), Patch(), destination)
    assert path.read_bytes() == before


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_source_that_changed_is_refused(tmp_path, monkeypatch, when):
    path = mixed(tmp_path / "m.gguf")
    header = read_header(path)
    if when == "before":
        os.utime(path, ns=(0, header.mtime_ns + 1))
    else:
        monkeypatch.setattr(writer, "copy_range", lambda *_: os.utime(path, ns=(0, header.mtime_ns + 1)))
    with pytest.raises(PlanMismatch, match="has changed since its header was read"):
        write_patched(header, Patch(), tmp_path / "out.gguf")


def test_a_full_disk_is_an_error_of_the_output(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = mixed(tmp_path / "m.gguf")
    monkeypatch.setattr(writer, "copy_range", full)
    with pytest.raises(OutputError, match="no space left") as caught:
        write_patched(read_header(path), Patch(), tmp_path / "out.gguf")
    assert caught.value.where == str(tmp_path / "out.gguf")


WRITE = """
import sys
from pathlib import Path
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched

source, out = map(Path, sys.argv[1:])
patch = Patch(set={"llama.rope.scaling.type": Value.of(ValueType.STR, "yarn")})
write_patched(read_header(source), patch, out)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    size = 2**26
    path = tmp_path / "m.gguf"
    head = packed([u32("llama.context_length", 1)], [tensor("a", [size])])
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * size)
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(path), str(tmp_path / "out.gguf")], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "out.gguf").stat().st_size > 4 * size
    assert int(done.stdout) < 80 * 1024


def test_the_maker_gives_tensors_that_need_padding():
    assert {data.nbytes % 32 for data, _ in mixed_tensors().values()} - {0}
