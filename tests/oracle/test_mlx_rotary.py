"""Our decoders of mlx-lm against its own model files: recorded answers always, a live release where it is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peers
import pytest

from ropetool.rope.tables import RopeTable
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import mlx_lm


@pytest.mark.parametrize("version", peers.RELEASES["mlx-lm"])
def test_recorded_answers(version: str) -> None:
    found = peers.compared("mlx-lm", version, peers.golden("mlx-lm", version))
    assert found == {}


@pytest.mark.parametrize("version", peers.RELEASES["mlx-lm"])
def test_a_release_at_hand(version: str, tmp_path: Path) -> None:
    assert peers.compared("mlx-lm", version, peers.asked_live("mlx-lm", version, tmp_path)) == {}


def test_every_cell_is_asked_of_a_real_class() -> None:
    """No config is compared by way of errors alone, but for those that stop for a reason that is named here."""
    newest = peers.golden("mlx-lm", "0.32.2")
    stopped = [name for name, answer in newest.items() if "error" in answer]
    assert {name for name in stopped if peers.family(name) in ("llama", "qwen3")} == {
        "llama-yarn-beta-0-v4", "qwen3-yarn-beta-0-v4", "qwen3-yarn-beta-0-v5",
    }  # fmt: skip
    # phi3 wants `type`; the others insist on what stands in rope_scaling, or beside it, in v4 style alone.
    rest = {peers.family(name) for name in stopped if not name.endswith("-v5")} - {"llama", "qwen3"}
    assert rest == {"phi3", "deepseek_v2", "qwen2_moe"}
    assert [name for name in stopped if peers.family(name) == "deepseek_v2" and name.endswith("-v4")] == [
        "deepseek_v2-default-v4"
    ]
    assert {peers.family(name) for name in stopped if name.endswith("-v5")} == {"qwen3", "deepseek_v2", "olmo3"}


def short_list(keys: Any, base: Any, context: int, length: int) -> RopeTable:
    return RopeTable.fixed(engine.divided(base, keys, "short_factor"), engine.longrope_scale(context, length))


DEFECTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the short list of longrope": ("0.32.2", "llama-longrope-v4", {"_longrope": short_list}),
    "dynamic known before 0.32": ("0.31.3", "llama-dynamic-v4", {"NEWER": (0, 30)}),
    "rope_parameters of qwen3 not read": ("0.32.2", "qwen3-yarn-v5", {"NEWER": (9,)}),
    "mixtral keeps its scaling": ("0.32.2", "mixtral-linear-v4", {"mixtral.scaling": True}),
    "yarn without a length counts from the context": ("0.32.2", "llama-yarn-unsaid-length-v4", {"YARN_LENGTH": 2048}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version, name, changes = DEFECTS[defect]
    answers = {name: peers.golden("mlx-lm", version)[name]}
    assert peers.compared("mlx-lm", version, answers) == {}
    peers.plant(monkeypatch, mlx_lm, changes)
    assert peers.compared("mlx-lm", version, answers) != {}
