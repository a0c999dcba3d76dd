"""scripts/real_models: which rows are measured, and what docs and README show of their record."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from loading import script

real_models = script("real_models/measure")
page = real_models.page
QUESTION = {"length": 2048, "ratio": 1.029, "lower": 0.991, "upper": 1.069, "texts": 3}
ANSWERS = {
    "verdict": "keep", "trained_length": 8192, "target_length": 16384, "length": 16384, "short": QUESTION,
    "long": {"length": 16384, "ratio": 12.84, "lower": None, "upper": None, "texts": 1}, "lost": [], "ended": "time",
    "minutes": 6.4,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with two rows, a record in a folder of the test, and commands that only list themselves."""
    (tmp_path / "model.gguf").write_bytes(b"right")
    digest = hashlib.sha256(b"right").hexdigest()
    rows = (page.Row("yarn", 2), page.Row("ntk", 4))
    found = page.Model("m", "M", "ROPETOOL_M", digest, 8192, ("#0072b2", "o"), rows)
    monkeypatch.setenv("ROPETOOL_M", str(tmp_path / "model.gguf"))
    monkeypatch.setattr(page, "MODELS", (found,))
    monkeypatch.setattr(page, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(page, "PICTURE", tmp_path / "real-models.svg")
    monkeypatch.setattr(real_models, "FOLDER", tmp_path / "folder")
    return found


def measure(monkeypatch: pytest.MonkeyPatch, *arguments: str, ends_at: str = "") -> list[str]:
    """Run the script, and return the commands that it ran. ends_at: a command at which the run is interrupted."""
    commands = []

    def run(folder: Path, *words: str) -> dict[str, Any]:
        commands.append(" ".join(words))
        if ends_at and ends_at in commands[-1]:
            raise KeyboardInterrupt
        if words[1] == "import":
            (folder / page.IMPORT).mkdir()
        return {"answers": ANSWERS, "runtime": "torch"}

    monkeypatch.setattr(real_models, "run", run)
    monkeypatch.setattr("sys.argv", ["measure", *arguments])
    try:
        real_models.main()
    except KeyboardInterrupt:
        assert ends_at
    return commands


def test_an_interrupted_run_goes_on_where_it_stopped(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    extend = "ropetool extend import --method {} --factor {} -o {}"
    commands = measure(monkeypatch, ends_at="verify ntk-4x")
    assert commands[0].startswith("ropetool import /")
    assert commands[1:] == [
        extend.format("yarn", 2, "yarn-2x"), "ropetool verify yarn-2x", extend.format("ntk", 4, "ntk-4x"), "ropetool verify ntk-4x",
    ]  # fmt: skip
    assert list(page.record()) == ["m/yarn-2x"]
    assert measure(monkeypatch) == commands[3:]
    assert measure(monkeypatch) == []
    row = page.record()["m/ntk-4x"]
    assert row["commands"] == commands[3:]
    assert {key: row[key] for key in ("verdict", "short", "long", "length", "minutes")} == {
        key: ANSWERS[key] for key in ("verdict", "short", "long", "length", "minutes")
    }
    assert page.PICTURE.read_bytes().count(b"<svg") == 1


def test_a_row_that_fails_stays_missing_and_the_others_are_measured(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, *words: str) -> dict[str, Any]:
        if "yarn-2x" in words:
            raise RuntimeError("exit 1")
        return {"answers": ANSWERS, "runtime": "torch"}

    monkeypatch.setattr(real_models, "run", run)
    monkeypatch.setattr("sys.argv", ["measure"])
    with pytest.raises(SystemExit):
        real_models.main()
    assert list(page.record()) == ["m/ntk-4x"]


def test_rows_of_other_code_are_measured_again_on_request(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch)
    page.write(
        {name: {**row, "code": "0" * 16} for name, row in page.record().items() if "ntk" in name}
        | {name: row for name, row in page.record().items() if "yarn" in name}
    )
    assert measure(monkeypatch) == []
    assert measure(monkeypatch, "--stale", "--only", "m/yarn") == []
    assert [line for line in measure(monkeypatch, "--stale") if "verify" in line] == ["ropetool verify ntk-4x"]
    assert {row["code"] for row in page.record().values()} == {real_models.code()}


def test_another_file_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"wrong")
    with pytest.raises(SystemExit, match=f"ROPETOOL_M: .* expected {model.sha256}"):
        measure(monkeypatch)
    monkeypatch.delenv("ROPETOOL_M")
    with pytest.raises(SystemExit, match="ROPETOOL_M is None; set it"):
        measure(monkeypatch)
    assert page.record() == {}


def test_the_tables_show_what_was_measured(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2 of 2 rows are not measured yet." in page.section()
    page.write({"m/yarn-2x": ANSWERS})
    assert "1 of 2 rows are not measured yet." in page.section()
    assert (
        "| yarn 2x | keep | +2.9 % (-0.9 % to +6.9 %), 2,048 tokens, 3 texts | x12.8, 16,384 tokens, 1 text | 6 |"
        in page.section()
    )
    page.write({"m/yarn-2x": {**ANSWERS, "short": None}})
    assert f"| yarn 2x | keep | {page.NOT_MEASURED} | x12.8" in page.section()


def test_the_record_is_of_these_rows_and_drawn() -> None:
    """The tables in docs/measurements.md are compared by scripts/docs.py --check."""
    rows = {f"{model.name}/{row.output}": row for model in page.MODELS for row in model.rows}
    for name, entry in page.record().items():
        assert entry["commands"] == [rows[name].extend, rows[name].verify]
        assert entry["length"] <= entry["target_length"]
        assert re.fullmatch("[0-9a-f]{16}", entry["code"])
    assert f"\n\n{page.front()}\n\n" in (page.ROOT / "README.md").read_text(encoding="utf-8")
    assert page.PICTURE.exists() == bool(page.record())
    if page.record():
        shown, again = (
            re.sub(rb"<style>.*?</style>", b"", each) for each in (page.PICTURE.read_bytes(), page.picture())
        )
        assert shown == again
    compared = json.loads(page.COMPARED.read_text(encoding="utf-8"))
    assert [entry["rows"][-1]["length"] for entry in compared.values() if "rows" in entry] == [
        16384,
        16384,
        32768,
        65536,
        12288,
        12288,
    ]
