"""What `doctor` says of older releases, against what these releases answered (scripts/following/older_readings.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_config

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.doctor import examine
from ropetool.doctor.older_releases import OLDER
from ropetool.runtimes import transformers

RECORD: dict[str, Any] = json.loads(Path(__file__).with_name("older_releases.json").read_text(encoding="utf-8"))
LENGTHS = (256, 512, 513, 2048)


def answers(name: str) -> tuple[Any, Any, str, str]:
    """Return the answer of the older release and of the newer one, and the names of both."""
    (older, before), (newer, after) = RECORD[name]["answers"].items()
    return before, after, older, newer


def sentence(name: str, folder: Path) -> str:
    """Return what doctor says about older releases. It must say one thing."""
    model = write_config(folder / "model", RECORD[name]["config"])
    [finding] = examine([str(model)], only=["older-release"]).findings
    return f"{finding.sentence}; {finding.fix}"


def table(answer: Any, layer_type: str = "full_attention") -> Any:
    return answer["layers"][layer_type][-1]["inv_freq"]


@pytest.mark.parametrize("name", RECORD)
def test_the_newer_release_computes_what_the_decoder_says(name: str, tmp_path: Path) -> None:
    rope = transformers.decode(HfCheckpoint.open(write_config(tmp_path / "model", RECORD[name]["config"])))
    _, after, _, _ = answers(name)
    assert after["layers"].keys() == rope.entries.keys()
    for layer_type, entry in rope.entries.items():
        for length, given in zip(LENGTHS, after["layers"][layer_type], strict=True):
            assert entry.table is not None
            np.testing.assert_allclose(given["inv_freq"], entry.table.at(length).inv_freq, rtol=3e-6)
    assert after["softmax"] == pytest.approx(rope.entries["full_attention"].softmax_multiplier, rel=1e-6)


def test_rotary_dim_of_minimax_m2(tmp_path: Path) -> None:
    before, after, _, newer = answers("minimax_m2")
    assert (2 * len(table(before)), 2 * len(table(after)), newer) == (32, 16, "5.18.0")
    assert sentence("minimax_m2", tmp_path) == (
        "transformers before 5.18 ignores rotary_dim, so 32 channels rotate instead of 16; "
        "set partial_rotary_factor to 0.5 next to rotary_dim"
    )


@pytest.mark.parametrize("name", ["deepseek_v2", "mistral4"])
def test_the_score_of_mla(name: str, tmp_path: Path) -> None:
    before, after, _, newer = answers(name)
    assert table(before) == table(after)
    assert (before["softmax"], newer) == (1.0, "5.15.0")
    assert f"must be multiplied by {after['softmax']:.5g}"[:34] in sentence(name, tmp_path)


def test_scaling_of_olmo_3_reaches_sliding_layers(tmp_path: Path) -> None:
    before, after, _, newer = answers("olmo3, rope_scaling")
    assert list(before["layers"]) == ["full_attention"]  # one table for all layers
    assert table(before) == table(after)
    assert table(after, "sliding_attention") != table(after)
    assert newer == "5.13.0"
    assert "transformers before 5.13 also scales the layers with a sliding window" in sentence(
        "olmo3, rope_scaling", tmp_path
    )


def test_nested_keys_of_olmo_3(tmp_path: Path) -> None:
    before, after, _, newer = answers("olmo3, rope_parameters")
    assert list(before["layers"]) == ["full_attention"]  # one table for all layers
    np.testing.assert_allclose(table(before), 10000.0 ** (-np.arange(0, 32, 2) / 32), rtol=3e-6)
    assert table(after) != table(before)
    assert newer == "5.13.0"
    assert sentence("olmo3, rope_parameters", tmp_path) == (
        "transformers before 5.13 ignores rope keys nested by layer type, so every layer gets the unscaled table of base "
        "10000; use transformers 5.13 or later"
    )


def test_every_entry_is_recorded() -> None:
    recorded = {
        (entry["config"]["model_type"], list(entry["answers"])[1].rpartition(".")[0]) for entry in RECORD.values()
    }
    assert {(family, reading.before) for reading in OLDER for family in reading.families} == recorded


def test_a_family_without_an_entry_has_no_finding(tmp_path: Path) -> None:
    config = {**RECORD["deepseek_v2"]["config"], "model_type": "deepseek_v3"}
    model = write_config(tmp_path / "model", config)
    assert list(examine([str(model)], only=["older-release"]).findings) == []
