"""The llama.cpp runner against the float64 forward pass over full logits, and in every kind of trouble."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf_logits
import numpy as np
import pytest
from gguf import GGUFValueType
from gguf_files import ARCHITECTURES, VOCABULARY, Tiny
from gguf_logits import numpy_logits
from tokenizer_making import trained
from tokenizers import Tokenizer, pre_tokenizers
from verifying import verify

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import CheckpointError, ConfigError, CorruptFile, MissingDependency, NotACheckpoint
from ropetool.escaping import install_line
from ropetool.files.gguf import read_shards
from ropetool.rope.tables import Regime
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding as decoder
from ropetool.verification import suites
from ropetool.verification.runners import llama_library
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.texts import Document

llama_cpp = pytest.importorskip("llama_cpp")

SCORED = 16
YARN = {archs.SCALING_TYPE: "yarn", archs.FACTOR: 4.0, archs.ORIGINAL_CONTEXT_LENGTH: 512}
LISTS = {
    archs.ROPE_FACTORS_SHORT: np.ones(32, np.float32),
    archs.ROPE_FACTORS_LONG: np.full(32, 4.0, np.float32),
}
LONGROPE = {archs.SCALING_TYPE: "longrope", archs.ORIGINAL_CONTEXT_LENGTH: 512}


def rows_of(length: int, count: int = 3) -> list[list[int]]:
    return np.random.default_rng(length).integers(0, VOCABULARY, (count, length)).tolist()


def naive(path: Path, rows: list[list[int]], scored: int, n_ctx: int | None = None) -> np.ndarray:
    """The losses of the forward pass in numpy, rotated by the decoded table."""
    view = GgufCheckpoint.of(read_shards(path))
    entry = decoder.decode(view).entries["full_attention"]
    assert entry.table is not None
    regime: Regime = entry.table.at(n_ctx or len(rows[0]))
    found = []
    for row in rows:
        logits = numpy_logits(decoder_arch(view), entry, regime, row)
        for position in range(len(row) - scored, len(row)):
            logit = logits[position - 1]
            found.append(math.log(np.exp(logit - logit.max()).sum()) + logit.max() - logit[row[position]])
    return np.array(found).reshape(len(rows), scored)


def decoder_arch(view: GgufCheckpoint) -> str:
    return str(view.values[archs.ARCHITECTURE].decode())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Tiny("llama", YARN).write(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("length", [SCORED + 1, 64, 700])
def test_losses_equal_the_forward_pass(arch: str, length: int, tmp_path: Path) -> None:
    path = Tiny(arch, YARN).write(tmp_path / "model.gguf")
    rows = rows_of(length)
    counted: list[int] = []
    runner = LlamaRunner(path)
    found = runner.score(rows, SCORED, counted.append).losses
    expected = naive(path, rows, SCORED)
    assert found.dtype == np.float64
    assert np.abs(found - expected).max() < 1e-3
    assert expected.std() > 0.5  # the model says something about each token
    assert np.abs(found[:, 1:] - expected[:, :-1]).max() > 0.5  # shifted by one it would not pass
    assert counted == [length] * 3
    runner.close()


def test_logits_equal_the_forward_pass_and_those_of_pieces(tiny: Path) -> None:
    row = rows_of(700, 1)[0]
    entry = decoder.decode(GgufCheckpoint.of(read_shards(tiny))).entries["full_attention"]
    assert entry.table is not None
    expected = numpy_logits("llama", entry, entry.table.at(700), row)
    runner = LlamaRunner(tiny)
    found = np.concatenate([piece.copy() for _, piece in runner.logits(row)])
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    # more scored tokens than one piece holds
    losses = runner.score([row], 600).losses
    assert np.abs(losses - naive(tiny, [row], 600)).max() < 1e-3


@pytest.mark.parametrize("count", [1, 2])
def test_it_computes_with_the_processors_that_this_process_may_use(
    tiny: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    lib, opened = llama_library.library(), []
    make = lib.llama_init_from_model
    monkeypatch.setattr(lib, "llama_init_from_model", lambda *given: opened.append(make(*given)) or opened[-1])
    with closing(LlamaRunner(tiny)) as runner:
        runner.score(rows_of(64, 1), SCORED)
        assert [lib.llama_n_threads(context) for context in opened] == [count]


@pytest.mark.parametrize("as_served", [False, True])
@pytest.mark.parametrize("length", [SCORED + 1, 700])
def test_wanted_tokens_of_a_row_that_is_read_cost_what_the_forward_pass_says(
    tiny: Path, length: int, as_served: bool
) -> None:
    (row,) = rows_of(length, 1)
    expected = naive(tiny, [row], length - 1)[0]  # of the tokens from the second on
    runner = LlamaRunner(tiny, as_served=as_served)
    pieces = list(runner.read(row, lambda tokens: (tokens % 3 == 0) & (tokens < 600)))
    assert [piece.end for piece in pieces] == [min(end, length) for end in range(512, length + 512, 512)]
    indices = np.concatenate([piece.indices for piece in pieces])
    assert indices.tolist() == list(range(3, min(length, 600), 3))
    bound = 0.05 if as_served else 1e-3  # its cache holds float16
    assert np.abs(np.concatenate([piece.losses for piece in pieces]) - expected[indices - 1]).max() < bound
    assert np.abs(np.diff(expected[indices - 1])).max() > 0.5  # the next wanted token would not pass
    assert "F16 cache, attention chosen by llama.cpp" in runner.description or not as_served
    assert [len(piece.indices) for piece in runner.read(row, lambda tokens: tokens < 0)] == [0] * len(pieces)


def test_hits_and_predictions_are_those_of_the_forward_pass(tiny: Path) -> None:
    rows = rows_of(90)
    entry = decoder.decode(GgufCheckpoint.of(read_shards(tiny))).entries["full_attention"]
    assert entry.table is not None
    logits = [numpy_logits("llama", entry, entry.table.at(90), row) for row in rows]
    rows[1][-1] = int(logits[1][-2].argmax())  # of the last token, which no logit before it depends on
    runner = LlamaRunner(tiny)
    wanted = np.array(
        [[found[p - 1].argmax() == row[p] for p in range(74, 90)] for found, row in zip(logits, rows, strict=True)]
    )
    assert wanted.any()
    assert (runner.score(rows, SCORED).hits == wanted).all()

    few = [[5, 17], [1, 2], [90, 0]]
    found = runner.predict(rows[:1] + rows[2:], few[:1] + few[2:])
    for index, (at, asked) in enumerate([(0, few[0]), (2, few[2])]):
        last = logits[at][-1]
        log_probs = last - last.max() - np.log(np.exp(last - last.max()).sum())
        assert np.abs(found.log_probs[index] - log_probs[asked]).max() < 1e-3
        assert found.top[index] == last.argmax()


def test_a_model_whose_tokens_see_each_other_has_no_losses(tmp_path: Path) -> None:
    path = Tiny("llama", {**YARN, archs.CAUSAL: (GGUFValueType.BOOL, False)}).write(tmp_path / "filling.gguf")
    runner, rows = LlamaRunner(path), rows_of(40)
    for asked in (
        lambda: runner.score(rows, SCORED), lambda: runner.predict(rows, [[1, 2]] * 3), lambda: runner.generated(rows[0], 4)
    ):  # fmt: skip
        with pytest.raises(
            CheckpointError, match="attends to all others, so this model does not predict the next token"
        ):
            asked()
    assert sum(len(piece) for _, piece in runner.logits(rows[0])) == 40


def test_a_row_meets_an_empty_cache(tiny: Path) -> None:
    rows = rows_of(40)
    runner = LlamaRunner(tiny)
    together = runner.score(rows, SCORED).losses
    assert (together[::-1] == runner.score(rows[::-1], SCORED).losses).all()
    assert (together[2:] == LlamaRunner(tiny).score(rows[2:], SCORED).losses).all()


def test_only_scored_tokens_get_logits(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    decode = llama_cpp.llama_decode

    def spy(context: Any, batch: Any) -> int:
        asked.append((batch.n_tokens, sum(batch.logits[row] for row in range(batch.n_tokens))))
        return int(decode(context, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", spy)
    LlamaRunner(tiny).score(rows_of(1030, 1), SCORED)
    assert asked == [(512, 0), (512, 11), (5, 5)]


def test_the_context_is_as_long_as_the_rows_or_as_asked(tmp_path: Path) -> None:
    path = Tiny("llama", LONGROPE, LISTS).write(tmp_path / "lists.gguf")
    runner = LlamaRunner(path)
    for length in (600, 500):  # long, then short again
        rows = rows_of(length, 1)
        assert np.abs(runner.score(rows, SCORED).losses - naive(path, rows, SCORED)).max() < 1e-3
    rows = rows_of(500, 1)
    asked = LlamaRunner(path, context_length=2048).score(rows, SCORED).losses
    assert np.abs(asked - naive(path, rows, SCORED, n_ctx=2048)).max() < 1e-3
    assert np.abs(asked - naive(path, rows, SCORED)).max() > 0.1


def test_narrow_caches_and_weights_run_too(tiny: Path, tmp_path: Path) -> None:
    rows = rows_of(64)
    exact = LlamaRunner(tiny).score(rows, SCORED).losses
    cache = LlamaRunner(tiny, dtype="float16").score(rows, SCORED).losses
    assert 0 < np.abs(cache - exact).max() < 0.05
    narrow = LlamaRunner(Tiny("llama", YARN).write(tmp_path / "q8.gguf", quantised=True))
    assert 0 < np.abs(narrow.score(rows, SCORED).losses - exact).max() < 0.5
    assert "Q8_0 weights, F32 cache" in narrow.description
    flash = LlamaRunner(tiny, flash_attention=True)
    assert np.abs(flash.score(rows, SCORED).losses - exact).max() < 0.05
    assert flash.description.endswith("F32 weights, F32 cache, flash attention")


def test_a_closed_runner_holds_no_model_and_opens_again(tiny: Path) -> None:
    runner = LlamaRunner(tiny)
    before = runner.score(rows_of(32), SCORED).losses
    runner.close()
    assert runner._model is None
    assert (runner.score(rows_of(32), SCORED).losses == before).all()
    runner.close()
    runner.close()


def test_a_split_model_is_opened_by_any_of_its_files(tmp_path: Path) -> None:
    whole = Tiny("llama", YARN).write(tmp_path / "whole.gguf")
    Tiny("llama", YARN).write(tmp_path / "split.gguf", split_max_tensors=5)
    shards = sorted(tmp_path.glob("split-*.gguf"))
    assert len(shards) > 1
    rows = rows_of(32)
    assert (LlamaRunner(shards[-1]).score(rows, SCORED).losses == LlamaRunner(whole).score(rows, SCORED).losses).all()


# --- words


TEXTS = ["the rope turns", " a pair\n\n of 12345 angles…", "Zwölf Boxkämpfer 漢字 🙂", "x<end>y <end>", "", "\0\t"]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    texts = ["the rope turns the pair of angles the rope reads near and far"] * 3
    return trained(pre_tokenizers.ByteLevel(add_prefix_space=False), texts, 320, ["<bos>", "<end>"])


def with_words(words: Tokenizer, bos: int | None = 0) -> Tiny:
    model = json.loads(words.to_str())["model"]
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].get))
    return Tiny("llama", YARN, tokens=tokens, merges=tuple(" ".join(pair) for pair in model["merges"]), bos=bos)


def test_tokens_are_those_of_the_same_vocabulary_elsewhere(words: Tokenizer, tmp_path: Path) -> None:
    runner = LlamaRunner(with_words(words).write(tmp_path / "words.gguf"))
    assert runner.prefix == (0,)
    for text in TEXTS:
        assert runner.tokenize(text) == words.encode(text).ids, text
        if text.isascii():
            pieces = [words.decode([token], skip_special_tokens=False) for token in words.encode(text).ids]
            assert runner.byte_lengths(text) == [len(piece) for piece in pieces]
        assert sum(runner.byte_lengths(text)) == len(text.encode())
    assert words.token_to_id("<end>") in runner.tokenize("x<end>")
    assert LlamaRunner(with_words(words, bos=None).write(tmp_path / "plain.gguf")).prefix == ()


def test_verification_runs_on_it(words: Tokenizer, tmp_path: Path) -> None:
    path = with_words(words).write(tmp_path / "words.gguf")
    texts = [
        Document(f"{n}.txt", " ".join(["the rope turns", "near", "and far"][i % 3] for i in range(n, 200)))
        for n in range(4)
    ]
    found = verify(
        path,
        baseline=None,
        texts=texts,
        lengths=[16, 32],
        trained_length=32,
        runner=LlamaRunner,
        suite=suites.choose("quick", (), 8),
    )
    assert [entry.length for entry in found.lengths] == [16, 32]
    assert found.runtime.startswith(f"llama-cpp-python {llama_cpp.__version__}, ")


# --- trouble


def test_a_file_that_would_abort_the_process_is_refused(tmp_path: Path) -> None:
    path = Tiny("llama", {archs.SCALING_TYPE: "llama3"}).write(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"llama\.cpp cannot load the file: .* aborts the whole process"):
        LlamaRunner(path)


def test_a_file_that_llama_cpp_refuses_is_refused_in_its_words(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Tiny("llama", {archs.FACTOR: (GGUFValueType.FLOAT64, 4.0)}).write(tmp_path / "model.gguf")
    ours = r"key llama\.rope\.scaling\.factor has wrong type f64 but expected type f32"
    with pytest.raises(CheckpointError, match=f"{ours}$") as caught:
        LlamaRunner(path)
    assert caught.value.where == str(path)
    # the same from the library itself, had our decoder not looked first
    monkeypatch.setattr("ropetool.verification.runners.llama_runner.decoding.decode", lambda view: None)
    with pytest.raises(CheckpointError, match=ours):
        LlamaRunner(path).score(rows_of(32), SCORED)
    unknown = Tiny("llama").write(tmp_path / "unknown.gguf")
    unknown.write_bytes(unknown.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0llamb"))
    with pytest.raises(CheckpointError, match="unknown model architecture: 'llamb'"):
        LlamaRunner(unknown)


def test_broken_files_are_refused_before_llama_cpp_sees_them(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint):
        LlamaRunner(tmp_path / "absent.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-100])
    with pytest.raises(CorruptFile, match="the file ends at byte"):
        LlamaRunner(cut)


def test_a_token_beyond_the_vocabulary_is_named(tiny: Path) -> None:
    rows = rows_of(32)
    rows[1][7] = 96
    with pytest.raises(CheckpointError, match="token 96 does not exist; the vocabulary has 96"):
        LlamaRunner(tiny).score(rows, SCORED)
    with pytest.raises(CheckpointError, match="the file has no vocabulary"):
        LlamaRunner(tiny).tokenize("the rope")


def test_options_that_are_not_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
    with pytest.raises(ConfigError, match=r"this llama\.cpp is built only for the CPU, not for cuda"):
        LlamaRunner(tiny, device="cuda")
    with pytest.raises(ConfigError, match="'int8' is not one of auto, float32"):
        LlamaRunner(tiny, dtype="int8")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependency, match="needs llama-cpp-python") as caught:
        LlamaRunner(tiny)
    assert caught.value.try_ == install_line("llama")


def test_no_memory_for_a_context_is_said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", lambda model, settings: None)
    with pytest.raises(ConfigError, match="cannot create a context of 256 tokens"):
        LlamaRunner(tiny).score(rows_of(32), SCORED)


def test_llama_cpp_stays_silent_and_the_log_comes_back(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[bytes] = []

    @llama_cpp.llama_log_callback
    def listen(level: int, text: bytes, user_data: Any) -> None:
        heard.append(text)

    llama_cpp.llama_log_set(listen, None)
    try:
        runner = LlamaRunner(tiny)
        runner.score(rows_of(100), SCORED)
        runner.close()
        del runner
        assert heard == []
        params = llama_cpp.llama_model_default_params()
        assert llama_cpp.llama_model_load_from_file(b"/absent.gguf", params) is None
        assert any(b"absent" in text for text in heard)
    finally:
        gguf_logits.library.cache_clear()
        gguf_logits.library()
    assert capfd.readouterr() == ("", "")


def test_the_last_words_are_the_telling_ones() -> None:
    said = [
        "llama_model_load: error loading model: key x has wrong type",
        "llama_model_load_from_file_impl: failed to load model",
    ]
    assert llama_library.last_words(said) == "error loading model: key x has wrong type"
    assert llama_library.last_words(said[1:]) == "failed to load model"
    assert llama_library.last_words([]) == "it gives no reason"
