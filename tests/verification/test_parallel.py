"""Two processes of torchrun on one machine give the figures of one process, sharing the documents or the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import run as run_here
from verifying import cut_texts

import ropetool
from ropetool.verification.runners import parallel
from ropetool.verification.scoring import Scores

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
COMMAND = [
    "verify",
    str(DEMO),
    "--lengths",
    "64,256,300",
    "--suite",
    "quick",
    "--segments",
    "9",
    "--grade",
    "research",
    "--json",
]
MODES = (parallel.DATA, parallel.TENSOR)
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# The command in each mode, one after the other: three processes take seconds until they have loaded torch.
EACH = """
import sys
from ropetool.__main__ import main
from ropetool.verification.runners import parallel
leave, parallel.leave = parallel.leave, lambda: None  # torchrun's processes meet once
modes, *command = sys.argv[1:]
for mode in modes.split(","):
    sys.argv = ["ropetool", *command, "--parallel", mode]
    try:
        main()
    except SystemExit as done:
        assert done.code == 1, done.code  # partial: it has no baseline
leave()
"""


def figures(printed: str) -> list[tuple[int, float, int, int]]:
    data: dict[str, Any] = json.loads(printed)
    return [(e["length"], e["target"]["mean"], e["segments"], e["target"]["tokens"]) for e in data["lengths"]]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginnings of the package's documents, which every process reads."""
    folder = tmp_path_factory.mktemp("parallel") / "texts"
    with pytest.MonkeyPatch.context() as patch:
        cut_texts(patch, folder, 4000)
    return folder


@pytest.fixture(scope="module")
def alone(texts: Path) -> list[tuple[int, float, int, int]]:
    found = run_here(*COMMAND, "--text", texts)
    assert found.code == 1, found.err  # partial: it has no baseline
    return figures(found.out)


@pytest.fixture(scope="module")
def printed(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What two processes print in each mode."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "each.py").write_text(EACH)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ROPETOOL_CACHE": str(folder)}
    command = [sys.executable, *TORCHRUN, folder / "each.py", ",".join(MODES), *COMMAND, "--text", texts]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    answers = re.split(r"^(?=\{)", found.stdout, flags=re.MULTILINE)[1:]
    assert [answer.count('"schema"') for answer in answers] == [1] * len(MODES), found.stdout  # one of them speaks
    return dict(zip(MODES, answers, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_give_the_figures_of_one(mode: str, alone: list[Any], printed: dict[str, str]) -> None:
    together = figures(printed[mode])
    assert [entry[2:] for entry in together] == [entry[2:] for entry in alone]
    for ours, theirs in zip(together, alone, strict=True):
        assert abs(ours[1] - theirs[1]) < 2e-6
    if mode == parallel.DATA:
        assert "2 processes" in printed[mode]


class Echo:
    """A runner whose loss of a token is the token."""

    prefix: tuple[int, ...] = ()
    description = "echo"

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: object) -> Scores:
        losses = np.array([[float(token) for token in row[-scored:]] for row in rows])
        return Scores(losses, losses > 2)


def test_figures_go_to_the_places_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[0, place] for place in range(5)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(parallel.SharedRunner, "_gathered", lambda self, found: [found, found])
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="could not broadcast"):  # another process's share is of another size
        parallel.SharedRunner(Echo()).score(rows, 1)  # type: ignore[arg-type]
    shares = [Echo().score(rows[rank::2], 1, None) for rank in (0, 1)]
    monkeypatch.setattr(parallel.SharedRunner, "_gathered", lambda self, found: shares)
    found = parallel.SharedRunner(Echo()).score(rows, 1)  # type: ignore[arg-type]
    assert found.losses.ravel().tolist() == [0, 1, 2, 3, 4]
    assert found.hits.ravel().tolist() == [False, False, False, True, True]
