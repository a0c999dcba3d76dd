"""Hostile files: each is refused within 200 MB of memory and 2 seconds of the processor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import configs
import pytest
from models import write_config
from running import bounded

BASE = configs.config("llama", "v4")
EXTEND = ("--method", "yarn", "--factor", "4")
SHARD = "model-00001-of-00002.safetensors"


def write_hostile(model: Path, name: str) -> None:
    config, rest = model / "config.json", json.dumps(BASE)[:-1].encode()
    if name == "a config of 60 MB":
        config.write_bytes(rest + b', "a": "' + b"x" * 60_000_000 + b'"}')
    elif name == "eight million brackets":
        config.write_bytes(rest + b', "a": ' + b"[" * 8_000_000)
    elif name == "nested 100,000 deep":
        config.write_bytes(rest + b', "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    elif name == "a number of a million digits":
        config.write_bytes(rest.replace(b"10000.0", b"9" * 1_000_000) + b"}")
    elif name == "lists of 90,000 divisors":
        many = [1.5] * 90_000
        scaling = {"rope_type": "longrope", "short_factor": many, "long_factor": many, "factor": 4.0}
        config.write_text(json.dumps({**BASE, "rope_scaling": scaling}))
    elif name == "a header that claims 2^60 bytes":
        (model / SHARD).write_bytes((2**60).to_bytes(8, "little") + b"{}")
    elif name == "a header that claims what is there":  # of zeros, in a file with holes
        with (model / SHARD).open("wb") as file:
            file.write((47_000_000).to_bytes(8, "little"))
            file.truncate(47_000_008)
    elif name == "a tokenizer of 60 MB":
        (model / "tokenizer_config.json").write_bytes(b'{"a": "' + b"x" * 60_000_000 + b'"}')
    elif name == "a provenance of 60 MB":
        (model / "ropetool.json").write_bytes(b'{"a": "' + b"x" * 60_000_000 + b'"}')
    elif name == "an index of 100,000 shards":
        weight_map = {str(i): f"{i}.safetensors" for i in range(100_000)}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        raise AssertionError(name)


HOSTILE = {
    "a config of 60 MB": "is 60,000,",
    "eight million brackets": "contains more than 200,000 values",
    "nested 100,000 deep": "is nested more than 100 levels deep",
    "a number of a million digits": "digits",
    "lists of 90,000 divisors": "short_factor has 90000 entries for 16 rotary pairs",
    "a header that claims 2^60 bytes": "declares a header of 1,152,921,504,606,846,976 bytes",
    "a header that claims what is there": "the header does not begin with '{'",
    "a tokenizer of 60 MB": "tokenizer_config.json: is 60,000,",
    "a provenance of 60 MB": "ropetool.json: is 60,000,",
    "an index of 100,000 shards": "in 0.safetensors, which does not exist",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_costs_little(case: str, model: Path) -> None:
    write_hostile(model, case)
    code, errors = bounded("extend", model, *EXTEND, "--from", "original")
    assert (code, errors.count("Error: "), "Traceback" in errors) == (1, 1, False)
    assert HOSTILE[case] in errors
    bounded("inspect", model)
    assert os.listdir(model.parent) == ["model"]


def test_a_hostile_plan_costs_little(model: Path, tmp_path: Path) -> None:
    for content, message in (
        (b'{"a": "' + b"x" * 60_000_000 + b'"}', "is 60,000,"), (b'{"a": ' + b"[" * 8_000_000, "contains more than"),
    ):  # fmt: skip
        (tmp_path / "plan.json").write_bytes(content)
        code, errors = bounded("apply", model, tmp_path / "plan.json")
        assert (code, message in errors) == (1, True)


def test_the_limits_bite(model: Path) -> None:
    """The figures above mean something: more memory or time than allowed is seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("running.MEGABYTES", 5)
        with pytest.raises(AssertionError, match="MB"):
            bounded("inspect", model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("running.PROGRAM", "while True: pass")
        with pytest.raises(AssertionError, match="killed by signal"):
            bounded("inspect", model)


def test_more_layers_than_any_model_has_cost_little(tmp_path: Path) -> None:
    """Every list of a config has an entry for each layer: as many as are read are computed in no time."""
    for layers, code, message in (
        (2**16, 1, "num_hidden_layers: 65536 is not a whole number from 1 to 4096"),
        (2**12, 0, ""),
    ):
        config = {**configs.config("gemma3_text", "v4"), "num_hidden_layers": layers}
        config.pop("layer_types", None)
        found, errors = bounded("inspect", write_config(tmp_path / str(layers), config))
        assert (found, message in errors) == (code, True)
