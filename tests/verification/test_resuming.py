"""A resumed run: it finds what a run from the start finds, whatever changed since the interruption, and names the change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from verifying import cut_texts

import ropetool
from ropetool.checkpoint import fingerprints, identity
from ropetool.choosing import comparing
from ropetool.files.hf.safetensors import read_header
from ropetool.verification import conditions, run
from ropetool.verification.results import VerifyResult

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
LITTLE: dict[str, Any] = {"suite": "quick", "segments": 8, "lengths": [64, 128]}
KEPT, ANEW = "saved rows will be used again", "the run starts from the beginning, because these changed: "


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cut_texts(monkeypatch, tmp_path / "texts", 3000)
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def verified(model: Path, **options: Any) -> VerifyResult:
    return ropetool.verify(model, **{**LITTLE, **options})


def interrupted(model: Path, **options: Any) -> None:
    """Measure all rows, and stop before the run is complete."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(run, "results_of", stop)
        verified(model, **options)


def change_between_samples(file: Path) -> None:
    """Change weights of a file that a sampled fingerprint does not read; size, time and inode stay."""
    state, content = file.stat(), bytearray(file.read_bytes())
    start = read_header(file).data_start
    spans = identity._spans(len(content), start, fingerprints.BLOCKS, 0, identity.BLOCK)[1:]
    for (_, end), (following, _) in pairwise(spans):
        content[end : end + (following - end) // 2] = bytes((following - end) // 2)
    with file.open("r+b") as opened:
        opened.write(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_weights_changed_between_the_samples_are_measured_again(model: Path) -> None:
    before = fingerprints.of_form(fingerprints.open_checkpoint(model), "blocks")
    interrupted(model, full_hash=True)
    change_between_samples(model / "model.safetensors")
    assert fingerprints.of_form(fingerprints.open_checkpoint(model), "blocks") == before
    resumed = verified(model, resume=True)
    assert resumed.notes[0] == f"{ANEW}the content of the target"
    assert resumed.lengths == verified(model).lengths


def test_an_unchanged_model_goes_on(model: Path) -> None:
    interrupted(model)
    assert verified(model, resume=True).notes[0].endswith(KEPT)


def touched(model: Path) -> str:
    os.utime(model / "model.safetensors", ns=(1, 1))
    return "size, date or inode of model.safetensors of the target"


def replaced(model: Path) -> str:
    shutil.copy2(model / "tokenizer_config.json", model / "new")
    os.replace(model / "new", model / "tokenizer_config.json")
    return "size, date or inode of tokenizer_config.json of the target"


def added(model: Path) -> str:
    (model / "adapter_config.json").write_text("{}")
    return "size, date or inode of adapter_config.json of the target"


@pytest.mark.parametrize("change", [touched, replaced, added])
def test_a_changed_file_starts_the_run_anew(model: Path, change: Callable[[Path], str]) -> None:
    interrupted(model)
    name = change(model)
    assert verified(model, resume=True).notes[0] == f"{ANEW}{name}"


@pytest.mark.parametrize("program", ["transformers", "torch", "tokenizers", "ropetool"])
def test_another_version_starts_the_run_anew(model: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(model)
    own = metadata.version
    now = conditions.__version__ if program == "ropetool" else own(program)
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == program else own(name))
    if program == "ropetool":
        monkeypatch.setattr(conditions, "__version__", "0.1")
    assert verified(model, resume=True).notes[0] == f"{ANEW}{program} ({now} before, 0.1 now)"


def test_another_device_or_a_changed_text_starts_the_run_anew(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "own"
    text.mkdir()
    for number, file in enumerate(sorted((tmp_path / "texts").glob("*"))[:6]):
        shutil.copy(file, text / f"{number}.txt")
    interrupted(model, texts=[text])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditions, "_device", lambda name: "cuda:0 of another kind")
        note = f"{ANEW}the device (cpu before, cuda:0 of another kind now)"
        assert verified(model, texts=[text], resume=True).notes[0] == note
    interrupted(model, texts=[text])
    (text / "0.txt").write_text((text / "0.txt").read_text() + " and more")
    assert verified(model, texts=[text], resume=True).notes[0] == f"{ANEW}the texts"


def test_a_changed_baseline_starts_the_run_anew(model: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(model, tmp_path / "target"))
    interrupted(target, baseline=model)
    change_between_samples(model / "model.safetensors")
    resumed = verified(target, baseline=model, resume=True)
    assert resumed.notes[0] == f"{ANEW}the content of the baseline"
    assert resumed.lengths == verified(target, baseline=model).lengths


def test_compare_measures_changed_weights_again(model: Path) -> None:
    def compared(**options: Any) -> Any:
        return ropetool.compare(
            model, methods=["linear"], factors=[2], measures=["last-segment"], segments=8, lengths=[64, 128], **options
        )

    def stopped() -> None:
        """Stop between the rows of the candidate and the end of the journal."""
        measure = comparing.measure

        def measured(*given: Any) -> None:
            measure(*given)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(comparing, "measure", measured)
            compared()

    whole = compared()
    stopped()
    assert compared(resume=True).notes[0].endswith(KEPT)
    stopped()
    change_between_samples(model / "model.safetensors")
    resumed = compared(resume=True)
    assert resumed.notes[0] == f"{ANEW}the content of the source"
    fresh = compared()
    assert json.dumps(resumed.to_json()["candidates"]) == json.dumps(fresh.to_json()["candidates"])
    assert fresh.candidates[0].measured != whole.candidates[0].measured
