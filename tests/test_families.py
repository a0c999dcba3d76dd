"""The families: strict loading, agreement with transformers' own classes, and what is said of an unknown one."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from models import write_config

import ropetool
from ropetool import families
from ropetool.errors import ConfigError, InvalidRope, UnknownFamily
from ropetool.families import records
from ropetool.families.family import Family, read
from ropetool.families.tensors import Export

FOLDER = Path(families.__file__).parent
LLAMA = json.loads((FOLDER / "llama.json").read_text())
REQUIRED = {"llama", "mistral", "mixtral", "qwen2", "qwen3"}


def test_every_file_is_a_family_of_its_own_name() -> None:
    stems = {path.stem for path in FOLDER.glob("*.json")}
    assert set(families.names()) > stems > set(families.baked()) > REQUIRED
    for name in stems:
        family = families.get(name)
        assert family.model_type == name
        assert "/" in family.example, name
        assert set(family.extends) <= set(family.rope_entries), name
        assert set(family.default_rope_theta) == set(family.rope_entries), name
        assert family.source, name


def test_the_records_are_of_the_version_that_is_named() -> None:
    found = {json.loads(path.read_text())["transformers"] for path in (FOLDER / "generated").glob("*.json")}
    assert found == {records.VERSION}


def test_what_is_recorded_and_not_served_says_why() -> None:
    with pytest.raises(
        UnknownFamily, match="'recurrent_gemma' is not supported: its class accepts only the unscaled table"
    ):
        families.get("recurrent_gemma")


def test_a_base_for_each_layer_is_not_read_as_one_for_all(tmp_path: Path) -> None:
    config = {"model_type": "granite_swa", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    for name, more in (("one", {}), ("each", {"layer_rope_theta": [1e4, 1e6]})):
        write_config(tmp_path / name, {**config, "rope_theta": 1e4, **more})
    assert ropetool.inspect(tmp_path / "one").rope is not None
    with pytest.raises(InvalidRope, match="no data on layer_rope_theta, which sets a separate base for each layer"):
        ropetool.plan(tmp_path / "each", "yarn", factor=2)


# By the change to llama.json: the place, and the sentence.
MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown key": ({"qk_scale": 1}, ": qk_scale", "unknown key 'qk_scale'; known: model_type, example, architecture"),
    "a key with a slip": ({"layot": "half"}, ": layot", "unknown key 'layot' (did you mean layout?); known: model_type,"),
    "a nested key": (
        {"bake": {"q": [{"tensr": "q_proj"}]}}, ": bake.q[0].tensr",
        "unknown key 'tensr' (did you mean tensor?); known: tensor, rows, norm, offset, when, unless",
    ),
    "a key in a list": (
        {"trained_length": [{"trained": 1, "why": ""}]}, ": trained_length[0].why",
        "unknown key 'why'; known: max_position_embeddings, trained, reason",
    ),
    "a key that is missing": (
        {"bake": {"q": [{"rows": "heads"}]}}, ": bake.q[0]", "'tensor' is missing; required: tensor",
    ),
    "a truth in quotes": ({"mla": "true"}, ": mla", '"true" must be true or false'),
    "a number with a point": ({"pattern": 2.0}, ": pattern", "2.0 must be a whole number"),
    "no list": ({"layer_types": "full_attention"}, ": layer_types", '"full_attention" must be a list in brackets'),
    "no object": ({"default_rope_theta": 10000}, ": default_rope_theta", "10000 must be an object in braces"),
    "no part": ({"bake": []}, ": bake", "[] must be an object in braces with the keys layers, q, k,"),
    "a truth for a number": ({"pattern": True}, ": pattern", "true must be a whole number"),
    "null for a text": ({"head_dim_key": None}, ": head_dim_key", "null must be a text in quotes"),
    "a word that is not known": (
        {"layout": "halves"}, ": layout", 'unknown value "halves" (did you mean half?); known: "half", "interleaved"',
    ),
    "a row selector": (
        {"bake": {"k": [{"tensor": "k_proj", "rows": "head"}]}}, ": bake.k[0].rows", "'head' is not a selector; known: heads, shared,",
    ),
    "a base that lacks": ({"default_rope_theta": {}}, ": default_rope_theta", "does not set 'full_attention'"),
    "a kind of layer": ({"extends": ["sliding"]}, ": extends", "'sliding' is not one of full_attention"),
    "another name": ({"model_type": "lama"}, ": model_type", "'lama' must be the name of the file without .json"),
    "what no file says": ({"stated": "x"}, ": stated", "unknown key 'stated'"),
    "a group": (
        {"export": {"layer": ["norm"]}}, ": export.layer[0]",
        'unknown group of tensors "norm" (did you mean norms?); known: norms, post_norms, vector,',
    ),
    "a key of a group": (
        {"export": {"layer": [{"use": "attention", "bais": "always"}]}}, ": export.layer[0].bais",
        "unknown key 'bais' (did you mean bias?); known: use, bias, output_bias",
    ),
    "what a group needs": (
        {"export": {"layer": [{"use": "linear", "hf": "a", "gguf": "b"}]}}, ": export.layer[0]",
        "'shape' is missing; required: hf, gguf, shape",
    ),
    "a kind in a group": (
        {"export": {"layer": [{"use": "vector", "hf": "a", "gguf": "b", "offset": "1"}]}}, ": export.layer[0].offset",
        '"1" must be a number',
    ),
    "names of a group": (
        {"export": {"layer": [{"use": "experts", "names": ["w1"]}]}}, ": export.layer[0]", "experts: names must be three: ",
    ),
    "a row": (
        {"export": {"layer": [{"hf": "a.weight", "name": "b"}]}}, ": export.layer[0].name",
        "unknown key 'name'; known: hf, gguf, shape, when, order, offset, many, written",
    ),
    "neither row nor group": ({"export": {"layer": [3]}}, ": export.layer[0]", "3 must be a tensor, an object with hf,"),
    "an order": (
        {"export": {"layer": [{"hf": "a", "gguf": "b", "shape": "hidden", "order": "interleave"}]}}, ": export.layer[0].order",
        'unknown value "interleave" (did you mean interleave_pairs?); known: "", "interleave_pairs", "split_qkv",',
    ),
    "a size": (
        {"export": {"layer": [{"hf": "a", "gguf": "b", "shape": "hiden"}]}}, ": export.layer: a",
        "unknown size 'hiden'; known: layers, hidden, heads,",
    ),
    "a switch": (
        {"export": {"layer": [{"use": "gated", "bias": "mlp_bias"}]}}, ": export.layer: mlp.gate_proj.bias",
        "unknown switch 'mlp_bias'; known: tied, untied, dense, sparse",
    ),
    "a formula": (
        {"export": {"layer": ["attention"], "derived": {"all": "3 * hiden"}}}, ": export.derived.all",
        "'3 * hiden' contains 'hiden', which is not a size; known: layers,",
    ),
    "a formula of a default": (
        {"export": {"layer": ["attention"], "counts": {"value": {"key": "v_head_dim", "formula": "hiden // heads"}}}},
        ": export.counts.value.formula",
        "'hiden // heads' contains 'hiden', which is not a size; known: layers,",
    ),
    "another name of no switch": (
        {"export": {"layer": ["attention"], "switch_names": {"bias": "use_bias"}}}, ": export.switch_names.bias",
        "unknown switch 'bias'; known: ",
    ),
    "a formula with more": (
        {"export": {"layer": ["attention"], "derived": {"all": "hidden / 2"}}}, ": export.derived.all",
        "'hidden / 2' contains 'hidden / 2'; allowed: sizes, whole numbers, +, -, * and //",
    ),
    "no formula": ({"export": {"layer": [], "derived": {"all": "+"}}}, ": export.derived.all", "'+' is not a valid formula"),
    "the size of a key": (
        {"export": {"layer": ["attention"], "sizes": {"expert_count": "experts"}}}, ": export.sizes.expert_count",
        "unknown size 'experts'",
    ),
    "a key of both": (
        {"export": {"layer": ["attention"], "keys": {"scale": {}}}}, ": export.keys.scale",
        "must set exactly one of number, switch and entries",
    ),
    "the switch of a key": (
        {"export": {"layer": ["attention"], "keys": {"scale": {"switch": "on"}}}}, ": export.keys.scale", "unknown switch 'on'; known: ",
    ),
    "a name without a table": ({"export": None}, ": export", "gguf_architecture and export must be set together"),
    "files without fold targets": ({"bake": None}, ": gguf_architectures", "requires export and bake"),
    "a fold target of no row": (
        {"bake": {"q": [{"tensor": "q_proj"}], "k": [{"tensor": "key"}]}}, ": bake.k[0].tensor",
        "'key' is not a tensor of export.layer",
    ),
    "an engine": ({"vllm": {"on_transformers": True}}, ": vllm.on_transformers", "true must be a text in quotes"),
    "a key of an engine": ({"mlx_lm": {"theta": 1e6}}, ": mlx_lm.theta", "unknown key 'theta'; known: base, needs,"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file_is_one_sentence_with_its_place(name: str) -> None:
    change, place, sentence = MISTAKES[name]
    assert read(json.dumps(LLAMA), "llama.json") == families.get("llama")
    with pytest.raises(ConfigError) as refusal:
        read(json.dumps({**LLAMA, **change}), "llama.json")
    assert refusal.value.where == f"ropetool/families/llama.json{place}"
    assert refusal.value.message.startswith(sentence)
    assert "\n" not in refusal.value.sentence
    assert refusal.value.try_ == "docs/families.md explains each key"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes in line 1"),
        ("[]", "must be a JSON object, from { to }"),
        ('{"layout": "half", "layout": "half"}', "sets 'layout' twice in one object"),
        ("{}", "'model_type' is missing; required: model_type, example, architecture, layout"),
    ],
)
def test_what_is_no_family_at_all(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(text, "llama.json")
    assert (refusal.value.where, refusal.value.message) == ("ropetool/families/llama.json", sentence)


def test_an_architecture_of_gguf_files_is_of_one_family() -> None:
    assert families.by_gguf_architecture()["deepseek2"] is families.get("deepseek_v3")
    two = families.get("deepseek_v3"), replace(families.get("deepseek_v2"), gguf_architectures=("deepseek2",))
    with pytest.raises(
        ConfigError, match=r"deepseek_v2.json: gguf_architectures: deepseek_v3 already lists 'deepseek2'"
    ):
        families._check_claims(two)


def test_the_walk_through_names_every_key_of_a_plain_family() -> None:
    page = (FOLDER.parents[1] / "docs" / "families.md").read_text()
    told = {key for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    known = {field.name for kind in (Family, Export) for field in fields(kind)}
    stated = {key for name in ("llama", "qwen3", "seed_oss", "olmo2", "granite") for key in written(name)}
    assert stated - {"layer", "vllm", "sglang", "mlx_lm", "exllamav3"} <= told
    assert told - {"tests"} <= known, told - known


def written(name: str) -> set[str]:
    data = json.loads((FOLDER / f"{name}.json").read_text())
    return {*data, *data.get("export", {})}


@pytest.mark.parametrize("name", families.baked())
def test_defaults_are_those_of_transformers(name: str) -> None:
    """What the class assumes when the config is silent, from the class itself."""
    transformers = pytest.importorskip("transformers")
    family = families.get(name)
    config = transformers.AutoConfig.for_model(name).get_text_config()
    assert config.max_position_embeddings == family.default_max_position_embeddings
    found = config.rope_parameters
    thetas = (
        {kind: found[kind]["rope_theta"] for kind in family.layer_types}
        if family.nested
        else {"full_attention": found["rope_theta"]}
    )
    assert thetas == family.default_rope_theta
    if family.default_head_dim is not None:
        assert getattr(config, family.head_dim_key) == family.default_head_dim
    if family.sliding_window == "always" and family.default_sliding_window is not None:
        assert config.sliding_window == family.default_sliding_window


def biases_left_out(family: Family, config: Any) -> list[str]:
    """Return the switches of biases that the class has and the file does not name, and what the file names and no class has."""
    export = family.export
    assert export is not None
    named = {*export.switches, *export.fixed}
    own = {key for key, value in vars(config).items() if "bias" in key and (value is None or isinstance(value, bool))}
    known = vars(config).keys() | set(dir(type(config)))
    return sorted((own - named - {"attention_bias"}) | (named - known))


EXPORTED = families.exported()


@pytest.mark.parametrize("name", EXPORTED)
def test_every_bias_of_the_class_is_named(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    assert biases_left_out(families.get(name), transformers.AutoConfig.for_model(name).get_text_config()) == []


def test_a_bias_that_the_file_forgets_is_seen() -> None:
    transformers = pytest.importorskip("transformers")
    family, config = families.get("seed_oss"), transformers.AutoConfig.for_model("seed_oss")
    assert family.export is not None
    config.use_bias = False
    assert biases_left_out(family, config) == ["use_bias"]
    misspelt = replace(family, export=replace(family.export, fixed={"usebias": (False,)}))
    assert "usebias" in biases_left_out(misspelt, config)


def test_the_layer_pattern_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    nested = [family for family in map(families.get, families.baked()) if family.nested]
    assert len(nested) >= 3
    for family in nested:
        config = transformers.AutoConfig.for_model(family.model_type).get_text_config()
        full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
        assert family.pattern is not None
        assert full == list(range(family.pattern - 1, len(config.layer_types), family.pattern))


def test_an_unknown_family_says_the_near_ones_and_how_to_add_it() -> None:
    with pytest.raises(
        UnknownFamily, match=r"unknown model family 'lama' \(did you mean llama.*\?\); `ropetool families`"
    ) as refusal:
        families.get("lama", "m/config.json")
    assert refusal.value.where == "m/config.json"
    assert refusal.value.try_ == (
        "correct the model_type, or add ropetool/families/lama.json with the checklist in docs/contributing.md"
    )
    assert families.find("lama") is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "x" * 100_000, "a b"])
def test_a_hostile_name_is_not_repeated_as_a_path(name: str) -> None:
    with pytest.raises(UnknownFamily) as refusal:
        families.get(name)
    assert len(refusal.value.sentence) < 250
    assert refusal.value.try_.startswith("add ropetool/families/MODEL_TYPE.json")
