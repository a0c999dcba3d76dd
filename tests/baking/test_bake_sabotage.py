"""Every wrong way to bake that is known, each planted on purpose: the comparison of the logits turns red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import bake_models as models
import configs
import numpy as np
import pytest
from bake_models import logits
from models import set_config
from test_bake_families import EXACT, bake_of

from ropetool.errors import LossyExport
from ropetool.weights.bakes import Bake
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets

Wrong = Callable[[FoldTargets, Bake], Bake]
SEEN = 1e-2  # far above the 1e-4 of float32


def edited(change: Callable[[TensorEdit], TensorEdit | None]) -> Wrong:
    """Return a defect that changes or drops each tensor edit."""

    def wrong(view: FoldTargets, bake: Bake) -> Bake:
        found = (change(edit) for edit in bake.tensors)
        return replace(bake, tensors=tuple(edit for edit in found if edit is not None))

    return wrong


def all_rows(edit: TensorEdit) -> TensorEdit:
    return replace(edit, starts=(0,), length=edit.height)


def on_projection(edit: TensorEdit) -> TensorEdit:
    """The factor in the projection below a norm, which divides it out again."""
    name, height = edit.tensor.replace("k_norm", "k_proj"), 2 * 32
    return replace(edit, tensor=name, height=height, starts=(0,), length=height, offset=0.0)


def every_layer(view: FoldTargets, bake: Bake) -> Bake:
    """Also the layers that do not rotate, or by another table."""
    found = {edit.tensor.split(".layers.")[1].split(".")[0] for edit in bake.tensors}
    (first, *_) = sorted(found)
    some = [edit for edit in bake.tensors if f".layers.{first}." in edit.tensor]
    layers = range(view.config["num_hidden_layers"])
    return replace(
        bake,
        tensors=tuple(
            replace(e, tensor=e.tensor.replace(f".layers.{first}.", f".layers.{i}.")) for i in layers for e in some
        ),
    )


def latent_rows(view: FoldTargets, bake: Bake) -> Bake:
    """The whole of kv_a instead of the softmax scale's place: the latent rows are normed away."""
    height = view.config["kv_lora_rank"] + view.config["qk_rope_head_dim"]
    (factor,) = bake.tensors[0].factors
    edits = [
        TensorEdit(f"model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight", "scale", height, (0,), height, (factor,))
        for i in range(view.config["num_hidden_layers"])
    ]
    return replace(bake, tensors=tuple(edits))


def mscale_dropped(view: FoldTargets, bake: Bake) -> Bake:
    """The mscale keys go and no attention_factor comes: the default one heats the rotary part."""
    return replace(bake, edits=tuple(edit for edit in bake.edits if edit.path[-1] != "attention_factor"))


# model, side, what is done wrong
WRONG: dict[str, tuple[str, str, Wrong]] = {
    "all rows under partial rotary": ("stablelm", "k", edited(all_rows)),
    "all rows under partial rotary, interleaved": ("glm4", "k", edited(all_rows)),
    "all rows of a fused projection": ("phi3", "k", edited(all_rows)),
    "all entries of a partial head's norm": ("phi-norms", "k", edited(all_rows)),
    "a projection under a norm": ("qwen3", "k", edited(on_projection)),
    "a weight without its bias": ("qwen2", "k", edited(lambda e: None if e.tensor.endswith("bias") else e)),
    "a norm's weight without its bias": ("phi-norms", "k", edited(lambda e: None if e.tensor.endswith("bias") else e)),
    "an offset norm scaled as it is stored": ("gemma3_text", "k", edited(lambda e: replace(e, offset=0.0))),
    "all layers of a model with unrotated ones": ("smollm3", "k", every_layer),
    "the full layers of cohere2": ("cohere2", "k", every_layer),
    "all layers where only the full ones are scaled": ("olmo3", "k", every_layer),
    "the sliding layers of gemma3": ("gemma3_text", "k", every_layer),
    "latent rows": ("deepseek_v3", "", latent_rows),
    "mscale keys dropped": ("deepseek_v3", "", mscale_dropped),
    "the values' rows for the keys'": (
        "gpt_neox", "k", edited(lambda e: replace(e, starts=tuple(s + 64 for s in e.starts))),
    ),
    "A instead of its square": ("llama", "k", edited(lambda e: replace(e, factors=(e.factors[0] ** 0.5,)))),
    "one side of two": ("llama", "both", edited(lambda e: e if "k_proj" in e.tensor else None)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_way_is_seen(name: str, tmp_path: Path) -> None:
    model, side, spoil = WRONG[name]
    source = models.write(tmp_path / "m", configs.BAKED[model])
    model = models.opened(source)
    view = model.targets
    bake = bake_of(source, side)
    models.carry_out(bake, source, tmp_path / "right")
    models.carry_out(spoil(view, bake), source, tmp_path / "wrong")
    expected = logits(source)
    assert np.abs(expected - logits(tmp_path / "right")).max() < EXACT
    assert np.abs(expected - logits(tmp_path / "wrong")).max() > SEEN


def test_a_scale_under_clamped_projections_is_refused_and_would_be_wrong(tmp_path: Path) -> None:
    """The refusal's reason is true: with the clamp the baked model is another one."""
    source, baked = models.write(tmp_path / "m", configs.BAKED["olmo"]), tmp_path / "baked"
    models.carry_out(bake_of(source), source, baked)
    for directory in (source, baked):
        set_config(directory, clip_qkv=0.5)
    with pytest.raises(LossyExport, match=r"clip_qkv is 0\.5: the model clamps its projections"):
        bake_of(source)
    assert np.abs(logits(source) - logits(baked)).max() > SEEN


def test_norms_that_are_not_permuted_with_their_projection(tmp_path: Path) -> None:
    """The rows of qwen3 in the other order, seen through a transformers that rotates in that order."""
    source = models.write(tmp_path / "m", configs.BAKED["qwen3"])
    model = models.opened(source)
    view = model.targets
    bake = models.reordered(model, "interleaved")
    models.carry_out(bake, source, tmp_path / "right")
    without = edited(lambda edit: None if "norm" in edit.tensor else edit)(view, bake)
    models.carry_out(without, source, tmp_path / "wrong")
    expected = logits(source)
    with models.rotated_interleaved("qwen3"):
        assert np.abs(expected - logits(tmp_path / "right")).max() < EXACT
        assert np.abs(expected - logits(tmp_path / "wrong")).max() > SEEN
        assert np.abs(expected - logits(source)).max() > SEEN
