"""GGUF files that llama.cpp does not load: every command says so with the key, and the one exact repair is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import gguf_headers
import pytest
from running import run, snapshot

from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.runtimes.llama_cpp import key_rules

SECTIONS = "rope.dimension_sections"
ARCHITECTURES = ("qwen2vl", "qwen3vl", "qwen35")


def header(folder: Path, arch: str, sections: list[int]) -> Path:
    more: dict[str, Any] = {"rope__dimension_sections": ("array", sections)}
    return gguf_headers.write(folder / "model.gguf", arch, **more)


def without(source: Path, *keys: str) -> Path:
    made = source.with_name("without.gguf")
    write_patched(read_header(source), Patch(remove=frozenset(keys)), made)
    return made


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "paddleocr"])
def test_image_sections_are_read_by_models_that_have_them(arch: str, tmp_path: Path) -> None:
    path = header(tmp_path, arch, [24, 20, 20, 0])
    done = run("doctor", path)
    assert (done.code, done.out) == (0, "1 checkpoint: nothing found\n")
    assert "as above  llama.cpp" in run("inspect", path).out


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_three_sections_stop_every_command_and_get_a_fourth(arch: str, tmp_path: Path) -> None:
    path = header(tmp_path, arch, [24, 20, 20])
    before = snapshot(tmp_path)
    says = f"{arch}.{SECTIONS} has 3 elements; llama.cpp requires 4 numbers"
    assert says in run("inspect", path).out
    extended = run("extend", path, "--method", "yarn", "--factor", "4")
    assert extended.code == 1
    assert extended.err.startswith(f"Error: {path}: llama.cpp cannot load this file: {says}")
    assert snapshot(tmp_path) == before
    done = run("doctor", path)
    assert (done.code, done.out.count("error  not-loaded")) == (3, 1)
    assert f"fix: `ropetool doctor {path} --fix`" in done.out
    assert run("doctor", path, "--fix").code == 0
    fixed = tmp_path / "model-fixed.gguf"
    assert gguf_files.values(fixed)[f"{arch}.{SECTIONS}"] == ("ARRAY", [24, 20, 20, 0])
    assert {name: each for name, each in snapshot(tmp_path).items() if name in before} == before
    assert run("doctor", fixed).code == 0
    assert run("extend", fixed, "--method", "yarn", "--factor", "4", "--from", "current").code == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_key_that_an_architecture_needs(arch: str, tmp_path: Path) -> None:
    path = header(tmp_path, arch, [24, 20, 20, 0])
    key = f"{arch}.{SECTIONS}"
    says = f"{key} is missing, and llama.cpp loads no {arch} model without it"
    refused = run("gguf", "unset", path, key, "-o", tmp_path / "x.gguf")
    assert (refused.code, refused.err.splitlines()[0]) == (1, f"Error: {path}: after this edit, {says}")
    assert not (tmp_path / "x.gguf").exists()
    missing = without(path, key)
    assert says in run("inspect", missing).out
    assert says in run("doctor", missing).out
    assert run("extend", missing, "--method", "yarn", "--factor", "4").code == 1


KEYS = [
    "llama.attention.layer_norm_rms_epsilon", "llama.feed_forward_length", "llama.context_length", "tokenizer.ggml.model",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_what_llama_cpp_misses_is_an_error_everywhere(key: str, tmp_path: Path) -> None:
    path = without(gguf_files.model(tmp_path / "model.gguf"), key)
    done = run("doctor", path)
    assert done.code == 3
    assert key in done.out
    assert key in run("inspect", path).out.partition("refuses  llama.cpp")[2]
    before = snapshot(tmp_path)
    for words in (("extend", path, "--method", "yarn", "--factor", "4"), ("import", path, "-o", tmp_path / "imported")):
        refused = run(*words)
        assert refused.code == 1
        assert key in refused.err
    assert snapshot(tmp_path) == before


def test_a_repair_that_leaves_the_file_unloadable_is_not_offered(tmp_path: Path) -> None:
    keys = {SECTIONS: (gguf_files.gguf.GGUFValueType.ARRAY, [8, 8, 8])}
    path = gguf_files.model(tmp_path / "model.gguf", "qwen35", keys)  # has none of the keys of its other layers
    before = snapshot(tmp_path)
    done = run("doctor", path, "--fix")
    assert done.code == 3
    assert "qwen35.ssm.conv_kernel is missing" in done.out
    assert "fix: add a fourth entry, 0" in done.out
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("arch", sorted(key_rules._STATES))
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context_length", Value.of(ValueType.U64, 2048)),
        ("block_count", Value.of(ValueType.STR, "two")),
        ("attention.recurrent_layers", Value.array(ValueType.F32, [-1.0, -1.0])),
        ("full_attention_interval", Value.of(ValueType.F32, 2.0)),
    ],
)
def test_keys_of_another_type_are_findings_of_every_command(arch: str, key: str, value: Value, tmp_path: Path) -> None:
    """Of architectures whose keys decide which layers keep a state."""
    source = gguf_files.model(tmp_path / "llama.gguf")
    path = tmp_path / "model.gguf"
    header = read_header(source)
    renamed = {k.replace("llama.", f"{arch}.", 1): v for k, v in header.values.items() if k.startswith("llama.")}
    stated = {**renamed, "general.architecture": Value.of(ValueType.STR, arch), f"{arch}.{key}": value}
    write_patched(header, Patch(stated, frozenset(k for k in header.values if k.startswith("llama."))), path)
    for command in (
        ["doctor", path],
        ["inspect", path],
        ["gguf", "set", path, "general.name", "x", "-o", tmp_path / "o.gguf"],
    ):
        done = run(*command)
        assert "a bug in ropetool" not in done.err
        assert done.code in (0, 1, 3)
    assert f"{arch}.{key}" in run("doctor", path).out
