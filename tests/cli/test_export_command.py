"""ropetool export from the command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest
from making import run

import ropetool

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def types(path: Path) -> set[str]:
    """Return the types of the matrices, as the gguf package reads them."""
    return {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2}


def test_the_file_goes_beside_the_source(model: Path) -> None:
    done = run("export", "model")
    output = model.with_name("model-BF16.gguf")
    assert (done.code, done.err) == (0, "")
    tensors, size = len(gguf.GGUFReader(output).tensors), output.stat().st_size / 1e6
    assert done.out.splitlines() == [
        str(output),
        "  architecture  llama",
        "  context       256 tokens, base frequency",
        f"  tensors       {tensors}, matrices in bf16, {size:.1f} MB",
    ]
    assert types(output) == {"BF16"}


@pytest.mark.parametrize(("outtype", "stored"), [("auto", "BF16"), ("f32", "F32"), ("f16", "F16"), ("bf16", "BF16")])
def test_types_and_names(model: Path, outtype: str, stored: str) -> None:
    done = run("export", "model", "-o", "out.gguf", "--outtype", outtype, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "schema": 1, "output": "out.gguf", "arch": "llama", "outtype": stored.lower(), "encoding": "base frequency",
        "tensors": len(gguf.GGUFReader("out.gguf").tensors), "nbytes": Path("out.gguf").stat().st_size,
        "context_length": 256, "notes": ["matrices in BF16 are rounded to f16"] if stored == "F16" else [],
    }  # fmt: skip
    assert types(Path("out.gguf")) == {stored}


def test_an_existing_file_is_replaced_only_by_force(model: Path) -> None:
    Path("out.gguf").write_text("mine")
    done = run("export", "model", "-o", "out.gguf")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == "Error: out.gguf: exists already"
    assert Path("out.gguf").read_text() == "mine"
    assert run("export", "model", "-o", "out.gguf", "--force").code == 0
    assert types(Path("out.gguf")) == {"BF16"}


def test_a_sliding_window_must_be_accepted_and_is_then_a_note(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    windowed = {**config, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64}
    (model / "config.json").write_text(json.dumps(windowed))
    refused = run("export", "model")
    assert (refused.code, refused.out) == (1, "")
    assert "llama.cpp ignores the sliding window of 64 tokens" in refused.err
    assert "Try: --allow-full-attention" in refused.err
    assert not list(model.parent.glob("*.gguf"))
    done = run("export", "model", "--allow-full-attention")
    assert done.code == 0
    assert done.err.startswith("Note: llama.cpp ignores the sliding window of 64 tokens")


def test_an_unknown_type_is_a_matter_of_usage(model: Path) -> None:
    done = run("export", "model", "--outtype", "q8_0", "--json")
    assert done.code == 2
    assert "'q8_0'" in done.json["error"]["message"]


def test_the_function_is_public(model: Path) -> None:
    assert ropetool.export("model").output == model.with_name("model-BF16.gguf")
