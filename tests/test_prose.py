"""`scripts/prose.py`: what it counts, and that the project keeps its own limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from loading import script

prose = script("prose.py")
SCRIPT = Path(prose.__file__)
CHECK = SCRIPT.with_name("check").read_text(encoding="utf-8")
PLAIN = "The file sets a context length. The runtime reads it. Run the command again to see the difference.\n" * 20
HARD = "What it is is said by nobody. Of a file nothing stands there. It tells what is meant, and what not.\n"


def project(folder: Path, page: str, *, message: str = "the file has no key") -> Path:
    (folder / "package").mkdir(parents=True)
    (folder / "docs").mkdir()
    (folder / "README.md").write_text(PLAIN)
    (folder / "docs" / "page.md").write_text(page)
    (folder / "package" / "module.py").write_text(f'"""A module."""\n\nWORDS = "{message}"\n')
    return folder


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), "package", *options]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_hard_page_is_above_the_limit(tmp_path: Path) -> None:
    done = run(project(tmp_path, HARD), "--quiet", "--limit", "5", "--kinds", "docs,messages")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "more than 5 hits per 1000 words: docs\n"
    assert run(tmp_path, "--quiet", "--limit", "5", "--kinds", "messages").returncode == 0


def test_a_plain_project_is_below(tmp_path: Path) -> None:
    done = run(project(tmp_path, PLAIN), "--quiet", "--limit", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_code_is_no_prose(tmp_path: Path) -> None:
    page = f"{PLAIN}\n```console\n{HARD}```\n\nThe key `what it is` is code.\n"
    assert run(project(tmp_path, page), "--limit", "0", "--quiet", "--kinds", "docs").returncode == 0


def test_messages_are_read_from_the_code(tmp_path: Path) -> None:
    message = "nothing is said of what is meant by those of the file, nobody knows"
    done = run(project(tmp_path, PLAIN, message=message), "--worst", "1")
    assert done.stdout.startswith("package/module.py:3 [")
    assert message in done.stdout


@pytest.mark.parametrize("phrase", ["what it is", "says nothing", "held it against", "somebody", "surely", "told"])
def test_each_phrase_is_a_hit(phrase: str) -> None:
    assert len(prose.Sentence("docs", "page.md", 1, f"The file {phrase} here.").hits) >= 1


def test_each_pattern_has_a_reason_and_a_replacement() -> None:
    assert len({pattern.name for pattern in prose.PATTERNS}) == len(prose.PATTERNS) > 30
    assert all(pattern.reason.endswith(".") and pattern.better for pattern in prose.PATTERNS)


def test_the_check_has_a_limit_of_five() -> None:
    assert "scripts/prose.py ropetool --quiet --limit 5 --kinds docs,tables,help,messages" in CHECK
