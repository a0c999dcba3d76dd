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
from models import set_tensors
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from ropetool.errors import CheckpointError, ConfigError, CorruptFile, MissingDependency, MissingFile, NotACheckpoint
from ropetool.escaping import install_line
from ropetool.verification.runners import torch_runner
from ropetool.verification.runners.torch_rotation import RopeState
from ropetool.verification.runners.torch_runner import TorchRunner

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
    found = TorchRunner(tiny, dtype="float64").score(rows, SCORED).losses
    expected = naive(tiny, rows, SCORED)
    assert found.dtype == np.float64
    assert np.abs(found - expected).max() < 1e-9
    assert expected.std() > 0.5  # the model says something about each token
    assert np.abs(found[:, 1:] - expected[:, :-1]).max() > 0.5  # shifted by one it would not pass


@pytest.mark.parametrize("length", [SCORED + 1, 700])
def test_wanted_tokens_of_a_row_that_is_read_cost_what_a_naive_loop_says(tiny: Path, length: int) -> None:
    (row,) = rows_of(length, 1)
    expected = naive(tiny, [row], length - 1)[0]  # of the tokens from the second on
    pieces = list(TorchRunner(tiny, dtype="float64").read(row, lambda tokens: tokens % 3 == 0))
    assert [piece.end for piece in pieces] == [min(end, length) for end in range(512, length + 512, 512)]
    indices = np.concatenate([piece.indices for piece in pieces])
    assert indices.tolist() == list(range(3, length, 3))
    assert np.abs(np.concatenate([piece.losses for piece in pieces]) - expected[indices - 1]).max() < 1e-9
    assert expected.std() > 0.01  # tokens differ, so another index would show


def test_a_row_that_is_read_may_be_left_and_another_begun(tiny: Path) -> None:
    first, second = rows_of(1200, 2)
    runner = TorchRunner(tiny, dtype="float64")
    left = next(iter(runner.read(first, lambda tokens: tokens > 0)))
    assert (left.end, len(left.indices)) == (512, 512)
    again = np.concatenate([piece.losses for piece in runner.read(second, lambda tokens: tokens >= 1100)])
    assert np.abs(again - naive(tiny, [second], 100)[0]).max() < 1e-9


def test_batches_equal_single_rows_and_leave_no_row_out(tiny: Path) -> None:
    rows = rows_of(50, count=7)
    counted: list[int] = []
    batched = TorchRunner(tiny, dtype="float64", batch_tokens=150).score(rows, SCORED, counted.append).losses
    runner = TorchRunner(tiny, dtype="float64")
    single = np.concatenate([runner.score([row], SCORED).losses for row in rows])
    assert counted == [150, 150, 50]
    assert np.abs(batched - single).max() < 1e-12


def test_a_dynamic_table_meets_every_row_as_a_fresh_model_does(
    dynamic: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [200, 100, 64, 150]  # longest first: the table would stay at 200
    expected = {n: naive(dynamic, rows_of(n), SCORED) for n in lengths}
    runner = TorchRunner(dynamic, dtype="float64")
    for length in lengths:
        assert np.abs(runner.score(rows_of(length), SCORED).losses - expected[length]).max() < 1e-9
    assert np.abs(expected[200] - naive(tiny, rows_of(200), SCORED)).max() > 0.01  # dynamic does something here

    monkeypatch.setattr(RopeState, "restore", lambda self: None)
    forgetful = TorchRunner(dynamic, dtype="float64")
    forgetful.score(rows_of(200), SCORED)
    assert np.abs(forgetful.score(rows_of(100), SCORED).losses - expected[100]).max() > 0.01


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
        assert np.abs(runner.score(rows, SCORED).losses - naive(folder, rows, SCORED)).max() < 1e-9


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
    TorchRunner(tiny).score(rows_of(100), SCORED)
    assert shapes == [(3, SCORED, 64)]
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
    found = TorchRunner(tmp_path, dtype="float64").score(rows, SCORED).losses
    assert np.abs(found - naive(tmp_path, rows, SCORED)).max() < 1e-9


def test_narrow_weights_still_get_a_wide_cross_entropy(tiny: Path) -> None:
    rows = rows_of(64)
    found = TorchRunner(tiny, dtype="bfloat16").score(rows, SCORED).losses
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


def failing_above(runner: TorchRunner, most: int, error: Exception, longest: int = 2**20) -> None:
    """Let the model of a runner fail when it is given more than so many rows, or tokens in one piece."""
    model = runner._model()
    hidden = type(model).hidden

    def limited(ids: torch.Tensor, first: int, chunk: int) -> Any:
        if len(ids) > most or min(chunk, ids.shape[1]) > longest:
            raise error
        return hidden(model, ids, first, chunk)

    model.hidden = limited  # type: ignore[method-assign]


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
    found = runner.score(rows, SCORED).losses
    assert np.abs(found - TorchRunner(tiny, dtype="float64").score(rows, SCORED).losses).max() < 1e-12
    assert said == [
        "tiny: no memory for 7 rows of 50 tokens; continuing with 3",
        "tiny: no memory for 3 rows of 50 tokens; continuing with 1",
    ]
    failing_above(runner, 0, error)
    with pytest.raises(ConfigError, match="one row of 50 tokens does not fit into the memory of cpu"):
        runner.score(rows, SCORED)


def test_a_row_that_does_not_fit_goes_on_in_smaller_chunks_and_it_says_so(tiny: Path) -> None:
    said: list[str] = []
    runner = TorchRunner(tiny, dtype="float64", report=said.append)
    failing_above(runner, 1, torch.OutOfMemoryError("CUDA out of memory."), longest=300)
    rows = rows_of(1100, count=2)
    found = runner.score(rows, SCORED).losses
    assert np.abs(found - naive(tiny, rows, SCORED)).max() < 1e-9
    assert said == [
        "tiny: no memory for 2 rows of 1100 tokens; continuing with 1",
        "tiny: no memory for 1100 tokens in one pass; continuing with 550 at a time",
        "tiny: no memory for 1100 tokens in one pass; continuing with 275 at a time",
    ]


@pytest.mark.parametrize("chunk", [7, 64, 99])
def test_chunks_behind_a_cache_equal_one_pass(tiny: Path, chunk: int) -> None:
    rows = rows_of(200)
    pieces = TorchRunner(tiny, dtype="float64", chunk_tokens=chunk)
    whole = TorchRunner(tiny, dtype="float64")
    assert pieces._model().fixed_table
    assert np.abs(pieces.score(rows, 150).losses - whole.score(rows, 150).losses).max() < 1e-9
    logits = [np.concatenate([piece for _, piece in runner.logits(rows[0])]) for runner in (pieces, whole)]
    assert np.abs(logits[0] - logits[1]).max() < 1e-9


def test_chunks_meet_the_window_of_a_sliding_layer(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, sliding_window=32, initializer_range=0.2,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path)
    rows = rows_of(200)
    found = TorchRunner(tmp_path, dtype="float64", chunk_tokens=48).score(rows, SCORED).losses
    assert np.abs(found - naive(tmp_path, rows, SCORED)).max() < 1e-9


def test_a_table_that_follows_the_length_is_computed_in_one_call(dynamic: Path) -> None:
    rows = rows_of(200)
    runner = TorchRunner(dynamic, dtype="float64", chunk_tokens=50)
    assert not runner._model().fixed_table
    assert np.abs(runner.score(rows, SCORED).losses - naive(dynamic, rows, SCORED)).max() < 1e-9


def full_logits(folder: Path, row: list[int]) -> np.ndarray:
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        return model(torch.tensor([row])).logits[0].numpy()


def test_hits_and_predictions_are_those_of_full_logits(tiny: Path) -> None:
    rows = rows_of(90)
    runner = TorchRunner(tiny, dtype="float64", batch_tokens=180)
    likeliest = full_logits(tiny, rows[0]).argmax(axis=-1)
    rows[0][80:] = likeliest[79:89].tolist()  # some tokens are what the model expects, one at a time
    for position in range(80, 90):
        rows[0][position] = int(full_logits(tiny, rows[0])[position - 1].argmax())
    wanted = np.array([[full_logits(tiny, r)[p - 1].argmax() == r[p] for p in range(90 - SCORED, 90)] for r in rows])
    assert wanted[0].sum() >= 10
    assert (runner.score(rows, SCORED).hits == wanted).all()

    candidates = [[5, 17, 250], [1, 2, 3], [299, 0, 7]]
    found = runner.predict(rows, candidates)
    for row, few, log_probs, top in zip(rows, candidates, found.log_probs, found.top, strict=True):
        logits = full_logits(tiny, row)[-1]
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert np.abs(log_probs - expected[few]).max() < 1e-9
        assert top == expected.argmax()


def test_two_rows_of_logits_taken_in_turn_leave_torch_as_it_was(tiny: Path) -> None:
    rows = [TorchRunner(tiny).logits([3 + at % 50 for at in range(1200)]) for _ in range(2)]
    for (start, ours), (other, theirs) in zip(*rows, strict=True):
        assert start == other
        assert np.array_equal(ours, theirs)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_logits_come_in_pieces_that_cover_the_row(tiny: Path) -> None:
    (row,) = rows_of(1100, count=1)
    pieces = [(start, len(piece)) for start, piece in TorchRunner(tiny).logits(row)]
    assert pieces == [(0, 512), (512, 512), (1024, 76)]


@pytest.mark.parametrize("text", ["the rope turns. near", "ünïcödé 🙂🙂 日本 the", "  the \n\n rope", ""])
def test_bytes_of_tokens_sum_to_the_text(tiny: Path, text: str) -> None:
    runner = TorchRunner(tiny)
    found = runner.byte_lengths(text)
    assert len(found) == len(runner.tokenize(text))
    assert sum(found) == len(text.encode())
    decoded = [runner._tokenizer.detokenize([token]) for token in runner.tokenize(text)]
    if text.isascii():
        assert found == [len(piece) for piece in decoded]


@pytest.mark.parametrize("place", ["layer 1", "the embeddings", "the output head"])
def test_a_logit_that_is_no_number_is_named_by_layer_and_position(tiny: Path, place: str) -> None:
    runner = TorchRunner(tiny)
    model = runner._model()._model
    modules = {
        "layer 1": model.model.layers[1],
        "the embeddings": model.model.embed_tokens,
        "the output head": model.lm_head,
    }

    def spoil(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        spoiled = output.clone()
        spoiled[-1, -3:] = float("nan")
        return spoiled

    modules[place].register_forward_hook(spoil)
    with pytest.raises(
        CheckpointError, match=f"{place} computes values that are not finite, first at position "
    ) as caught:
        runner.score(rows_of(50), SCORED)
    assert (
        str(caught.value).partition("position ")[2].startswith("46 of 50" if place == "the output head" else "47 of 50")
    )


def test_layers_spread_over_devices_give_the_same_figures(tiny: Path) -> None:
    rows = rows_of(100)
    spread = TorchRunner(tiny, dtype="float64", device="map")
    assert "layers on all devices" in spread.description
    assert np.abs(spread.score(rows, SCORED).losses - naive(tiny, rows, SCORED)).max() < 1e-9


def test_weights_go_to_their_device_as_they_are_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(model: torch.nn.Module, *where: Any, **more: Any) -> None:
        raise AssertionError(f"the whole model is moved, to {where} {more}")

    monkeypatch.setattr(torch.nn.Module, "to", never)
    monkeypatch.setattr(torch_runner, "torch_device", lambda _torch, name: torch.device(name))
    for device in ("cpu", "meta"):  # a device that is no CPU and holds nothing
        model = TorchRunner(tiny, device=device, dtype="bfloat16").model
        assert {(tensor.device.type, tensor.dtype) for tensor in model.parameters.values()} == {
            (device, torch.bfloat16)
        }
        assert {buffer.device.type for buffer in model._model.buffers()} == {device}


def test_other_errors_of_the_model_are_not_taken_for_lack_of_memory(tiny: Path) -> None:
    runner = TorchRunner(tiny)
    failing_above(runner, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        runner.score(rows_of(50), SCORED)


def test_a_closed_runner_holds_no_model(tiny: Path) -> None:
    runner = TorchRunner(tiny)
    before = runner.score(rows_of(32), SCORED).losses
    assert runner._loaded is not None
    runner.close()
    assert runner._loaded is None
    assert (runner.score(rows_of(32), SCORED).losses == before).all()


def test_transformers_stays_silent_and_keeps_its_settings(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = transformers.utils.logging
    log.enable_progress_bar()  # whatever came before
    settings = log.get_verbosity(), log.is_progress_bar_enabled()
    capfd.readouterr()
    runner = TorchRunner(tiny)
    runner.tokenize("the rope turns " * 200)  # beyond model_max_length, which the tokenizer would warn of
    runner.score(rows_of(100), SCORED)
    assert capfd.readouterr() == ("", "")
    assert settings == (log.get_verbosity(), log.is_progress_bar_enabled())
    assert log.is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["torch", "transformers", "accelerate"])
def test_a_missing_library_says_how_to_install_it(tiny: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=f"needs {name}") as caught:
        _ = TorchRunner(tiny).model
    assert caught.value.try_ == install_line("verify")


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_here_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"torch does not find {device} on this machine") as caught:
        TorchRunner(tiny, device=device)
    assert (caught.value.where, caught.value.try_) == ("--device", "--device cpu")
    assert "cpu, float32" in TorchRunner(tiny).description


def test_unknown_devices_and_types_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="torch has no device 'gpu'"):
        TorchRunner(tiny, device="gpu")
    with pytest.raises(ConfigError, match="'int8' is not one of auto, float32"):
        TorchRunner(tiny, dtype="int8")


def test_unreadable_checkpoints_are_refused(tiny: Path, tmp_path: Path, make_variant: Any) -> None:
    with pytest.raises(NotACheckpoint, match=r"no config\.json here"):
        TorchRunner(tmp_path)
    bare = make_variant(tiny)
    (bare / "model.safetensors").unlink()
    with pytest.raises(MissingFile, match="no safetensors weights"):
        TorchRunner(bare)
    mute = make_variant(tiny)
    (mute / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="transformers cannot load the checkpoint"):
        TorchRunner(mute)
    broken = make_variant(tiny)
    (broken / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: is not valid JSON"):
        TorchRunner(broken)
    short = make_variant(tiny)
    (short / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CorruptFile, match="the tensors end at byte") as caught:
        TorchRunner(short)
    assert caught.value.try_ == "download the file again: it is incomplete"
    remote = make_variant(tiny, model_type="mystery", auto_map={"AutoModelForCausalLM": "code.Model"})
    with pytest.raises(CheckpointError, match="transformers cannot load the checkpoint"):
        TorchRunner(remote).score(rows_of(32), SCORED)


def test_missing_weights_are_not_replaced_by_random_ones(tiny: Path, make_variant: Any) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    folder = set_tensors(make_variant(tiny), lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=r"lack 1 tensors, first model\.layers\.1\.self_attn\.q_proj"):
        TorchRunner(folder).score(rows_of(32), SCORED)


def test_a_token_beyond_the_embeddings_is_named(tiny: Path) -> None:
    rows = rows_of(32)
    rows[2][9] = 300
    with pytest.raises(CheckpointError, match="produces token 300, but the model has only 300 embeddings"):
        TorchRunner(tiny).score(rows, SCORED)
