"""Targets without a record, run beside the extension that they say they are, made of the baseline again.

The targets are written by safetensors and by gguf's writer from the demo checkpoint, with keys set by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import pytest
import torch
from models import copied, set_tensors

import ropetool
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.files.counting import nobody
from ropetool.verification import remade, short_divergence
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.readback.terms import Terms
from ropetool.verification.remade import kl_to_claim
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.short_divergence import ModelLengths

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
REACH = ModelLengths(256, 1024)
FIGURES = ["KL", "KL p99", "KL window", "KL rare tokens"]


def directory(folder: Path, dtype: torch.dtype | None = None, norm: float = 1.0) -> Path:
    """Return the demo with YaRN's keys set by hand, its tensors of another type, one norm multiplied."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["model.norm.weight"] = tensors["model.norm.weight"] * norm
        return {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}

    return set_tensors(copied(DEMO, folder, rope_scaling=YARN, max_position_embeddings=1024), change)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_divergence, "MOST", 1024)  # tokens: three rows, beyond the trained length


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GGUF file of the demo to which gguf's writer gave YaRN's keys."""
    pytest.importorskip("llama_cpp")
    folder = tmp_path_factory.mktemp("file")
    ropetool.export(DEMO, folder / "plain.gguf", outtype="f16", check=False)
    return extended(folder / "plain.gguf", folder / "theirs.gguf")


def extended(source: Path, target: Path, norm: float = 1.0) -> Path:
    keys: dict[str, Any] = {key: None for key in gguf_files.keys(source) if key.startswith("ropetool.")}
    keys |= {
        "llama.context_length": 1024, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 256,
    }  # fmt: skip

    def scaled(name: str, tensor: Any) -> Any:
        data = tensor.data * norm if name == "output_norm.weight" else tensor.data
        return tensor.tensor_type, data.astype(tensor.data.dtype)

    return gguf_files.copy(source, target, keys, scaled)


def checks_of(target: Path, source: Path, kinds: tuple[str, ...], **terms: object) -> list[Check]:
    return kl_to_claim(open_checkpoint(target), open_checkpoint(source), Terms(**terms), [], kinds, REACH, nobody)  # type: ignore[arg-type]


def test_a_file_is_what_its_source_extended_computes(file: Path) -> None:
    found = checks_of(file, DEMO, ("f16",))
    assert [(check.name, check.verdict) for check in found] == [(name, PASS) for name in FIGURES]
    assert found[0].detail.endswith(
        "the larger mean within or beyond the trained length, against the baseline with yarn x4 of 256 tokens"
    )
    assert found[0].figure is not None
    assert 1e-8 < found[0].figure < 8e-7  # what f16 rounds, and not 0: both were run


def test_another_norm_is_seen_in_the_logits(file: Path, tmp_path: Path) -> None:
    """Half a percent, which a comparison of tensors sees too, and is left out of here."""
    grown = extended(file.with_name("plain.gguf"), tmp_path / "grown.gguf", norm=1.005)
    assert {check.verdict for check in checks_of(grown, DEMO, ("f16",))} == {FAIL}


def test_a_directory_of_another_type_is_run_beside_its_source(tmp_path: Path) -> None:
    found = checks_of(directory(tmp_path / "halves", torch.float16), DEMO, ("f16", "bf16"))
    assert [check.verdict for check in found] == [PASS] * 4
    grown = checks_of(directory(tmp_path / "grown", torch.float16, 1.05), DEMO, ("f16", "bf16"))
    assert {check.verdict for check in grown} == {FAIL}


def test_nothing_is_run_where_nothing_can_come_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = directory(tmp_path / "same")
    narrow = directory(tmp_path / "halves", torch.float16)
    monkeypatch.setattr(remade, "short_divergence", None)  # which would raise
    assert checks_of(target, DEMO, ("bf16",)) == []
    assert checks_of(narrow, DEMO, ("f16",), finetuned=True) == []
    failed = [Check("weights", 1.0, 0.0, FAIL, "")]
    sides = open_checkpoint(narrow), open_checkpoint(DEMO)
    assert kl_to_claim(*sides, Terms(), failed, ("f16",), REACH, nobody) == []


def test_what_keeps_it_from_being_run_is_said_and_gates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = directory(tmp_path / "halves", torch.float16)
    monkeypatch.setattr(short_divergence, "MEMORY_SHARE", 1e-9)
    (check,) = checks_of(narrow, DEMO, ("f16",))
    assert (check.name, check.verdict) == ("KL", NOT_ASKED)
    assert check.detail.startswith("not compared with the baseline with yarn x4 of 256 tokens: both models need ")
    assert " MiB of memory, " in check.detail


def test_a_large_file_is_not_copied(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = file.with_name("f32.gguf")
    ropetool.export(DEMO, source, outtype="f32", check=False)
    monkeypatch.setattr(remade, "ALL_BELOW", 1)
    (check,) = checks_of(file, source, ("f16", "f32"))
    assert (check.verdict, check.detail.endswith(" MiB of weights")) == (NOT_ASKED, True)
    monkeypatch.undo()
    assert [found.verdict for found in checks_of(file, source, ("f16", "f32"))] == [PASS] * 4


def test_verify_compares_unasked_where_no_record_speaks(file: Path) -> None:
    found = verify_checkpoint(
        file, baseline=DEMO, lengths=[128], measures=["last-segment"], segments=8, device="cpu", dtype="float32"
    )
    by_name = {check.name: check for check in found.checks}
    assert {by_name[name].verdict for name in FIGURES} == {PASS}
    assert found.divergence is None
