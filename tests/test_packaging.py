"""The wheel and the source distribution: what is in them, that they install, and that the command works from there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from ropetool.gguf_export import children, kquants
from ropetool.gguf_export.converter import trial

ROOT = Path(__file__).resolve().parents[1]
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source distribution, of which git lists nothing")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip builds it: in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content alone, the dependencies being where they are."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return folder


def run(
    installed: Path, folder: Path, *arguments: object, module: Sequence[str] = ("-m", "ropetool")
) -> subprocess.CompletedProcess[str]:
    """Run the command from the installed package, in a folder."""
    return subprocess.run(
        [sys.executable, *module, *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip


@needs_git
def test_the_wheel_holds_what_git_holds_of_the_package(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "ropetool"], cwd=ROOT, capture_output=True, text=True, check=True)
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ropetool/")}
    assert held == set(listed.stdout.splitlines())


def test_the_command_works_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed,
        tmp_path,
        "extend",
        installed / "ropetool" / "demo" / "model",
        "--method",
        "yarn",
        "--factor",
        "4",
        "-o",
        "out",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_hostile_folder_is_not_imported_from(installed: Path, tmp_path: Path) -> None:
    for name in ("json", "typing", "click", "numpy", "rich", "transformers", "sitecustomize_of_mine"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n", encoding="utf-8")
    done = run(installed, tmp_path, "inspect", installed / "ropetool" / "demo" / "model")
    assert done.returncode == 0, done.stderr
    assert "imported from" not in done.stdout + done.stderr
    attached = run(installed, tmp_path, "--version", module=("-mropetool",))
    assert attached.returncode == 0, attached.stderr


def test_no_process_of_its_own_imports_from_the_folder_either(tmp_path: Path) -> None:
    for name in ("json", "typing", "importlib", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n", encoding="utf-8")
    code = "import json, sys, numpy; print(json.dumps(sys.argv[1:]))"
    asked = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(children.python(code, "it"), env=children.environment(), **asked)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout) == (0, '["it"]\n'), done.stderr
    plain = subprocess.run([sys.executable, "-c", code], **asked)  # type: ignore[call-overload]
    assert "imported from the working folder" in plain.stderr  # so these names can be taken
    for module in (kquants, trial):
        assert "sys.executable" not in Path(str(module.__file__)).read_text(encoding="utf-8")


@needs_git
def test_the_container_file_copies_and_installs_what_there_is() -> None:
    """It is built by nobody here, so this holds it against the files and names that it takes."""
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    text = (ROOT / "scripts" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    steps = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = [name for step, *words in steps if step == "COPY" for name in words[:-1]]
    listed = subprocess.run(["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    held = {name.partition("/")[0] for name in listed.splitlines()}
    assert held == set(copied)
    built_from = {project["readme"], *project["license-files"], "pyproject.toml", "ropetool"}
    assert built_from <= held
    (extras,) = (words[0].removeprefix("EXTRAS=") for step, *words in steps if words[0].startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (entry,) = (words for step, *words in steps if step == "ENTRYPOINT")
    assert json.loads(" ".join(entry)) == [*project["scripts"]]
    (minor,) = re.findall(r"BASE=python:3\.(\d+)-slim", text)
    assert int(minor) >= int(project["requires-python"].removeprefix(">=3."))
    assert re.search(r"^torch==[0-9.]+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("build")
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    archive = next(tmp_path.glob("*.tar.gz"))
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "again"), str(archive)], check=True)
    again = zipfile.ZipFile(next((tmp_path / "again").glob("*.whl")))
    assert set(again.namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_workflows_run_what_ci_runs_with_the_supported_pythons() -> None:
    test, publish = ((ROOT / ".github" / "workflows" / name).read_text() for name in ("test.yml", "publish.yml"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    lowest = re.search(r'requires-python = ">=(3\.\d+)"', project)
    assert lowest is not None
    assert versions[0] == lowest[1]
    assert re.findall(r'"(3\.\d+)"', test) == [versions[0], versions[-1]]
    assert "- run: .ci/run\n" in test
    assert "id-token: write" in publish
    assert "password" not in publish  # trusted publishing needs none
