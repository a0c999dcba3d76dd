"""The two config styles: what is read, what an edit leaves alone, what a conversion carries along."""

from __future__ import annotations

import difflib
import json
from typing import Any

import configs
import pytest

from ropetool import families
from ropetool.checkpoint.style import RopeKeys, edits, read
from ropetool.errors import AmbiguousRope, InvalidRope
from ropetool.files.hf import apply_edits

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
TO_YARN_8 = RopeKeys("yarn", 10000.0, {"factor": 8.0, "original_max_position_embeddings": 512})


def rewritten(text: str, family: str, target: RopeKeys, style: str) -> str:
    """Return the text of a config after the full layers' keys were changed."""
    known = families.get(family)
    found = edits(json.loads(text), known, {"full_attention": target}, style, "config.json")
    return apply_edits(text, found, "config.json")


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines of a diff, without its head and context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


def short(value: Any) -> str:
    return str(value)[:20]


def config(family: str, style: str, **changes: Any) -> dict[str, Any]:
    data = {**configs.config(family, style), **changes}
    return {key: value for key, value in data.items() if value != "remove"}


# --- reading


@pytest.mark.parametrize(
    ("data", "style", "keys"),
    [
        (config("llama", "v4"), "v4", RopeKeys("default", 10000.0)),
        (config("llama", "v4", rope_theta="remove", rope_scaling="remove"), "v4", RopeKeys()),
        (config("llama", "v4", rope_scaling={}), "v4", RopeKeys("default", 10000.0)),
        (config("llama", "v5"), "v5", RopeKeys("default", 10000.0)),
        (config("llama", "v5", rope_theta=10000), "v5", RopeKeys("default", 10000.0)),
        (config("llama", "v5", rope_scaling=None), "v5", RopeKeys("default", 10000.0)),
        (
            config("llama", "v4", rope_scaling={"type": "linear", "factor": 4}),
            "v4",
            RopeKeys("linear", 10000.0, {"factor": 4}),
        ),
        (
            config("llama", "v4", rope_scaling=YARN, rope_parameters={**YARN, "rope_theta": 10000}),
            "both",
            RopeKeys("yarn", 10000.0, {"factor": 4.0, "original_max_position_embeddings": 512}),
        ),
        (
            config("llama", "v4", rope_scaling={"type": "su", "short_factor": [1.0], "long_factor": [2]}),
            "v4",
            RopeKeys("longrope", 10000.0, {"short_factor": [1.0], "long_factor": [2]}),
        ),
        (
            config("llama", "v5", rope_parameters={**YARN, "mrope_section": [2, 3]}),
            "v5",
            RopeKeys("yarn", None, {"factor": 4.0, "original_max_position_embeddings": 512, "mrope_section": [2, 3]}),
        ),
    ],
)
def test_what_a_file_says(data: dict[str, Any], style: str, keys: RopeKeys) -> None:
    found = read(data, families.get("llama"), "config.json")
    assert (found.style, found.keys["full_attention"]) == (style, keys)


def test_nested_keys_are_read_for_each_kind_of_layer() -> None:
    nested = {"full_attention": {**YARN, "rope_theta": 1e6}, "sliding_attention": DEFAULT}
    found = read(config("gemma3_text", "v5", rope_parameters=nested), families.get("gemma3_text"), "config.json")
    assert found.keys["full_attention"].rope_theta == 1e6
    assert found.keys["sliding_attention"] == RopeKeys("default", 10000.0)
    v4 = read(config("gemma3_text", "v4"), families.get("gemma3_text"), "config.json")
    assert v4.keys["sliding_attention"].rope_theta == 5000.0


def test_text_config_holds_the_keys_of_a_multimodal_model() -> None:
    text = config("gemma3_text", "v4", rope_scaling={"rope_type": "linear", "factor": 8.0})
    found = read({"model_type": "gemma3", "text_config": text}, families.get("gemma3"), "config.json")
    assert found.keys["full_attention"].params == {"factor": 8.0}


# --- what an edit leaves alone


ODD = """{
\t"architectures": ["LlamaForCausalLM"],
\t"größe": "ünïcode 日本",
\t"rope_parameters": {"mrope_section": [2, 3, 3],
\t\t"rope_theta": 1000000, "factor": 4.0, "type": "yarn",   "original_max_position_embeddings":512},
\t"zebra": 1e3, "hidden_size": 128,\t"num_attention_heads": 4,

\t"max_position_embeddings": 2048
}"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_one_changed_number_changes_nothing_else(newline: str) -> None:
    before = ODD.replace("\n", newline)
    target = RopeKeys("yarn", 1e6, {"factor": 8.0, "original_max_position_embeddings": 512})
    after = rewritten(before, "llama", target, "v5")
    assert after == before.replace('"factor": 4.0', '"factor": 8.0')
    assert after != before


def test_a_one_line_change_is_a_one_line_diff() -> None:
    before = json.dumps(config("llama", "v5", rope_parameters={**YARN, "rope_theta": 1e4}), indent=4)
    after = rewritten(before, "llama", TO_YARN_8, "v5")
    assert changed_lines(before, after) == ['-        "factor": 4.0,', '+        "factor": 8.0,']


def test_null_rope_scaling_is_the_one_line_that_changes() -> None:
    before = json.dumps(config("llama", "v4"), indent=2)
    lines = changed_lines(before, rewritten(before, "llama", TO_YARN_8, "v4"))
    assert [line for line in lines if line[0] == "-"] == ['-  "rope_scaling": null']
    assert json.loads(rewritten(before, "llama", TO_YARN_8, "v4"))["rope_scaling"] == {**YARN, "factor": 8.0}


@pytest.mark.parametrize("spelling", ["1000000", "1000000.0", "1e6", "1E+06"])
@pytest.mark.parametrize("style", ["v4", "v5"])
def test_a_base_that_stays_keeps_its_spelling(spelling: str, style: str) -> None:
    text = json.dumps(config("llama", style)).replace("10000.0", spelling)
    assert spelling in text
    target = RopeKeys("yarn", 1e6, {"factor": 8.0, "original_max_position_embeddings": 512})
    assert f'"rope_theta": {spelling}' in rewritten(text, "llama", target, style)
    assert '"rope_theta": 2000000.0' in rewritten(text, "llama", RopeKeys("default", 2e6), style)


def test_nothing_is_edited_where_the_file_says_it_already() -> None:
    for style, data in (
        ("v4", config("llama", "v4", rope_scaling={"type": "yarn", **YARN, "factor": 8})),
        ("v5", config("llama", "v5", rope_parameters={**YARN, "rope_theta": 10000, "factor": 8})),
    ):
        text = json.dumps(data)
        assert rewritten(text, "llama", TO_YARN_8, style) == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "linear"}, {"type": "yarn"}),
        ({"rope_type": "linear"}, {"rope_type": "yarn"}),
        ({"rope_type": "linear", "type": "linear"}, {"rope_type": "yarn", "type": "yarn"}),
    ],
)
def test_the_type_keeps_the_spelling_of_the_file(before: dict[str, str], after: dict[str, str]) -> None:
    text = json.dumps(config("llama", "v4", rope_scaling={**before, "factor": 4.0}))
    scaling = json.loads(rewritten(text, "llama", TO_YARN_8, "v4"))["rope_scaling"]
    assert {key: value for key, value in scaling.items() if "type" in key} == after


def test_stale_keys_of_the_old_type_go_and_unknown_ones_stay() -> None:
    old = {
        "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0, "finetuned": True,
        "original_max_position_embeddings": 512, "mrope_section": [2, 3], "note": ["by", "me"],
    }  # fmt: skip
    text = json.dumps(config("llama", "v4", rope_scaling=old), indent=2)
    scaling = json.loads(rewritten(text, "llama", TO_YARN_8, "v4"))["rope_scaling"]
    assert scaling == {**YARN, "factor": 8.0, "mrope_section": [2, 3], "note": ["by", "me"]}
    back = json.loads(rewritten(text, "llama", RopeKeys("default", 1e4), "v4"))["rope_scaling"]
    assert back == {"rope_type": "default", "mrope_section": [2, 3], "note": ["by", "me"]}


def test_layers_that_are_not_extended_keep_their_keys() -> None:
    nested = {"sliding_attention": {"rope_type": "default", "rope_theta": 5000, "x": 1}, "full_attention": DEFAULT}
    text = json.dumps(config("gemma3_text", "v5", rope_parameters=nested), indent=2)
    after = rewritten(text, "gemma3_text", TO_YARN_8, "v5")
    assert json.loads(after)["rope_parameters"]["sliding_attention"] == nested["sliding_attention"]
    assert '"rope_theta": 5000,' in after


def test_a_base_beside_rope_parameters_follows_the_one_inside() -> None:
    """Found as v5 with a rope_theta on top: both change, neither goes away."""
    text = json.dumps(config("llama", "v5", rope_theta=10000))
    after = json.loads(rewritten(text, "llama", RopeKeys("default", 2e6), "v5"))
    assert after["rope_theta"] == after["rope_parameters"]["rope_theta"] == 2e6
    both = json.loads(rewritten(text, "llama", RopeKeys("default", 2e6), "both"))
    assert both["rope_theta"] == both["rope_parameters"]["rope_theta"] == 2e6


# --- conversion


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "olmo3"])
@pytest.mark.parametrize("start", ["v4", "v5"])
@pytest.mark.parametrize("style", ["v4", "v5", "both"])
def test_a_converted_file_says_the_same(family: str, start: str, style: str) -> None:
    known = families.get(family)
    data = configs.config(family, start)
    if family == "olmo3" and start == "v5":  # v4 has one base for both kinds of its layers
        data["rope_parameters"]["sliding_attention"]["rope_theta"] = 10000.0
    before = read(data, known, "config.json")
    after = json.loads(rewritten(json.dumps(data), family, TO_YARN_8, style))
    found = read(after, known, "config.json")
    assert found.style == style
    assert found.keys["full_attention"] == TO_YARN_8
    if "sliding_attention" in before.keys:
        assert found.keys["sliding_attention"] == before.keys["sliding_attention"]
    assert ("rope_parameters" in after) == (style != "v4")
    assert ("rope_scaling" in after) == ("rope_theta" in after) == (style != "v5")


@pytest.mark.parametrize(("start", "style"), [("v4", "v5"), ("v5", "v4"), ("v5", "both"), ("v4", "both")])
def test_a_conversion_carries_unknown_keys(start: str, style: str) -> None:
    old = {"rope_type": "linear", "factor": 2.0, "mrope_section": [2, 3]}
    where = "rope_scaling" if start == "v4" else "rope_parameters"
    data = config("llama", start, **{where: {**old, **({"rope_theta": 1e4} if start == "v5" else {})}})
    after = json.loads(rewritten(json.dumps(data), "llama", TO_YARN_8, style))
    for key in {"v4": ["rope_scaling"], "v5": ["rope_parameters"]}.get(style, ["rope_scaling", "rope_parameters"]):
        assert after[key]["mrope_section"] == [2, 3], key


def test_conversion_inside_text_config_touches_nothing_outside() -> None:
    text_config = config("gemma3_text", "v4", rope_theta=1e6, rope_local_base_freq=10000.0)
    data = {"model_type": "gemma3", "rope_theta": 7, "text_config": text_config, "vision_config": {"rope_theta": 3}}
    target = RopeKeys("yarn", 1e6, {"factor": 8.0, "original_max_position_embeddings": 512})
    after = json.loads(rewritten(json.dumps(data), "gemma3", target, "v5"))
    assert (after["rope_theta"], after["vision_config"]) == (7, {"rope_theta": 3})
    assert after["text_config"]["rope_parameters"] == {
        "full_attention": {**YARN, "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert {"rope_theta", "rope_scaling", "rope_local_base_freq"}.isdisjoint(after["text_config"])


# --- what is refused


CONFLICTS = {
    "type": (config("llama", "v4", rope_scaling={**YARN, "type": "linear"}), 'rope_type is "yarn", but type is "linear"'),
    "scaled and not": (
        config("llama", "v4", rope_scaling=YARN, rope_parameters=DEFAULT),
        r"yarn factor 4.0 theta 10000 against default theta 10000",
    ),
    "two factors": (
        config("llama", "v4", rope_scaling=YARN, rope_parameters={**YARN, "factor": 2.0, "rope_theta": 1e4}),
        "yarn factor 4.0 theta 10000 against yarn factor 2.0",
    ),
    "two bases": (
        config("llama", "v4", rope_scaling=None, rope_parameters={**DEFAULT, "rope_theta": 5e5}),
        "default theta 10000 against default theta 500000",
    ),
    "a base on top": (config("llama", "v5", rope_theta=5e5), "500000 at the top and 10000 in rope_parameters"),
    "another length": (
        config(
            "llama", "v4", rope_scaling=YARN,
            rope_parameters={**YARN, "original_max_position_embeddings": 1024, "rope_theta": 1e4},
        ),
        "disagree for full_attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_conflict_is_refused(case: str) -> None:
    data, message = CONFLICTS[case]
    with pytest.raises(AmbiguousRope, match=message) as refusal:
        read(data, families.get("llama"), "config.json")
    assert refusal.value.where.startswith("config.json")
    assert "config.json" in refusal.value.try_


NOT_READ = {
    "flat for gemma3": ("gemma3_text", config("gemma3_text", "v5", rope_parameters=DEFAULT), "it is flat"),
    "nested for llama": ("llama", config("llama", "v5", rope_parameters={"full_attention": DEFAULT}), "it is nested"),
    "nested rope_scaling": ("llama", config("llama", "v4", rope_scaling={"full_attention": YARN}), "rope_scaling must be flat"),
    "nested rope_scaling for gemma3": (
        "gemma3_text", config("gemma3_text", "v4", rope_scaling={"full_attention": YARN}), "rope_scaling must be flat",
    ),
    "a kind that is not an object": (
        "gemma3_text", config("gemma3_text", "v5", rope_parameters={"full_attention": DEFAULT, "sliding_attention": 3}),
        "3 is not an object",
    ),
    "no text_config": ("gemma3", {"model_type": "gemma3"}, "text_config must be an object"),
    "an unknown kind of layer": (
        "gemma3_text", config("gemma3_text", "v4", layer_types=["full_attention", "chunked_attention"]), "not a layer type",
    ),
    "a kind too few": ("olmo3", config("olmo3", "v4", layer_types=["full_attention"]), "one layer type for each"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_READ)
def test_a_form_that_the_family_does_not_read_is_refused(case: str) -> None:
    family, data, message = NOT_READ[case]
    with pytest.raises(InvalidRope, match=message):
        read(data, families.get(family), "config.json")


@pytest.mark.parametrize("value", [0, -1, 1, 0.5, float("nan"), float("inf"), "10000", True, [1], 10**400], ids=short)
@pytest.mark.parametrize("place", ["rope_theta", "rope_scaling.rope_theta", "rope_parameters.rope_theta"])
def test_a_base_is_a_number_above_1(place: str, value: Any) -> None:
    outer, _, inner = place.partition(".")
    data = config("llama", "v4", **{"rope_theta": "remove", outer: {"rope_theta": value} if inner else value})
    with pytest.raises(InvalidRope, match=r"is not a base; it is a finite number above 1, up to 1e\+18") as refusal:
        read(data, families.get("llama"), "config.json")
    assert refusal.value.where == f"config.json: {place}"


@pytest.mark.parametrize("value", ["512", 0, 1, -4, 512.0, True, [512], 2**31 + 1, 10**400], ids=short)
@pytest.mark.parametrize(
    "key", ["max_position_embeddings", "original_max_position_embeddings", "sliding_window", "inner"]
)
def test_a_length_is_a_whole_number_of_tokens(key: str, value: Any) -> None:
    name = "original_max_position_embeddings" if key == "inner" else key
    change = {"rope_scaling": {**YARN, name: value}} if key == "inner" else {name: value}
    with pytest.raises(InvalidRope, match="is not a length; it is a whole number of tokens") as refusal:
        read(config("llama", "v4", **change), families.get("llama"), "config.json")
    assert refusal.value.where.endswith(name)


def test_a_window_of_0_stands_only_where_its_switch_is_off() -> None:
    data = {**config("qwen2", "v4"), "model_type": "qwen2_moe", "sliding_window": 0}
    for off in ({}, {"use_sliding_window": False}, {"use_sliding_window": None}):
        assert read({**data, **off}, families.get("qwen2_moe"), "config.json").style == "v4"
    for other in ({"use_sliding_window": True}, {"sliding_window": -1}, {"sliding_window": False}):
        with pytest.raises(InvalidRope, match="is not a length"):
            read({**data, **other}, families.get("qwen2_moe"), "config.json")


@pytest.mark.parametrize(("family", "value"), [("exaone4", "LLLg"), ("exaone4", ""), ("cohere2", "LLLG")])
def test_a_pattern_in_letters_is_one_of_l_and_g(family: str, value: str) -> None:
    data = {**config("llama", "v4"), "model_type": family}
    with pytest.raises(InvalidRope, match="is not a whole number from 1 to"):
        read({**data, "sliding_window_pattern": value}, families.get(family), "config.json")
    assert read({**data, "sliding_window_pattern": "LLLG"}, families.get("exaone4"), "config.json").style == "v4"


@pytest.mark.parametrize("value", ["2", 0, -1, 2.0, True, [2], 2**16 + 1, 10**400], ids=short)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
)
def test_a_size_is_a_whole_number_that_a_model_can_have(key: str, value: Any) -> None:
    with pytest.raises(InvalidRope, match=r"is not a whole number from 1 to (65536|4096)") as refusal:
        read(config("llama", "v4", **{key: value}), families.get("llama"), "config.json")
    assert refusal.value.where == f"config.json: {key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("factor", value) for value in (0, -1, "4", True, float("nan"), float("inf"), 10**400)),
        ("attention_factor", -1), ("attention_factor", 0), ("beta_fast", -1), ("beta_slow", "1"), ("truncate", 1),
        ("mscale", float("inf")), ("mscale_all_dim", -0.1), ("low_freq_factor", 0), ("high_freq_factor", "4"),
        ("short_factor", []), ("short_factor", "1"), ("long_factor", [0.0]), ("long_factor", [1.0, -1.0]),
        ("long_factor", [float("nan")]), ("long_factor", [True]),
    ],
    ids=short,
)  # fmt: skip
def test_a_parameter_that_breaks_its_rule_is_named(key: str, value: Any) -> None:
    with pytest.raises(InvalidRope) as refusal:
        read(config("llama", "v4", rope_scaling={**YARN, key: value}), families.get("llama"), "config.json")
    assert refusal.value.where == f"config.json: rope_scaling.{key}"


def test_an_unknown_rope_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRope, match='rope_type "yaml" is unknown; known: default, linear, dynamic, yarn'):
        read(config("llama", "v4", rope_scaling={"rope_type": "yaml"}), families.get("llama"), "config.json")
