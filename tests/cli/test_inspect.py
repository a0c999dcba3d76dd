"""`ropetool inspect` as a user sees it: the whole output for small checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_config, write_model
from running import run

pytestmark = pytest.mark.usefixtures("here")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def config(family: str, style: str = "v4", **changes: Any) -> dict[str, Any]:
    return {**configs.config(family, style), **changes}


LLAMA = """\
model: llama, family: llama

full_attention
  layers            0-1; head_dim 32, rotary_dim 32, half layout
  rope type         default, theta 10000
  trained length    512 tokens
  context length    512 tokens
  attention factor  1

  bands, turns counted in 512 tokens
    turns    pairs  at 4096 tokens
    over 32  2      every angle seen many times: any length is safe
    1 to 32  6      every angle seen
    under 1  8      8 pairs exceed the arc seen in training

KV cache, one sequence
  per token       1.00 KiB
  at 4096 tokens  4.00 MiB

runtimes
  as above  transformers, exllamav3, mlx-lm, mlx-vlm, sglang, transformers-v4, vllm, llama.cpp

to extend it to 4096 tokens
  yarn          reaches 4096 tokens
  llama3        reaches 4096 tokens
  ntk-by-parts  reaches 4096 tokens
  mixed-ntk     reaches 2185 tokens
  ntk           reaches 1552 tokens

advised
  ropetool extend model --method yarn --target-length 4096
    up to the target, every pair stays within its trained angles, and the fast pairs do not change (necessary, but not sufficient: \
this is true at any factor); too short: mixed-ntk 2185, ntk 1552 tokens.
    8 times the trained length. Measured cost: SmolLM2 135M at 4 times has 1.08 times the perplexity at 2,048 tokens and 1.16 times \
at 32,768 and our demo model at 8 times has 1.15 times the perplexity at 256 tokens and at 2,048, on texts like \
its training data. `ropetool verify` measures this model.
"""


def test_an_unscaled_model() -> None:
    write_model(Path("model"), config("llama"))
    done = run("inspect", "model", "--target-length", "4096")
    assert (done.code, done.err) == (0, "")
    assert done.out == LLAMA


GEMMA = """\
gemma: gemma3_text, family: gemma3_text

full_attention
  layers            4, 9; head_dim 32, rotary_dim 32, half layout
  rope type         linear, theta 10000, factor 4
  original length   not stored in the file
  context length    2048 tokens
  attention factor  1

  bands, turns counted in 2048 tokens
    turns    pairs  at 2048 tokens
    over 32  2      every angle passed many times: any length is safe
    1 to 32  6      every angle passed
    under 1  8      stays inside the arc of 2048 tokens

sliding_attention
  layers            0, 1, 2, 3, 5, 6, ... (8 layers); head_dim 32, rotary_dim 32, half layout
  rope type         default, theta 5000
  original length   not stored in the file
  context length    2048 tokens
  attention factor  1
  sliding window    64 tokens

  bands, turns counted in 64 tokens
    turns    pairs  at 64 tokens
    over 32  0      every angle passed many times: any length is safe
    1 to 32  5      every angle passed
    under 1  11     stays inside the arc of 64 tokens

KV cache, one sequence
  per token       5.00 KiB
  at 2048 tokens  2.25 MiB

runtimes
  as above   transformers, sglang, transformers-v4, vllm, llama.cpp
  DIFFERS    exllamav3
             - sliding_attention: table: 15 of 16 pairs differ: distances look up to 1.92x shorter
  DIFFERS    mlx-lm
             - full_attention: other layers, 1 instead of 2: they rotate with a different table
             - sliding_attention: other layers, 9 instead of 8: they rotate with a different table
  not known  mlx-vlm
             - no data on layer_types with a pattern other than the one of the model file

to extend it to 4096 tokens
  512 -> 4096, in place of the current scaling, if its original length is 512, which the file does not store
    ropetool extend gemma --method yarn --target-length 4096 --from original --original-length 512
  2048 -> 4096, on top of the current scaling
    ropetool extend gemma --method yarn --target-length 4096 --from current
"""


def test_layers_of_two_kinds() -> None:
    kinds = (["sliding_attention"] * 4 + ["full_attention"]) * 2
    linear = {"rope_type": "linear", "factor": 4.0}
    data = config(
        "gemma3_text", layer_types=kinds, num_hidden_layers=10, max_position_embeddings=2048, rope_scaling=linear
    )
    write_config(Path("gemma"), data)
    done = run("inspect", "gemma")
    assert done.out == GEMMA
    assert done.err == "Note: the folder has only config.json: commands that need weights will not work\n"


MLA = """\
  rope type         yarn, theta 10000, factor 4, original_max_position_embeddings 512, mscale 1.0, mscale_all_dim 1.0
  original length   512 tokens
  context length    2048 tokens
  attention factor  1
  softmax scale     multiplies the whole score by 1.29648
"""


def test_a_multiplier_of_the_whole_score() -> None:
    scaling = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
    write_config(Path("mla"), config("deepseek_v3", rope_scaling=scaling, max_position_embeddings=2048))
    assert MLA in run("inspect", "mla").out


def test_what_the_bands_ask_of_each_regime() -> None:
    """Two lists: the first serves up to 512 tokens, so 4096 concern the second alone."""
    lists = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
    scaling = {**YARN, "rope_type": "longrope", **lists}
    write_config(Path("lists"), config("llama", rope_scaling=scaling, max_position_embeddings=2048))
    out = run("inspect", "lists", "--target-length", "4096").out
    short, long = out.split("  bands ")[1:]
    assert short.startswith("up to 512 tokens, turns counted in 512 tokens\n    turns    pairs  at 512 tokens\n")
    assert "under 1  8      stays inside the arc of the unscaled table in 512 tokens\n" in short
    assert long.startswith("beyond 512 tokens, turns counted in 512 tokens\n    turns    pairs  at 4096 tokens\n")
    assert "under 1  10     8 pairs exceed the arc of the unscaled table in 512 tokens\n" in long
    assert "attention factor  1.10554 on cos and sin, so 1.22222 on scores\n" in out


def test_a_table_that_follows_the_length_is_judged_at_the_target() -> None:
    write_config(Path("dynamic"), config("llama", rope_scaling={"rope_type": "dynamic", "factor": 4.0}))
    out = run("inspect", "dynamic", "--target-length", "4096").out
    assert "dynamic, theta 10000, factor 4; the table depends on the text length\n" in out
    assert "under 1  8      2 pairs exceed the arc of the unscaled table in 512 tokens\n" in out


def test_runtimes_that_differ_or_stop() -> None:
    write_config(Path("v5"), config("llama", "v5", rope_parameters={**YARN, "rope_theta": 1e4}))
    out = run("inspect", "v5").out
    assert out.partition("\nruntimes\n")[2] == (
        "  as above  transformers, sglang, vllm 0.30 to 0.33\n"
        "  DIFFERS   exllamav3, mlx-lm, mlx-vlm, transformers-v4\n"
        "            - table: 14 of 16 pairs differ: distances look up to 4x longer\n"
        "            - attention factor 1 instead of 1.13863: scores of the rotated channels times 0.771321\n"
        "  DIFFERS   vllm 0.25 to 0.29, llama.cpp\n"
        "            - context 2048 instead of 512: accepts longer texts\n"
        "\nto extend it to 1024 tokens\n"
        "  512 -> 1024, in place of the current scaling\n"
        "    ropetool extend v5 --method yarn --target-length 1024 --from original\n"
        "  512 -> 1024, on top of the current scaling\n"
        "    ropetool extend v5 --method yarn --target-length 1024 --from current\n"
    )
    write_config(Path("odd"), config("llama", head_dim=31))
    assert run("inspect", "odd").out == (
        "odd: llama, family: llama\n\nas written\n  max_position_embeddings  512\n  rope_theta               "
        "10000.0\n  rope_scaling             null\n\nruntimes\n  refuses  transformers, exllamav3, mlx-lm, mlx-vlm, "
        "sglang, transformers-v4, vllm, llama.cpp\n           - head_dim is 31; it must be even and at least 2\n"
    )


UNKNOWN = """\
new: phi9, family: unknown

as written
  rope_theta              NaN
  rope_scaling            {"long_factor": [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, ...
  text_config.rotary_pct  0.25
"""


def test_an_unknown_family() -> None:
    data = {
        "model_type": "phi9", "rope_theta": float("nan"), "rope_scaling": {"long_factor": [1.5] * 40},
        "text_config": {"rotary_pct": 0.25},
    }  # fmt: skip
    write_config(Path("new"), data)
    done = run("inspect", "new")
    assert (done.code, done.out) == (0, UNKNOWN)
    reason = (
        'the family "phi9" is unknown (did you mean phi or phi3?): the keys are shown as written, not as runtimes read them. '
        "`ropetool families` lists the known families"
    )
    assert (
        done.err == f"Note: the folder has only config.json: commands that need weights will not work\nNote: {reason}\n"
    )
    printed = run("inspect", "new", "--json")
    assert (printed.json["family"], printed.err) == (None, "")


def test_a_config_that_says_nothing() -> None:
    write_config(Path("empty"), "{}")
    assert (
        run("inspect", "empty").out == "empty: no model_type, family: unknown\n\nas written\n  no position settings\n"
    )


def test_text_of_a_file_cannot_steer_the_terminal() -> None:
    write_config(Path("evil"), {"model_type": "\x1b[2J", "rope_\x1b]0;": "\x07"})
    done = run("inspect", "evil")
    assert "\x1b" not in done.out + done.err
    assert "\\x1b[2J" in done.out


@pytest.mark.parametrize("length", ["0", "-5", "2147483649", "many"])
def test_a_target_length_is_a_length(length: str) -> None:
    write_config(Path("model"), config("llama"))
    done = run("inspect", "model", "--target-length", length)
    assert done.code == 2
    assert "Invalid value for '--target-length'" in done.err


# --- what is known of the training, and what runtimes do


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip


def test_a_model_that_came_scaled_has_an_original_length_and_two_ways_on() -> None:
    """Llama 3.1 was trained further with its scaling: nothing in the file says what it has seen."""
    write_config(Path("model"), config("llama", rope_scaling=LLAMA3, max_position_embeddings=4096))
    out = run("inspect", "model").out
    assert "  original length   512 tokens\n" in out
    assert "trained" not in out
    assert "seen in training" not in out
    assert "stays inside the arc of the unscaled table in 512 tokens\n" in out
    steps = out.partition("\nto extend it to 8192 tokens\n")[2].splitlines()
    assert steps == [
        "  512 -> 8192, in place of the current scaling",
        "    ropetool extend model --method yarn --target-length 8192 --from original",
        "  4096 -> 8192, on top of the current scaling",
        "    ropetool extend model --method yarn --target-length 8192 --from current",
    ]
    for lengths, command in ((steps[0], steps[1]), (steps[2], steps[3])):  # each does what it says
        planned = run(*command.split()[1:], "--dry-run")
        assert planned.code == 0, planned.err
        assert f"lengths   original 512, new context {lengths.split()[2].strip(',')}\n" in planned.out
    inside = run("inspect", "model", "--target-length", "2048").out
    assert inside.endswith("    ropetool extend model --method yarn --target-length 2048 --from original\n")


def test_what_ropetool_extended_itself_is_known_to_be_trained_at_its_length() -> None:
    write_model(Path("model"), config("llama"))
    assert run("extend", "model", "--method", "yarn", "--factor", "4", "-o", "longer").code == 0
    out = run("inspect", "longer").out
    assert "  trained length    512 tokens\n" in out
    assert "stays inside the arc seen in training\n" in out
    assert "--from original\n" in out
    assert run("extend", "longer", "--method", "yarn", "--factor", "2", "--from", "current", "-o", "more").code == 0
    again = run("inspect", "more").out
    assert "  original length   512 tokens\n" in again
    assert "--from original" not in again  # its record says that the table before is not in this file


def test_a_table_that_follows_the_length_is_only_replaced() -> None:
    write_config(Path("model"), config("llama", rope_scaling={"rope_type": "dynamic", "factor": 4.0}))
    out = run("inspect", "model").out
    assert "--from original\n" in out
    assert "--from current" not in out


def test_only_a_runtime_that_stops_refuses() -> None:
    """llama.cpp runs a mistral with a window: it looks back over all of the context instead."""
    write_config(Path("windowed"), config("mistral", sliding_window=64))
    out = run("inspect", "windowed").out
    reason = "llama.cpp ignores the sliding window of 64 tokens and attends to the whole context of 512"
    assert f"  DIFFERS   llama.cpp\n            - {reason}\n" in out
    assert "refuses" not in out
    (differs,) = run("inspect", "windowed", "--json").json["runtimes"]["llama.cpp"].pop("differs")
    assert differs.startswith(reason)
    assert "refuses" not in json.dumps(run("inspect", "windowed", "--json").json["runtimes"])


def test_what_a_class_would_assume_is_not_known() -> None:
    data = {key: value for key, value in config("llama").items() if key != "hidden_size" and key != "head_dim"}
    write_config(Path("short"), data)
    out = run("inspect", "short").out
    assert "  not known  transformers" in out
    assert "refuses" not in out
    done = run("extend", "short", "--method", "yarn", "--factor", "2", "--dry-run")
    assert "ropetool does not know how transformers reads this config: the config sets neither head_dim nor" in done.err


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ({"model_type": "gpt2", "n_positions": 1024}, "gpt2"),
        ({**config("falcon"), "alibi": True}, "this falcon, with alibi on,"),
    ],
)
def test_a_model_without_rotary_positions(data: dict[str, Any], model: str) -> None:
    write_config(Path("model"), data)
    done = run("inspect", "model")
    assert done.code == 0
    assert f"Note: {model} has no rotary positions: there is nothing to extend; `ropetool families` lists" in done.err
    assert "to extend it" not in done.out
