"""`Try:` lines of extend: they keep the options of the user, agree with advise, and every one of them plans."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from models import write_config, write_model
from running import Done, run

from ropetool.escaping import words

pytestmark = pytest.mark.usefixtures("here")

MODELS: dict[str, Any] = json.loads(
    Path(__file__).parents[1].joinpath("corpus_models.json").read_text(encoding="utf-8")
)
CONFIGS = {name: model["config"] for name, model in MODELS.items() if name.startswith("export/") and "config" in model}
REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere")) / "configs"
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "intermediate_size": 64,
}
LLAMA = {"model_type": "llama", **SIZES, "max_position_embeddings": 4096, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
SCALED = LLAMA | {"max_position_embeddings": 16384, "rope_scaling": YARN}
INTERNLM2 = {**LLAMA, "model_type": "internlm2", "rope_theta": 1000000, "max_position_embeddings": 32768}
ASKED = (
    "--method yarn --factor 4 --for mlx-lm", "--method llama3 --factor 4 --for llama.cpp --for transformers",
    "--method ntk-by-parts -p truncate false --factor 8 --for vllm --for llama.cpp", "--factor 16 --for exllamav3",
    "--method mixed-ntk --target-length 2M --config-style v4", "--method dynamic --factor 2 --for vllm",
)  # fmt: skip


def next_step(done: Done) -> str:
    return next((line[5:] for line in done.err.splitlines() if line.startswith("Try: ")), "")


def check_every_try_plans(config: dict[str, Any]) -> None:
    write_config(Path("model"), config)
    for asked in ASKED:
        done = run("extend", "model", *asked.split(), "-o", "out put", "--dry-run")
        line = next_step(done)
        if done.code and line.startswith("ropetool extend"):
            again = run(*words(line)[1:])
            assert again.code == 0, (asked, line, again.err)
            assert "output    " in again.out
            assert {"out put", "--dry-run"} <= {*words(line)}
            assert {"-o", "--output"} & {*words(line)}


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_try_of_a_family_plans(name: str) -> None:
    check_every_try_plans(CONFIGS[name])


@pytest.mark.skipif(not REAL.is_dir(), reason="needs published configs below ROPETOOL_REAL_FILES")
@pytest.mark.parametrize("name", sorted(path.stem for path in REAL.glob("*.json")))
def test_every_try_of_a_published_config_plans(name: str) -> None:
    check_every_try_plans(json.loads((REAL / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("asked", "reading"),
    [("--target-length 32k", "original"), ("--factor 16", "original"), ("--factor 2", "current")],
)
def test_a_scaled_source_gets_the_way_that_advise_names(asked: str, reading: str) -> None:
    """From the original table if that leads beyond the present context, and with all options of the user."""
    write_model(Path("model"), SCALED)
    runtime = "transformers" if reading == "current" else "vllm"  # no file holds YaRN on YaRN for vLLM
    kept = ("--beta-fast", "16", "--for", runtime, "--no-sidecars", "-o", "out", "--json", "--dry-run")
    line = next_step(run("extend", "model", "--method", "yarn", *asked.split(), *kept))
    assert f" --from {reading} " in line
    assert [*words(line)].count(runtime) == 1
    for option in ("--beta-fast 16", f"--for {runtime}", "--no-sidecars", "--output out", "--json", "--dry-run"):
        assert option in line
    assert run(*words(line)[1:]).json["plan"]["params"] == {"beta_fast": 16.0}
    if asked == "--target-length 32k":
        assert " --from original" in run("advise", "model", "--target-length", "32k", "--json").json["command"]


def test_a_refusal_names_the_ignored_key_and_the_longest_context_and_details_on_request() -> None:
    write_config(Path("model"), CONFIGS["export/starcoder2"])
    done = run("extend", "model", "--method", "yarn", "--factor", "4", "--for", "mlx-lm", "--dry-run")
    error = done.err.splitlines()[0]
    assert (
        "yarn cannot be written in v4 style for mlx-lm: mlx-lm@0.30.7 ignores rope_scaling; the longest context "
        in error
    )
    assert "--for mlx-lm" in next_step(done)
    assert len(error) < 250
    told = run("extend", "model", "--method", "yarn", "--factor", "4", "--for", "mlx-lm", "--dry-run", "--explain")
    assert "yarn keys in full" in told.err
    assert "with the rest in the weights" in told.err


def test_advise_gives_one_reason_and_all_on_request() -> None:
    write_config(Path("model"), INTERNLM2)
    said = run("advise", "model", "--target-length", "131072").out
    assert "a full table as longrope lists" not in said
    assert "for transformers: stops with ValueError: rope_scaling must have only the keys type and factor" in said
    assert "a full table as longrope lists" in run("advise", "model", "--target-length", "131072", "--explain").out


@pytest.mark.parametrize(
    "asked", ["extend m.gguf --factor 4 --for vllm", "advise m.gguf --target-length 4096 --for vllm"]
)
def test_a_runtime_that_reads_no_gguf_file_needs_an_import(asked: str) -> None:
    gguf_files.model(Path("m.gguf"))
    done = run(*asked.split())
    assert done.code == 2
    assert done.err.splitlines() == [
        "Error: --for vllm: vllm does not read GGUF files; it reads the Hugging Face checkpoint that `ropetool import` writes",
        "Try: ropetool import m.gguf -o m, and extend m",
    ]


def test_a_forced_line_stays_a_line_where_options_end() -> None:
    write_model(Path("model"), LLAMA)
    line = next_step(run("extend", "--method", "yarn", "--factor", "64", "--dry-run", "--", "model"))
    assert line == "ropetool extend --method yarn --factor 64 --dry-run --force-factor -- model"
    assert run(*words(line)[1:]).code == 0


@pytest.mark.parametrize(
    ("factor", "reading", "forced"), [("2", "original", False), ("8", "original", False), ("64", "original", True)]
)
def test_a_try_is_forced_only_where_both_readings_are_too_far(factor: str, reading: str, forced: bool) -> None:
    """An output of ropetool was trained at the length of its source: eight times on top of eight are 64 times that."""
    write_model(Path("model"), LLAMA)
    assert run("extend", "model", "--method", "yarn", "--factor", "8", "-o", "longer").code == 0
    line = next_step(run("extend", "longer", "--method", "yarn", "--factor", factor, "--dry-run"))
    assert (f"--from {reading}" in line, "--force-factor" in line) == (True, forced)
    assert run(*words(line)[1:]).code == 0
