"""A bake planned from a config without weights against the one planned with them, for every family."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import bake_models as models
import configs
import pytest
from models import set_config

from ropetool.errors import LossyExport
from ropetool.plans.applying import apply
from ropetool.plans.bakes import make_bake
from ropetool.plans.presumed import PRESUMED, QUANTISED, presumed, with_rows


@pytest.mark.parametrize("name", configs.BAKED)
@pytest.mark.parametrize("bake", ["attention-factor", "score"])
def test_the_config_alone_names_the_same_tensors_and_rows(name: str, bake: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", configs.BAKED[name])
    model = models.opened(source)
    view = model.targets
    assumed = presumed(view).tensors
    for tensor, stored in assumed.items():  # all are there, with that many rows; norms of heads x channels lie flat
        assert math.prod(view.tensors[tensor].shape[: 2 if "norm" in tensor else 1]) == stored.shape[0], tensor
    options = {"multiplier": 1.5} if bake == "score" else {}
    if bake == "attention-factor" and view.rope.entries["full_attention"].attention_factor == 1:
        bake = "softmax-scale"
    real = make_bake(source, bake, **options)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(source / "config.json", bare)
    plan = make_bake(bare, bake, presume=True, **options)
    assert (plan.tensors, plan.weight_files) == ((), {})
    assert plan.edits == tuple(edit for edit in real.edits if edit.file == "config.json")
    assert PRESUMED in plan.notes
    edits = [edit for edit in real.tensors if edit.tensor.endswith(".weight")]
    assert plan.bakes == with_rows(edits) != ()


def test_how_many_rows_change_of_how_many(tmp_path: Path) -> None:
    """phi3 keeps queries, keys and values in one matrix: of 4 + 2 + 2 heads of 32 channels the keys are 64 rows."""
    source = models.write(tmp_path / "model", configs.BAKED["phi3"])
    for path in source.glob("*.safetensors*"):
        path.unlink()
    (words,) = make_bake(source, "score", presume=True, multiplier=1.5).bakes
    assert (
        words
        == "the score of full_attention times 1.5: model.layers.*.self_attn.qkv_proj.weight (2), 64 of 256 rows of each"
    )


def test_without_weights_nothing_is_written(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", configs.BAKED["llama"])
    for path in source.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(LossyExport, match="the source has no weights to bake into") as refusal:
        make_bake(source, "attention-factor")
    assert refusal.value.try_.startswith(f"ropetool bake {source} attention-factor --dry-run, ")
    set_config(source, quantization_config={"quant_method": "fp8"})
    assert {PRESUMED, QUANTISED} <= set(make_bake(source, "attention-factor", presume=True).notes)


def test_a_plan_from_a_config_alone_is_not_carried_out(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", configs.BAKED["llama"])
    weights = {path.name: path.read_bytes() for path in source.glob("*.safetensors*")}
    for name in weights:
        (source / name).unlink()
    plan = make_bake(source, "attention-factor", presume=True)
    with pytest.raises(LossyExport, match="weights"):
        apply(plan, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "tensor", "rows"),
    [
        ("gpt_neox", "gpt_neox.layers.*.attention.query_key_value.weight (2)", "512 of 768 rows of each"),
        ("phi3", "model.layers.*.self_attn.qkv_proj.weight (2)", "192 of 256 rows of each"),
    ],
)
def test_a_tensor_of_queries_and_keys_counts_once(name: str, tensor: str, rows: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", configs.BAKED[name])
    what = f"the score of full_attention times 2.25: {tensor}"
    (words,) = make_bake(source, "score", multiplier=2.25, side="both").bakes
    assert words.startswith(what)
    for path in source.glob("*.safetensors*"):
        path.unlink()
    (words,) = make_bake(source, "score", presume=True, multiplier=2.25, side="both").bakes
    assert words == f"{what}, {rows}"
