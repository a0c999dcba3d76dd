"""Split models: found from any shard, checked against each other, changed in the first file alone."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_files import I32, U16, contents, kv, mixed, mixed_tensors, packed, tensor, u32

from ropetool.errors import ConfigError, CorruptFile, MissingFile, RopetoolError
from ropetool.files.gguf import (
    Patch,
    Value,
    ValueType,
    read_header,
    read_shards,
    shards,
    split_patch,
    write_patched,
)
from ropetool.files.shard_names import shard_paths

SECOND = "m-00002-of-00002.gguf"
NEW = np.arange(1, 7, dtype=np.float32)


@pytest.fixture(params=[False, True], ids=["tensors first", "metadata first"])
def split(tmp_path, request) -> list[Path]:
    mixed(tmp_path / "m.gguf", split_max_tensors=5, small_first_shard=request.param)
    return sorted(tmp_path.glob("m-*.gguf"))


def number(key: str, value: int) -> bytes:
    return kv(key, U16, struct.pack("<H", value))


def total(value: int) -> bytes:
    return kv("split.tensors.count", I32, struct.pack("<i", value))


def shard(
    folder: Path, index: int, count: int, *, tensors: int = 2, name: str = "", extra: tuple[bytes, ...] = ()
) -> Path:
    """Write a shard by hand with one tensor of its own."""
    keys = [number("split.no", index), number("split.count", count), total(tensors), *extra]
    path = folder / (name or f"m-{index + 1:05d}-of-{count:05d}.gguf")
    path.write_bytes(packed(keys, [tensor(f"t{index}", [8])], bytes(32)))
    return path


def changed(paths: list[Path], patch: Patch, output: Path) -> list[Path]:
    """Do what a caller does: write the files that change, link the others, under the names of the output."""
    headers = read_shards(paths[0])
    outputs = shard_paths(output, len(headers))
    for header, part, path in zip(headers, split_patch(headers, patch), outputs, strict=True):
        if part.is_empty:
            os.link(header.path, path)
        else:
            write_patched(header, part, path)
    return outputs


# --- found


def test_all_shards_are_found_from_any(split):
    assert len(split) >= 3
    for path in split:
        assert shards(path) == split
    headers = read_shards(str(split[-1]))
    assert "general.architecture" in headers[0].values
    assert {tensor.name for header in headers for tensor in header.tensors} == mixed_tensors().keys()


def test_a_file_that_is_not_split_is_alone_whatever_its_name(tmp_path):
    path = mixed(tmp_path / "m-00001-of-00002.gguf")
    assert shards(path) == [path]
    single = shard(tmp_path, 0, 1, name="single.gguf", tensors=1)
    assert shards(single) == [single]


def test_links_to_shards_are_followed_by_the_name_of_the_link(tmp_path, split):
    folder = tmp_path / "links"
    folder.mkdir()
    for path in split:
        (folder / path.name).symlink_to(path)
    assert shards(folder / split[1].name) == [folder / path.name for path in split]


@pytest.mark.parametrize("name", ["out.gguf", "out-00002-of-00007.gguf", "out"])
def test_outputs_have_the_names_that_llama_cpp_wants(name):
    wanted = ["out-00001-of-00003.gguf", "out-00002-of-00003.gguf", "out-00003-of-00003.gguf"]
    assert shard_paths(Path("d") / name, 3) == [Path("d") / each for each in wanted]
    assert shard_paths(Path("d") / name, 1) == [Path("d") / name]


# --- refused


def test_a_missing_shard_is_named(split):
    split[1].unlink()
    for path in (split[0], split[2]):
        with pytest.raises(MissingFile, match=f"the shard {split[1].name} is missing from its folder"):
            shards(path)


CASES = {
    "another name": ({"name": "n-00002-of-00002.gguf"}, MissingFile, "the shard n-00001-of-00002.gguf is missing"),
    "no shard's name": ({"name": "m.gguf"}, CorruptFile, "is shard 2 of 2 .* requires the name m-00002-of-00002.gguf"),
    "another count": (
        {"count": 3, "name": SECOND},
        CorruptFile,
        "is shard 2 of 3 .* requires the name m-00002-of-00003",
    ),
    "another number": (
        {"index": 0, "name": SECOND},
        CorruptFile,
        "is shard 1 of 2 .* requires the name m-00001-of-00002",
    ),
    "number too high": ({"index": 2, "name": SECOND}, CorruptFile, "split.no is 2, but split.count only 2"),
    "metadata": ({"extra": (u32("llama.a", 1),)}, CorruptFile, "has the key 'llama.a'; only the first shard"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_foreign_shard_is_refused_from_either_side(tmp_path, case):
    options, error, message = CASES[case]
    shard(tmp_path, 0, 2)
    second = shard(tmp_path, **({"index": 1, "count": 2} | options))
    with pytest.raises(error, match=message) as caught:
        shards(second)
    assert caught.value.where
    if second.name == SECOND:
        with pytest.raises(error, match=message):
            shards(tmp_path / "m-00001-of-00002.gguf")


def test_the_tensors_must_be_those_that_the_first_shard_announces(tmp_path):
    first, second = shard(tmp_path, 0, 2, tensors=3), shard(tmp_path, 1, 2)
    with pytest.raises(CorruptFile, match=r"split\.tensors\.count is 3, but its 2 shards have 2"):
        shards(first)
    first = shard(tmp_path, 0, 2, tensors=2)
    second.write_bytes(second.read_bytes().replace(b"t1", b"t0"))
    with pytest.raises(CorruptFile, match=r"contains tensor 't0', but so does m-00001-of-00002\.gguf"):
        shards(first)


def test_the_keys_must_have_their_types_and_be_there(tmp_path):
    path = tmp_path / "m-00001-of-00002.gguf"
    shard(tmp_path, 1, 2)
    good = [number("split.no", 0), number("split.count", 2), total(2)]
    bad = {
        r"split\.count has type u32; llama\.cpp requires u16": [good[0], u32("split.count", 2), good[2]],
        r"split\.no has type u32; llama\.cpp requires u16": [u32("split.no", 0), *good[1:]],
        r"split\.tensors\.count has type u32; llama\.cpp requires i32": [*good[:2], u32("split.tensors.count", 2)],
        r"is not a shard: it has no split\.no": good[1:],
        r"split\.tensors\.count is missing": good[:2],
    }
    for message, keys in bad.items():
        path.write_bytes(packed(keys, [tensor("t0", [8])], bytes(32)))
        with pytest.raises(CorruptFile, match=message):
            shards(path)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(packed([], [tensor("t1", [8])], bytes(32)))
    path.write_bytes(packed(good, [tensor("t0", [8])], bytes(32)))
    with pytest.raises(CorruptFile, match=r"is not a shard: it has no split\.count"):
        shards(path)


# --- changed


def test_keys_change_the_first_shard_alone(split, tmp_path):
    patch = Patch(set={"llama.context_length": Value.of(ValueType.U32, 1 << 20)}, remove=frozenset({"test.string.1"}))
    outputs = changed(split, patch, tmp_path / "out.gguf")
    assert shards(outputs[2]) == outputs
    assert contents(outputs[0])["values"]["llama.context_length"][1] == 1 << 20
    assert contents(outputs[0])["tensors"] == contents(split[0])["tensors"]
    assert [path.stat().st_ino for path in outputs[1:]] == [path.stat().st_ino for path in split[1:]]


def test_a_new_tensor_goes_to_the_first_shard_and_is_counted(split, tmp_path):
    outputs = changed(split, Patch(tensors={"rope_factors_long.weight": NEW}), tmp_path / "out.gguf")
    assert shards(outputs[0]) == outputs
    found = contents(outputs[0])
    assert found["tensors"] == contents(split[0])["tensors"] | {"rope_factors_long.weight": ("F32", [6], NEW.tobytes())}
    assert found["values"]["split.tensors.count"] == ([int(ValueType.I32)], len(mixed_tensors()) + 1)
    again = changed(outputs, Patch(tensors={"rope_factors_short.weight": NEW}), tmp_path / "again.gguf")
    assert contents(again[0])["values"]["split.tensors.count"][1] == len(mixed_tensors()) + 2


def test_a_tensor_is_overwritten_in_the_shard_that_has_it(split, tmp_path):
    name, ones = "rope_freqs.weight", np.ones(5, np.float32)
    owner = next(index for index, path in enumerate(split) if read_header(path).tensor(name))
    outputs = changed(split, Patch(tensors={name: ones}), tmp_path / "out.gguf")
    for index, (old, new) in enumerate(zip(split, outputs, strict=True)):
        wanted = contents(old)
        if index == owner:
            wanted["tensors"][name] = ("F32", [5], ones.tobytes())
        assert contents(new) == wanted
    assert shards(outputs[0]) == outputs


def test_an_unsplit_model_has_one_part_and_no_count(tmp_path):
    headers = read_shards(mixed(tmp_path / "m.gguf"))
    patch = Patch(tensors={"new": NEW})
    (part,) = split_patch(headers, patch)
    assert (dict(part.set), part.tensors) == ({}, patch.tensors)


def test_the_keys_that_tie_the_files_together_cannot_be_patched(split):
    headers = read_shards(split[0])
    for patch in (
        Patch(set={"split.count": Value.of(ValueType.U16, 9)}),
        Patch(remove=frozenset({"split.tensors.count"})),
    ):
        with pytest.raises(ConfigError, match="follows from the files of a split model"):
            split_patch(headers, patch)


def test_every_refusal_says_where(split):
    split[0].unlink()
    with pytest.raises(RopetoolError) as caught:
        shards(split[1])
    assert caught.value.where == str(split[1])
    assert caught.value.try_
