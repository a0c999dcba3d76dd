"""SGLang's decoder for families without facts by hand, against the classes of three releases: recorded, and live where at hand."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest
import sglang_families as asked

from ropetool.runtimes import engine_formulas


@pytest.mark.parametrize("version", peers.RELEASES["sglang"])
def test_recorded_answers(version: str) -> None:
    answers = asked.golden(version)
    assert asked.compared(version, answers) == {}
    stopped = {name for name, answer in answers.items() if "error" in answer}
    assert stopped == {"ernie4_5_moe-longrope-alike"}


@pytest.mark.parametrize("version", peers.RELEASES["sglang"])
def test_a_release_at_hand(version: str, tmp_path: Path) -> None:
    folder = peers.source("sglang", version)
    if folder is None:
        pytest.skip(f"ROPETOOL_PEERS has no sglang-{version}")
    jobs = asked.jobs()
    answers = dict(zip(jobs, peers.probe("sglang", folder, list(jobs.values()), tmp_path), strict=True))
    assert asked.compared(version, answers) == {}


@pytest.mark.parametrize(
    ("architecture", "facts", "seen"),
    [
        ("GemmaForCausalLM", {}, "gemma-yarn"),
        ("AfmoeForCausalLM", {}, "afmoe-default"),
        ("OlmoeForCausalLM", {"scaling": False}, "olmoe-linear"),
    ],
)
def test_a_wrong_fact_is_seen(
    architecture: str, facts: dict[str, bool], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = engine_formulas.scanned("sglang")
    monkeypatch.setitem(known, architecture, {**known[architecture], "facts": facts})
    assert seen in asked.compared("0.5.23", asked.golden("0.5.23"))
