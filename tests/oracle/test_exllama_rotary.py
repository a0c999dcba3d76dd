"""Our decoder of exllamav3 against its own config and RoPE classes: recorded answers always, live ones where at hand.

The classes run on a CPU; what needs a compiled kernel is a stand-in. How layers slide is not asked of them: what the
decoder says of windows stands on the architecture files of the release.
"""

from __future__ import annotations

from pathlib import Path

import peers
import pytest

from ropetool.runtimes import exllamav3

(VERSION,) = peers.RELEASES["exllamav3"]
UNKNOWN = {"qwen2_moe", "granite", "starcoder2", "olmo2"}


def test_recorded_answers() -> None:
    found = peers.compared("exllamav3", VERSION, peers.golden("exllamav3", VERSION))
    assert {peers.family(name) for name, reasons in found.items() if reasons == ["not known"]} == UNKNOWN
    assert {name: reasons for name, reasons in found.items() if reasons != ["not known"]} == {}


def test_a_release_at_hand(tmp_path: Path) -> None:
    found = peers.compared("exllamav3", VERSION, peers.asked_live("exllamav3", VERSION, tmp_path))
    assert {name: reasons for name, reasons in found.items() if reasons != ["not known"]} == {}


def test_every_cell_is_asked_of_a_real_class() -> None:
    """No config is compared by way of errors alone, but for those that stop for a reason that is named here."""
    stopped = {name for name, answer in peers.golden("exllamav3", VERSION).items() if "error" in answer}
    absent = {name for name in stopped if peers.family(name) in {*UNKNOWN, "deepseek_v2"}}
    assert {name.rpartition("-v")[0].partition("-")[2] for name in stopped - absent} == {"dynamic", "yarn-beta-0"}


DEFECTS = {
    "interleaved where the config says half": ("deepseek_v3-half", {"deepseek_v3.layout": "half"}),
    "the local base of gemma3 read": ("gemma3_text-yarn-v4", {"gemma3_text.local_base": 5000.0}),
    "the base of gemma3 in v5 style read": ("gemma3_text-yarn-v5", {"gemma3_text.base": 10000.0}),
    "cohere pairs halves": ("cohere-default", {"cohere.layout": "half"}),
    "yarn without a factor on cos and sin": ("llama-yarn-v4", {"mscale_of": lambda *_: 1.0}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes = DEFECTS[defect]
    answers = {name: peers.golden("exllamav3", VERSION)[name]}
    assert peers.compared("exllamav3", VERSION, answers) == {}
    peers.plant(monkeypatch, exllamav3, changes)
    assert peers.compared("exllamav3", VERSION, answers) != {}
