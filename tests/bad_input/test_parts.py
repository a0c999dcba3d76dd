"""What is given in place of a model: adapters, projectors, importance matrices and pickles, to every command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_files import write
from models import safetensors
from running import run, snapshot

import ropetool
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.escaping import words
from ropetool.files.gguf import Value, ValueType, read_shards

gguf = pytest.importorskip("gguf")
DEMO = Path(ropetool.__file__).parent / "demo" / "model"
COMMANDS = [
    ["inspect", "PART"],
    ["extend", "PART", "--method", "yarn", "--factor", "4", "--original-length", "256"],
    ["bake", "PART", "attention-factor"],
    ["export", "PART"],
    ["verify", "PART", "--suite", "quick"],
    ["diff", "PART", "PART"],
]


def adapter(folder: Path, config: object, *, with_config: bool = False) -> Path:
    """Write a folder as PEFT saves it, with the config of its base beside it or without."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    (folder / "adapter_model.safetensors").write_bytes(safetensors({name: bytes(64)}))
    if with_config:
        shutil.copy(DEMO / "config.json", folder)
    return folder


def part(path: Path, keys: Mapping[str, str]) -> Path:
    """Write a GGUF file of one tensor with these keys."""
    own = {key: value for key, value in keys.items() if key != "general.architecture"}
    return write(path, keys.get("general.architecture", ""), own, {"a.weight": np.zeros((4, 32), np.float32)})


BASE = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("config", "with_config", "of", "base"),
    [
        (BASE, False, "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        (BASE, True, "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ({**BASE, "base_model_name_or_path": "my base\n"}, False, "my base\\n", "$'my base\\n'"),
        ({}, False, "a model", "BASE"),
        ("not JSON", False, "a model", "BASE"),
        ("[" * 100_000, True, "a model", "BASE"),
        ({"base_model_name_or_path": "x" * 5000}, False, "a model", "BASE"),
    ],
)
def test_an_adapter(tmp_path: Path, command: list[str], config: object, with_config: bool, of: str, base: str) -> None:
    path = adapter(tmp_path / "lora", config, with_config=with_config)
    before = snapshot(tmp_path)
    done = run(*[str(path) if word == "PART" else word for word in command])
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"Error: {path}: is a PEFT adapter: changes to {of}, not a model\n"
        f"Try: ropetool inspect {base}, its base model; the adapter also fits an extension of that model\n"
    )
    assert snapshot(tmp_path) == before


def test_an_adapter_beside_its_model_is_no_matter(tmp_path: Path) -> None:
    """PEFT's Trainer saves both into one folder; the weights are the model's."""
    model = shutil.copytree(DEMO, tmp_path / "model")
    for file in adapter(tmp_path / "lora", BASE).iterdir():
        shutil.copy(file, model)
    assert run("inspect", model).code == 0


PROJECTOR = "is the image or audio projector of a multimodal model, not its language model"
LORA = "is a LoRA adapter: changes to a model, not a model"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("keys", "says", "helps"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, PROJECTOR, "ropetool inspect LANGUAGE-MODEL.gguf, "),
        ({"general.architecture": "clip"}, PROJECTOR, "ropetool inspect LANGUAGE-MODEL.gguf, "),
        ({"general.architecture": "llama", "general.type": "adapter"}, LORA, "llama-export-lora -m BASE.gguf --lora {part} "),
        ({"general.type": "imatrix"}, "is an importance matrix, not a model", "ropetool export MODEL --outtype q4_k_m --imatrix {part}, "),
    ],
)  # fmt: skip
def test_a_gguf_file_of_another_kind(
    tmp_path: Path, command: list[str], keys: dict[str, str], says: str, helps: str
) -> None:
    path = part(tmp_path / "the-part.gguf", keys)
    before = snapshot(tmp_path)
    done = run(*[str(path) if word == "PART" else word for word in command])
    assert (done.code, done.out) == (1, "")
    error, try_ = done.err.splitlines()
    assert error == f"Error: {path}: {says}"
    assert try_.startswith(f"Try: {helps.format(part=path)}")
    assert snapshot(tmp_path) == before


def test_a_projector_knows_the_model_beside_it(tmp_path: Path) -> None:
    keys = {"general.architecture": "clip", "general.type": "mmproj"}
    path, other = (part(tmp_path / f"mmproj-{name}.gguf", keys) for name in ("f16", "f32"))
    model = part(tmp_path / "vision model.gguf", {"general.architecture": "llama"})
    done = run("inspect", path)
    assert other.exists()
    assert f"Try: ropetool inspect '{model}', the language model" in done.err


LORA_KEYS = {"general.architecture": "llama", "general.type": "adapter"}
MODEL_KEYS = {"general.architecture": "llama", "general.type": "model"}


@pytest.mark.parametrize(
    "beside",
    [
        [LORA_KEYS], [{"general.architecture": "clip"}], [{"general.type": "imatrix"}], [MODEL_KEYS, MODEL_KEYS],
        [MODEL_KEYS, LORA_KEYS], [b"GGUF"], [b""],
    ],
    ids=["a LoRA adapter", "another projector", "an importance matrix", "two models", "a model and another", "cut", "empty"],
)  # fmt: skip
def test_a_projector_names_no_file_that_may_not_be_its_model(
    tmp_path: Path, beside: list[dict[str, str] | bytes]
) -> None:
    path = part(tmp_path / "mmproj.gguf", {"general.architecture": "clip", "general.type": "mmproj"})
    for number, content in enumerate(beside):
        other = tmp_path / f"other-{number}.gguf"
        other.write_bytes(content) if isinstance(content, bytes) else part(other, content)
    assert run("inspect", path).err.splitlines()[1] == (
        "Try: ropetool inspect LANGUAGE-MODEL.gguf, the language model, which works with this file unchanged"
    )


def test_a_type_that_is_no_text_says_nothing(tmp_path: Path) -> None:
    view = GgufCheckpoint.of(read_shards(part(tmp_path / "x.gguf", {"general.architecture": "llama"})))
    odd = view.values | {"general.type": Value.of(ValueType.U32, 7)}
    assert replace(view, values=odd).name == "llama"


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo checkpoint with its weights as a pickle."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    model = shutil.copytree(DEMO, tmp_path_factory.mktemp("pickled") / "the model")
    (weights,) = model.glob("*.safetensors")
    torch.save(load_file(weights), model / "pytorch_model.bin")
    weights.unlink()
    return model


def test_the_way_out_of_pickles_is_a_command_that_runs(pickled: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    said = set()
    for command in COMMANDS[1:5]:
        done = run(*[str(pickled) if word == "PART" else word for word in command])
        assert (done.code, done.out) == (1, "")
        error, try_ = done.err.splitlines()
        assert error == f"Error: {pickled}: the weights are pickles (pytorch_model.bin), which ropetool never loads"
        said.add(try_.removeprefix("Try: "))
    (line,) = said
    assert run("inspect", pickled).err.endswith(f". Convert them to safetensors: `{line}`\n")
    program, *rest = words(line)
    assert program == "python"
    subprocess.run([sys.executable, *rest], cwd=tmp_path, check=True, capture_output=True)
    found = run("diff", DEMO, tmp_path / "the model-safetensors", "--json").json
    assert found["tensors"] == {"counts": {"identical": 38}, "not_identical": []}
    assert run("extend", tmp_path / "the model-safetensors", "-m", "yarn", "--factor", "8").code == 0
