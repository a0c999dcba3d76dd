"""scripts/torture: a few trials of each kind find nothing, and the harness sees what is planted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, seccomp and ptrace")

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / name) for name in (".", "tests", "tests/oracle")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, env={**ENVIRONMENT, **more}, cwd=ROOT, check=False)


def counts(table: str) -> dict[str, tuple[int, int, str]]:
    """Return runs, bad ones and what was skipped, by kind."""
    found = re.findall(r"^(\S.*?)  +([\d,]+) +([\d,]+)(?:  skipped: (.+))?$", table, re.MULTILINE)
    return {kind: (int(runs.replace(",", "")), int(bad.replace(",", "")), why) for kind, runs, bad, why in found}


def test_a_few_trials_of_each_kind_find_nothing(tmp_path: Path) -> None:
    done = run("scripts/torture", "--small", TMPDIR=str(tmp_path), ROPETOOL_PYTHON=sys.executable)
    found = counts(done.stdout)
    assert len(found) > 25, done.stderr
    assert [kind for kind, (runs, _, why) in found.items() if not runs and not why] == []
    assert {kind: bad for kind, (_, bad, _) in found.items() if bad} == {}, done.stderr
    assert done.returncode == 0
    assert os.listdir(tmp_path) == []


# --- planted defects


@cache
def said() -> dict[str, str]:
    done = run(sys.executable, "-m", "torture.plants")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["true", "good"])
def test_what_is_right_is_not_bad(name: str) -> None:
    assert said()[name] == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file by file", r"killed before \w+ .*: new is neither the old nor the new one"),
        ("source touched", "the source differs in model/config.json"),
        ("record last", r"new\.gguf is without its record"),
        ("part by part", r"loads as a mix: new-0000[12]-of-00003\.gguf.* old, the others new"),
        ("signal ignored", "SIGTERM before .*: left behind|SIGTERM before .*: exit code -15|the output lacks"),
        ("traceback", "ENOSPC at .*: (a traceback|exit code 70|exit code 1)"),
        ("left behind", "left behind: .new.ropetool-1"),
        ("lookup", "KeyError: 'key'"),
        ("loop", "more than 2 s"),
        ("much", "more than 200 MB"),
        ("crash", "its process ended with signal SIGSEGV"),
        ("wordless", "a refusal without a word"),
        ("endless", "a refusal of 5,000 characters"),
        ("rewritten", "the text (before|behind) has changed"),
    ],
)
def test_what_is_planted_is_bad(name: str, words: str) -> None:
    assert re.search(words, said()[name]), said()[name]


def test_the_same_seed_gives_the_same_input() -> None:
    code = (
        'import random; from torture.mutating import bytes_of, json_of; seed = b\'{"a": [1, 2.5, {"b": null}]}\'\n'
        "print([(f(seed, random.Random(n), [seed], [b'x'])) for n in range(50) for f in (bytes_of, json_of)])"
    )
    one, other = run(sys.executable, "-c", code), run(sys.executable, "-c", code)
    assert one.returncode == 0
    assert len(one.stdout) > 1000
    assert one.stdout == other.stdout
