"""The torch runner against a naive float64 loop over full logits, against fresh models, and in every kind of trouble."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from ropetool.errors import CheckpointError, ConfigError, MissingDependency, MissingFile, NotACheckpoint
from ropetool.verification.torch_library import RopeState
from ropetool.verification.torch_runner import TorchRunner

SCORED = 16


def rows_of(length: int, count: int = 3, vocabulary: int = 300) -> list[list[int]]:
    rng = np.random.default_rng(length)
    return [[0, *row] for row in rng.integers(1, vocabulary, size=(count, length - 1)).tolist()]


def naive(folder: Path, rows: list[list[int]], scored: int, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """A fresh model for each row, all logits, one token at a time, in float64."""
    losses = []
    for row in rows:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0].double()
        for position in range(len(row) - scored, len(row)):
            logit = logits[position - 1]
            losses.append((torch.log(torch.exp(logit - logit.max()).sum()) + logit.max() - logit[row[position]]).item())
    return np.array(losses).reshape(len(rows), scored)


@pytest.mark.parametrize("length", [SCORED + 1, 64, 200])
def test_losses_equal_a_naive_loop_over_full_logits(tiny: Path, length: int) -> None:
    rows = rows_of(length)
    found = TorchRunner(tiny, dtype="float64").losses(rows, SCORED)
    expected = naive(tiny, rows, SCORED)
    assert found.dtype == np.float64
    assert np.abs(found - expected).max() < 1e-9
    assert expected.std() > 0.5  # the model says something about each token
    assert np.abs(found[:, 1:] - expected[:, :-1]).max() > 0.5  # shifted by one it would not pass


def test_batches_equal_single_rows_and_leave_no_row_out(tiny: Path) -> None:
    rows = rows_of(50, count=7)
    counted: list[int] = []
    batched = TorchRunner(tiny, dtype="float64", batch_tokens=150).losses(rows, SCORED, counted.append)
    runner = TorchRunner(tiny, dtype="float64")
    single = np.concatenate([runner.losses([row], SCORED) for row in rows])
    assert counted == [150, 150, 50]
    assert np.abs(batched - single).max() < 1e-12


def test_a_dynamic_table_meets_every_row_as_a_fresh_model_does(
    dynamic: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [200, 100, 64, 150]  # longest first: the table would stay at 200
    expected = {n: naive(dynamic, rows_of(n), SCORED) for n in lengths}
    runner = TorchRunner(dynamic, dtype="float64")
    for length in lengths:
        assert np.abs(runner.losses(rows_of(length), SCORED) - expected[length]).max() < 1e-9
    assert np.abs(expected[200] - naive(tiny, rows_of(200), SCORED)).max() > 0.01  # dynamic does something here

    monkeypatch.setattr(RopeState, "restore", lambda self: None)
    forgetful = TorchRunner(dynamic, dtype="float64")
    forgetful.losses(rows_of(200), SCORED)
    assert np.abs(forgetful.losses(rows_of(100), SCORED) - expected[100]).max() > 0.01


def test_longrope_lists_are_chosen_anew_for_every_length(tiny: Path, make_variant: Any) -> None:
    folder = make_variant(
        tiny,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 16,
            "long_factor": [1.0 + i / 4 for i in range(16)],
        },
    )
    runner = TorchRunner(folder, dtype="float64")
    for length in (100, 64, 120):
        rows = rows_of(length)
        assert np.abs(runner.losses(rows, SCORED) - naive(folder, rows, SCORED)).max() < 1e-9


def test_only_scored_tokens_get_logits_and_attention_is_sdpa(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    forward = torch.nn.Linear.forward

    def spy(self: torch.nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        if self.out_features == 300:
            shapes.append(tuple(hidden.shape))
        return forward(self, hidden)

    attention = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.Linear, "forward", spy)
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: attention.append(k) or sdpa(*a, **k)
    )
    TorchRunner(tiny).losses(rows_of(100), SCORED)
    assert shapes == [(3, SCORED + 1, 64)]
    assert [call["is_causal"] for call in attention] == [True, True]
    assert all(call["attn_mask"] is None for call in attention)


def test_a_family_that_refuses_sdpa_runs_with_its_own_attention_and_logit_cap(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, sliding_window=32, final_logit_softcapping=3.0, initializer_range=0.2,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path)
    rows = rows_of(100)
    found = TorchRunner(tmp_path, dtype="float64").losses(rows, SCORED)
    assert np.abs(found - naive(tmp_path, rows, SCORED)).max() < 1e-9


def test_narrow_weights_still_get_a_wide_cross_entropy(tiny: Path) -> None:
    rows = rows_of(64)
    found = TorchRunner(tiny, dtype="bfloat16").losses(rows, SCORED)
    assert np.abs(found - naive(tiny, rows, SCORED, torch.bfloat16)).max() < 1e-2  # logits differ by a rounding of bf16
    assert len(set(found.ravel().tolist())) > 0.9 * found.size  # a loss in bf16 has only 256 values an octave


def test_the_prefix_is_what_the_tokenizer_adds(tiny: Path, make_variant: Any, write_tokenizer: Any) -> None:
    assert TorchRunner(tiny).prefix == (0,)
    folder = make_variant(tiny)
    write_tokenizer(folder, bos=False)
    plain = TorchRunner(folder)
    assert plain.prefix == ()
    assert plain.tokenize("the rope") == TorchRunner(tiny).tokenize("the rope")
    assert 0 not in plain.tokenize("the rope")


def failing_above(runner: TorchRunner, most: int, error: Exception) -> None:
    """Let the model of a runner fail when it is given more than so many rows."""
    model, _ = runner._load()
    forward = model.forward

    def limited(input_ids: torch.Tensor, **options: Any) -> Any:
        if len(input_ids) > most:
            raise error
        return forward(input_ids=input_ids, **options)

    model.forward = limited


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_batches_are_halved_until_they_fit_and_it_says_so(tiny: Path, error: Exception) -> None:
    rows = rows_of(50, count=7)
    said: list[str] = []
    runner = TorchRunner(tiny, dtype="float64", report=said.append)
    failing_above(runner, 2, error)
    found = runner.losses(rows, SCORED)
    assert np.abs(found - TorchRunner(tiny, dtype="float64").losses(rows, SCORED)).max() < 1e-12
    assert said == [
        "tiny: no memory for 7 rows of 50 tokens; going on with 3",
        "tiny: no memory for 3 rows of 50 tokens; going on with 1",
    ]
    failing_above(runner, 0, error)
    with pytest.raises(ConfigError, match="one row of 50 tokens does not fit into the memory of cpu"):
        runner.losses(rows, SCORED)


def test_other_errors_of_the_model_are_not_taken_for_lack_of_memory(tiny: Path) -> None:
    runner = TorchRunner(tiny)
    failing_above(runner, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        runner.losses(rows_of(50), SCORED)


def test_a_closed_runner_holds_no_model(tiny: Path) -> None:
    runner = TorchRunner(tiny)
    before = runner.losses(rows_of(32), SCORED)
    assert runner._loaded is not None
    runner.close()
    assert runner._loaded is None
    assert (runner.losses(rows_of(32), SCORED) == before).all()


def test_transformers_stays_silent_and_keeps_its_settings(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = transformers.utils.logging
    settings = log.get_verbosity(), log.is_progress_bar_enabled()
    capfd.readouterr()
    runner = TorchRunner(tiny)
    runner.tokenize("the rope turns " * 200)  # beyond model_max_length, which the tokenizer would warn of
    runner.losses(rows_of(100), SCORED)
    assert capfd.readouterr() == ("", "")
    assert settings == (log.get_verbosity(), log.is_progress_bar_enabled())
    assert log.is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_a_missing_library_says_how_to_install_it(tiny: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=f"needs {name}") as caught:
        TorchRunner(tiny)
    assert caught.value.try_ == 'pip install "ropetool[verify]"'


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_here_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"{device} was asked for, and torch finds none here") as caught:
        TorchRunner(tiny, device=device)
    assert (caught.value.where, caught.value.try_) == ("--device", "--device cpu")
    assert "cpu, float32" in TorchRunner(tiny).description


def test_unknown_devices_and_types_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="'gpu' is no device"):
        TorchRunner(tiny, device="gpu")
    with pytest.raises(ConfigError, match="'int8' is not one of auto, float32"):
        TorchRunner(tiny, dtype="int8")


def test_unreadable_checkpoints_are_refused(tiny: Path, tmp_path: Path, make_variant: Any) -> None:
    with pytest.raises(NotACheckpoint, match=r"there is no config\.json"):
        TorchRunner(tmp_path)
    bare = make_variant(tiny)
    (bare / "model.safetensors").unlink()
    with pytest.raises(MissingFile, match="no safetensors weights"):
        TorchRunner(bare)
    mute = make_variant(tiny)
    (mute / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        TorchRunner(mute)
    broken = make_variant(tiny)
    (broken / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        TorchRunner(broken)
    short = make_variant(tiny)
    (short / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        TorchRunner(short).losses(rows_of(32), SCORED)
    remote = make_variant(tiny, model_type="mystery", auto_map={"AutoModelForCausalLM": "code.Model"})
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        TorchRunner(remote).losses(rows_of(32), SCORED)


def test_missing_weights_are_not_replaced_by_random_ones(tiny: Path, make_variant: Any) -> None:
    folder = make_variant(tiny)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 tensors are missing, first model\.layers\.1\.self_attn\.q_proj"):
        TorchRunner(folder).losses(rows_of(32), SCORED)


def test_a_token_beyond_the_embeddings_is_named(tiny: Path) -> None:
    rows = rows_of(32)
    rows[2][9] = 300
    with pytest.raises(CheckpointError, match="gives token 300, but the model has embeddings for 300"):
        TorchRunner(tiny).losses(rows, SCORED)
