"""`ropetool methods`, `families` and `runtimes`: one line for each, and a page for one."""

from __future__ import annotations

import re

import pytest
from running import run

from ropetool import families, runtimes
from ropetool.report.lists import COMMON
from ropetool.rope import methods


@pytest.mark.parametrize(
    ("command", "names"),
    [("methods", methods.names()), ("families", families.names()), ("runtimes", runtimes.names())],
)
def test_the_list_has_one_line_for_each(command: str, names: list[str]) -> None:
    done = run(command)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    listed = [line.split()[0] for line in lines]
    common = COMMON[command]
    assert listed == [*common, *(name for name in names if name not in common)]
    assert set(common) < set(names)
    starts = {len(line) - len(line.split(maxsplit=1)[1]) for line in lines}
    assert len(starts) == 1  # aligned
    for name in names:
        assert run(command, name).code == 0


YARN = """\
yarn: NTK-by-parts and an attention factor of 0.1 ln s + 1; the training-free default
  attention factor  yarn, unless you pass --attention-factor
  source            arXiv:2309.00071; MLA: arXiv:2405.04434

YaRN: NTK-by-parts, and an attention factor of 0.1 ln s + 1 that compensates for the longer softmax.

On DeepSeek-style MLA models, the temperature applies to the whole score, so it is written as mscale keys.

parameters, as -p NAME VALUE
  beta_fast  a pair with more turns within the trained length keeps its frequency (default 32.0)
  beta_slow  a pair with fewer turns within the trained length gets its frequency divided by the factor (default 1.0)
  truncate   round the ends of the dims ramp outwards to whole pairs, as most files do (default true)
  ramp       dims: linear in the pair index (files, runtimes); turns: linear in turns (the paper) (default dims)
"""


def test_a_method() -> None:
    assert run("methods", "yarn").out == YARN


def test_a_method_by_its_other_name_and_without_parameters() -> None:
    out = run("methods", "pi").out
    assert out.startswith("linear: position interpolation")
    assert "  also called       pi\n" in out
    assert "parameters" not in out
    assert run("methods", "longrope").out.endswith("default: the long ones\n")


MISTRAL = """\
mistral
  architecture        MistralForCausalLM
  example             mistralai/Mistral-7B-v0.1
  rope keys in        the top of config.json
  one table for       full_attention
  layout              half
  head_dim            head_dim, hidden_size / num_attention_heads if absent
  without head_dim    transformers-v4 cannot load yarn, dynamic or longrope; extend writes head_dim
  theta by default    10000 (full_attention)
  in transformers 4   10000
  context by default  131072 tokens
  sliding window      as configured
  GGUF architecture   llama
  key projections     k_proj
"""


def test_a_family() -> None:
    assert run("families", "mistral").out.startswith(MISTRAL)


@pytest.mark.parametrize(
    ("name", "label", "text"),
    [
        ("gemma3", "rope keys in", "text_config"),
        ("gemma3", "one table for", "full_attention, sliding_attention"),
        ("gemma3", "without layer types", "every layer whose number is a multiple of 6 is full"),
        ("deepseek_v3", "layout", "interleaved, half where rope_interleave is false"),
        ("deepseek_v3", "softmax scale", "follows mscale_all_dim (MLA)"),
        ("deepseek_v3", "other names", "kimi_k2"),
        ("deepseek_v3", "inside kimi_vl", "in text_config, with any model_type; config.json of "),
        ("qwen3", "shipped 40960", "32768: Qwen3 was trained at 32768 tokens and ships 40960: 32768 for the reply"),
        ("falcon", "does not rotate if", "alibi is true"),
        ("cohere2", "layers that rotate", "sliding-window layers"),
        ("gemma4_text", "by layer type", "full_attention by global_head_dim"),
        ("deepseek_v4", "under other names", "full_attention under compress, sliding_attention under main"),
        ("gpt_oss", "without rope keys", "yarn, with the numbers of the class"),
        ("phi", "part that rotates", "partial_rotary_factor, 0.5 if absent"),
        ("ministral3", "score", "grows with the position by llama_4_scaling_beta"),
        ("hunyuan_v1_dense", "norms", "follow the rotation, so a factor on cos and sin has no effect"),
        ("kimi_linear", "decoded only if", "mla_use_nope is true or absent: its rotation without "),
        ("Yi", "rope types", "default"),
        ("Yi", "code", "only remote code, which ropetool never runs"),
    ],
)
def test_a_line_of_a_family(name: str, label: str, text: str) -> None:
    rows = [tuple(re.split(" {2,}", line.strip(), maxsplit=1)) for line in run("families", name).out.splitlines()[1:]]
    assert any(row[0] == label and row[-1].startswith(text) for row in rows), rows


@pytest.mark.parametrize("name", ["dbrx", "phi-msft", "dots3_note_text", "vision-encoder-decoder", "t5gemma2"])
def test_a_family_that_is_refused_says_why(name: str) -> None:
    assert f"'{name}' is not supported: " in run("families", name).err


def test_a_runtime() -> None:
    assert run("runtimes", "transformers-v4").out == (
        "transformers-v4\n  reads         hf\n  checked with  4.57.6\n"
        "  how           Hugging Face transformers 4.57: reads rope_theta and rope_scaling, ignores rope_parameters\n"
    )


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("methods", 2, "no method is called 'yarm' (did you mean yarn?); known: abf, attention,"),
        ("families", 1, "unknown model family 'yarm'"),
        ("runtimes", 2, "no runtime is called 'yarm'; known: "),
    ],
)
def test_an_unknown_name(command: str, code: int, message: str) -> None:
    done = run(command, "yarm")
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "\nTry: " in done.err


@pytest.mark.parametrize(
    ("command", "names", "name"),
    [
        ("methods", methods.names(), "yarn"),
        ("families", families.names(), "qwen3"),
        ("runtimes", runtimes.names(), "vllm"),
    ],
)
def test_as_json(command: str, names: list[str], name: str) -> None:
    found, one = run(command, "--json").json, run(command, name, "--json").json
    assert found.keys() == one.keys() == {"schema", command}
    key = "model_type" if command == "families" else "name"
    assert (found["schema"], [entry[key] for entry in found[command]]) == (1, names)
    assert one[command] == [entry for entry in found[command] if entry[key] == name]
    listed = "`ropetool families` lists the known families" if command == "families" else ", ".join(names)
    assert run(command, "yarm", "--json").json["error"]["message"].endswith(listed)


def test_what_the_json_says() -> None:
    (yarn,) = run("methods", "yarn", "--json").json["methods"]
    assert (yarn["aliases"], yarn["attention_factor"]) == ([], "yarn")
    assert [(p["name"], p["default"]) for p in yarn["parameters"]][:2] == [("beta_fast", 32.0), ("beta_slow", 1.0)]
    (qwen,) = run("families", "qwen3", "--json").json["families"]
    assert (qwen["rope_theta"], qwen["head_dim"]) == ({"full_attention": 10000.0}, 128)
    assert [known["trained"] for known in qwen["trained_length"]] == [32768]
    (vllm,) = run("runtimes", "vllm", "--json").json["runtimes"]
    assert vllm["formats"] == ["hf"]
    assert [one["name"] for one in vllm["releases"]] == [one.name for one in runtimes.all_of("vllm")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "yran"], "no method is called 'yran' (did you mean yarn?)"),
        (["runtimes", "nope"], "no runtime is called 'nope'; known: exllamav3, "),
        (["runtimes", "vllm@0.9"], "vllm 0.9 is an unknown release; known: 0.25, "),
    ],
)
def test_an_unknown_name_is_not_blamed_on_an_option_of_other_commands(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    error, hint = done.err.splitlines()
    assert error.startswith(f"Error: {message}")
    assert hint == f"Try: ropetool {arguments[0]}"
    assert run(*hint.removeprefix("Try: ropetool ").split()).code == 0


def test_a_method_without_a_description_has_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONOPTIMIZE=2, no module has a docstring."""
    monkeypatch.setattr(methods.get("yarn").module, "__doc__", None)
    done = run("methods", "yarn")
    assert (done.code, done.err) == (0, "")
    assert "beta_fast" in done.out
