"""The records of ropetool/families/generated: well formed, in agreement with the families and wrappers, not repeated by
the files of families, and a changed entry is seen."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from loading import script

from ropetool import families
from ropetool.errors import ConfigError
from ropetool.families.family import read
from ropetool.families.wrappers import WRAPPERS

probe_records = script("families/probe_records.py")
FOLDER = Path(families.__file__).parent / "generated"
RECORDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
PROVEN = sorted(name for name, entry in RECORDS.items() if entry["outcome"] == "proven")
BAKED = families.baked()
OUTCOMES = {"proven", "hands over", "does not rotate", "no rotary keys", "not probed"}
# Fields of a family that a record states too. null_head_dim names other runtimes as well, so it is compared by itself.
SHARED = (
    "architecture", "text_path", "layout", "layer_types", "pattern", "head_dim_key", "default_head_dim", "partial_rotary_key",
    "default_partial_rotary_factor", "rope_theta_key", "rope_types", "default_rope_type", "default_rope_theta",
    "default_max_position_embeddings", "default_original_max_position_embeddings", "default_sizes", "rotates", "temperature_key",
    "off_key", "sliding_window", "default_sliding_window", "unrotated_window_key", "interleave_key", "mla",
)  # fmt: skip
# Where the file overrides the record on purpose. falcon: its class computes the head size, and a stated one is never read.
# mistral4: its table follows the key, and its attention stops at every other share than that of its own sizes.
OTHERWISE = {
    ("falcon", "head_dim_key"): ("head_dim", ""),
    ("mistral4", "partial_rotary_key"): ("partial_rotary_factor", ""),
    ("mistral4", "default_partial_rotary_factor"): (1.0, 0.5),  # of qk_rope_head_dim, and of the whole head
}


def test_most_types_are_proven_and_each_other_one_has_a_reason() -> None:
    assert {entry["outcome"] for entry in RECORDS.values()} <= OUTCOMES
    assert len(PROVEN) > 150
    for name, entry in RECORDS.items():
        assert entry["model_type"] == name
        assert (entry["outcome"] == "proven") != bool(entry.get("reason")), name
    assert len([name for name, entry in RECORDS.items() if entry["outcome"] == "not probed"]) <= 3
    assert len({entry["transformers"] for entry in RECORDS.values()}) == 1


def without(text: str) -> dict[str, str]:
    """Return the text of a family's file without each of its keys, by key; the name of the family stays."""
    data = json.loads(text)
    return {key: json.dumps({k: v for k, v in data.items() if k != key}) for key in data if key != "model_type"}


def repeated(text: str, file: str) -> list[str]:
    """Return the keys of a family's file that say what the record or a default gives without them."""
    family, keys = read(text, file), []
    for key, less in without(text).items():
        with contextlib.suppress(ConfigError):  # a key that the file cannot do without
            keys += [key] if read(less, file) == family else []
    return keys


@pytest.mark.parametrize("path", sorted(FOLDER.parent.glob("*.json")), ids=lambda path: path.stem)
def test_no_file_repeats_its_record(path: Path) -> None:
    assert repeated(path.read_text(), path.name) == []


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("llama", "layout", "half"), ("cohere2", "default_sliding_window", 4096), ("gemma3", "pattern_offset", None)],
)
def test_a_repeated_key_is_seen(name: str, key: str, value: Any) -> None:
    data = json.loads((FOLDER.parent / f"{name}.json").read_text())
    assert key not in data
    assert repeated(json.dumps({**data, key: value}), f"{name}.json") == [key]


def test_the_types_that_do_not_rotate_by_keys_are_these() -> None:
    reasons = {
        name: entry["outcome"]
        for name, entry in RECORDS.items()
        if entry["outcome"] in ("does not rotate", "no rotary keys")
    }
    assert {"codegen", "gptj", "roformer", "xlnet"} <= {
        name for name, one in reasons.items() if one == "no rotary keys"
    }
    assert {"jamba", "nemotron_h"} <= {name for name, one in reasons.items() if one == "does not rotate"}


@pytest.mark.parametrize("name", PROVEN)
def test_a_proven_record_is_of_one_piece(name: str) -> None:
    entry = RECORDS[name]
    layers = [layer for times, layer in entry["layers"] for _ in range(times)]
    tables = set(entry["tables"])
    assert entry["layout"] in ("half", "interleaved")
    assert set(entry["layer_types"]) in (set(), tables)
    assert any(layer["rotates"] for layer in layers)
    assert {table for layer in layers for table in layer.get("tables", [])} == tables
    for layer in layers:
        assert layer["rotates"] <= layer["attends"]
        assert layer["rotates"] == ("tables" in layer) == ("factor_vanishes" in layer)
        assert layer["rotates"] <= ("rotations" in layer), "no function that rotates was seen"
        for table in layer.get("tables", []):
            assert any(one["channels"] <= entry["tables"][table]["rotary_dim"] for one in layer["rotations"])
    for label, table in entry["tables"].items():
        if table["plain"]:
            base, count = entry["default_rope_theta"][label], table["rotary_dim"]
            for index, frequency in table["inv_freq"].items():
                assert frequency == pytest.approx(base ** (-2 * int(index) / count), rel=3e-6)


@pytest.mark.parametrize("name", BAKED)
def test_the_family_differs_from_its_record_only_on_purpose(name: str) -> None:
    family, entry = families.get(name), RECORDS[name]
    for key in SHARED:
        stated = getattr(family, key)
        stated = list(stated) if isinstance(stated, tuple) else stated
        found = entry.get(key, type(stated)() if stated is not None else None)
        if (name, key) in OTHERWISE:
            assert (stated, found) == OTHERWISE[name, key]
        else:
            assert stated == found, key
    assert ("transformers" in family.null_head_dim) == ("transformers" in entry["null_head_dim"])


def test_the_wrappers_agree() -> None:
    compared = []
    for name, wrapper in WRAPPERS.items():
        entry = RECORDS.get(name)
        if entry is None or entry["outcome"] != "hands over":
            continue
        compared.append(name)
        assert entry["text_path"] == [wrapper.text], name
        assert entry["text_type"] == wrapper.default or not wrapper.default, name
        assert entry["takes_text_types"] is not wrapper.fixed, name
        needed = {key for keys in wrapper.needs for key in keys.split()}
        assert set(entry.get("text_fills", {})) - {"rope_parameters", "sliding_window"} <= needed, name
    assert len(compared) > 25


def test_a_record_is_the_same_text_again() -> None:
    for name, entry in RECORDS.items():
        assert (FOLDER / f"{name}.json").read_text() == probe_records.text(entry), name


def planted() -> list[tuple[str, str, Any]]:
    """Return a change of each kind of entry: its type, its place and another value."""
    return [
        ("llama", "layout", "interleaved"), ("gemma3_text", "default_rope_theta.sliding_attention", 10001.0),
        ("qwen3_next", "layers[1][1].rotates", False), ("nanochat", "layers[0][1].factor_vanishes", False),
        ("deepseek_v3", "head_dim_key", "head_dim"), ("qwen2", "default_sliding_window", None), ("jamba", "outcome", "proven"),
        ("cohere2", "layers[0][1].window", "full"), ("llava", "text_type", "qwen2"),
        ("gpt_oss", "tables.full_attention.inv_freq.8", 0.05081),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "place", "value"), planted(), ids=[one[1] for one in planted()])
def test_a_changed_entry_is_one_sentence(name: str, place: str, value: Any) -> None:
    real = RECORDS[name]
    probe_records.compare(name, real, copy.deepcopy(real))
    changed = copy.deepcopy(real)
    *way, last = place.replace("[", ".[").split(".")
    holder: Any = changed
    for step in way:
        holder = holder[int(step[1:-1]) if step.startswith("[") else step]
    assert holder[last] != value
    holder[last] = value
    with pytest.raises(ConfigError) as refusal:
        probe_records.compare(name, changed, real)
    assert refusal.value.where == f"ropetool/families/generated/{name}.json: {place}"
    assert refusal.value.message.startswith(f"is {json.dumps(value)} in the record, but ")
    assert refusal.value.message.endswith(f" in transformers {real['transformers']}")
    assert refusal.value.try_ == f"scripts/families/probe {name}"


def test_a_type_without_a_record_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no record of this type"):
        probe_records.compare("nothing", None, RECORDS["llama"])
