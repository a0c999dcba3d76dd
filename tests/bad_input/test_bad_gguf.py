"""GGUF files that are broken, hostile or hold values that stop llama.cpp: the text of the error, and nothing written."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType
from gguf_files import ARR, F32, FREQS, STR, U32, array, kv, llama3_divisors, model, packed, string, tensor, u32
from running import refused, run, snapshot
from test_limits import bounded

EXTEND = ("--method", "yarn", "--factor", "4")
ELSEWHERE = "pass another -o, or move the existing output away"
M = "{m}.gguf"
AGAIN = "download or convert the file again"
ARCH = kv("general.architecture", STR, string("llama"))


def raw(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def keys(arch: str = "llama", **stated: Any) -> Callable[[Path], Any]:
    return lambda path: model(path, arch, {key.replace("__", "."): value for key, value in stated.items()})


# name -> how the file is made; the error of extend; the next step.
CONTAINERS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "wrong magic": (
        raw(packed(magic=b"GGJT")), f"{M}: the header at byte 0 starts with b'GGJT'; a GGUF file starts with b'GGUF'", "",
    ),
    "version 1": (
        raw(packed(version=1)), f"{M}: the header at byte 0 has version 1; ropetool reads versions 2 and 3",
        "convert the model again with a current llama.cpp",
    ),
    "version 9": (
        raw(packed(version=9)), f"{M}: the header at byte 0 has version 9; ropetool reads versions 2 and 3",
        "convert the model again with a current llama.cpp",
    ),
    "big-endian": (
        raw(b"GGUF" + struct.pack(">Iqq", 3, 0, 0)), f"{M}: the header at byte 0 is big-endian (its version reads 50331648, "
        "which is 3 with the bytes swapped); ropetool reads only little-endian files", "gguf-convert-endian FILE little",
    ),
    "empty": (raw(b""), f"{M}: the file is empty; a GGUF file starts with the letters GGUF", AGAIN),
    "cut in the counts": (
        raw(packed()[:13]), f"{M}: the header at byte 0 is cut off: the file ends at byte 13", AGAIN,
    ),
    "cut in a key": (
        raw(packed([ARCH])[:40]), f"{M}: key number 0 at byte 24 has a name of 20 bytes, but the file ends at "
        "byte 40", AGAIN,
    ),
    "2^62 keys": (
        raw(packed(n_keys=2**62)), f"{M}: the header at byte 0 declares 4611686018427387904 keys; ropetool reads 0 to 16384", "",
    ),
    "2^62 tensors": (
        raw(packed(n_tensors=2**62)),
        f"{M}: the header at byte 0 declares 4611686018427387904 tensors; ropetool reads 0 to 65536", "",
    ),
    "2^62 strings": (
        raw(packed([ARCH, array("k", STR, 2**62, bytes(16))])),
        f"{M}: key 'k' at byte 69 has 4611686018427387904 strings, at most 2 complete, but the file ends at "
        "byte 110", AGAIN,
    ),
    "a key twice": (
        raw(packed([ARCH, u32("a", 1), u32("a", 2)])), f"{M}: key 'a' at byte 86 appears a second time; a key appears once", "",
    ),
    "arrays of arrays": (
        raw(packed([array("k", ARR, 1)])),
        f"{M}: key 'k' at byte 24 is an array of arrays; the elements of an array are numbers or strings", "",
    ),
    "a tensor beyond the end": (
        raw(packed([ARCH], [tensor("a", [64])], bytes(64))),
        f"{M}: the data of tensor 'a' ends at byte 384, but the file ends at byte 192", AGAIN,
    ),
    "no architecture": (
        raw(packed([u32("a", 1)])), f"{M}: general.architecture is missing, so the keys of the file cannot be interpreted", "",
    ),
    "an architecture that is a number": (
        raw(packed([u32("general.architecture", 1)])),
        f"{M}: key general.architecture has wrong type u32 but expected type str", "",
    ),
    "nothing but an architecture": (
        raw(packed([ARCH])), f"{M}: llama.cpp cannot load this file: key not found in model: llama.block_count",
        "ropetool doctor {m}.gguf",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_broken_file(case: str, tmp_path: Path) -> None:
    make, error, try_ = CONTAINERS[case]
    source = tmp_path / "model.gguf"
    make(source)
    refused(tmp_path, error, try_, "extend", source, *EXTEND)
    if case != "nothing but an architecture":  # inspect says what is in it, and what llama.cpp misses
        refused(tmp_path, error, try_, "inspect", source)


@pytest.mark.parametrize("case", CONTAINERS)
def test_none_of_them_costs_much(case: str, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    CONTAINERS[case][0](source)
    assert bounded("extend", source, *EXTEND)[0] == 1


def test_more_strings_than_any_tokenizer_has_are_refused(tmp_path: Path) -> None:
    """In two lists, so that neither has too many."""
    half = (1 << 21) + 1
    lists = [array(f"llama.rope.{name}", STR, half, bytes(8 * half)) for name in "ab"]
    (tmp_path / "model.gguf").write_bytes(packed([ARCH, *lists]))
    code, errors = bounded("inspect", tmp_path / "model.gguf")
    assert code == 1
    assert "llama.rope.b" in errors
    assert "has 2,097,153 strings; ropetool reads at most 4,194,304 per file" in errors


def hostile(name: str) -> bytes:
    """Return a well-formed file that is as costly as the format allows."""
    many = 90 * 2**20
    if name == "a long list under a rope key":
        return packed([ARCH, array("llama.rope.scaling.yarn_beta_fast", F32, many // 4, bytes(many))])
    if name == "a long text under a rope key":
        return packed([ARCH, kv("llama.rope.scaling.type", STR, struct.pack("<Q", many) + bytes(many))])
    if name == "millions of strings":
        return packed([ARCH, array("llama.rope.names", STR, 1 << 22, struct.pack("<Qx", 1) * (1 << 22))])
    if name == "heads for millions of layers":
        return packed([ARCH, array("llama.attention.head_count", U32, many // 4, bytes(many))])
    assert name == "16,000 keys"
    return packed([ARCH, *(u32(f"llama.rope.{i}", i) for i in range(16_000))])


@pytest.mark.parametrize(
    "name",
    [
        "a long list under a rope key", "a long text under a rope key", "millions of strings",
        "heads for millions of layers", "16,000 keys",
    ],
)  # fmt: skip
def test_a_hostile_file_costs_little(name: str, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(hostile(name))
    for command, options in (("extend", EXTEND), ("inspect", ()), ("inspect", ("--json",))):
        code, errors = bounded(command, source, *options)
        assert (code, "Traceback" in errors) == (1 if command == "extend" else 0, False)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


# --- values


DOCTOR = "ropetool doctor {m}.gguf"
STOPS = f"{M}: llama.cpp cannot load this file: "
F64 = GGUFValueType.FLOAT64
VALUES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a model without rotation": (
        raw(packed([kv("general.architecture", STR, string("gpt2"))])),
        f"{M}: general.architecture: gpt2 has no rotary positions, and its learned positions end at its context length", "",
    ),
    "a model without attention": (
        raw(packed([
            kv("general.architecture", STR, string("mamba")),
            *(u32(f"mamba.{key}", 512) for key in ("context_length", "block_count", "embedding_length")),
        ])),
        f"{M}: none of its layers rotates, so there is no table to extend; only the configured context length limits it",
        "ropetool extend {m}.gguf --method length --factor 4",
    ),
    "an unknown architecture": (
        raw(packed([kv("general.architecture", STR, string("new\x1b[31m"))])),
        f'{M}: general.architecture: ropetool cannot extend GGUF files of "new\\u001b[31m": '
        "unknown model architecture: 'new\\x1b[31m'",
        "ropetool inspect {m}.gguf, which shows their keys as written",
    ),
    "a base of another type": (
        keys(rope__freq_base=(F64, 1e4)),
        f"{STOPS}key llama.rope.freq_base has wrong type f64 but expected type f32", "",
    ),
    "a length of another type": (
        keys(context_length=(GGUFValueType.UINT64, 512)),
        f"{STOPS}key llama.context_length has wrong type u64 but expected type u32", "",
    ),
    "a scaling type that aborts": (
        keys(rope__scaling__type="llama3"),
        f"{STOPS}llama.rope.scaling.type is 'llama3': llama.cpp aborts the whole process unless it is one of none, linear, "
        "yarn, longrope", "",
    ),
    "half-precision divisors": (
        lambda path: model(path, divisors=llama3_divisors().astype(np.float16)),
        f"{STOPS}rope_freqs.weight is F16: ggml aborts the whole process unless it is F32", "",
    ),
    "divisors of another number": (
        lambda path: model(path, divisors=np.ones(31, np.float32)),
        f"{STOPS}tensor 'rope_freqs.weight' has wrong shape; expected [32], got [31]", "",
    ),
    "a divisor of 0": (
        lambda path: model(path, divisors=np.arange(32, dtype=np.float32)),
        f"{M}: {FREQS}: entry 0 is 0.0; it divides a frequency and must be above 0", "",
    ),
    "divisors that qwen2 does not load": (
        lambda path: model(path, "qwen2", divisors=llama3_divisors()),
        f"{STOPS}wrong number of tensors; expected 16, got 15: llama.cpp does not create rope_freqs.weight for qwen2 with "
        "rope scaling linear", "",
    ),
    "a base of NaN": (
        keys(rope__freq_base=float("nan")), f"{M}: llama.rope.freq_base: is nan; it must be a finite number above 1", "",
    ),
    "no context": (keys(context_length=0), f"{STOPS}llama.context_length is 0: llama.cpp cannot create a context of 0 tokens", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_a_value_that_cannot_be(case: str, tmp_path: Path) -> None:
    make, error, try_ = VALUES[case]
    source = tmp_path / "model.gguf"
    make(source)
    refused(tmp_path, error, DOCTOR if error.startswith(STOPS) else try_, "extend", source, *EXTEND)
    before = snapshot(tmp_path)
    done = run("inspect", source, "--json")
    assert done.code in (0, 1)
    assert snapshot(tmp_path) == before
    if error.startswith(STOPS):
        assert done.json["runtimes"]["llama.cpp"] == {"refuses": error.removeprefix(STOPS)}


# --- shards

TOGETHER = "put all files of the model into one folder, with their original names"


def test_a_missing_shard(tmp_path: Path) -> None:
    first = model(tmp_path / "model.gguf", shards=2)
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    error = f"{first}: the shard model-00002-of-00002.gguf is missing from its folder"
    for command in (("extend", first, *EXTEND), ("inspect", first)):
        refused(tmp_path, error, TOGETHER, *command)


def test_a_foreign_shard(tmp_path: Path) -> None:
    first = model(tmp_path / "model.gguf", shards=2)
    second = tmp_path / "model-00002-of-00002.gguf"
    model(second)
    refused(tmp_path, f"{second}: is not a shard: it has no split.count", TOGETHER, "extend", first, *EXTEND)
    (tmp_path / "others").mkdir()
    model(tmp_path / "others" / "model.gguf", shards=2)
    first.write_bytes((tmp_path / "others" / "model-00001-of-00002.gguf").read_bytes())
    second.write_bytes(first.read_bytes())
    error = f"{second}: is shard 1 of 2 by its keys, so llama.cpp requires the name model-00001-of-00002.gguf"
    refused(tmp_path, error, TOGETHER, "extend", first, *EXTEND)


# --- outputs


def test_outputs_that_are_in_the_way(tmp_path: Path) -> None:
    source = model(tmp_path / "model.gguf")
    output = tmp_path / "model-yarn-4x.gguf"
    output.mkdir()
    (output / "ropetool.json").write_text("{}")
    for options, more in (((), ""), (("--force",), "; --force does not replace it")):
        error = f"{output}: exists already and is a directory; the output must be a file{more}"
        refused(tmp_path, error, ELSEWHERE, "extend", source, *EXTEND, *options)
    error = f"{source}: is the source, {source}; ropetool never writes to the source"
    refused(tmp_path, error, "pass another -o", "extend", source, *EXTEND, "-o", source, "--force")
    (tmp_path / "mine.gguf").write_text("mine")
    for options, more in (((), ""), (("--force",), "; --force does not replace it")):
        error = f"{tmp_path}/mine.gguf: exists already and is not listed in a ropetool record{more}"
        arguments = ("extend", source, *EXTEND, "-o", tmp_path / "mine.gguf", *options)
        refused(tmp_path, error, ELSEWHERE, *arguments)


def test_a_shard_in_the_way_stops_all(tmp_path: Path) -> None:
    first = model(tmp_path / "model.gguf", shards=2)
    second = tmp_path / "model-yarn-4x-00002-of-00002.gguf"
    second.write_text("mine")
    error = f"{second}: exists already and is not listed in a ropetool record"
    refused(tmp_path, error, ELSEWHERE, "extend", first, *EXTEND)


def test_no_space_left(tmp_path: Path) -> None:
    source = model(tmp_path / "model.gguf")
    assert source.stat().st_size > 2**16
    before = snapshot(tmp_path)
    command = [sys.executable, "-m", "ropetool", "extend", str(source), *EXTEND]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_file_size)
    error = f"Error: {tmp_path}/model-yarn-4x.gguf: file too large\nTry: pass another -o\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)
    assert snapshot(tmp_path) == before


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def test_a_provenance_of_others(tmp_path: Path) -> None:
    source = model(tmp_path / "model.gguf")
    (tmp_path / "model.gguf.ropetool.json").write_text('{"name": "rope"}')
    error = f"{source}.ropetool.json: not a valid ropetool record (source is absent; it must be text)"
    refused(tmp_path, error, "move it away, then run again", "extend", source, *EXTEND)
