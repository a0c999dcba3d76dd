"""The advice to install an extra: the packages by name, for the Python that runs, and never a project called ropetool."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ropetool.escaping import install_line

EXTRAS = {
    "verify": "torch",
    "llama": "llama-cpp-python",
    "report": "matplotlib",
    "hub": "huggingface-hub",
    "pandas": "pandas",
    "packed": "compressed-tensors",
}
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_named(extra: str) -> None:
    line = install_line(extra)
    assert line.startswith(f"{sys.executable} -m pip install ")
    assert EXTRAS[extra] in line
    assert "ropetool" not in line.replace(sys.executable, "")


def test_pip_takes_the_line() -> None:
    """What is installed already satisfies it, so pip needs no index."""
    line = install_line("pandas")
    done = subprocess.run([*line.split()[:4], "--no-index", "pandas>=2.0"], capture_output=True, text=True, timeout=120)
    assert line.endswith("'pandas>=2.0'")
    assert done.returncode == 0, done.stderr
    assert "already satisfied" in done.stdout


def test_the_line_of_pipx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/user/.local/share/pipx/venvs/ropetool")
    assert install_line("llama") == "pipx inject ropetool 'llama-cpp-python>=0.3.36'"


def test_the_line_of_an_environment_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/home/user/.cache/uv/bin/python")
    assert install_line("hub") == "uv pip install --python /home/user/.cache/uv/bin/python 'huggingface-hub>=0.30'"


def test_a_run_from_the_sources_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_line("hub") == "install the packages that pyproject.toml lists under the extra hub"


def test_no_module_advises_to_install_ropetool_from_an_index() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "ropetool").rglob("*.py")}
    assert [path.name for path, text in texts.items() if "pip install ropetool" in text or '"ropetool[' in text] == []
