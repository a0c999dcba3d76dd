"""Which layers are of which kind: every key that the real config classes take it from, and values that say nothing."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from ropetool import families, names
from ropetool.errors import ConfigError
from ropetool.families.family import Family
from ropetool.runtimes import hf_formulas, inspection

FULL = names.FULL_ATTENTION
STEPS = (2, 3, 5, [1, 3, 5])
# Keys of flat families in which every layer attends and rotates alike: what changes is the window alone.
WINDOW_ALONE = {"max_window_layers"}


def keys_of(config_class: type) -> set[str]:
    """Return the keys that a config class declares, or takes from what is left over."""
    declared = {field.name for field in dataclasses.fields(config_class)}
    return declared | set(re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(config_class)))


def kinds(config: Any) -> list[str] | None:
    found = getattr(config, "layer_types", None)
    return None if found is None else list(found)


def made(model_type: str, keys: dict[str, Any]) -> Any:
    """Return the class's config with these keys, None where it stops."""
    try:
        return CONFIG_MAPPING[model_type](**keys)
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def full_layers(found: list[str], family: Family) -> list[int]:
    return [i for i, kind in enumerate(found) if family.kind_names.get(kind, kind) == FULL]


def served() -> list[str]:
    return [n for n in families.names() if n in CONFIG_MAPPING and not families.get(n).text_path]


def test_every_key_that_moves_the_attending_layers_is_read() -> None:
    """Each key of each class, with other numbers: where the class's kinds change, ours do so alike."""
    read: set[str] = set()
    for name in served():
        family = families.get(name)
        plain = made(name, {})
        if plain is None or kinds(plain) is None:
            continue
        for key in keys_of(CONFIG_MAPPING[name]) - {"num_hidden_layers"} - WINDOW_ALONE:
            if not re.search("layer|pattern|interval|period|offset|every|idxs|indices|ratio", key):
                continue
            for value in STEPS:
                config = made(name, {key: value})
                theirs = None if config is None else kinds(config)
                if theirs is None or theirs == kinds(plain):
                    continue
                part = {key: value, names.NUM_HIDDEN_LAYERS: config.num_hidden_layers}
                ours = hf_formulas.layer_types(part, family, config.num_hidden_layers)
                assert full_layers(theirs, family) == full_layers(ours, family), (name, key, value)
                read.add(f"{name}.{key}")
    assert {
        "jamba.attn_layer_offset", "afmoe.global_attn_every_n_layers", "bailing_hybrid.layer_group_size",
        "modernbert-decoder.global_attn_every_n_layers", "qwen3_next.full_attention_interval", "lfm2.full_attn_idxs",
        "bamba.attn_layer_indices", "gemma3_text.sliding_window_pattern",
    } <= read  # fmt: skip


SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "max_position_embeddings": 512, "intermediate_size": 64,
}  # fmt: skip
# Of each: the type, the keys, and a word of our sentence; all stop the class, but for those in SAYS_NOTHING.
WRONG = [
    ("nemotron_h", {"hybrid_override_pattern": "MXZ"}, "one of"),
    ("nemotron_h", {"hybrid_override_pattern": 5}, "one of"),
    ("nemotron_h", {"layers_block_type": ["mamba", "zzz"]}, "one of"),
    ("lfm2", {"full_attn_idxs": "2"}, "not a list of layer numbers"),
    ("lfm2", {"full_attn_idxs": ["1"]}, "not a list of layer numbers"),
    ("lfm2", {"full_attn_idxs": 2}, "not a list of layer numbers"),
    ("bamba", {"attn_layer_indices": "2"}, "not a list of layer numbers"),
    ("smollm3", {"no_rope_layers": "abc"}, "1 or 0 for each"),
    ("smollm3", {"no_rope_layers": [1, 1]}, "1 or 0 for each"),
    ("smollm3", {"no_rope_layers": [True, False, True, True]}, "1 or 0 for each"),
    ("smollm3", {"no_rope_layer_interval": 0}, "not a whole number"),
    ("smollm3", {"no_rope_layer_interval": "2"}, "not a whole number"),
    ("llama4_text", {"no_rope_layers": "abc"}, "1 or 0 for each"),
    ("llama4_text", {"no_rope_layers": [1, 1]}, "1 or 0 for each"),
    ("deepseek_v4", {"compress_ratios": "x"}, "0, 4, 128 for each"),
    ("deepseek_v4", {"compress_ratios": [0, 4]}, "0, 4, 128 for each"),
    ("deepseek_v4", {"compress_ratios": [1, 2, 3, 4]}, "0, 4, 128 for each"),
    ("jamba", {"attn_layer_offset": 9}, "from 0 to 7"),
    ("jamba", {"attn_layer_period": 0}, "not a whole number"),
    ("jamba", {"attn_layer_period": "4"}, "not a whole number"),
    ("qwen3_next", {"full_attention_interval": "abc"}, "not a whole number"),
    ("afmoe", {"global_attn_every_n_layers": 0}, "not a whole number"),
    *((name, {"layer_types": value}, "") for name in ("qwen3", "lfm2", "gemma3_text", "granitemoehybrid", "olmo3")
      for value in ("abc", [FULL], 5, [5] * 4, ["zzz"] * 4)),
    ("qwen3", {"num_hidden_layers": None}, "null is not a whole number"),
]  # fmt: skip
SAYS_NOTHING = [
    ("lfm2", {"full_attn_idxs": [99]}, "does not contain a layer of the model"),
    ("lfm2", {"full_attn_idxs": []}, "does not contain a layer of the model"),
    ("jamba", {"attn_layer_offset": -1}, "from 0 to 7"),
]  # fmt: skip


def refused(tmp_path: Path, model_type: str, keys: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES, **keys}))
    with pytest.raises(ConfigError) as error:
        inspection.inspect(tmp_path)
    assert next(iter(keys)) in (error.value.where or "")
    return error.value.message


@pytest.mark.parametrize(("model_type", "keys", "says"), WRONG)
def test_what_the_class_stops_at_is_refused_with_its_place(
    tmp_path: Path, model_type: str, keys: dict[str, Any], says: str
) -> None:
    assert made(model_type, SIZES) is not None
    assert made(model_type, {**SIZES, **keys}) is None
    assert says in refused(tmp_path, model_type, keys)


@pytest.mark.parametrize(("model_type", "keys", "says"), SAYS_NOTHING)
def test_lists_by_which_no_layer_attends_are_refused(
    tmp_path: Path, model_type: str, keys: dict[str, Any], says: str
) -> None:
    config = made(model_type, {**SIZES, **keys})
    assert FULL not in config.layer_types
    assert says in refused(tmp_path, model_type, keys)


RIGHT = [
    ("nemotron_h", {"hybrid_override_pattern": "M*-E*"}),
    ("nemotron_h", {"layers_block_type": ["mamba", "attention"]}),
    ("granitemoehybrid", {"layers_block_type": ["mamba", "attention"] * 2, "position_embedding_type": "rope"}),
    ("lfm2", {"full_attn_idxs": [1, 99]}),
    ("lfm2", {"layer_types": ["conv", "attention"] * 2}),
    ("zamba2", {"layers_block_type": ["mamba", "hybrid"] * 2}),
    ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 2}),
    ("deepseek_v4", {"compress_ratios": [0.0, 4, 128, 0, 0]}),
    ("modernbert-decoder", {"global_attn_every_n_layers": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "keys"), RIGHT)
def test_what_the_class_takes_names_the_layers_that_it_names(
    tmp_path: Path, model_type: str, keys: dict[str, Any]
) -> None:
    config = made(model_type, {**SIZES, **keys})
    family = families.get(model_type)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES, **keys}))
    found = inspection.inspect(tmp_path).rope
    assert found is not None
    assert list(found.entries[FULL].layers) == full_layers(kinds(config) or [], family)


def test_names_has_the_words_of_transformers() -> None:
    from transformers import configuration_utils as theirs

    assert set(theirs.ALLOWED_ATTN_LAYER_TYPES) == names.KNOWN_LAYER_TYPES
    assert names.LAYER_TYPE_ALIASES == theirs._LEGACY_LAYER_TYPE_REMAP


@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma2"])
def test_layers_of_one_table_that_slide_are_named(model_type: str, tmp_path: Path) -> None:
    """Their table is that of the others, so that nothing else of the inspection tells them."""
    keys = {**SIZES, "num_hidden_layers": 6, "sliding_window": 96, "rope_scaling": None, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **keys}))
    sliding = [i for i, kind in enumerate(made(model_type, keys).layer_types) if kind == names.SLIDING_ATTENTION]
    said = f"3 of the 6 layers ({', '.join(map(str, sliding))}) look back at most 96 tokens; they use the same table"
    assert said in inspection.inspect(tmp_path).notes
