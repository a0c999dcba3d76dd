"""Our SGLang decoders against SGLang's own classes: recorded answers always, a live release where it is at hand."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest

from ropetool.runtimes import sglang

# The tables of these end before the context does, and releases go on differently there.
UNKNOWN = {"llama-outer-length", "llama-short-reach"}


@pytest.mark.parametrize("version", peers.RELEASES["sglang"])
def test_recorded_answers(version: str) -> None:
    found = peers.compared("sglang", version, peers.golden("sglang", version))
    assert {name for name, reasons in found.items() if reasons == ["not known"]} == UNKNOWN
    assert {name: reasons for name, reasons in found.items() if name not in UNKNOWN} == {}


@pytest.mark.parametrize("version", peers.RELEASES["sglang"])
def test_a_release_at_hand(version: str, tmp_path: Path) -> None:
    found = peers.compared("sglang", version, peers.asked_live("sglang", version, tmp_path))
    assert {name: reasons for name, reasons in found.items() if name not in UNKNOWN} == {}


def test_every_cell_is_asked_of_a_real_class() -> None:
    newest = peers.golden("sglang", "0.5.23")
    stopped = {name.rpartition("-")[0] for name, answer in newest.items() if "error" in answer}
    assert stopped == {
        "llama-linear-whole", "qwen3-linear-whole", "llama-yarn-beta-0", "qwen3-yarn-beta-0", "mixtral-longrope-alike",
    }  # fmt: skip


DEFECTS = {
    "mscale read before 0.5.16": ("0.5.15", "llama-yarn-mscales-v4", {"WITH_MSCALE": (0, 5)}),
    "mscale not read since 0.5.16": ("0.5.23", "llama-yarn-mscales-v4", {"WITH_MSCALE": (9,)}),
    "mixtral keeps its scaling": ("0.5.23", "mixtral-linear-v4", {"mixtral.scaling": True}),
    "mistral slides": ("0.5.23", "mistral-window", {"mistral.window": True}),
    "DeepSeek run as a plain family": ("0.5.23", "deepseek_v3-yarn-mscales-v4", {"deepseek_v3.formula": ""}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version, name, changes = DEFECTS[defect]
    answers = {name: peers.golden("sglang", version)[name]}
    assert peers.compared("sglang", version, answers) == {}
    peers.plant(monkeypatch, sglang, changes)
    assert peers.compared("sglang", version, answers) != {}


def test_an_attention_factor_that_is_honoured_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "llama-yarn-attention-1-v4"
    answers = {name: peers.golden("sglang", "0.5.23")[name]}
    assert peers.compared("sglang", "0.5.23", answers) == {}
    monkeypatch.setattr(sglang, "_yarn_attention_factor", lambda keys, factor, first: keys["attention_factor"])
    assert peers.compared("sglang", "0.5.23", answers) != {}
