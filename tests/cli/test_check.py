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


@pytest.fixture
def exported(extended: Path) -> Path:
    """Return an export whose source is gone."""
    assert run("export", "out", "-o", "x.gguf", "--no-check", "--allow-unverified").code == 0
    extended.rename(extended.with_name("moved"))
    return extended.with_name("x.gguf")


def change_a_weight(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-200_000] ^= 0x55
    file.write_bytes(data)


def test_an_export_without_its_source_is_compared_with_its_digest(exported: Path) -> None:
    done = run("check", exported)
    assert (done.code, "the file is correct" in done.out) == (0, True)
    assert done.out.count("the bytes have the digest in the record") == 2
    change_a_weight(exported)
    changed = run("check", exported)
    assert (changed.code, "the file is not correct" in changed.out) == (3, True)
    assert "the bytes of x.gguf differ from the digest in the record" in changed.out


def test_an_export_is_compared_with_a_baseline_of_another_format(exported: Path) -> None:
    done = run("check", exported, "--baseline", "moved")
    assert (done.code, "38 of 38 tensors equal the baseline" in done.out) == (0, True)
    change_a_weight(exported)
    changed = run("check", exported, "--baseline", "moved")
    assert (changed.code, "37 of 38 tensors equal the baseline" in changed.out) == (3, True)


def test_a_file_that_nothing_is_compared_with_is_not_called_correct(exported: Path) -> None:
    assert run("gguf", "set", exported, "general.name", "renamed", "--in-place").code == 0  # drops the digest
    done = run("check", exported)
    assert done.out.splitlines()[0].endswith("the RoPE settings are correct; not compared: weights, files")
