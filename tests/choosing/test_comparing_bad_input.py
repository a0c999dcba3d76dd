"""What compare, tune and extend --method auto say of bad input names only options that each of them has; nothing is loaded for it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from running import run

import ropetool
from ropetool.cli import group

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
COMPARE = ("compare", "model", "--methods", "yarn", "--factors", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo checkpoint, and that extended twice."""
    made = tmp_path_factory.mktemp("bad")
    shutil.copytree(DEMO, made / "model")
    ropetool.apply(ropetool.plan(made / "model", "yarn", factor=2), made / "model", made / "scaled")
    return made


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("ropetool.verification.runners.torch_runner.TorchRunner.__init__", never)
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("line", "where", "try_"),
    [
        (("compare", "model", "--methods", "yarm", "--factors", "2"), "--methods", "ropetool methods"),
        (
            ("compare", "model", "--methods", "abf", "--factors", "2"),
            "--methods abf",
            "ropetool extend model --method abf --factor 2 --rope-theta VALUE --dry-run --plan-out FILE, "
            "then pass --plan FILE instead of the method",
        ),
        (
            ("compare", "model", "--methods", "longrope", "--target-length", "512"),
            "--methods longrope",
            "ropetool extend model --method longrope --target-length 512 -p long_factor VALUE --dry-run --plan-out FILE, "
            "then pass --plan FILE instead of the method",
        ),
        (("compare", "model", "--methods", "yarn", "--factors", "1"), "--factors", ""),
        (("compare", "model", "--methods", "yarn", "--factors", "0.5"), "--factors", ""),
        (("compare", "model", "--methods", "yarn", "--factors", "1e9"), "--factors", ""),
        (
            ("compare", "model", "--methods", "yarn", "--target-length", "256"),
            "--target-length",
            "a target length beyond 256",
        ),
        (
            ("compare", "scaled", "--from", "current", "--target-length", "512"),
            "--target-length",
            "a target length beyond 512",
        ),
        ((*COMPARE, "--segments", "1"), "--segments", ""),
        ((*COMPARE, "--trials", "0"), "--trials", ""),
        ((*COMPARE, "--compare-with", "rerop"), "--compare-with", "--compare-with rerope or"),
        ((*COMPARE, "--measure", "losses"), "--measure", ""),
        (("compare", "scaled", "--factors", "2"), "scaled/config.json", "--from original"),
        (
            ("compare", "model", "--methods", "dynamic", "--factors", "2", "--for", "llama.cpp"),
            "model/config.json",
            "ropetool extend model --method dynamic --factor 2 -p freeze 512 --for llama.cpp --dry-run --plan-out FILE, then "
            "--plan FILE",
        ),
        (("tune", "scaled", "--target-length", "2048"), "scaled/config.json", "--from original"),
        (("tune", "model", "--target-length", "256"), "--target-length", "a target length beyond 256"),
        (("extend", "model", "--method", "auto", "--factor", "1"), "--factor", ""),
        (("extend", "scaled", "--method", "auto", "--factor", "2"), "scaled/config.json", "--from original"),
    ],
)
def test_an_error_names_options_of_its_own_command(line: tuple[str, ...], where: str, try_: str) -> None:
    said = run(*line).err
    assert f"Error: {where}: " in said
    tried = said.partition("Try: ")[2]
    assert tried.startswith(try_)
    assert bool(tried) == bool(try_)
    _check_own(line[0], f"{where} {tried.partition('ropetool extend')[0]}")


def _check_own(name: str, text: str) -> None:
    """Every option in a text is one of the command."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    own = {option for each in command.params for option in each.opts}
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", text)) <= own


def test_a_plan_that_is_called_as_a_yardstick_is_refused(folder: Path) -> None:
    plan = json.dumps(ropetool.plan(folder / "model", "yarn", factor=2).to_json())
    for name in ("dynamic-ntk", "rerope(128)"):
        (folder / name).write_text(plan)
    for given, name in (("dynamic-ntk", "dynamic-ntk"), ("rerope", "rerope(128)")):
        said = run("compare", "model", "--plan", name, "--compare-with", given).err
        assert said == f"Error: --plan {name}: a reference attention variant has the same name\nTry: rename the plan\n"


def test_the_plan_that_is_named_for_a_method_with_parameters_is_a_candidate(folder: Path) -> None:
    said = run("compare", "model", "--methods", "abf", "--factors", "2").err
    line = said.partition("Try: ropetool ")[2].partition(",")[0].replace("VALUE", "1e5").replace("FILE", "abf.json")
    assert run(*line.split()).code == 0
    with pytest.raises(AssertionError, match="a model was loaded"):
        ropetool.compare(folder / "model", plans=[folder / "abf.json"])
