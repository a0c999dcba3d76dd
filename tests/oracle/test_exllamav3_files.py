"""Our decoder of exllamav3 against whole models of every architecture that its files describe: recorded answers always.

Live ones where ROPETOOL_PEERS has its source. The real classes read the config and build the model, layer by layer; the
cases are others than those that the facts were found by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx_cases
import peers
import pytest

from ropetool.families import engines

PROGRAM = "exllamav3"
PROBE = Path(__file__).with_name("exllama_models_probe.py")
FILES = engines.files(PROGRAM)
TYPES = list(mlx_cases.recorded(PROGRAM)["types"])
# What is not decoded, each with a reason of its own that the file names; what rotates nothing needs no facts.
ODD = {"deepseek_v4", "muse_glimmer of muse_glimmer_text", "qwen4_exp of qwen4_exp_text", "step3p7 of step3p5"}
STILL = {"glm5_next", "nemotron_h"}


def of(name: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {case: pair for case, pair in mlx_cases.cases(PROGRAM).items() if mlx_cases.type_of(case) == name}


@pytest.mark.parametrize("name", TYPES)
def test_recorded_answers(name: str) -> None:
    cases = of(name)
    assert len(cases) == len(mlx_cases.asked(PROGRAM))
    assert {case: reasons for case, pair in cases.items() if (reasons := mlx_cases.differences(PROGRAM, *pair))} == {}
    assert "layers" in cases[f"{name} plain v4"][1] or "layers" in cases[f"{name} plain v5"][1]


def test_every_architecture_has_answers_or_a_reason() -> None:
    assert {name for name, one in FILES.items() if "odd" in one} == ODD
    assert {name for name, one in FILES.items() if "odd" not in one and "layout" not in one} == STILL
    assert set(TYPES) == set(FILES) - ODD - STILL


def first(name: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    return name, changes


DEFECTS = {
    "qwen3_5 pairs neighbours": first("qwen3_5 of qwen3_5_text", layout="interleaved"),
    "lfm2 has the usual base": first("lfm2", base=10000.0),
    "afmoe sees as many tokens as the config says": first("afmoe", wider_window=False),
    "laguna looks at the top alone": first("laguna", nested=""),
    "gemma4 takes scaling": first("gemma4 of gemma4_text", nested="beside"),
    "shieldgemma2 slides with the base of the others": first("shieldgemma2 of gemma3_text", local_base=None),
    "glm4_moe_lite counts mscales as DeepSeek has them": first("glm4_moe_lite", mscales=True),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes = DEFECTS[defect]
    real = engines.model_file

    def planted(*asked: Any) -> Any:
        facts = real(*asked)
        return replace(facts, **changes) if facts is not None else None

    monkeypatch.setattr(engines, "model_file", planted)
    assert any(mlx_cases.differences(PROGRAM, *pair) for pair in of(name).values())


def test_a_key_that_must_be_zero_stops_it() -> None:
    config, _ = of("gemma4 of gemma4_text")["gemma4 of gemma4_text plain v5"]
    config = {**config, "text_config": {**config["text_config"], "hidden_size_per_layer_input": 256}}
    assert mlx_cases.decoded(PROGRAM, config) == (
        "refuses: NotImplementedError: gemma4 does not support hidden_size_per_layer_input 256"
    )
    assert "per-layer inputs" in live([config])[0]["error"]


def live(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of the source at hand; skips the test without one."""
    source = peers.source(PROGRAM, peers.RELEASES[PROGRAM][0])
    if source is None:
        pytest.skip("ROPETOOL_PEERS has no source of exllamav3")
    done = subprocess.run(
        [sys.executable, str(PROBE), str(source)],
        input="".join(json.dumps(config) + "\n" for config in configs),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_source_at_hand() -> None:
    cases = mlx_cases.cases(PROGRAM)
    answers = live([config for config, _ in cases.values()])
    assert len(answers) == len(cases)
    for (case, (_, recorded)), answer in zip(cases.items(), answers, strict=True):
        assert ("layers" in answer) == ("layers" in recorded), case
        for ours, theirs in zip(recorded.get("layers", []), answer.get("layers", []), strict=True):
            assert ours.get("inv_freq", []) == pytest.approx(theirs.get("inv_freq", []), rel=1e-5, abs=1e-6), case
            assert ours["window"] == theirs["window"], case
            assert ours.get("layout") == theirs.get("layout"), case


def test_the_record_is_of_the_source_at_hand() -> None:
    live([])
    import exllama_models_probe as probe

    source = peers.source(PROGRAM, peers.RELEASES[PROGRAM][0])
    assert mlx_cases.recorded(PROGRAM)["made_with"] == probe.fingerprint(source)
