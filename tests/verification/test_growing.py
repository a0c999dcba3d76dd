"""Cached generation: the real programs' growing caches against whole passes, and caches that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM

from ropetool.verification.corpus import read_corpus
from ropetool.verification.measures.cached_generation import TOKENS, CacheResult, cache_check, prepare_cache
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.runners import llama_library
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Runner, ignore
from ropetool.verification.texts import Document

TRAINED, LENGTHS = 64, [16, 64, 128, 200]


def rows_of(length: int, vocabulary: int = 300) -> list[int]:
    return [0, *np.random.default_rng(length).integers(1, vocabulary, size=length - 1).tolist()]


def measured(folder: Path, documents: Sequence[Document], lengths: Sequence[int] = LENGTHS) -> CacheResult:
    runner = TorchRunner(folder)
    corpus = read_corpus(documents, {TARGET: runner}, {TARGET: folder})
    measurement = prepare_cache(corpus, lengths, TRAINED, seed=0)
    assert measurement.run(runner, BASELINE, ignore) == {}
    counted: list[int] = []
    found = measurement.result(measurement.run(runner, TARGET, counted.append), None)
    assert sum(counted) == sum(n * count for n, count in measurement.rows(TARGET).items())
    return found


def judged(folder: Path, documents: Sequence[Document], lengths: Sequence[int] = LENGTHS) -> Check:
    return cache_check(measured(folder, documents, lengths))


# --- transformers


def test_what_is_compared_is_a_cache_of_keys_and_a_fresh_pass(tiny: Path) -> None:
    """Both halves against loops of their own, written with nothing of the runner's."""
    row, count = rows_of(80), 16
    found = TorchRunner(tiny, dtype="float64").generated(row, count)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64).eval()
    ids = torch.tensor([row])
    with torch.no_grad():
        whole = torch.cat([model(ids[:, :end], use_cache=False).logits[:, -1] for end in range(64, 80)])
        cache, grown = DynamicCache(), []
        for start, end in [(0, 64), *((at, at + 1) for at in range(64, 79))]:
            grown.append(model(ids[:, start:end], past_key_values=cache, use_cache=True).logits[:, -1])
    assert found.rounding == "float64"
    assert not found.moving
    assert found.grown.shape == (count, 300)
    assert np.abs(found.whole - whole.numpy()).max() < 1e-6  # cos and sin are float32
    assert np.abs(found.grown - torch.cat(grown).numpy()).max() < 1e-6
    assert np.abs(found.whole[1:] - found.whole[:-1]).max() > 0.5  # shifted by one it would not pass


def test_a_growing_cache_gives_what_one_pass_gives(tiny: Path, documents: list[Document]) -> None:
    found = measured(tiny, documents)
    assert [(entry.prompt, entry.length, entry.crosses) for entry in found.lengths] == [
        (8, 16, False), (48, 64, False), (56, 72, True), (112, 128, False), (184, 200, False),
    ]  # fmt: skip
    assert all(entry.tokens == 2 * min(TOKENS, entry.length // 2) for entry in found.lengths)
    assert all(entry.same == 1.0 for entry in found.lengths)
    assert cache_check(found).verdict == PASS


def test_settings_of_generation_in_the_checkpoint_change_nothing(
    tiny: Path, make_variant: Callable[..., Path], documents: list[Document]
) -> None:
    """Neither a penalty nor an end at the first token that comes along."""
    folder = make_variant(tiny)
    settings = {"eos_token_id": list(range(300)), "repetition_penalty": 5.0, "do_sample": True, "num_beams": 3}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    runner = TorchRunner(folder)
    assert (runner.generated(rows_of(80), 16).grown == TorchRunner(tiny).generated(rows_of(80), 16).grown).all()
    assert runner._model()._model.generation_config.num_beams == 3  # as it was, for whoever comes next


def positions_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = LlamaForCausalLM.prepare_inputs_for_generation

    @wraps(prepare)  # transformers reads the names of its parameters
    def wrong(self: Any, *given: Any, **named: Any) -> Any:
        inputs = prepare(self, *given, **named)
        inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1])[None]
        return inputs

    monkeypatch.setattr(LlamaForCausalLM, "prepare_inputs_for_generation", wrong)


def one_position_off(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = LlamaForCausalLM.prepare_inputs_for_generation

    @wraps(prepare)  # transformers reads the names of its parameters
    def wrong(self: Any, *given: Any, **named: Any) -> Any:
        inputs = prepare(self, *given, **named)
        if inputs["input_ids"].shape[1] == 1:
            inputs["position_ids"] = inputs["position_ids"] + 1
        return inputs

    monkeypatch.setattr(LlamaForCausalLM, "prepare_inputs_for_generation", wrong)


def first_key_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    update = DynamicCache.update

    def wrong(self: Any, keys: Any, *given: Any, **named: Any) -> Any:
        found, values = update(self, keys, *given, **named)
        return (
            (torch.cat([torch.zeros_like(found[:, :, :1]), found[:, :, 1:]], dim=2), values)
            if keys.shape[2] == 1
            else (found, values)
        )

    monkeypatch.setattr(DynamicCache, "update", wrong)


@pytest.mark.parametrize("plant", [positions_begin_anew, one_position_off, first_key_lost])
def test_a_wrong_cache_fails(
    plant: Callable[[pytest.MonkeyPatch], None],
    tiny: Path,
    documents: list[Document],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    check = judged(tiny, documents)
    assert check.verdict == FAIL
    assert check.figure is not None
    assert check.figure > 100 * (check.limit or 0)


def test_a_dynamic_table_leaves_old_keys_in_the_cache_which_is_told(dynamic: Path, documents: list[Document]) -> None:
    found = measured(dynamic, documents)
    within = [entry.mean for entry in found.lengths if entry.length <= TRAINED]
    beyond = [entry.mean for entry in found.lengths if entry.length > TRAINED]
    assert found.moving
    assert max(within) < 1e-8
    assert min(beyond) > 1e-6
    check = cache_check(found)
    assert check.verdict == NOT_ASKED
    assert "cached keys keep earlier tables" in check.detail
    assert judged(dynamic, documents, [16, 32]).verdict == PASS


def test_two_lists_are_mixed_where_generation_crosses_the_trained_length(
    tiny: Path, make_variant: Callable[..., Path], documents: list[Document]
) -> None:
    """A llama does not begin anew there, as Phi-3 does; with the same list twice there is nothing to mix."""
    lists = {"rope_type": "longrope", "original_max_position_embeddings": TRAINED, "factor": 4.0, "rope_theta": 10000.0}
    long = [1.0 + index / 8 for index in range(16)]
    folder = make_variant(
        tiny, max_position_embeddings=256, rope_parameters={**lists, "short_factor": [1.0] * 16, "long_factor": long}
    )
    found = measured(folder, documents)
    assert found.moving
    apart = {entry.length: entry.mean for entry in found.lengths}
    assert apart[72] > 1e-6
    assert max(apart[length] for length in (16, 64, 128, 200)) < 1e-8
    assert cache_check(found).verdict == NOT_ASKED
    same = make_variant(
        tiny, max_position_embeddings=256, rope_parameters={**lists, "short_factor": long, "long_factor": long}
    )
    assert judged(same, documents).verdict == PASS


def test_the_limit_is_that_of_the_type(tiny: Path, documents: list[Document]) -> None:
    found = measured(tiny, documents, [16, 32])
    entry = replace(found.lengths[0], mean=5e-5)
    assert [cache_check(CacheResult((entry,), rounding, False)).verdict for rounding in ("float32", "float16", "bfloat16", "Q4_0")] == [
        FAIL, PASS, PASS, PASS,
    ]  # fmt: skip


# --- llama.cpp


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    pytest.importorskip("llama_cpp")
    from gguf_files import Tiny

    return Tiny("llama").write(tmp_path / "tiny.gguf")


def of_tokens(runner: Runner, lengths: Sequence[int]) -> CacheResult:
    """Of a file without a vocabulary, so the text is numbers."""
    tokens = tuple(np.random.default_rng(seed).integers(0, 96, size=max(lengths)) for seed in range(2))
    corpus = Corpus(("a", "b"), tokens, tokens, ())
    measurement = prepare_cache(corpus, lengths, 512, seed=0)
    return measurement.result(measurement.run(runner, TARGET, ignore), None)


def test_llama_cpp_decodes_token_by_token_as_in_one_piece(gguf: Path) -> None:
    runner = LlamaRunner(gguf)
    found = of_tokens(runner, [64, 512, 1100])
    assert [entry.length for entry in found.lengths] == [64, 512, 520, 1100]
    assert found.rounding in ("F32", "F16")
    assert cache_check(found).verdict == PASS
    row = np.random.default_rng(0).integers(0, 96, size=700).tolist()
    logits = np.concatenate([piece.copy() for _, piece in runner.logits(row)])
    assert np.abs(runner.generated(row, 16).whole - logits[683:699]).max() < 1e-4 * np.abs(logits).max()
    runner.close()


def test_a_cache_of_llama_cpp_that_forgets_fails(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = llama_library.LlamaModel._decode

    def forgetful(self: Any, ids: Any, start: int, first: int) -> None:
        if len(ids) == 1:
            self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        decode(self, ids, start, first)

    monkeypatch.setattr(llama_library.LlamaModel, "_decode", forgetful)
    assert cache_check(of_tokens(LlamaRunner(gguf), [64, 512])).verdict == FAIL
