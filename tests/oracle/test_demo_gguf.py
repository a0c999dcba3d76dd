"""The demo checkpoint as GGUF: llama.cpp finds the perplexities and the logits that transformers finds."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from running import run
from verifying import cut_texts, remember

import ropetool
from ropetool.cli import demo
from ropetool.errors import ConfigError, OutputError
from ropetool.escaping import install_line
from ropetool.files.gguf import Patch, read_header, write_patched
from ropetool.verification.gate import Limits
from ropetool.verification.measures.parity import logit_parity
from ropetool.verification.results import VerifyResult
from ropetool.verification.texts import Document, embedded_documents

pytest.importorskip("llama_cpp")

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
LENGTHS = [256, 2048]
TOLERANCE = 2e-4  # of the largest logit, in float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo checkpoint, extended, exported as float32, and that file with its scaling forgotten."""
    made = tmp_path_factory.mktemp("demo")
    shutil.copytree(DEMO, made / "model")
    ropetool.apply(ropetool.plan(made / "model", "yarn", factor=8), made / "model", made / "extended")
    models.export(made / "extended", made / "extended.gguf", outtype="f32", allow_unverified=True)
    header = read_header(made / "extended.gguf")
    scaling = frozenset(key for key in header.values if ".rope.scaling." in key)
    assert scaling
    write_patched(header, Patch(remove=scaling), made / "forgotten.gguf")
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, [made / "model"])
        yield made
    shutil.rmtree(made)


def verified(target: Path, baseline: Path, lengths: list[int]) -> VerifyResult:
    return ropetool.verify(
        target, baseline=baseline, lengths=lengths, segments=8, suite="quick", limits=Limits(grade="research")
    )


def perplexities(result: VerifyResult) -> list[float]:
    return [math.exp(entry.target.mean) for entry in result.lengths]


def test_perplexities_are_those_of_the_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_texts(monkeypatch, tmp_path / "texts", 8000)
    found = verified(folder / "extended.gguf", folder / "model", LENGTHS)
    wanted = verified(folder / "extended", folder / "model", LENGTHS)
    assert perplexities(found) == pytest.approx(perplexities(wanted), rel=1e-3)
    assert [entry.baseline for entry in found.lengths] == [entry.baseline for entry in wanted.lengths]
    assert (found.verdict, found.trained_length) == (wanted.verdict, 256)
    assert found.verdict != "fail"
    assert found.runtime.startswith("llama-cpp-python")
    forgotten = verified(folder / "forgotten.gguf", folder / "model", LENGTHS[-1:])
    assert forgotten.verdict == "fail"


def test_logits_are_those_of_the_checkpoint(folder: Path) -> None:
    passage = embedded_documents()[0]
    assert logit_parity(folder / "extended", folder / "extended.gguf", passage, 1500).difference < TOLERANCE
    forgotten = logit_parity(folder / "extended", folder / "forgotten.gguf", passage, 300)
    assert forgotten.difference > 20 * TOLERANCE
    with pytest.raises(ConfigError, match="short: the passage has 3 tokens, and the check needs 1500"):
        logit_parity(folder / "extended", folder / "extended.gguf", Document("short", "a b"), 1500)


@pytest.mark.parametrize("installed", [True, False], ids=["with llama.cpp", "without"])
def test_the_demo_ends_with_the_parity(installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
    done = run("demo", tmp_path / "demo")
    assert done.code == 0
    *_, parity, blank, where, own = done.out.splitlines()
    assert (blank, own) == ("", "  ropetool extend MODEL --target-length 32k")
    assert where == f"The checkpoints and the GGUF file are in {tmp_path / 'demo'}. The same for your own model:"
    if installed:
        found = re.fullmatch(r"parity: largest difference (\S+) of the largest logit over 1500 tokens", parity)
        assert found is not None
        assert 0 < float(found[1]) < TOLERANCE
    else:
        assert parity == f"parity: not measured: llama-cpp-python is not installed; {install_line('llama')}"
    names = sorted(path.name for path in (tmp_path / "demo").iterdir())
    beside = [f"model-yarn-8x-F32.gguf{end}" for end in ("", ".Modelfile", ".README.md", ".ropetool.json")]
    assert names == ["model", "model-yarn-8x", *beside]
    assert str(tmp_path) not in done.out.partition("The checkpoints")[0]


def test_the_demo_looks_for_its_packages_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    done = run("demo")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: the demo runs a model, and torch is not installed\nTry: {install_line('verify')}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_demo_keeps_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [demo._new_folder(None).name for _ in range(3)] == ["ropetool-demo", "ropetool-demo-2", "ropetool-demo-3"]
    with pytest.raises(OutputError, match="cannot be created") as refused:
        demo._new_folder("ropetool-demo")
    assert refused.value.where == "ropetool-demo"
