"""Packed weights in transformers: they run with their own numbers, or are refused before any work with another way."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import packed_models
import pytest
from running import run

import ropetool
from ropetool.errors import CheckpointError, LossyExport, MissingDependency
from ropetool.packed import every, unpacked_by_transformers
from ropetool.verification.session import unchanged_source

pytest.importorskip("torch")
from ropetool.verification.runners.torch_runner import TorchRunner

pytestmark = pytest.mark.engine

RUN = ("fp8", "pack-quantized", "pack-quantized-zeros", "int-quantized", "float-quantized", "float-quantized-blocks")
IDS = [256, *range(60, 100)]


def losses(source: Path) -> np.ndarray:
    return TorchRunner(source, device="cpu").score([IDS], 30).losses


def plain(source: Path, numbers: dict[str, np.ndarray], target: Path) -> Path:
    """Write the checkpoint with unpacked numbers in float32."""
    tensors = models.read_safetensors(source / "model.safetensors")
    kept = {name: tensors[name] for name in models.shapes(models.config_of(source)) if name in tensors}
    models.copied(source, target, quantization_config=models.SILENT)
    unpacked = {name: ("F32", values.astype(np.float32)) for name, values in numbers.items()}
    models.write_safetensors(target / "model.safetensors", {**kept, **unpacked})
    return target


@pytest.mark.parametrize("name", RUN)
def test_packed_weights_run_as_the_numbers_that_they_stand_for(name: str, tmp_path: Path) -> None:
    if name != "fp8":
        pytest.importorskip("compressed_tensors")
    source, numbers = packed_models.write(tmp_path / "m", name)
    if name not in ("fp8", "float-quantized-blocks"):  # transformers multiplies in the type of the scales
        numbers = {
            key: packed_models.rounded(np.abs(v), "BF16", nearest=True)[1] * np.sign(v) for key, v in numbers.items()
        }
    found, expected = losses(source), losses(plain(source, numbers, tmp_path / "plain"))
    assert found.tolist() == expected.tolist()
    assert found.std() > 0.1
    numbers[next(iter(numbers))][0] *= 1.5  # a row of queries
    assert losses(plain(source, numbers, tmp_path / "wrong")).tolist() != expected.tolist()


def two_groups(source: Path) -> None:
    quantization = models.config_of(source)["quantization_config"]
    (group,) = quantization["config_groups"].values()
    other = {**group, "targets": ["re:.*down_proj"], "weights": {**group["weights"], "num_bits": 4}}
    models.set_config(source, quantization_config={**quantization, "config_groups": {"a": group, "b": other}})


EXPORT, SERVE = (
    "ropetool export {0}, then ropetool verify FILE.gguf",
    ("vllm serve {0}, then ropetool verify {0} --server http://localhost:8000"),
)


@pytest.mark.parametrize(
    ("name", "change", "said", "step"),
    [
        ("gptq", None, "packed by gptq: gptqmodel and optimum are not installed", SERVE),
        ("awq", None, "packed by awq: gptqmodel is not installed", SERVE),
        ("fp8-ragged", None, r"shape \[64, 64\], which blocks of \[40, 48\] do not divide", EXPORT),
        ("int-quantized", two_groups, "its groups have different settings", EXPORT),
    ],
)
def test_what_cannot_run_is_refused_before_any_work(
    name: str,
    change: Callable[[Path], None] | None,
    said: str,
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, _ = packed_models.write(tmp_path / "m", name)
    if change is not None:
        change(source)
        monkeypatch.setattr("ropetool.packed.lacking", lambda packages: "")
    with pytest.raises(CheckpointError, match=said) as caught:
        TorchRunner(source, device="cpu")
    assert caught.value.try_ == step.format(source)
    assert caught.value.where == str(source)


@pytest.mark.parametrize(
    ("method", "said"),
    [("modelopt", 'it does not know the quant_method "modelopt"'), (None, "config.json has no quantization_config")],
)
def test_numbers_that_transformers_would_not_scale_are_refused(method: str | None, said: str, tmp_path: Path) -> None:
    source, _ = packed_models.write(tmp_path / "m", "fp8")
    expected = losses(source)
    settings = models.config_of(source)["quantization_config"]
    models.set_config(source, quantization_config={**settings, "quant_method": method} if method else models.SILENT)
    with pytest.raises(CheckpointError, match=r"weight \(F8_E4M3\) without their scales: ") as caught:
        TorchRunner(source, device="cpu")
    assert said in str(caught.value)
    assert caught.value.try_ == SERVE.format(source)
    with pytest.MonkeyPatch.context() as patch:  # transformers would go on, with other numbers
        patch.setattr("ropetool.packed.CODES", frozenset())
        assert np.abs(losses(source) - expected).max() > 0.01


@pytest.mark.parametrize(("capability", "runs"), [((8, 0), False), ((9, 0), True)])
def test_a_gpu_without_fp8_unpacks_it_as_a_cpu_does(
    capability: tuple[int, int], runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    source, _ = packed_models.write(tmp_path / "m", "fp8")
    assert unpacked_by_transformers(source, gpu=True) is not runs
    ragged, _ = packed_models.write(tmp_path / "ragged", "fp8-ragged")
    if runs:
        assert not unpacked_by_transformers(ragged, gpu=True)
        return
    with pytest.raises(CheckpointError, match="do not divide"):
        unpacked_by_transformers(ragged, gpu=True)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = packed_models.write(tmp_path / "m", "int-quantized")
    monkeypatch.setattr("ropetool.packed.lacking", lambda packages: f"{' and '.join(packages)} is not installed")
    with pytest.raises(
        MissingDependency, match="packed by compressed-tensors: compressed_tensors is not installed"
    ) as caught:
        TorchRunner(source, device="cpu")
    assert "compressed-tensors" in caught.value.try_ or "packed" in caught.value.try_


@pytest.mark.oracle
def test_transformers_still_computes_ragged_blocks_incorrectly(tmp_path: Path) -> None:
    """If this fails, transformers was fixed, and the refusal can go."""
    import torch
    from transformers import AutoModelForCausalLM

    source, numbers = packed_models.write(tmp_path / "m", "fp8-ragged")
    loaded = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).state_dict()
    equal = [torch.equal(loaded[name], torch.from_numpy(v).float().bfloat16()) for name, v in numbers.items()]
    assert not any(equal)


def test_a_source_that_cannot_run_is_no_baseline_of_a_gguf_file(tmp_path: Path) -> None:
    source, _ = packed_models.write(tmp_path / "m", "fp8-ragged")
    extended = ropetool.extend(source, tmp_path / "yarn", method="yarn", factor=4).output
    file = models.export(extended, tmp_path / "x.gguf", allow_unverified=True).output
    notes: list[str] = []
    assert unchanged_source(file, notes) is None
    assert "which blocks of [40, 48] do not divide" in notes[0]


def test_every_format_is_discovered() -> None:
    assert {"fp8", "mxfp4", "compressed-tensors", "gptq", "awq", "bitsandbytes"} <= every().keys()


@pytest.mark.parametrize("name", packed_models.FORMATS)
def test_an_extension_edits_only_the_config(name: str, tmp_path: Path) -> None:
    source, _ = packed_models.write(tmp_path / "m", name)
    written = ropetool.extend(source, tmp_path / "out", method="yarn", factor=4)
    assert written.edited == ("config.json",)
    assert (tmp_path / "out" / "model.safetensors").samefile(source / "model.safetensors")
    key = '"quantization_config": '
    before, after = ((path / "config.json").read_text().split(key)[1] for path in (source, tmp_path / "out"))
    assert after.startswith(before[: before.index("}}}") + 3] if "}}}" in before else before[: before.index("}") + 1])
    assert written.following is not None
    served = name in ("gptq", "awq")
    assert ("vllm serve" in written.following.verify) is served


FACTOR: dict[str, Any] = {"factor": 4, "for_runtimes": ("transformers", "vllm"), "attention_factor": 1.3}


@pytest.mark.parametrize("name", ["gptq", "awq", "pack-quantized", "int-quantized"])
def test_a_factor_that_neither_config_nor_weights_hold_is_refused(name: str, tmp_path: Path) -> None:
    source, _ = packed_models.write(tmp_path / name, name)
    with pytest.raises(LossyExport, match=r"the weights cannot store the rest: (is packed|has type I8)") as caught:
        ropetool.plan(source, "yarn", **FACTOR)
    line = shlex.split(caught.value.try_)
    assert line[:2] == ["ropetool", "extend"]
    done = run(*line[1:], "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "model.safetensors").samefile(source / "model.safetensors")


@pytest.mark.parametrize("name", ["fp8", "float-quantized", "float-quantized-blocks"])
def test_scales_hold_a_factor_of_whole_blocks(name: str, tmp_path: Path) -> None:
    source, _ = packed_models.write(tmp_path / name, name)
    assert ropetool.plan(source, "yarn", **FACTOR).bakes
