"""Our answer to whether llama.cpp loads a file, against the real libllama: every key taken away, every array shortened.

The files are tiny models of weights that are zeros, with the tensors that libllama itself asks for (loading_probe.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf_files
import loading_probe
import pytest
from rotation_probe import Model

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.files.gguf.texts import value_of
from ropetool.runtimes.llama_cpp import key_rules, loading_rules

pytest.importorskip("llama_cpp")

PROBE = Path(loading_probe.__file__)
REAL_FILES = os.environ.get("ROPETOOL_REAL_FILES", "")
ARCHITECTURES = [
    "llama", "qwen2", "qwen2vl", "qwen3vl", "qwen35", "paddleocr", "gemma3", "deepseek2", "phi3", "gpt-oss", "qwen3moe", "nemotron",
]  # fmt: skip
WITHOUT_NEED = {"qwen2vl"}  # its loader asks for no epsilon
VOCABULARY = {
    "tokenizer.ggml.model": value_of("str", "gpt2"), "tokenizer.ggml.pre": value_of("str", "qwen2"),
    "tokenizer.ggml.tokens": Value.array(ValueType.STR, [f"t{number}" for number in range(128)]),
    "tokenizer.ggml.merges": Value.array(ValueType.STR, ["t 1"]),
    "tokenizer.ggml.token_type": Value.array(ValueType.I32, [1] * 128),
    "tokenizer.ggml.scores": Value.array(ValueType.F32, [0.0] * 128),
}  # fmt: skip


def run(what: str, paths: list[Path]) -> str:
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # for which an abort would start a debugger
    done = subprocess.run(
        [sys.executable, PROBE, what, *paths], capture_output=True, text=True, check=True, timeout=300, env=environment
    )
    return done.stdout


def made(arch: str, folder: Path) -> Path:
    """Write a model that libllama loads."""
    keys = Model(arch).write(folder / "keys.gguf")
    run("tensors", [keys])
    tensors: dict[str, Any] = json.loads(keys.with_suffix(".json").read_text())
    return loading_probe.with_tensors(
        gguf_files.writer_of(None, arch, Model(arch).whole), tensors, folder / "model.gguf"
    )


def cases(source: GgufCheckpoint) -> dict[str, Patch]:
    """Return an edit for each key taken away, and for each array without its last entry."""
    found = {"nothing": Patch()}
    for key, value in source.values.items():
        found[f"without {key}"] = Patch(remove=frozenset({key}))
        if value.element is not None:
            shorter: list[Any] = list(value.decode())[:-1]  # type: ignore[call-overload]
            found[f"shorter {key}"] = Patch({key: Value.array(value.element, shorter)})
    return found


def answers(source: Path, edits: dict[str, Patch], folder: Path) -> tuple[dict[str, bool], dict[str, bool]]:
    """Return which edits of a file leave one that libllama loads, and which we say do."""
    paths = {name: folder / f"{number}.gguf" for number, name in enumerate(edits)}
    for name, path in paths.items():
        write_patched(read_header(source), edits[name], path)
    loaded = json.loads(run("outcomes", list(paths.values())))
    theirs = {name: loaded[str(path)] for name, path in paths.items()}
    ours = {name: not key_rules.refusals(GgufCheckpoint.open(path)) for name, path in paths.items()}
    return theirs, ours


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_key_taken_away_and_every_array_shortened(arch: str, tmp_path: Path) -> None:
    source = made(arch, tmp_path)
    theirs, ours = answers(source, cases(GgufCheckpoint.open(source)), tmp_path)
    assert {name: loads for name, loads in ours.items() if loads != theirs[name]} == {}
    assert theirs["nothing"]
    refused = [name for name, loads in theirs.items() if not loads]
    assert 6 <= len(refused) < len(theirs) - 6


@pytest.mark.parametrize("arch", ["llama", "qwen2vl"])
def test_every_key_of_a_vocabulary(arch: str, tmp_path: Path) -> None:
    bare = made(arch, tmp_path)
    source = tmp_path / "with_vocabulary.gguf"
    write_patched(read_header(bare), Patch(VOCABULARY, frozenset({f"{arch}.vocab_size"})), source)
    edits = {name: each for name, each in cases(GgufCheckpoint.open(source)).items() if "tokenizer" in name}
    theirs, ours = answers(source, {"nothing": Patch(), **edits}, tmp_path)
    assert ours == theirs
    assert theirs["nothing"]
    assert not theirs["without tokenizer.ggml.merges"]


@pytest.mark.skipif(not REAL_FILES, reason="ROPETOOL_REAL_FILES names no folder of real files")
def test_vocabularies_alone_break_no_rule() -> None:
    paths = sorted(Path(REAL_FILES, "vocab-gguf").glob("*.gguf"))
    assert {path.name: broken for path in paths if (broken := key_rules.refusals(GgufCheckpoint.open(path)))} == {}
    assert {path.name for path in paths if key_probe_outcome(path) != "loads"} == set()


def key_probe_outcome(path: Path) -> str:
    """Return what llama.cpp makes of a vocabulary alone."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    arguments = [sys.executable, PROBE.with_name("key_probe.py"), "vocab", path]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300, env=environment)
    return str(json.loads(done.stdout)[str(path)])


def test_the_architectures_that_need_an_epsilon_are_those_of_the_sources() -> None:
    without = [
        arch for arch in ARCHITECTURES if not any("epsilon" in each.suffix for each in loading_rules.needed(arch))
    ]
    assert set(without) == WITHOUT_NEED
