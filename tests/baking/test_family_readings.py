"""What each family that can be baked rotates by: our decoder against the real rotary modules of transformers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import bake_models as models
import configs
import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from models import write_config
from probes import probe, v4_python
from transformers import AutoConfig

from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.runtimes import Refuses, get
from ropetool.weights import bakes

LENGTHS = [256, 512, 513, 1024, 2048]
TOLERANCE = 3e-6  # the tables are float32
TYPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-1.3": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.3,
        "truncate": False, "beta_fast": 12,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 512, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512},
}  # fmt: skip
FLAT = [name for name, data in configs.BAKED.items() if "full_attention" not in data["rope_parameters"]]
ELSEWHERE = {"mistral4": "default"}  # builds a table that its attention cannot use; see the test below


def with_type(name: str, rope_type: str) -> dict[str, Any]:
    """Return the config with other rope keys; longrope lists have as many numbers as there are pairs."""
    data = json.loads(json.dumps(configs.BAKED[name]))
    share = data["rope_parameters"].get("partial_rotary_factor")
    keys: dict[str, Any] = {"rope_theta": 10000.0, **TYPES[rope_type]}
    if share is not None:
        keys["partial_rotary_factor"] = share
    if rope_type == "longrope":
        head = (
            data.get("qk_rope_head_dim") or data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"]
        )
        pairs = head // 2 if "qk_rope_head_dim" in data else int(head * (share or 1)) // 2
        keys |= {"short_factor": [1.0] * pairs, "long_factor": [1.0 + 0.2 * i for i in range(pairs)]}
    return {**data, "rope_parameters": keys}


def real_tables(data: dict[str, Any]) -> list[tuple[np.ndarray[Any, Any], float]]:
    """Return the table and factor that the family's own rotary module has after seeing each length."""
    config = AutoConfig.for_model(**json.loads(json.dumps(data)))
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    (found,) = [v for k, v in vars(module).items() if k.endswith("RotaryEmbedding")]
    rotary = found(config)
    tables = []
    for length in LENGTHS:
        rotary(torch.zeros(1, 1, 1), torch.arange(length)[None])
        tables.append((rotary.inv_freq.double().numpy().copy(), float(rotary.attention_scaling)))
    return tables


@pytest.mark.parametrize("rope_type", TYPES)
@pytest.mark.parametrize("name", FLAT)
def test_transformers_5_rotates_by_the_decoded_table(name: str, rope_type: str) -> None:
    data = with_type(name, rope_type)
    try:
        rope = get("transformers").decode(HfCheckpoint(data, families.get(data["model_type"])))
    except Refuses:
        if ELSEWHERE.get(name) != rope_type:
            with pytest.raises((KeyError, ValueError, RuntimeError, StrictDataclassError)):
                real_tables(data)
        return
    entry = rope.entries["full_attention"]
    assert entry.table is not None
    for length, (inv_freq, factor) in zip(LENGTHS, real_tables(data), strict=True):
        regime = entry.table.at(length)
        np.testing.assert_allclose(inv_freq, regime.inv_freq, rtol=TOLERANCE)
        assert factor == pytest.approx(regime.attention_factor, rel=TOLERANCE)


def test_mistral4_without_scaling_stops_in_its_attention(tmp_path: Path) -> None:
    data = with_type("mistral4", "default")
    with pytest.raises(Refuses, match="32 channels of the decoupled keys"):
        get("transformers").decode(HfCheckpoint(data, families.get("mistral4")))
    models.write(tmp_path / "m", data)
    with pytest.raises(RuntimeError, match="size of tensor"):
        models.logits(tmp_path / "m", configs.LENGTH)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", ["stablelm", "phi", "glm4", "gpt_neox", "phi3"])
@pytest.mark.parametrize("style", ["inside", "beside", "silent"])
def test_the_share_of_a_head_is_found_where_transformers_finds_it(name: str, share: float, style: str) -> None:
    data = with_type(name, "yarn" if name != "phi3" else "default")
    data["rope_parameters"].pop("partial_rotary_factor")
    family = families.get(data["model_type"])
    if style == "inside":
        data["rope_parameters"]["partial_rotary_factor"] = share
    elif style == "beside":
        data[family.partial_rotary_key] = share
    rope = get("transformers").decode(HfCheckpoint(data, family))
    (found, _), *_ = real_tables(data)
    assert rope.entries["full_attention"].rotary_dim == 2 * found.size
    if style != "silent":
        assert 2 * found.size == share * rope.entries["full_attention"].head_dim


def test_gpt_neox_has_names_of_its_own() -> None:
    data = {k: v for k, v in configs.BAKED["gpt_neox"].items() if k != "rope_parameters"}
    data |= {"rotary_emb_base": 25000, "rotary_pct": 0.5, "rope_theta": 7.0}
    rope = get("transformers").decode(HfCheckpoint(data, families.get("gpt_neox")))
    (found, _), *_ = real_tables(data)
    np.testing.assert_allclose(found, rope.entries["full_attention"].table.at(256).inv_freq, rtol=TOLERANCE)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "change", "layers"),
    [
        ("smollm3", {}, (0, 2)), ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2}, (0, 2)),
        ("cohere2", {}, (0, 2)), ("cohere2", {"layer_types": None, "sliding_window_pattern": 2}, (0, 2)),
        ("exaone4", {}, (0, 2)), ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}, (0, 1, 2)),
    ],
)  # fmt: skip
def test_the_layers_that_rotate_are_those_of_the_real_model(
    name: str, change: dict[str, Any], layers: tuple[int, ...], tmp_path: Path
) -> None:
    """Bake into the decoded layers alone: the logits agree only if no other layer rotates, and all of these do."""

    source = models.write(tmp_path / "m", {**configs.BAKED[name], **change})
    model = models.opened(source)
    view = model.targets
    assert view.rope.entries["full_attention"].layers == layers
    models.carry_out(bakes.attention_factor(model), source, tmp_path / "baked")
    assert (
        np.abs(models.logits(source, configs.LENGTH) - models.logits(tmp_path / "baked", configs.LENGTH)).max() < 1e-10
    )


def test_what_is_not_known_is_said() -> None:
    gpt_oss = {k: v for k, v in configs.BAKED["gpt_oss"].items() if k != "rope_parameters"}
    with pytest.raises(Refuses, match="without rope keys; its default is yarn"):
        get("transformers").decode(HfCheckpoint(gpt_oss, families.get("gpt_oss")))
    falcon = {**configs.BAKED["falcon-per-head"], "alibi": True}
    with pytest.raises(Refuses, match="alibi is on, so no layer rotates"):
        get("transformers").decode(HfCheckpoint(falcon, families.get("falcon")))
    with pytest.raises(Refuses, match=r"no data on cohere in transformers 4\.57"):
        get("transformers-v4").decode(HfCheckpoint(models.v4(configs.BAKED["cohere"]), families.get("cohere")))


def test_transformers_4_rotates_by_the_decoded_table(tmp_path: Path) -> None:
    """The families that both generations read alike, by the probe that tests/oracle has for 4.57."""
    names = ["qwen2_moe", "qwen3_moe", "starcoder2", "granite"]
    assert all(families.get(name).in_v4 for name in names)
    jobs, wanted = [], []
    for name in names:
        for rope_type in TYPES:
            data = models.v4(with_type(name, rope_type))
            directory = write_config(tmp_path / f"{name}-{rope_type}", data)
            jobs.append({"path": str(directory), "lengths": LENGTHS})
            wanted.append(
                get("transformers-v4").decode(HfCheckpoint(data, families.get(name))).entries["full_attention"]
            )
    for entry, answer in zip(wanted, probe(jobs, v4_python()), strict=True):
        assert "error" not in answer, answer
        for length, found in zip(LENGTHS, answer["layers"]["full_attention"], strict=True):
            regime = entry.table.at(length)  # type: ignore[union-attr]
            np.testing.assert_allclose(found["inv_freq"], regime.inv_freq, rtol=TOLERANCE)
            assert found["attention_factor"] == pytest.approx(regime.attention_factor, rel=TOLERANCE)
