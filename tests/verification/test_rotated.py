"""One loaded model turned by the tables of several plans, against transformers with what the plans wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SIZES, write_model, write_tokenizer
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig
from verifying import rope_of

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError
from ropetool.rope.tables import RopeSet
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.torch_runner import TorchRunner


def gemma(folder: Path) -> None:
    torch.manual_seed(1)
    config = Gemma3TextConfig(
        **SIZES, head_dim=32, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)


def deepseek(folder: Path) -> None:
    torch.manual_seed(2)
    config = DeepseekV3Config(
        **SIZES, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
        first_k_dense_replace=2, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(folder)


MAKERS = {"llama": write_model, "gemma3_text": gemma, "deepseek_v3": deepseek}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sources")
    for name, make in MAKERS.items():
        (root / name).mkdir()
        make(root / name)
        write_tokenizer(root / name)
    return {name: root / name for name in MAKERS}


def rows_of(length: int) -> list[list[int]]:
    return [[0, *row] for row in np.random.default_rng(length).integers(1, 300, size=(2, length - 1)).tolist()]


def turned(source: Path, rope: RopeSet) -> tuple[TorchRunner, RotatedRunner]:
    runner = TorchRunner(source, dtype="float64")
    nested = HfCheckpoint.open(source).family.nested
    return runner, RotatedRunner(runner, rope, own=rope_of(source), nested=nested)


CASES = [
    ("llama", "yarn"), ("llama", "llama3"), ("llama", "linear"), ("llama", "longrope"), ("gemma3_text", "yarn"),
    ("gemma3_text", "linear"), ("deepseek_v3", "yarn"), ("deepseek_v3", "linear"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method"), CASES)
def test_it_computes_what_transformers_does_with_the_output(
    name: str, method: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source = sources[name]
    pairs = 8 if name == "deepseek_v3" else 16
    params = {"long_factor": list(np.linspace(1, 4, pairs))} if method == "longrope" else {}
    plan = ropetool.plan(source, method, factor=4, params=params)
    output = tmp_path / "output"
    ropetool.apply(plan, source, output)
    runner, view = turned(source, rope_of(output))
    own = {length: runner.score(rows_of(length), 8).losses for length in (40, 200)}
    written = TorchRunner(output, dtype="float64")
    for length in (40, 200):  # of longrope, one on each side of its switch
        expected = written.score(rows_of(length), 8).losses
        found = view.score(rows_of(length), 8).losses
        assert np.abs(found - expected).max() < 1e-4  # transformers has its tables in float32
        assert np.array_equal(runner.score(rows_of(length), 8).losses, own[length])  # and is itself again
    assert np.abs(view.score(rows_of(200), 8).losses - own[200]).max() > 1e-3
    logits = np.concatenate([piece.copy() for _, piece in view.logits(rows_of(200)[0])])
    expected_logits = np.concatenate([piece.copy() for _, piece in written.logits(rows_of(200)[0])])
    assert np.abs(logits - expected_logits).max() < 1e-3


def test_two_views_of_one_model_do_not_see_each_other(sources: dict[str, Path]) -> None:
    source = sources["llama"]
    plans = [ropetool.plan(source, method, factor=4).target for method in ("yarn", "linear")]
    runner, first = turned(source, plans[0])
    second = RotatedRunner(runner, plans[1], own=rope_of(source), nested=False)
    alone = [view.score(rows_of(100), 8).losses for view in (first, second)]
    again = [view.score(rows_of(100), 8).losses for view in (second, first)]
    assert np.array_equal(alone[0], again[1])
    assert np.array_equal(alone[1], again[0])
    first.close()
    assert np.array_equal(second.score(rows_of(100), 8).losses, alone[1])  # the model is its owner's


def test_another_layout_or_window_is_refused(sources: dict[str, Path]) -> None:
    meant = rope_of(sources["gemma3_text"])
    runner = TorchRunner(sources["gemma3_text"], dtype="float64")
    for change, words in ({"layout": "interleaved"}, "layout"), ({"sliding_window": 8}, "window"):
        entry = meant.entries["sliding_attention"]
        other = meant.with_entry("sliding_attention", replace(entry, **change))
        with pytest.raises(ConfigError, match=words):
            RotatedRunner(runner, other, own=meant, nested=True)
