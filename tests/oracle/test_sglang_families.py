"""SGLang's decoder for families without facts by hand, against the classes of three releases: recorded, and live where at hand."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest
import sglang_families as asked
from loading import script

from ropetool.runtimes import NotKnown, engine_formulas

engine_sources = script("engine_files/engine_sources.py")


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


@pytest.mark.parametrize("version", peers.RELEASES["sglang"])
def test_the_sources_name_what_a_wrapper_makes(version: str) -> None:
    folder = peers.source("sglang", version)
    if folder is None:
        pytest.skip(f"ROPETOOL_PEERS has no sglang-{version}")
    release = engine_sources.Release("sglang", version, folder)
    there = {name: made for name, made in engine_sources.SGLANG_WRAPPERS.items() if name in release.files}
    assert len(there) >= 15
    assert [name for name, (made, _) in there.items() if not release.names(name, made)] == []
    assert not release.names("Qwen2VLForConditionalGeneration", "LlamaForCausalLM")


def test_llama4_pairs_neighbours_inside_its_wrapper_alone() -> None:
    alone = asked.config("llama4_text", "yarn")
    inner = {**alone, "architectures": None}
    held = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "text_config": inner}
    found = [peers.decode("sglang@0.5.16", data).entries["full_attention"] for data in (alone, held)]
    assert [entry.layout for entry in found] == ["half", "interleaved"]
    assert all(entry.table is not None and entry.rope_theta == int(asked.THETA) for entry in found)


def test_a_wrapper_that_was_not_read_is_not_guessed() -> None:
    data = asked.config("qwen2_vl", "yarn")
    assert peers.decode("sglang", data).entries["full_attention"].factor == 4.0
    unnamed = {key: value for key, value in data.items() if key != "architectures"}
    for other in ({**data, "architectures": ["Qwen2OmniForConditionalGeneration"]}, unnamed):
        with pytest.raises(NotKnown, match="no data on qwen2_vl in SGLang"):
            peers.decode("sglang", other)


def test_sections_go_with_default_and_yarn_alone() -> None:
    for cell, known in (("default", True), ("yarn", True), ("linear", False)):
        data = asked.config("qwen2_vl", cell)
        keys = {**(data["text_config"]["rope_scaling"] or {"rope_type": "default"}), "mrope_section": [4, 6, 6]}
        data["text_config"]["rope_scaling"] = keys
        if known:
            assert peers.decode("sglang", data).entries["full_attention"].table is not None
        else:
            with pytest.raises(NotKnown, match="mrope_section"):
                peers.decode("sglang", data)


@pytest.mark.parametrize(
    ("architecture", "facts", "seen"),
    [
        ("GemmaForCausalLM", {}, "gemma-yarn"),
        ("AfmoeForCausalLM", {}, "afmoe-default"),
        ("OlmoeForCausalLM", {"scaling": False}, "olmoe-linear"),
        ("HYV3ForCausalLM", {}, "hy_v3-linear"),
        ("Llama4ForCausalLM", {"layout": "half"}, "llama4_text-default"),
        ("Llama4ForCausalLM", {"whole_base": True}, "llama4_text-default"),
        ("Gemma3nForCausalLM", {"window": True}, "gemma3n_text-default"),
        ("Glm4MoeLiteForCausalLM", {}, "glm4_moe_lite-linear"),
    ],
)
def test_a_wrong_fact_is_seen(
    architecture: str, facts: dict[str, bool], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = engine_formulas.scanned("sglang")
    monkeypatch.setitem(known, architecture, {**known[architecture], "facts": facts})
    assert seen in asked.compared("0.5.23", asked.golden("0.5.23"))
