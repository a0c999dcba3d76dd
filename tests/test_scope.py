"""How far methods without training go: what is said at which multiple of the trained length, and what has to be forced."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from gguf_files import model
from models import write_model
from running import run

import ropetool
from ropetool.plans.scope import MEASURED, extent

ROOT = Path(__file__).parents[1]
TRAINED = 2048
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 2, "vocab_size": 320, "max_position_embeddings": TRAINED, "rope_theta": 10000.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}  # fmt: skip
ONES, TWOS = json.dumps([1.0] * 32), json.dumps([2.0] * 32)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", CONFIG)
    write_model(tmp_path / "llama3", {**CONFIG, "max_position_embeddings": 8 * TRAINED, "rope_scaling": LLAMA3})
    model(tmp_path / "model.gguf")  # of 512 tokens


def suggested(err: str) -> list[str]:
    (line,) = (line for line in err.splitlines() if line.startswith("Try: "))
    return shlex.split(line)[2:]


def sentences(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("source", ["model", "model.gguf"])
@pytest.mark.parametrize("method", [["--method", "yarn"], []])
@pytest.mark.parametrize(
    ("factor", "costs", "doubtful"), [("3.9", 0, 0), ("4", 1, 0), ("8", 1, 0), ("8.5", 1, 1), ("32", 1, 1)]
)
def test_what_extend_says(source: str, method: list[str], factor: str, costs: bool, doubtful: bool) -> None:
    done = run("extend", source, *method, "--factor", factor, "-o", "output.gguf" if source != "model" else "output")
    assert done.code == 0, done.err
    assert ("Measured cost: SmolLM2 135M at 4 times has 1.08 times" in done.err) == bool(costs)
    assert ("expect a broken model" in done.err) == bool(doubtful)


@pytest.mark.parametrize("source", ["model", "model.gguf"])
@pytest.mark.parametrize(
    "options",
    [
        ["--method", "yarn", "--factor", "33"], ["--factor", "1000"], ["--method", "linear", "--target-length", "1M"],
        ["--method", "ntk", "--factor", "40", "--dry-run"], ["--method", "auto", "--factor", "64"],
    ],
)  # fmt: skip
def test_far_extensions_are_forced(source: str, options: list[str], tmp_path: Path) -> None:
    if source != "model" and "auto" in options:
        return
    before = sorted(tmp_path.rglob("*"))
    refused = run("extend", source, *options)
    assert refused.code == 1
    assert "beyond 32 times, no method works without training" in refused.err
    assert sorted(tmp_path.rglob("*")) == before
    line = suggested(refused.err)
    assert line == ["extend", source, *options, "--force-factor"]
    if "auto" not in options:
        done = run(*line)
        assert done.code == 0, done.err
        assert "expect a broken model" in done.err


@pytest.mark.parametrize(
    "options",
    [
        ["model", "--method", "abf", "--rope-theta", "1e8", "--factor", "64"],
        ["model", "--method", "length", "--factor", "64"],
        ["model", "--method", "longrope", "--factor", "64", "-p", "long_factor", TWOS, "-p", "short_factor", ONES],
        ["llama3", "--method", "yarn", "--from", "original", "--factor", "64"],
        ["llama3", "--method", "yarn", "--from", "current", "--factor", "8"],
    ],
)  # fmt: skip
def test_what_was_trained_for_it_is_not_refused(options: list[str]) -> None:
    done = run("extend", *options, "-o", "output")
    assert done.code == 0, done.err
    assert "expect a broken model" not in done.err


def test_a_scaled_source_is_counted_from_its_own_context() -> None:
    refused = run("extend", "llama3", "--method", "yarn", "--from", "current", "--factor", "33")
    assert "33 times the trained length" in refused.err


def test_an_extension_of_ours_is_not_training() -> None:
    """The model was trained for 2048 tokens, however far ropetool extended it before."""
    assert run("extend", "model", "--method", "yarn", "--factor", "8", "-o", "once").code == 0
    refused = run("extend", "once", "--method", "yarn", "--from", "current", "--factor", "5")
    assert "40 times the trained length" in refused.err


@pytest.mark.parametrize("source", ["model", "model.gguf"])
def test_advice_says_the_same(source: str) -> None:
    trained = TRAINED if source == "model" else 512
    near = run("advise", source, "--target-length", str(2 * trained))
    assert "Measured cost" not in near.out
    assert "necessary, but not sufficient" in sentences(near.out)
    doubtful = run("advise", source, "--target-length", str(16 * trained), "--json")
    said = json.loads(doubtful.out)
    assert "SmolLM2 135M at 4 times" in said["cost"][0]
    assert "our demo model at 8 times" in said["cost"][0]
    assert "expect a broken model" in said["cost"][1]
    assert run(*shlex.split(said["command"])[1:]).code == 0
    far = json.loads(run("advise", source, "--target-length", str(40 * trained), "--json").out)
    assert (far["command"], far["method"], far["cost"]) == (None, None, [])
    assert "beyond 32 times, no method works without training" in far["why"]
    for way in far["ways"]:
        assert way["command"].endswith(" --force-factor")
        output = f"far-{way['method']}" + (".gguf" if source != "model" else "")
        assert run(*shlex.split(way["command"])[1:], "-o", output).code == 0


def test_inspect_says_the_same() -> None:
    far = run("inspect", "model", "--target-length", str(40 * TRAINED))
    assert "beyond 32 times, no method works without training" in sentences(far.out)


@pytest.mark.parametrize(("source", "kept"), [("model", 2 * 2 * 2 * 64 * 2), ("model.gguf", None)])
def test_extend_ends_with_cache_and_verify(source: str, kept: int | None) -> None:
    """Bytes of a token: keys and values, two layers of two heads of 64 channels, of 16 bits."""
    output = "output.gguf" if source != "model" else "output"
    said = json.loads(run("extend", source, "--method", "yarn", "--factor", "4", "-o", output, "--json").out)
    trained = TRAINED if source == "model" else 512
    expected = ropetool.inspect(output).cache_bytes(4 * trained)
    assert said["kv_cache_bytes"] == expected > 0
    assert kept is None or expected == kept * 4 * trained
    assert said["verify"] == (f"ropetool verify {output}")
    shown = run("extend", source, "--method", "yarn", "--factor", "4", "-o", f"again-{output}").out.splitlines()
    assert shown[-2].split()[:2] == ["KV", "cache"]
    assert shown[-1].endswith(said["verify"].replace(output, f"again-{output}"))


def test_a_plan_file_carries_the_notes() -> None:
    assert (
        run("extend", "model", "--method", "yarn", "--factor", "16", "--dry-run", "--plan-out", "plan.json").code == 0
    )
    done = run("apply", "model", "plan.json", "-o", "output")
    assert done.code == 0
    assert "Measured cost" in done.err
    assert "expect a broken model" in done.err
    assert "measure it" in done.out


def test_the_library_is_not_asked_to_force(tmp_path: Path) -> None:
    assert ropetool.plan(tmp_path / "model", "yarn", factor=64).max_position_embeddings == 64 * TRAINED
    with pytest.raises(ropetool.errors.ConfigError, match="64 times the trained length"):
        ropetool.plan(tmp_path / "model", "yarn", factor=64, force_factor=False)


def test_the_measured_costs_are_those_of_the_pages() -> None:
    """The figures of SmolLM2 are recorded in docs/measurements.md, by method, factor and length."""
    rows = [
        line.split("|") for line in (ROOT / "docs" / "measurements.md").read_text().splitlines() if line.startswith("|")
    ]
    recorded = {row[2].strip(): row[3:5] for row in rows if row[1].strip() == "SmolLM2 135M Instruct"}
    (native,) = (row for row in rows if row[1].strip() == "yarn 4x native-short")
    assert [cell.split(" tokens")[0].strip() for cell in native[3:5]] == ["+0.0 %, 2,048", "+49 %, 32,768"]
    assert "1.00 times the perplexity at 2,048 tokens and 1.49 times at 32,768" in MEASURED["yarn-native-short"][0][1]
    for method, texts in MEASURED.items():
        if method == "yarn-native-short":
            continue
        short, long = (figure.split()[0] for figure in recorded[f"{method} x4"])
        assert [figure.split()[-1] for figure in recorded[f"{method} x4"]] == ["2,048", "32,768"]
        assert f"has {float(short):.2f} times the perplexity at 2,048 tokens and {float(long):.2f} times" in texts[0][1]


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        (("yarn", 4096, 1024, None), 4), (("yarn", 4096, 1024, 2048), 2), (("yarn", 4096, None, None), 0),
        (("abf", 4096, 1024, None), 0), (("yarn", 10**9, 2, None), 5e8), (("dynamic", 4096, None, 1024), 4),
    ],
)  # fmt: skip
def test_extents(arguments: tuple[Any, ...], times: float) -> None:
    found = extent(*arguments)
    assert found.times == times
    assert found.refused == (times > 32)
