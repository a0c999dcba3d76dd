"""The numpy reference attention against torch, and the scores of baked layers that `bake --check` shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import bake_models as models
import configs
import numpy as np
import pytest
import torch
from test_bake_families import bake_of
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as neighbours
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import UnsupportedDtype
from ropetool.rope import arithmetic
from ropetool.rope.tables import Array
from ropetool.weights import checking
from ropetool.weights.bakes import Bake
from ropetool.weights.checking import LayerCheck, check_scores, reader


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def attention(scored: Array, v: Array) -> Array:
    """Return the values mixed by a softmax of the scores over the keys. Shapes: (heads, n, n), (kv_heads, n, head_dim)."""
    weights = np.exp(scored - scored.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Array = weights @ np.repeat(v, scored.shape[0] // v.shape[0], axis=0)
    return mixed


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_the_reference_is_torch_s_attention(layout: str, rotary_dim: int) -> None:
    q, k, v = drawn(4, 50, 16), drawn(2, 50, 16), drawn(2, 50, 12)
    positions = np.arange(50) * 7.0
    inv_freq = arithmetic.base_inv_freq(10000.0, rotary_dim)
    found = attention(arithmetic.scores(q, k, positions, inv_freq, attention_factor=1.2, layout=layout), v)
    angles = torch.tensor(positions)[:, None] * torch.tensor(inv_freq)
    both = torch.cat([angles, angles], -1) if layout == "half" else angles.repeat_interleave(2, -1)
    cos, sin = both.cos()[None] * 1.2, both.sin()[None] * 1.2
    turn = halves if layout == "half" else neighbours
    with models.everything_in_float64():
        parts = turn(*(torch.tensor(x[None, ..., :rotary_dim]) for x in (q, k)), cos, sin)
    turned = [
        torch.cat([part, torch.tensor(x[None, ..., rotary_dim:])], -1) for part, x in zip(parts, (q, k), strict=True)
    ]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *turned, torch.tensor(v)[None], is_causal=True, enable_gqa=True
    )
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=0, atol=1e-12)
    plain = attention(arithmetic.scores(q, k, positions, inv_freq, layout=layout), v)
    assert np.abs(plain - found).max() > 1e-2


def check(source: Path, target: Path, bake: Bake) -> list[LayerCheck]:
    before, after = (models.opened(path).targets for path in (source, target))
    readers = [reader(HfCheckpoint.open(path).stored) for path in (source, target)]
    return check_scores(bake.tensors, before, readers[0], after, readers[1])


@pytest.mark.parametrize("name", configs.BAKED)
def test_the_scores_of_every_baked_layer_agree(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    bake = bake_of(source)
    models.carry_out(bake, source, tmp_path / "baked")
    checks = check(source, tmp_path / "baked", bake)
    touched = {int(edit.tensor.split(".layers.")[-1].split(".h.")[-1].split(".")[0]) for edit in bake.tensors}
    assert {found.layer for found in checks} == touched
    for found in checks:
        assert found.difference < 1e-12 * found.largest
        assert found.unbaked > 1e-2 * found.largest


@pytest.mark.parametrize("name", ["stablelm", "qwen3", "cohere-norms", "deepseek_v3"])
def test_a_wrong_bake_shows_in_the_scores(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    bake = bake_of(source)
    wrong = replace(bake, tensors=tuple(replace(e, starts=e.starts[:1], length=e.length // 2) for e in bake.tensors))
    models.carry_out(wrong, source, tmp_path / "wrong")
    assert all(found.difference > 1e-2 * found.largest for found in check(source, tmp_path / "wrong", wrong))


@pytest.mark.parametrize("name", ["llama", "cohere-norms", "phi-norms", "olmo2", "gpt_neox", "falcon-groups"])
def test_the_reference_s_scores_are_those_of_the_real_attention(name: str, tmp_path: Path) -> None:
    """The softmax of our scores against the attention weights of transformers, for the same activations."""
    source = models.write(tmp_path / "m", configs.BAKED[name])
    opened = models.opened(source)
    view = opened.targets
    entry = view.rope.entries["full_attention"]
    width, count = view.config["hidden_size"], 64
    with models.everything_in_float64(), torch.no_grad():
        model = models.load(source, attention="eager")
        module = next(
            m for n, m in model.named_modules() if n.endswith(("0.self_attn", "0.attention", "0.self_attention"))
        )
        x = torch.tensor(np.random.default_rng(0).standard_normal((1, count, width)))
        positions = torch.tensor(np.linspace(0, view.rope.max_position_embeddings - 1, count).astype(np.int64))[None]
        rotary = next(m for n, m in model.named_modules() if n.endswith("rotary_emb"))
        mask = torch.full((1, 1, count, count), -torch.inf).triu(1)
        more: dict[str, Any] = {"alibi": None, "head_mask": None, "output_attentions": True} if "falcon" in name else {}
        if "gpt_neox" in name:
            more = {"head_mask": None}
        found = module(x, attention_mask=mask, position_embeddings=rotary(x, positions), **more)[-1][0].numpy()
    scores = checking.layer_scores(
        view, entry, 0, reader(opened.checkpoint.stored), view.rope.max_position_embeddings, count
    )
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # norms differ in their epsilon


def test_types_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(4, 4).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedDtype, match="F8_E4M3"):
        reader(HfCheckpoint.open(tmp_path).stored)("w")
