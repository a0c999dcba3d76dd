"""The data behind `inspect`: every figure of small configs, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_config, write_model

import ropetool
from ropetool.errors import InvalidRope
from ropetool.report.inspected import inspection_json, inspection_parts
from ropetool.report.terminal import terminal_text
from ropetool.rope.tables import Regime
from ropetool.runtimes import decoded, inspection

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def inspected(tmp_path: Path, family: str, style: str = "v4", **changes: Any) -> inspection.Inspection:
    return inspection.inspect(write_config(tmp_path / "model", {**configs.config(family, style), **changes}))


def test_a_runtime_is_decoded_when_its_reading_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    own = decoded._decoded
    monkeypatch.setattr(decoded, "_decoded", lambda name, checkpoint: asked.append(name) or own(name, checkpoint))
    found = inspected(tmp_path, "llama", rope_scaling=YARN)
    assert found.rope is not None
    assert asked == ["transformers"]
    last = found.readings.names[-1]
    assert found.readings.named(last) == found.readings[-1]
    assert asked == ["transformers", last]
    assert [reading.name for reading in found.readings] == list(found.readings.names)
    assert sorted(asked) == sorted(found.readings.names)
    assert found.readings.named("tgi") is None
    assert found.readings[:2] == tuple(found.readings)[:2]


# A family that lacks a key has an empty name for it, so a key without a name must not stand for all of those.
@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("family", sorted({**configs.FAMILIES, **configs.MORE_FAMILIES}))
def test_a_key_without_a_name_changes_nothing(tmp_path: Path, family: str, style: str) -> None:
    config = configs.config(family, style)
    path = write_config(tmp_path / "model", config) / "config.json"
    plain = inspection_json(inspection.inspect(path.parent))
    for value in (0, True, "full_attention", [1], {"a": 1}):
        path.write_text(json.dumps({**config, "": value}))
        assert inspection_json(inspection.inspect(path.parent)) == plain, value


# --- the data of --json


TOP = {
    "schema",
    "source",
    "format",
    "family",
    "arch",
    "rope",
    "runtimes",
    "kv_cache_bytes",
    "notes",
    "stated",
    "trained_length",
    "trained_length_is",
}
ENTRY = {
    "rope_type", "rope_theta", "head_dim", "rotary_dim", "layout", "factor", "attention_factor", "score_rotary",
    "score_plain", "temperature", "sliding_window", "max_position_embeddings", "original_max_position_embeddings",
    "layers", "regimes", "inv_freq", "wavelength", "turns",
}  # fmt: skip


def test_the_schema(tmp_path: Path) -> None:
    found = inspected(tmp_path, "gemma3_text", rope_scaling={"rope_type": "linear", "factor": 4.0})
    data = inspection_json(found, 4096)
    assert set(data) == TOP
    assert set(data["rope"]) == {"full_attention", "sliding_attention"}
    for entry in data["rope"].values():
        assert set(entry) == ENTRY
        assert set(entry["regimes"][0]) == {"up_to", "inv_freq", "attention_factor"}
    reading = data["runtimes"]["transformers"]
    assert set(reading) == {"context_length", "differs", "layers"}
    assert set(reading["layers"]["full_attention"]) == {"inv_freq", "attention_factor"}
    assert set(data["kv_cache_bytes"]) == {"per_token", "at_target"}
    assert (data["schema"], data["format"], data["arch"]) == (1, "hf", "gemma3_text")
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_figures_of_a_yarn_model(tmp_path: Path) -> None:
    found = inspected(tmp_path, "llama", rope_scaling={**YARN, "attention_factor": 1.5}, max_position_embeddings=2048)
    data = inspection_json(found)
    entry = data["rope"]["full_attention"]
    assert (entry["rope_type"], entry["rope_theta"], entry["factor"]) == ("yarn", 10000.0, 4.0)
    assert (entry["head_dim"], entry["rotary_dim"], entry["layout"], entry["layers"]) == (32, 32, "half", [0, 1])
    assert (entry["max_position_embeddings"], entry["original_max_position_embeddings"]) == (2048, 512)
    assert (entry["attention_factor"], entry["score_rotary"], entry["score_plain"]) == (1.5, 2.25, 1.0)
    assert (entry["temperature"], entry["sliding_window"]) == (None, None)
    # By hand: c(32) = 32 ln(512 / (64 pi)) / (2 ln 10000) = 1.63 -> 1, c(1) = 7.64 -> 8; pair 4 keeps 4/7.
    base = [10000 ** (-i / 16) for i in range(16)]
    assert entry["inv_freq"][:2] == pytest.approx(base[:2], rel=1e-12)
    assert entry["inv_freq"][4] == pytest.approx(base[4] * (4 / 7 + 3 / 7 / 4), rel=1e-12)
    assert entry["inv_freq"][8:] == pytest.approx([f / 4 for f in base[8:]], rel=1e-12)
    assert entry["wavelength"][0] == pytest.approx(2 * math.pi)
    assert entry["turns"][0] == pytest.approx(512 / (2 * math.pi))
    assert data["runtimes"]["transformers"]["layers"]["full_attention"]["attention_factor"] == 1.5


def test_a_pair_that_never_turns_has_no_wavelength(tmp_path: Path) -> None:
    found = inspected(tmp_path, "llama")
    assert found.rope is not None
    entry = found.rope.entries["full_attention"]
    inv_freq = [*entry.table.regimes[0].inv_freq[:-1], 0.0]  # no key of a config says it: bases and factors are bounded
    still = dataclasses.replace(entry, table=dataclasses.replace(entry.table, regimes=(Regime(inv_freq),)))
    rope = dataclasses.replace(found.rope, entries={"full_attention": still})
    lengths = inspection_json(dataclasses.replace(found, rope=rope))["rope"]["full_attention"]["wavelength"]
    assert lengths[-1] is None
    assert None not in lengths[:-1]


@pytest.mark.parametrize(
    ("family", "changes", "per_token", "at_4096"),
    [
        # 2 layers x (key and value) x 2 heads x 32 channels x 4 bytes
        ("llama", {}, 1024, 1024 * 4096), ("llama", {"torch_dtype": "bfloat16"}, 512, 512 * 4096),
        ("llama", {"torch_dtype": None, "dtype": "float64"}, 2048, 2048 * 4096),
        ("llama", {"num_key_value_heads": None}, 2048, 2048 * 4096),
        ("mistral", {"sliding_window": 100}, 1024, 1024 * 100),
        # the sliding layer keeps 64 tokens, the full one all
        ("gemma3_text", {}, 1024, 512 * 64 + 512 * 4096),
        # every second layer keeps 64 tokens, under one table
        ("gpt_oss", {"sliding_window": 64}, 1024, 512 * 64 + 512 * 4096),
        ("gemma2", {"sliding_window": 64}, 1024, 512 * 64 + 512 * 4096),
        ("gemma2", {"sliding_window": 64, "layer_types": 2 * ["full_attention"]}, 1024, 1024 * 4096),
        # one key head for all, unless the heads have their own or groups that transformers spreads out
        ("falcon", {}, 512, 512 * 4096), ("falcon", {"multi_query": False}, 2048, 2048 * 4096),
        ("falcon", {"new_decoder_architecture": True}, 2048, 2048 * 4096),
        # 2 layers x (latent of 32 + decoupled key of 32 channels) x 4 bytes
        ("deepseek_v3", {}, 512, 512 * 4096),
    ],
)  # fmt: skip
def test_the_memory_of_the_cache(family: str, changes: Any, per_token: int, at_4096: int, tmp_path: Path) -> None:
    data = inspection_json(inspected(tmp_path, family, **changes), 4096)
    assert data["kv_cache_bytes"] == {"per_token": per_token, "at_target": at_4096}


def test_the_target_is_the_stated_context_unless_another_is_asked_for(tmp_path: Path) -> None:
    found = inspected(tmp_path, "llama")
    assert inspection_json(found)["kv_cache_bytes"]["at_target"] == 1024 * 512
    assert inspection_json(found, 600)["kv_cache_bytes"]["at_target"] == 1024 * 600


# --- lengths


def test_the_trained_length(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], int | None]] = [
        ("llama", {}, 512),
        ("llama", {"rope_scaling": YARN, "max_position_embeddings": 2048}, 512),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, None),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 512),
        ("qwen3", {"max_position_embeddings": 40960}, 32768),
        ("qwen3", {"max_position_embeddings": 65536}, 65536),
    ]
    for number, (family, changes, length) in enumerate(cases):
        assert inspected(tmp_path / str(number), family, **changes).trained_length == length, changes


def test_the_provenance_of_ours_knows_the_trained_length(tmp_path: Path) -> None:
    source = write_config(tmp_path / "model", configs.config("llama", "v4"))
    for method in ("ntk", "linear"):
        ropetool.apply(ropetool.plan(source, method, factor=4), source, tmp_path / method)
        assert ropetool.inspect(tmp_path / method).trained_length == 512


# --- what cannot be decoded


def test_an_unknown_family_is_shown_as_written(tmp_path: Path) -> None:
    data = {
        "model_type": "phi9", "rope_theta": float("nan"), "max_position_embeddings": 4096, "hidden_size": 8,
        "rope_scaling": {"long_factor": [1.0, float("inf")]}, "text_config": {"rotary_pct": 0.25},
    }  # fmt: skip
    found = inspection.inspect(write_config(tmp_path / "model", data))
    printed = inspection_json(found)
    json.dumps(printed, allow_nan=False)
    assert (printed["family"], printed["arch"], printed["rope"], printed["runtimes"]) == (None, "phi9", {}, {})
    assert printed["stated"] == {
        "rope_theta": "nan", "max_position_embeddings": 4096, "rope_scaling": {"long_factor": [1.0, "inf"]},
        "text_config.rotary_pct": 0.25,
    }  # fmt: skip
    assert printed["kv_cache_bytes"] == {"per_token": 0, "at_target": None}
    assert printed["notes"] == [
        "the folder has only config.json: commands that need weights will not work",
        'the family "phi9" is unknown (did you mean phi or phi3?): the keys are shown as written, not as runtimes read them. '
        "`ropetool families` lists the known families",
    ]


@pytest.mark.parametrize("model_type", [None, ["llama"], 3, ""])
def test_no_model_type_is_no_family(model_type: Any, tmp_path: Path) -> None:
    found = inspection.inspect(write_config(tmp_path / "model", {"model_type": model_type}))
    assert (found.family, found.model_type) == (None, "")
    assert any(
        note.startswith("config.json does not set model_type, so its keys cannot be decoded") for note in found.notes
    )


@pytest.mark.parametrize(
    ("changes", "length", "what"),
    [
        ({}, 512, "trained"),
        ({"rope_scaling": YARN, "max_position_embeddings": 2048}, 512, "original"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, None, None),
        ({"head_dim": 31}, None, None),
    ],
)
def test_what_the_length_is(tmp_path: Path, changes: dict[str, Any], length: int | None, what: str | None) -> None:
    """A model that came scaled may have been trained further: its original length need not be all that it has seen."""
    data = inspection_json(inspected(tmp_path, "llama", **changes))
    assert (data["trained_length"], data["trained_length_is"]) == (length, what)
    shown = terminal_text(inspection_parts(inspected(tmp_path / "again", "llama", **changes)))
    assert (f"  {what} length " in shown) == (what is not None)


def test_a_runtime_that_stops_is_listed_with_its_reason(tmp_path: Path) -> None:
    found = inspected(tmp_path, "llama", partial_rotary_factor=0.5)
    data = inspection_json(found)
    assert set(data["runtimes"]["transformers"]) == {"context_length", "differs", "layers"}
    refusal = "RuntimeError: partial_rotary_factor is 0.5, but llama rotates whole heads"
    assert data["runtimes"]["transformers-v4"] == {"refuses": refusal}


def test_a_file_that_no_runtime_loads_has_no_table(tmp_path: Path) -> None:
    data = inspection_json(inspected(tmp_path, "llama", head_dim=31))
    assert (data["family"], data["rope"], data["trained_length"]) == ("llama", {}, None)
    assert "head_dim is 31" in data["runtimes"]["transformers"]["refuses"]


def test_broken_values_of_a_known_family_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRope, match="rope_theta: 0 is not a base"):
        inspected(tmp_path, "llama", rope_theta=0)


def test_notes_on_the_weights(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    assert ropetool.inspect(source).notes == ()
    for shard in source.glob("*.safetensors*"):
        shard.unlink()
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    (note,) = ropetool.inspect(source).notes
    assert note.startswith("the weights are pickle files, which ropetool never loads")
