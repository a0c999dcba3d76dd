"""Whole models in a real engine: what our decoders say today is what the recorded runs found it to compute.

scripts/engines/run runs the engine and writes tests/oracle/engines_ENGINE.json. A cell is explained where the engine's log
probabilities are those of transformers with the claimed tables in its rotary modules; here the claims are made again. Where
an engine is installed (ROPETOOL_ENGINE_VLLM names its interpreter) two cells are run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "engines"))

from engine_grid import judging  # noqa: E402 - it lies among the scripts
from engine_grid.recorded import Recorded, changed, changes  # noqa: E402

from ropetool import runtimes  # noqa: E402
from ropetool.runtimes import vllm  # noqa: E402

ENOUGH = {"vllm": 66, "mlx-lm": 18}  # families that were run and agree
SEEN = 100  # times the difference: what one percent on the frequencies must change a log probability by


def runtime(engine: str) -> str:
    """Return the decoder of the release that was run."""
    return runtimes.all_of(f"{engine}@{Recorded(engine).made_with[engine]}")[0].name


def differing(engine: str) -> list[str]:
    """Return the cells of which the decoder says something else today than when they were run."""
    name, found = runtime(engine), []
    for model_type, cells in Recorded(engine).families.items():
        for column, cell in cells.items():
            if "config" in cell:
                claim = judging.claim(name, cell["config"], cell["length"] + 1)
                found += [f"{model_type}, {column}: {place}" for place in judging.apart(claim, cell["claim"])]
    return found


@pytest.mark.parametrize("engine", list(ENOUGH))
def test_decoders_say_what_was_measured(engine: str) -> None:
    assert differing(engine) == []


@pytest.mark.parametrize("engine", list(ENOUGH))
def test_every_cell_is_explained(engine: str) -> None:
    families = Recorded(engine).families
    run = [cell for cells in families.values() for cell in cells.values() if "config" in cell]
    for cell in run:
        assert cell["verdict"] in (judging.EXPLAINED, judging.REFUSED)
        if cell["verdict"] == judging.REFUSED:
            assert "refuses" in cell["claim"]
        else:
            assert judging.agrees(cell["difference"], cell["seen"])
            assert cell["seen"] >= SEEN * cell["difference"]
    explained = [name for name, cells in families.items() if any("difference" in cell for cell in cells.values())]
    assert len(explained) >= ENOUGH[engine]


def test_a_wrong_decoder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(vllm, "_yarn_attention_factor", lambda keys, factor, first: 1.0)
        found = differing("vllm")
    assert any("attention_factor" in place and ", yarn:" in place for place in found)
    assert differing("vllm") == []


def test_a_config_is_what_its_changes_make() -> None:
    source: dict[str, Any] = {"a": 1, "b": {"c": [1], "d": None}, "e": 2}
    target: dict[str, Any] = {"a": None, "b": {"c": [2], "f": {"g": 3}}, "h": {"i": 1}}
    assert changed(source, changes(source, target)) == target
    assert changes(source, source) == {}


@pytest.mark.parametrize("cells", ["yarn factor 1,yarn for the engine"])
def test_the_engine_at_hand(cells: str, tmp_path: Path) -> None:
    if not os.environ.get("ROPETOOL_ENGINE_VLLM"):
        pytest.skip("ROPETOOL_ENGINE_VLLM names no interpreter with vLLM")
    command = [sys.executable, "scripts/engines/engines.py", "--engine", "vllm", "--check", "--families", "qwen3"]
    done = subprocess.run(
        [*command, "--cells", cells, "--keep", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count(": explained ") == 2
