"""The reports for the maintainers of engines: complete, short, and with the values of the golden files."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "tests/baking")]

from conformance_kit import cases, page, reports  # noqa: E402

ENGINES = sorted({fault["engine"] for fault in page.faults()})
GOLDEN = {
    "context": 2048,
    "prompts": [{"length": 3, "tokens": [65, 66]}, {"length": 5, "tokens": [67, 68]}],
    "tables": [
        {"name": "right", "next": [[-1.0, -20.0], [-3.0, -0.5]]},
        {"name": "scaling dropped", "next": [[-1.01, -10.0], [-7.25, -0.5]]},
    ],
}
MEASURED = {"level": 1, "nearest": "scaling dropped", "largest": 4.2, "mean": 0.7, "said": "scaling dropped"}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A folder with the files of one case that a report reads."""
    for name in ("golden", "hf/cohere-linear", "gguf"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "golden" / "cohere-linear.json").write_text(json.dumps(GOLDEN))
    config = {"model_type": "cohere", "rope_theta": 10000.0, "rope_scaling": {"factor": 4.0}, "hidden_size": 64}
    (tmp_path / "hf" / "cohere-linear" / "config.json").write_text(json.dumps(config))
    for name in ("hf/cohere-linear/model.safetensors", "gguf/cohere-linear.gguf"):
        (tmp_path / name).write_bytes(b"0" * 143_600)
    return tmp_path


def report(kit: Path, engine: str, **measured: Any) -> str:
    fault = {
        "engine": engine, "cases": ["cohere-linear", "stablelm-partial"], "file": "models/cohere.py", "line": 67,
        "code": "nn.RoPE(", "title": "Cohere ignores rope_scaling", "does": "does not read `rope_scaling`",
    }  # fmt: skip
    scored = {
        "engine": "an engine", "release": "1.2", "versions": {"torch": "2"}, "kit": cases.VERSION,
        "cases": {"cohere-linear": {**MEASURED, **measured}},
    }  # fmt: skip
    return reports.report(fault, scored, kit)


def test_a_report_has_what_a_maintainer_needs(kit: Path) -> None:
    text = report(kit, "mlx-lm float32")
    assert text.startswith(
        "# Cohere ignores rope_scaling\n\nRepository: ml-explore/mlx-lm. Version: an engine 1.2 (torch 2), "
    )
    assert "`models/cohere.py:67` does not read `rope_scaling`:\n\n```\nnn.RoPE(\n```" in text
    assert "The same line is at fault in `stablelm-partial`." in text
    assert '`model_type` cohere and `{"rope_theta": 10000.0, "rope_scaling": {"factor": 4.0}}`' in text
    assert "random weights, and 144 kB." in text
    assert "## Expected\n\n-3.0000, the log probability of token 67 after 5 tokens." in text
    assert '## Actual\n\n-7.2500. This is the value of the mistake "scaling dropped"' in text


def test_the_token_of_a_report_is_among_those_that_the_engine_returns() -> None:
    """A token that only the right table makes likely is not among the likeliest of an engine with the wrong one."""
    right = [-0.1, *[-5.0 - i for i in range(7)]]
    wrong = [-20.0, -4.0, -4.1, -2.0, -4.3, -4.4, -9.0, -9.0]
    tables = [{"name": "right", "next": [right]}, {"name": "other", "next": [wrong]}]
    golden = {"prompts": [{"length": 9, "tokens": [*range(8)]}], "tables": tables}
    assert reports.furthest(golden, "other") == (0, 9, 3, -7.0, -2.0)
    assert reports.furthest(golden, None) == (0, 9, 4, -8.0, None)


@pytest.mark.parametrize(
    ("measured", "actual"),
    [
        ({"level": 0, "nearest": None, "said": "KeyError: 'yarn'"}, "No valid answer: `KeyError: 'yarn'`"),
        ({"nearest": None}, "No such value: the answers are off by up to 4.2 nats, and by 0.7 on average."),
        (
            {"level": 2, "nearest": "right"},
            "No such value: the answers are off by up to 4.2 nats, and by 0.7 on average.",
        ),
    ],
)
def test_a_report_without_a_wrong_table_shows_the_error(kit: Path, measured: dict[str, Any], actual: str) -> None:
    text = report(kit, "mlx-lm float32", **measured)
    assert f"## Actual\n\n{actual}\n" in text
    assert "-3.0000, the log probability of token 67 after 5 tokens." in text


@pytest.mark.parametrize("engine", reports.UPSTREAM)
def test_a_reproduction_is_a_program_of_ten_lines(kit: Path, engine: str) -> None:
    match = re.search(r"```python\n(.*?)\n```", report(kit, engine), re.DOTALL)
    assert match is not None
    program = match[1]
    ast.parse(program)
    assert len(program.splitlines()) <= reports.LINES
    assert "cohere-linear" in program
    assert "{" not in re.sub(r"\{\"prompt_token_ids\": ids\}", "", program)


def test_every_engine_with_faults_has_an_upstream_or_is_an_old_release() -> None:
    assert {*ENGINES} - {*reports.UPSTREAM} == {"transformers-4.57 float32"}


@pytest.mark.parametrize("fault", page.faults(), ids=lambda one: f"{one['engine']}, {one['cases'][0]}")
def test_a_title_names_the_fault_in_one_line(fault: dict[str, Any]) -> None:
    assert 20 <= len(fault["title"]) <= 110
    assert fault["title"][0].isupper() or fault["title"].startswith(("rope.", "yarn_", "gpt-oss"))
    assert not fault["title"].endswith(".")
