"""The commands that `inspect` ends with: each is planned without a refusal when it is run exactly as printed."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from models import write_config
from running import run

from ropetool import families

REAL = os.environ.get("ROPETOOL_REAL_FILES")
SIZES = {
    "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8,
    "intermediate_size": 64, "vocab_size": 128, "max_position_embeddings": 4096,
}  # fmt: skip
ALPHA = {
    "type": "dynamic",
    "factor": 1.0,
    "alpha": 1000.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
PARTICULAR: dict[str, dict[str, Any]] = {
    "hunyuan with alpha": {"model_type": "hunyuan_v1_dense", **SIZES, "head_dim": 128, "rope_scaling": ALPHA},
    "scaled llama": {"model_type": "llama", **SIZES, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "scaled llama4": {
        "model_type": "llama4_text", **SIZES, "max_position_embeddings": 10485760,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip
# Types of which a config of sizes alone has no command, and what is said instead.
WITHOUT = {
    "gpt_oss": "refused: ropetool does not know how transformers reads this config",
    "ministral3": "refused: ropetool does not know how transformers reads this config",
    "mistral4": "not known", "nemotron_h": "not known",
    "kimi_linear": "the config does not set layer_types, and there is no data on the types of 8 layers",
    # Of which only the sizes are described that are published.
    "baichuan": "only the 7B model, with 32 layers, rotates", "codeshell": "its code rotates only with the value rope",
    "xverse": "each release fixes the base in its code",
}  # fmt: skip


def proposed(source: Path) -> tuple[list[str], str]:
    """Return the commands that inspect proposes, and all that it says."""
    done = run("inspect", source)
    assert done.code == 0, done.err
    return re.findall(r"^ +(ropetool extend .*)$", done.out, re.MULTILINE), done.out + done.err


def assert_planned(commands: list[str]) -> None:
    for line in commands:
        done = run(*shlex.split(line)[1:], "--dry-run")
        assert done.code == 0, f"{line}\n{done.err}"


@pytest.mark.skipif(REAL is None, reason="ROPETOOL_REAL_FILES names no folder with real configs")
def test_what_is_proposed_for_real_configs_is_planned(tmp_path: Path) -> None:
    files = sorted(Path(REAL or "").joinpath("configs").glob("*.json"))
    assert len(files) > 30
    for file in files:
        commands, text = proposed(write_config(tmp_path / file.stem, json.loads(file.read_text(encoding="utf-8"))))
        assert commands or "is not supported: " in text, file.stem
        assert_planned(commands)


@pytest.mark.parametrize("name", [n for n in families.names() if not families.get(n).text_path])
def test_what_is_proposed_for_a_config_of_sizes_is_planned(name: str, tmp_path: Path) -> None:
    commands, text = proposed(write_config(tmp_path / "model", {"model_type": name, **SIZES}))
    assert bool(commands) == (name not in WITHOUT)
    assert WITHOUT.get(name, "") in text
    assert_planned(commands)


@pytest.mark.parametrize("name", PARTICULAR)
def test_what_is_proposed_for_odd_scalings_is_planned(name: str, tmp_path: Path) -> None:
    commands, _ = proposed(write_config(tmp_path / "model", PARTICULAR[name]))
    assert commands
    assert len(set(commands)) == len(commands)
    assert_planned(commands)


def test_a_model_that_rotates_within_chunks_needs_no_other_table(tmp_path: Path) -> None:
    commands, text = proposed(write_config(tmp_path / "model", PARTICULAR["scaled llama4"]))
    assert [shlex.split(line)[3:] for line in commands] == [["--method", "length", "--target-length", "20971520"]]
    assert "only the configured context length limits it" in text


def test_another_method_is_named_as_such(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", {"model_type": "gemma4_text", **SIZES})
    commands, text = proposed(source)
    assert "4096 -> 8192; plain yarn is refused\n" in text
    assert "--method length" in commands[0]
    refused = run("extend", source, "--method", "yarn", "--target-length", "8192", "--dry-run")
    assert "no combination of RoPE keys produces this table from a table of rope type proportional" in refused.err


def test_a_single_layer_is_no_range_and_a_class_without_head_dim_no_empty_name(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", {"model_type": "llama", **SIZES, "num_hidden_layers": 1})
    assert "  layers            0; head_dim" in run("inspect", source).out
    assert "  head_dim            hidden_size / num_attention_heads\n" in run("families", "exaone").out
