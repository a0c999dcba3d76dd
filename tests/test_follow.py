"""scripts/follow: pins and statements, the rope code and the model types that differ, and what is left to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loading import script

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import records  # noqa: E402
from following import model_types, pins, sources, state  # noqa: E402
from following.packages import PACKAGES, PEERS, Package  # noqa: E402


def copied(package: Package, folder: Path) -> Path:
    """Return a folder with the files that pin and state a package."""
    for file in {*package.pins, *(statement.file for statement in package.statements)}:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    return folder


@pytest.mark.parametrize("package", PACKAGES.values(), ids=lambda package: package.name)
def test_every_package_is_pinned_and_followed(package: Package) -> None:
    assert pins.pinned(ROOT, package) == state.followed()[package.name]
    assert [name for name in package.records if name not in records.BY_NAME] == []
    assert [name for name in package.tests if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("package", PACKAGES.values(), ids=lambda package: package.name)
def test_a_release_is_written_wherever_it_is_pinned_and_stated(package: Package, tmp_path: Path) -> None:
    root = copied(package, tmp_path)
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    changed = pins.write(root, package, "98.76.54")
    assert sorted(changed) == sorted({*package.pins, *(statement.file for statement in package.statements)})
    assert pins.pinned(root, package) == "98.76.54"
    for path, text in before.items():
        lines = set(path.read_text().splitlines()) ^ set(text.splitlines())
        assert len(lines) == (1 if path == root / PEERS else 2), lines
        assert any("98.76" in line for line in lines)
    assert pins.write(root, package, "98.76.54") == []


def test_older_releases_of_engines_stay(tmp_path: Path) -> None:
    root = copied(PACKAGES["vllm"], tmp_path)
    pins.write(root, PACKAGES["vllm"], "98.76.54")
    added = "".join((root / PEERS).read_text().splitlines(keepends=True))
    assert added.replace("vllm==98.76.54\n", "") == (ROOT / PEERS).read_text()
    assert '"0.33.0", "98.76.54"),' in (root / "tests/oracle/peers.py").read_text()
    assert re.search(r'Releases\("0\.32", "98\.76"\)', (root / "ropetool/runtimes/vllm.py").read_text())


def test_a_file_without_the_pin_is_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("numpy==2.0\n")
    with pytest.raises(ValueError, match="no line pins transformers; add a line transformers==RELEASE"):
        pins.pinned(tmp_path, PACKAGES["transformers"])


def release(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_rope_code_that_differs_is_named_by_file(tmp_path: Path) -> None:
    old = {
        "m/a.py": "inv_freq = 1\nprint(1)\n",
        "m/b.py": "print(1)\n",
        "m/c.py": "rotary = 1\n",
        "m/d.py": "rope = 1\nx = 1\n",
    }
    new = {
        "m/a.py": "inv_freq = 2\nprint(1)\n",
        "m/b.py": "print(2)\n",
        "m/e.py": "rotary = 2\n",
        "m/d.py": "x = 1\nrope = 1\n",
    }
    before, after = release(tmp_path / "old", old), release(tmp_path / "new", new)
    found = {change.file: (change.state, change.lines) for change in sources.changes(before, after, ("m/*.py",))}
    assert found == {
        "m/a.py": ("changed", ("-inv_freq = 1", "+inv_freq = 2")),
        "m/c.py": ("gone", ("-rotary = 1",)),
        "m/e.py": ("new", ("+rotary = 2",)),
    }


def record(outcome: str = "proven", **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "transformers": "5.23.0", "layout": "half", **more}


def test_types_are_new_changed_gone_or_now_native() -> None:
    before = {"same": record(), "changed": record(), "gone": record()}
    after = {
        "same": {**record(), "transformers": "5.24.0"}, "changed": record(layout="interleaved"), "new": record(),
        "odd": record("not probed", reason="RuntimeError: no"), "exaone": record(),
    }  # fmt: skip
    found = {d.model_type: (d.state, d.needs_hand) for d in model_types.differences(before, after, {"exaone", "same"})}
    assert found == {
        "changed": ("changed", True), "gone": ("gone", True), "new": ("new", False), "odd": ("new", True),
        "exaone": ("now native", True),
    }  # fmt: skip


def test_the_committed_records_are_those_of_git() -> None:
    committed = model_types.committed(ROOT)
    text = subprocess.run(
        ["git", "show", f"HEAD:{model_types.GENERATED}/llama.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f'"layout": "{committed["llama"]["layout"]}"' in text
    listed = ["git", "ls-tree", "-r", "--name-only", "HEAD", model_types.GENERATED]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert committed.keys() == {Path(name).stem for name in names}


def test_a_record_of_another_release_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    package, newest = PACKAGES["transformers"], state.followed()["transformers"]
    assert state.due(package, newest) == []
    assert state.due(package, "98.76.54") == list(package.records)
    stamps = records.stamps()
    monkeypatch.setattr(records, "stamps", lambda: {**stamps, "peers": {"inputs": {PEERS: "0"}, "versions": {}}})
    assert state.due(PACKAGES["exllamav3"], state.followed()["exllamav3"]) == ["peers"]


@pytest.mark.parametrize("before", ["", "- Follows transformers 5.23.0.\n"])
def test_the_changelog_names_the_release_once(before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# Changelog\n\n## 0.2.0, unreleased\n\n- One\n  and more.\n{}\n## 0.1.0\n\n- Older.\n"
    monkeypatch.setattr(state, "CHANGELOG", tmp_path / "changelog.md")
    state.CHANGELOG.write_text(text.format(before))
    for _ in range(2):
        state.write_changelog(PACKAGES["transformers"], "5.24.0")
        assert state.CHANGELOG.read_text() == text.format("- Follows transformers 5.24.0.\n")


def test_the_changelog_of_older_releases_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "# Changelog\n\n## 0.2.0\n\n- One.\n{}\nRemoved: a.\n\n## 0.1.0\n\n- Follows transformers 5.23.0.\n"
    monkeypatch.setattr(state, "CHANGELOG", tmp_path / "changelog.md")
    state.CHANGELOG.write_text(text.format(""))
    state.write_changelog(PACKAGES["transformers"], "5.24.0")
    assert state.CHANGELOG.read_text() == text.format("- Follows transformers 5.24.0.\n")


def test_every_recorded_column_of_the_kit_follows_a_package() -> None:
    columns = [column for package in PACKAGES.values() for column in state.recorded_columns(package.engines)]
    recorded = json.loads(state.SCORES.read_text())["engines"]
    assert sorted(columns) == sorted(column for column in recorded if not column.startswith("transformers-4.57 "))
    assert "vllm bfloat16" in state.recorded_columns(("vllm",))


def test_a_release_that_does_not_exist_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("follow")

    def missing(package: Package, release: str) -> Path:
        raise SystemExit(f"{package.name} {release} cannot be downloaded")

    monkeypatch.setattr(module.registry, "unpacked", missing)
    monkeypatch.setattr(module.pins, "write", lambda *_: pytest.fail("it writes pins"))
    with pytest.raises(SystemExit, match="cannot be downloaded"):
        module.follow(module.Run(PACKAGES["transformers"], "98.76.54"), "5.24.0")


def follow(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command without its steps, which change the working tree. Return the exit code."""
    module = script("follow")
    monkeypatch.setattr(module, "follow", lambda run, before: pytest.fail(f"it follows {run.release}"))
    monkeypatch.setattr(sys, "argv", ["follow", *arguments])
    code: int = module.main()
    return code


def test_a_release_that_is_followed_leaves_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = state.followed()["transformers"]
    assert follow(monkeypatch, f"transformers=={newest}") == 0
    assert capsys.readouterr().out == f"transformers=={newest} is followed; nothing to do\n"


@pytest.mark.parametrize("wrong", ["transformers", "transformers==", "numpy==2.0", ""])
def test_what_is_no_release_of_a_followed_package_is_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        follow(monkeypatch, wrong)
    assert ended.value.code == 2
    assert "name a release as PACKAGE==RELEASE" in capsys.readouterr().err
