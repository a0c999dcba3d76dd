"""What is advised: reach against angles counted one by one, published bounds, and a command that runs for every family."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import configs
import gguf_files
import numpy as np
import pytest
from models import write_config
from running import run

import ropetool
from ropetool.errors import ConfigError
from ropetool.escaping import words
from ropetool.plans.advice import advise, advised_method
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import Source
from ropetool.rope.methods import Goal, get
from ropetool.rope.reach import attention_holds, critical_dimension, least_base, reach
from ropetool.runtimes.inspection import inspect

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
MODELS: dict[str, Any] = json.loads(Path(__file__).with_name("corpus_models.json").read_text(encoding="utf-8"))
CONFIGS = {name: model["config"] for name, model in MODELS.items() if name.startswith("export/") and "config" in model}
LENGTH = 256


def seen(inv_freq: float, length: int) -> float:
    """Return the largest angle that a pair has been at within a length; all of them where it has turned once."""
    angle = inv_freq * length
    return math.inf if angle >= 2 * math.pi else angle


@pytest.mark.parametrize("method", ["linear", "ntk", "yarn", "llama3", "mixed-ntk", "abf"])
@pytest.mark.parametrize("base", [1e4, 5e5])
def test_reach_by_angles_counted_one_by_one(method: str, base: float) -> None:
    source = Source(base_inv_freq(base, 64), LENGTH, base)
    params = {"rope_theta": 8 * base} if method == "abf" else {}
    chosen = get(method)
    table = chosen.derive(source, Goal.make(LENGTH, 8, None), chosen.params(params)).table.at(8 * LENGTH).inv_freq
    found, _ = reach(source.inv_freq, table, LENGTH)
    inside = [
        n for n in range(1, 12 * LENGTH)
        if all(f * n <= seen(old, LENGTH) * (1 + 1e-12) for f, old in zip(table, source.inv_freq, strict=True))
    ]  # fmt: skip
    assert math.floor(found * (1 + 1e-12)) == inside[-1]
    assert (inside[-1] == 8 * LENGTH) == (method in ("linear", "yarn", "llama3"))


def test_a_table_of_pairs_that_turned_reaches_any_length() -> None:
    assert reach(np.array([1.0, 0.1]), np.array([1.0, 0.1]), 256) == (math.inf, -1)


def test_the_critical_dimension_as_published() -> None:
    assert critical_dimension(base_inv_freq(1e4, 128), 4096) == 92  # Llama 2, arXiv:2310.05209


@pytest.mark.parametrize(
    ("length", "published", "within"),
    [(1024, 4.3e3, 0.02), (4096, 2.7e4, 0.02), (8192, 8.4e4, 0.02), (32768, 6.4e5, 0.03)],
)
def test_the_least_base_as_published(length: int, published: float, within: float) -> None:
    found = least_base(128, length)  # arXiv:2405.14591, table 2
    assert found == pytest.approx(published, rel=within)
    sums = np.cos(np.outer(np.arange(1, length + 1), base_inv_freq(found, 128))).sum(axis=1)
    assert sums.min() >= 0
    smaller = np.cos(np.outer(np.arange(1, length + 1), base_inv_freq(0.7 * found, 128))).sum(axis=1)
    assert smaller.min() < 0


def test_the_docstring_of_the_least_base_has_its_values() -> None:
    told = re.findall(r"([0-9.]+e[0-9]) for ([0-9,]+)", least_base.__doc__ or "")
    assert len(told) == 2
    for base, length in told:
        assert float(base) == float(f"{least_base(128, int(length.replace(',', ''))):.1e}")


def test_how_far_attention_holds_by_a_sum_of_its_own() -> None:
    table = base_inv_freq(1e4, 32)
    first = next(m for m in range(1, 10**5) if math.fsum(math.cos(m * float(f)) for f in table) < 0)
    assert attention_holds(table, 10**5) == first - 1
    assert attention_holds(table, first - 1) == first - 1


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_gets_a_method_and_a_reason(name: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", CONFIGS[name])
    found = inspect(source)
    assert found.rope is not None
    target = 4 * found.rope.max_position_embeddings
    said = advise(found, target)
    if name == "export/gemma4_text":  # of a tiny size, whose pairs do not turn in training: only a base can be written
        assert said.chosen is None
        assert said.shorter is not None
        return
    assert said.chosen is not None, said.why
    assert said.chosen.method != "linear"
    plan = ropetool.plan(
        source, said.chosen.method, target_length=target, reading=said.chosen.proposal.step.reading or None
    )
    assert plan.target.max_position_embeddings >= target or said.chosen.method == "dynamic"
    assert said.why


def test_what_is_advised_is_what_extend_takes(tmp_path: Path) -> None:
    done = run("advise", str(DEMO), "--target-length", "2048", "--json")
    told = json.loads(done.out)
    assert (told["method"], told["command"]) == ("yarn", f"ropetool extend {DEMO} --method yarn --target-length 2048")
    assert {way["method"]: way["reach"] for way in told["ways"]}["ntk"] == 612
    extended = run("extend", str(DEMO), "--target-length", "2048", "-o", str(tmp_path / "out"))
    assert extended.code == 0
    assert f"Note: method yarn: {told['why']}" in " ".join(extended.err.split())
    named = run("extend", str(DEMO), "--target-length", "2048", "--method", "yarn", "-o", str(tmp_path / "named"))
    assert named.code == 0
    assert (tmp_path / "out" / "config.json").read_bytes() == (tmp_path / "named" / "config.json").read_bytes()


def test_of_two_ways_the_one_asked_for_is_looked_at(tmp_path: Path) -> None:
    run("extend", str(DEMO), "--factor", "2", "-o", str(tmp_path / "once"))
    two = advise(inspect(tmp_path / "once"), 4096)
    assert {way.proposal.step.reading for way in two.ways} == {"original", "current"}
    _, _, why = advised_method(tmp_path / "once", None, 4096, "original")
    assert why.count("ntk ") == 2  # ntk and mixed-ntk, once each
    assert "; too short: " in two.why
    assert all(" --from " in words for words in two.why.partition("; too short: ")[2].split(", "))


def test_a_factor_that_the_architecture_cannot_hold_is_left_out_by_extend_too(tmp_path: Path) -> None:
    """hunyuan-dense normalises queries and keys after the rotation: YaRN's factor on cos and sin is lost there."""
    gguf_files.model(tmp_path / "m.gguf", "hunyuan-dense")
    told = run("advise", str(tmp_path / "m.gguf"), "--target-length", "2048", "--json").json
    assert told["command"].endswith("--method yarn --target-length 2048 --attention-factor none")
    assert told["readers"] == ["llama.cpp"]
    bare = run("extend", str(tmp_path / "m.gguf"), "--target-length", "2048", "--dry-run")
    named = run(*words(told["command"])[1:], "--dry-run")
    assert (bare.code, bare.out) == (0, named.out)
    assert "Note: method yarn, --attention-factor none: " in " ".join(bare.err.split())


def test_a_base_that_the_graph_fixes_leads_nowhere(tmp_path: Path) -> None:
    gguf_files.model(tmp_path / "m.gguf", "cogvlm")
    said = advise(inspect(tmp_path / "m.gguf"), 2048)
    assert said.chosen is None
    assert "ignores the base in the file; too short: length 512 tokens" in said.why
    assert run("extend", str(tmp_path / "m.gguf"), "--target-length", "2048", "--dry-run").code == 1


def test_where_nothing_says_what_was_trained_no_reach_is_claimed(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    source = write_config(tmp_path / "model", {**CONFIGS["export/llama"], "rope_scaling": scaling})
    found = inspect(source)
    assert found.trained_length is None
    said = advise(found, 8 * found.rope.max_position_embeddings)
    assert said.chosen is not None
    assert said.chosen.reach is None
    assert said.why == "the first method that this file supports; its reach is unknown"


INTERNLM2 = {
    "model_type": "internlm2", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64,
    "vocab_size": 64, "max_position_embeddings": 32768, "rope_theta": 1000000,
}  # fmt: skip


def test_linear_is_never_chosen_and_the_longest_context_has_a_command(tmp_path: Path) -> None:
    """Its remote code reads linear and dynamic alone; linear costs more than twice the perplexity."""
    source = write_config(tmp_path / "model", INTERNLM2)
    told = run("advise", source, "--target-length", "131072", "--json").json
    assert (told["method"], told["command"]) == (None, None)
    assert "linear" not in {way["method"] for way in told["ways"]}
    longest, line = told["longest"]["target_length"], told["longest"]["command"]
    assert 32768 < longest < 131072
    refused = run("extend", source, "--factor", "4", "--dry-run")
    assert refused.code == 1
    assert line in refused.err
    made = run(*words(line)[1:], "--json", "--dry-run").json["plan"]
    assert (made["method"], made["max_position_embeddings"]) == ("abf", longest)
    table = np.array(made["tables"]["full_attention"][0]["inv_freq"])
    slow = (trained := base_inv_freq(1e6, 64)) * 32768 < 2 * math.pi
    assert (table[slow] * longest <= trained[slow] * 32768).all()
    assert (table[slow] * (longest + 2) > trained[slow] * 32768).any()
    assert line in " ".join(run("inspect", source, "--target-length", "131072").out.split())


def test_a_refusal_never_names_linear(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", INTERNLM2)
    for method in ("yarn", "llama3", "ntk-by-parts", "mixed-ntk"):
        refused = run("extend", source, "--method", method, "--factor", "4")
        assert "Try: ropetool extend" in refused.err
        assert "linear" not in refused.err.partition("Try: ")[2]


def test_length_is_advised_where_every_pair_has_seen_all_angles(tmp_path: Path) -> None:
    """Gemma 4: a quarter of 512 channels rotates in full attention, the slowest pair once in 188 tokens."""
    rope = {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    sizes = {"max_position_embeddings": 131072, "head_dim": 256, "global_head_dim": 512, "rope_parameters": rope}
    source = write_config(tmp_path / "model", {**CONFIGS["export/gemma4_text"], **sizes})
    said = advise(inspect(source), 262144)
    assert said.chosen is not None
    assert (said.chosen.method, said.chosen.reach) == ("length", 262144)
    assert said.why.startswith("every rotating pair turned at least once within the trained length")
    assert run("extend", source, "--target-length", "262144", "--dry-run").code == 0


def test_chunks_bound_every_distance(tmp_path: Path) -> None:
    found = inspect(write_config(tmp_path / "model", CONFIGS["export/llama4_text"]))
    target = 8 * found.rope.max_position_embeddings
    assert [(way.method, way.reach) for way in advise(found, target).ways] == [("length", target)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("advise", str(DEMO), "--target-length", "256"), "its context length is already 256 tokens"),
        (("extend", str(DEMO), "--factor", "2", "--beta-fast", "8"), "--beta-fast is a parameter of a method"),
        (("extend", str(DEMO)), "pass exactly one of --factor and --target-length"),
        (("extend", str(DEMO), "--factor", "2", "--target-length", "512"), "pass exactly one of"),
        (("advise", str(DEMO), "--target-length", "1e99"), "1e99"),
        (("advise", str(DEMO)), "--target-length"),
    ],
)
def test_what_nothing_leads_to(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert said in done.out + done.err
    assert "Traceback" not in done.err


def test_a_model_whose_rotation_is_not_known(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", {"model_type": "nobody", "max_position_embeddings": 64})
    with pytest.raises(ConfigError, match="its RoPE settings cannot be decoded"):
        advised_method(source, 2, None)


def test_a_passed_original_length_counts_as_the_trained_length(tmp_path: Path) -> None:
    config = configs.config("llama", "v4")
    unscaled = write_config(tmp_path / "unscaled", {**config, "max_position_embeddings": 4096})
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "max_position_embeddings": 8192}
    source = write_config(tmp_path / "linear", {**config, **scaling})
    *chosen, why = advised_method(source, 4, None, "original", original_length=4096)
    assert (*chosen, why.replace(" --from original", "")) == advised_method(unscaled, 4, None)
