"""`ropetool check`: what a checkpoint says, whether it is true, and what was measured of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from models import set_tensors
from running import run

import ropetool

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, "model")
    assert run("extend", "model", "--method", "yarn", "--factor", "4", "--copy", "-o", "out").code == 0
    return tmp_path / "out"


def test_an_extension_is_what_it_says(extended: Path) -> None:
    done = run("check", "out")
    assert done.code == 0
    assert done.out.splitlines()[0] == "out: yarn x4, 256 -> 1,024 tokens: the file is correct"
    assert "measured  none" in " ".join(done.out.split("\n")[-2:])
    plain = run("check", "out", "--json").json
    assert (plain["verdict"], plain["certificate"]["state"]) == ("true", "none")
    assert {check["name"] for check in plain["checks"]} == {"tables", "weights", "files", "rotation"}


def test_a_planted_key_is_found(extended: Path) -> None:
    config = json.loads((extended / "config.json").read_text())
    (config.get("rope_parameters") or config["rope_scaling"])["factor"] = 3.0
    (extended / "config.json").write_text(json.dumps(config))
    done = run("check", "out")
    assert done.code == 3
    assert "the file is not correct" in done.out
    assert any(line.split()[:2] == ["tables", "fail"] for line in done.out.splitlines())


def test_a_planted_weight_is_found(extended: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        name = next(name for name in tensors if "q_proj" in name)
        tensors[name] = tensors[name] * 2

    set_tensors(extended, change)
    plain = run("check", "out", "--json").json
    assert plain["verdict"] == "false"
    assert [check["name"] for check in plain["checks"] if check["verdict"] == "fail"] == ["weights"]


def test_a_model_of_others_needs_a_baseline(extended: Path) -> None:
    (extended / "ropetool.json").unlink()
    alone = run("check", "out")
    assert (alone.code, "--baseline SOURCE" in alone.out) == (1, True)
    compared = run("check", "out", "--baseline", "model")
    assert (compared.code, "the file is correct" in compared.out) == (0, True)


def test_bad_input_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("check", "nothing")
    assert done.code == 1
    assert done.err.startswith("Error: nothing: ")
    assert "Traceback" not in done.err
