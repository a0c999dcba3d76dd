"""The families: strict loading, agreement with transformers' own classes, and what is said of an unknown one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropetool import families
from ropetool.errors import UnknownFamily
from ropetool.families import Family, _record

FOLDER = Path(families.__file__).parent
LLAMA = json.loads((FOLDER / "llama.json").read_text())
REQUIRED = {"llama", "mistral", "mixtral", "qwen2", "qwen3"}


def test_every_file_is_a_family_of_its_own_name() -> None:
    stems = {path.stem for path in FOLDER.glob("*.json")}
    assert set(families.names()) == stems
    assert stems >= REQUIRED
    for name in families.names():
        family = families.get(name)
        assert family.model_type == name
        assert "/" in family.example, name
        assert set(family.extends) <= set(family.rope_entries), name
        assert set(family.default_rope_theta) == set(family.rope_entries), name
        assert family.source, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qk_scale": 1}, r"unknown keys \['qk_scale'\]"), ({"mla": "true"}, "mla: 'true' is not"),
        ({"default_max_position_embeddings": 2048.0}, "2048.0 is not"), ({"layer_types": "full_attention"}, "is no list"),
        ({"default_rope_theta": 10000}, "is no object"), ({"pattern": True}, "True is not"),
        ({"trained_length": [{"trained": 1, "why": ""}]}, r"unknown keys \['why'\]"),
        ({"head_dim_key": None}, "None is not"),
    ],
)  # fmt: skip
def test_the_loader_is_strict(change: dict[str, Any], message: str) -> None:
    assert _record(Family, LLAMA, "llama.json") == families.get("llama")
    with pytest.raises(TypeError, match=message):
        _record(Family, {**LLAMA, **change}, "llama.json")


@pytest.mark.parametrize("name", families.names())
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


def test_the_layer_pattern_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    nested = [family for family in map(families.get, families.names()) if family.nested]
    assert len(nested) >= 3
    for family in nested:
        config = transformers.AutoConfig.for_model(family.model_type).get_text_config()
        full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
        assert family.pattern is not None
        assert full == list(range(family.pattern - 1, len(config.layer_types), family.pattern))


def test_an_unknown_family_says_the_near_ones_and_how_to_add_it() -> None:
    with pytest.raises(UnknownFamily, match=r"'lama' is not known \(did you mean llama\?\); known: ") as refusal:
        families.get("lama", "m/config.json")
    assert refusal.value.where == "m/config.json"
    assert refusal.value.try_ == "add ropetool/families/lama.json after the checklist in docs/contributing.md"
    assert families.find("lama") is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "x" * 100_000, "a b"])
def test_a_hostile_name_is_not_repeated_as_a_path(name: str) -> None:
    with pytest.raises(UnknownFamily) as refusal:
        families.get(name)
    assert len(str(refusal.value)) < 400
    assert refusal.value.try_.startswith("add ropetool/families/MODEL_TYPE.json")
