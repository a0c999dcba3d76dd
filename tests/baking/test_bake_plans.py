"""One checkpoint for several runtimes, a factor in the weights where their keys cannot agree; and plans of bakes.

The oracle of a baked extension is transformers itself: it computes the same from a checkpoint whose config asks for
the factor, and from the one whose weights hold it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bake_models as models
import configs
import numpy as np
import pytest
import torch
from bake_models import logits
from models import SILENT, config_of, set_config, set_tensors, write_config
from running import refusal
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import ropetool
from ropetool.errors import (
    AmbiguousRope,
    ConfigError,
    LossyExport,
    PlanMismatch,
    RopetoolError,
    UnknownName,
    UnsupportedDtype,
)
from ropetool.plans.bakes import BAKES, BakeOptions, make_bake
from ropetool.plans.plan import Plan
from ropetool.verification.readback.comparing import read_back

EXACT = 1e-10
FOUR = {
    **dict.fromkeys(("llama", "qwen2", "qwen3"), ("transformers", "vllm", "sglang", "llama.cpp")),
    "phi3": ("transformers", "vllm", "sglang", "exllamav3"),
    "deepseek_v3": ("transformers", "vllm", "sglang", "mlx-lm"),
}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def unscaled(name: str) -> dict[str, Any]:
    """Return the config of a model that was trained at 512 tokens and states nothing else, as files mostly do: v4."""
    config = {**configs.BAKED[name], "max_position_embeddings": configs.TRAINED, "rope_parameters": DEFAULT}
    return {**config, "head_dim": 32} if name.startswith("qwen") else config


def source_of(tmp_path: Path, name: str) -> Path:
    """Write the model, with its config in the style that every one of these runtimes reads."""
    source = models.write(tmp_path / "model", unscaled(name))
    theta = config_of(source)["rope_parameters"]["rope_theta"]
    return set_config(source, rope_parameters=SILENT, rope_theta=theta, rope_scaling=None)


def extended(source: Path, output: Path, runtimes: tuple[str, ...], **options: Any) -> Plan:
    plan = ropetool.plan(source, "yarn", factor=4, for_runtimes=runtimes, **options)
    ropetool.apply(plan, source, output)
    return plan


@pytest.mark.parametrize("name", FOUR)
def test_one_checkpoint_serves_four_runtimes_with_the_rest_in_the_weights(name: str, tmp_path: Path) -> None:
    """A factor that no two of them read from the same key."""
    source = source_of(tmp_path, name)
    asked = ropetool.plan(source, "yarn", factor=4, attention_factor=1.3)
    ropetool.apply(asked, source, tmp_path / "asks")
    plan = extended(source, tmp_path / "baked", FOUR[name], attention_factor=1.3)
    assert not asked.bakes
    assert plan.bakes
    assert {runtime.partition("@")[0] for runtime in plan.runtimes} == set(FOUR[name])
    expected = logits(tmp_path / "asks")
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
    shutil.copy(source / "model.safetensors", tmp_path / "baked" / "model.safetensors")
    assert np.abs(expected - logits(tmp_path / "baked")).max() > 1e-3


SCOPED = {"stablelm": 0.25, "phi": 0.5, "glm4": 0.5, "deepseek_v3": None}


@pytest.mark.parametrize("name", SCOPED)
@pytest.mark.parametrize("scope", ["rotary", "score"])
def test_a_temperature_multiplies_the_part_of_the_score_that_is_meant(name: str, scope: str, tmp_path: Path) -> None:
    """The oracle: transformers with the table alone, and the model's own softmax scale or cos and sin times the factor."""
    source = source_of(tmp_path, name)
    factor = 0.1 * np.log(4) + 1
    ropetool.apply(ropetool.plan(source, "yarn", factor=4, attention_factor="none"), source, tmp_path / "bare")
    plan = ropetool.plan(source, "yarn", factor=4, temperature_scope=scope)
    ropetool.apply(plan, source, tmp_path / "out")

    def heated(model: Any) -> None:
        if scope == "score":
            for layer in model.model.layers:
                layer.self_attn.scaling *= factor**2
        else:
            model.model.rotary_emb.attention_scaling *= factor

    expected = logits(tmp_path / "bare", change=heated)
    assert np.abs(expected - logits(tmp_path / "out")).max() < EXACT
    assert np.abs(expected - logits(tmp_path / "bare")).max() > 1e-3


def test_a_scope_says_nothing_where_whole_heads_rotate(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", configs.config("llama", "v4"))
    plans = [ropetool.plan(source, "yarn", factor=4, temperature_scope=scope) for scope in (None, "score", "rotary")]
    assert plans[0] == plans[1] == plans[2]
    with pytest.raises(ConfigError, match="'all' is neither rotary nor score"):
        ropetool.plan(source, "yarn", factor=4, temperature_scope="all")


def test_the_default_factor_needs_no_bake(tmp_path: Path) -> None:
    plan = ropetool.plan(source_of(tmp_path, "llama"), "yarn", factor=4, for_runtimes=FOUR["llama"])
    assert (plan.bakes, plan.tensors, [c.name for c in plan.candidates]) == ((), (), ["yarn keys"])


def test_a_config_alone_is_planned_and_not_written(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", configs.config("llama", "v4"))
    plan = ropetool.plan(source, "yarn", factor=4, for_runtimes=("transformers", "vllm"), attention_factor=1.0)
    assert plan.bakes == ("attention factor 0.878249 of full_attention: its square into the keys",)
    assert [note for note in plan.notes if note.startswith("the plan also changes weights (attention factor 0.878249")]
    with pytest.raises(ConfigError, match="the plan also changes weights, which patch cannot do: attention factor"):
        ropetool.patch(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)), plan)
    with pytest.raises(LossyExport, match=r"bakes attention factor 0\.878249 .* has no weights"):
        ropetool.apply(plan, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runtimes_that_no_file_serves_are_named(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", configs.config("llama", "v4"))
    with pytest.raises(
        LossyExport,
        match=r"no file works for vllm@0\.25: dynamic keys: vllm@0\.25: one table for all lengths instead of",
    ):
        ropetool.plan(source, "dynamic", factor=4, for_runtimes=("transformers", "vllm@0.25"))


def test_a_plan_with_bakes_survives_its_file_and_its_readback(tmp_path: Path) -> None:
    source = source_of(tmp_path, "llama")
    plan = extended(source, tmp_path / "out", ("transformers", "vllm"), attention_factor=1.3)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    assert Plan.read(tmp_path / "plan.json") == plan
    verdicts = {check.name: check.verdict for check in read_back(tmp_path / "out")}
    assert verdicts == {"tables": "pass", "weights": "pass", "files": "pass"}
    key = "model.layers.1.self_attn.k_proj.weight"
    assert key in {edit.tensor for edit in plan.tensors}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[key][3] *= 1 + 2**-40

    set_tensors(tmp_path / "out", change)
    (weights,) = [check for check in read_back(tmp_path / "out") if check.name == "weights"]
    assert weights.verdict == "fail"
    assert key in weights.detail


def test_what_was_baked_is_no_original_to_start_from(tmp_path: Path) -> None:
    source = source_of(tmp_path, "llama")
    extended(source, tmp_path / "out", ("transformers", "vllm"), attention_factor=1.3)
    with pytest.raises(AmbiguousRope, match="its weights contain baked factors") as refusal:
        ropetool.plan(tmp_path / "out", "yarn", factor=8, reading="original")
    assert str(source) in refusal.value.try_


# --- bakes of their own


def baked(source: Path, what: str, output: Path, **options: Any) -> Plan:
    plan = make_bake(source, what, **options)
    ropetool.apply(plan, source, output)
    return plan


ASKED: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "attention-factor": ("qwen2", "attention-factor", {"side": "both"}),
    "softmax-scale": ("deepseek_v3", "softmax-scale", {}),
    "layout": ("deepseek_v3", "layout", {"to": "half"}),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_bake_gives_the_same_logits_and_is_refused_a_second_time(case: str, tmp_path: Path) -> None:
    name, what, options = ASKED[case]
    source = models.write(tmp_path / "m", configs.BAKED[name], shards=2)
    plan = baked(source, what, tmp_path / "out", **options)
    assert plan.tensors
    assert np.abs(logits(source) - logits(tmp_path / "out")).max() < EXACT
    verdicts = {check.name: check.verdict for check in read_back(tmp_path / "out")}
    assert verdicts == {"tables": "pass", "weights": "pass", "files": "pass"}
    with pytest.raises(ConfigError, match=f"{what} is baked in already"):
        make_bake(tmp_path / "out", what, **options)


def test_gains_and_multipliers_are_what_the_model_then_computes(tmp_path: Path) -> None:
    """The score times c is the model with c times its softmax scale; all gains c are the same in full rotary heads."""
    source = models.write(tmp_path / "m", configs.BAKED["llama"])
    baked(source, "score", tmp_path / "score", multiplier=1.21)
    baked(source, "pair-gain", tmp_path / "gain", gains=(1.21,) * 16, side="q")

    def louder(model: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 1.21

    expected = logits(source, change=louder)
    for name in ("score", "gain"):
        assert np.abs(expected - logits(tmp_path / name)).max() < EXACT
    assert np.abs(expected - logits(source)).max() > 1e-3


def test_wider_numbers_are_counted_in_the_index(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["llama"], shards=2)
    for shard in source.glob("*.safetensors"):
        set_tensors(source, lambda tensors: {key: t.to(torch.bfloat16) for key, t in tensors.items()}, shard.name)
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["metadata"]["total_size"] = size(source)
    (source / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    baked(source, "attention-factor", tmp_path / "out", bake_dtype="f32")
    stated = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert stated == size(tmp_path / "out") > size(source)
    shutil.rmtree(tmp_path / "out")
    baked(source, "attention-factor", tmp_path / "out")
    assert size(tmp_path / "out") == size(source)
    for metadata in ([1], {"total_size": True}, {"total_size": "1"}):  # an index without a size keeps its content
        (source / "model.safetensors.index.json").write_text(json.dumps({**index, "metadata": metadata}))
        shutil.rmtree(tmp_path / "out")
        baked(source, "attention-factor", tmp_path / "out", bake_dtype="f32")
        assert json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["metadata"] == metadata


def size(directory: Path) -> int:
    return sum(t.nbytes for path in directory.glob("*.safetensors") for t in load_file(path).values())


def test_a_shard_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["llama"])
    plan = make_bake(source, "attention-factor")
    (shard,) = source.glob("*.safetensors")
    os.utime(shard, ns=(1, 1))
    with pytest.raises(PlanMismatch, match=f"{shard.name} has changed since the plan was made"):
        ropetool.apply(plan, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_packed_weights_are_extended_in_the_config_and_not_baked(tmp_path: Path) -> None:
    source = source_of(tmp_path, "llama")
    set_tensors(source, lambda tensors: {k.replace("k_proj.weight", "k_proj.qweight"): t for k, t in tensors.items()})
    assert not extended(source, tmp_path / "out", ("transformers",)).bakes
    with pytest.raises(UnsupportedDtype, match=r"is packed \(GPTQ or AWQ\).* edits only config\.json works"):
        make_bake(tmp_path / "out", "attention-factor")
    with pytest.raises(LossyExport, match=r"the weights cannot store the rest: is packed \(GPTQ or AWQ\)"):
        ropetool.plan(source, "yarn", factor=4, for_runtimes=("transformers", "vllm"), attention_factor=1.3)


def test_an_adapter_beside_the_model_is_noted(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["llama"])
    assert not [note for note in make_bake(source, "attention-factor").notes if "adapter" in note]
    (source / "lora").mkdir()
    (source / "lora" / "adapter_config.json").write_text("{}")
    (note,) = [note for note in make_bake(source, "attention-factor").notes if "adapter" in note]
    assert "does not fit the output" in note


def test_runtimes_that_still_add_a_factor_of_their_own_are_named(tmp_path: Path) -> None:
    """attention_factor 1.0 is what transformers reads; those that do not multiply by YaRN's once more."""
    source = source_of(tmp_path, "llama")
    ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "extended")
    (note,) = make_bake(tmp_path / "extended", "attention-factor").notes
    assert note.startswith(
        "mlx-lm, mlx-vlm, sglang, vllm 0.25 to 0.29 read the source like transformers, but not the output"
    )
    assert "attention factor 1.13863 instead of 1" in note


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["llama"])
    wrong: list[tuple[type[RopetoolError], str, str, dict[str, Any]]] = [
        (UnknownName, "no bake is called 'temperature'; known: attention-factor", "temperature", {}),
        (ConfigError, "pair-gain needs --gain", "pair-gain", {}),
        (ConfigError, "lists 1 numbers, but full_attention has 16 rotary pairs", "pair-gain", {"gains": (1.0,)}),
        (ConfigError, "--to: attention-factor does not accept this option", "attention-factor", {"to": "half"}),
        (ConfigError, "'x' is not one of k, q, both", "attention-factor", {"side": "x"}),
        (ConfigError, "f16' is neither f32 nor f64", "attention-factor", {"bake_dtype": "f16"}),
        (ConfigError, "multiplier is 1 already", "softmax-scale", {}),
        (ConfigError, "pairs must be from 0 to 15", "drop-pairs", {"pairs": (16,), "mode": "mute"}),
        (ConfigError, "must be still or mute", "drop-pairs", {"pairs": (15,), "mode": "quiet"}),
        (LossyExport, "a llama config has no key for the order", "layout", {"to": "half"}),
        (ConfigError, "'sliding' is not a layer type", "pair-gain", {"gains": (1.0,), "layer_type": "sliding"}),
        (ConfigError, "'sliding' is not a layer type", "score", {"multiplier": 2.0, "layer_type": "sliding"}),
        (ConfigError, "score with these options changes nothing", "score", {"multiplier": 1.0}),
        (ConfigError, "the multiplier of the score is 0.0; it must be a number above 0", "score", {"multiplier": 0.0}),
        (LossyExport, "has no config key that multiplies the score", "attention-factor", {"config_only": True}),
    ]
    for kind, message, what, options in wrong:
        with refusal(kind, message):
            make_bake(source, what, **options)
    alone = write_config(tmp_path / "alone", configs.BAKED["llama"])
    with pytest.raises(LossyExport, match="no weights to bake into"):
        make_bake(alone, "attention-factor")


def test_every_option_of_a_bake_is_a_field(tmp_path: Path) -> None:
    assert {name for kind in BAKES.values() for name in kind.options} == set(vars(BakeOptions()))
