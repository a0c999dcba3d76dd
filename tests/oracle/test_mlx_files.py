"""Our decoders of mlx-lm and mlx-vlm against small real models of every type that they have: recorded answers always.

Live ones where ROPETOOL_ENGINE_MLX names a Python with both. The answers are of cases that the facts were not found by: the base
is another one, and what stands beside it too.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx_cases
import pytest

from ropetool import families
from ropetool.families import engines
from ropetool.runtimes import mlx_files, mlx_lm, mlx_vlm
from ropetool.runtimes.mlx_files import MlxFile

PROGRAMS = {"mlx-lm": mlx_lm, "mlx-vlm": mlx_vlm}
PROBE = Path(__file__).with_name("mlx_engine_probe.py")
# What these take without rope_parameters is not known.
ONE_STYLE = {
    ("mlx-vlm", name) for name in ("qwen3_5 of qwen3_5_text", "qwen3_5_moe of qwen3_5_moe_text", "qwen3_5_text")
}
TYPES = [(program, name) for program in PROGRAMS for name in mlx_cases.recorded(program)["types"]]


def of(program: str, name: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {case: pair for case, pair in mlx_cases.cases(program).items() if mlx_cases.type_of(case) == name}


@pytest.mark.parametrize(("program", "name"), TYPES)
def test_recorded_answers(program: str, name: str) -> None:
    found = {case: mlx_cases.differences(program, *pair) for case, pair in of(program, name).items()}
    assert len(found) == len(mlx_cases.CASES)
    unexplained = {case: reasons for case, reasons in found.items() if reasons and "not known" not in reasons[0]}
    assert unexplained == {}
    assert len([case for case, reasons in found.items() if not reasons]) >= (3 if (program, name) in ONE_STYLE else 4)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_recorded_is_read_by_the_facts(program: str) -> None:
    decoded = {name for name, one in engines.files(program).items() if "readings" in one}
    recorded = set(mlx_cases.recorded(program)["types"])
    assert recorded <= decoded
    assert len(recorded) >= 10


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_answers_are_of_models_that_run(program: str) -> None:
    """A type whose real model stops in every case would be compared by way of errors alone."""
    for name in mlx_cases.recorded(program)["types"]:
        answers = [answer for _, answer in of(program, name).values()]
        assert any("layers" in answer for answer in answers), name


def first_place(facts: MlxFile, **changes: Any) -> MlxFile:
    reading = facts.readings["full_attention"]
    return replace(facts, readings={**facts.readings, "full_attention": replace(reading, **changes)})


DEFECTS: dict[str, tuple[str, str, Any]] = {
    "mlx-lm keeps the scaling of helium": (
        "mlx-lm", "helium", lambda facts: first_place(facts, places={"rope_scaling": {"linear": "scales", "yarn": "scales"}}),
    ),
    "mlx-vlm takes the scaling of gemma": (
        "mlx-vlm", "gemma", lambda facts: first_place(facts, places={"rope_scaling": {"linear": "scales", "yarn": "scales"}}),
    ),
    "mlx-vlm looks for the base of llama in rope_parameters": (
        "mlx-vlm", "llama", lambda facts: first_place(facts, bases=("rope_parameters.rope_theta", "rope_theta")),
    ),
    "mlx-vlm pairs halves in cohere": ("mlx-vlm", "cohere", lambda facts: replace(facts, layout="half")),
    "mlx-vlm rotates half of llama's heads": ("mlx-vlm", "llama", lambda facts: replace(facts, share=0.5)),
    "mlx-vlm's olmo3 looks back all the way": ("mlx-vlm", "olmo3", lambda facts: replace(facts, window=False)),
    "mlx-vlm's llava takes linear without `type`": (
        "mlx-vlm", "llava of llama", lambda facts: first_place(facts, places={"rope_scaling": {"linear": "scales"}}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, name, change = DEFECTS[defect]
    cases = of(program, name)
    before = [reasons for pair in cases.values() for reasons in mlx_cases.differences(program, *pair)]
    real = engines.model_file

    def planted(*asked: Any) -> Any:
        facts = real(*asked)
        return change(facts) if facts is not None else None

    monkeypatch.setattr(engines, "model_file", planted)
    after = [reasons for pair in cases.values() for reasons in mlx_cases.differences(program, *pair)]
    assert [one for one in after if "not known" not in one] != [one for one in before if "not known" not in one]


def test_a_type_without_a_model_is_named_so() -> None:
    """`not known` is for what a program lacks, and says that."""
    config = {"model_type": "falcon", **families.get("falcon").default_sizes}
    for program in PROGRAMS:
        assert mlx_cases.decoded(program, config) == f"not known: {program} has no model file for falcon"


def test_a_type_that_another_file_runs_is_decoded_as_that_file() -> None:
    """mlx-lm runs kimi_k2 by its deepseek_v3, which it has been asked as."""
    config = {**mlx_cases.recorded("mlx-vlm")["types"]["deepseek_v3"]["config"], "rope_theta": 30000.0}
    as_itself, as_other = (
        mlx_cases.decoded("mlx-lm", {**config, "model_type": name}) for name in ("kimi_k2", "deepseek_v3")
    )
    assert not isinstance(as_itself, str)
    assert not isinstance(as_other, str)
    assert as_itself.disagreement(as_other) == ""


def test_no_reason_shows_an_error_of_a_small_model() -> None:
    for program in PROGRAMS:
        reasons = {name: one["odd"] for name, one in engines.files(program).items() if "odd" in one}
        assert {name: reason for name, reason in reasons.items() if "Error: " in reason} == {}


def test_what_a_program_has_is_read_from_its_source() -> None:
    assert mlx_files.has_model("mlx-lm", "kimi_k2")
    assert mlx_files.has_model("mlx-lm", "xverse")
    assert not mlx_files.has_model("mlx-lm", "Yi")


@pytest.mark.parametrize("program", PROGRAMS)
def test_models_at_hand(program: str) -> None:
    python = os.environ.get("ROPETOOL_ENGINE_MLX", "")
    if not python:
        pytest.skip("ROPETOOL_ENGINE_MLX names no Python with mlx-lm and mlx-vlm")
    asked = [name for name in ("llama", "glm4_moe", "smollm3", "olmo2", "gemma") if (program, name) in TYPES]
    cases = {case: pair for name in asked for case, pair in of(program, name).items()}
    jobs = [{"program": program, "config": config, "lengths": [mlx_cases.LENGTH]} for config, _ in cases.values()]
    done = subprocess.run(
        [python, str(PROBE)],
        input="".join(json.dumps(job) + "\n" for job in jobs),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases)
    for (case, (_, recorded)), answer in zip(cases.items(), answers, strict=True):
        assert ("lengths" in answer) == ("layers" in recorded), case
        for ours, theirs in zip(
            recorded.get("layers", []), answer.get("lengths", {}).get(str(mlx_cases.LENGTH), []), strict=True
        ):
            assert ours.get("inv_freq", []) == pytest.approx(theirs.get("inv_freq", []), rel=1e-5, abs=1e-6), case
