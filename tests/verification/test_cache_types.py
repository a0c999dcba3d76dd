"""Caches of llama.cpp in other types than float32: held against a forward pass whose keys and values the gguf package rounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gguf
import gguf_files
import gguf_logits
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from gguf_files import HEAD_DIM, VOCABULARY, Tiny
from gguf_logits import numpy_logits
from verifying import verify

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import ConfigError
from ropetool.files.gguf import read_shards
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding
from ropetool.verification import suites
from ropetool.verification.run import ComparedFile
from ropetool.verification.runners.llama_cache import BLOCK_TYPES, CACHE_TYPES, cache_ways
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.texts import Document

llama_cpp = pytest.importorskip("llama_cpp")

YARN = {archs.SCALING_TYPE: "yarn", archs.FACTOR: 4.0, archs.ORIGINAL_CONTEXT_LENGTH: 512}
UNROTATED = "LLAMA_ATTN_ROT_DISABLE"
ROW = np.random.default_rng(7).integers(0, VOCABULARY, 200).tolist()
EXACT = gguf_logits._attention
QUANTISED = [name for name in BLOCK_TYPES if name != "iq4_nl"]  # whose rounding the gguf package does not have


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Tiny("llama", YARN).write(tmp_path_factory.mktemp("cache") / "tiny.gguf")


def found_by(path: Path, cache_type: str | None) -> np.ndarray:
    runner = LlamaRunner(path, cache_type=cache_type)
    logits = np.concatenate([piece.copy() for _, piece in runner.logits(ROW)])
    runner.close()
    return logits


def expected(path: Path, monkeypatch: pytest.MonkeyPatch, cache_type: str, rotated: bool) -> np.ndarray:
    """The forward pass in numpy with keys and values in blocks, queries in those of q8_0, turned by Hadamard's matrix or not."""
    turn = hadamard(HEAD_DIM) if rotated else np.eye(HEAD_DIM)
    kept = GGMLQuantizationType[cache_type.upper()]

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
        q = rounded(q @ turn, GGMLQuantizationType.Q8_0)
        mixed = EXACT(q, rounded(k @ turn, kept), rounded(v @ turn, kept), visible)
        return (mixed.reshape(len(mixed), -1, HEAD_DIM) @ turn).reshape(len(mixed), -1)

    monkeypatch.setattr(gguf_logits, "_attention", attention)
    entry = decoding.decode(GgufCheckpoint.of(read_shards(path))).entries["full_attention"]
    assert entry.table is not None
    return numpy_logits("llama", entry, entry.table.at(len(ROW)), ROW)


def hadamard(size: int) -> np.ndarray:
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found / np.sqrt(size)


def rounded(a: np.ndarray, kept: GGMLQuantizationType) -> np.ndarray:
    return gguf.quants.dequantize(gguf.quants.quantize(a.astype(np.float32), kept), kept).astype(np.float64)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("cache_type", QUANTISED)
def test_logits_are_those_of_rounded_keys_and_values(
    cache_type: str, rotated: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(UNROTATED, "0" if rotated else "1")
    found = found_by(tiny, cache_type)
    assert apart(found, expected(tiny, monkeypatch, cache_type, rotated)) < 1e-3
    assert apart(found, expected(tiny, monkeypatch, cache_type, not rotated)) > 5e-3  # so the two are told apart
    others = set(QUANTISED) - {cache_type}
    assert all(apart(found, expected(tiny, monkeypatch, other, rotated)) > 5e-3 for other in others)


def test_every_type_runs_and_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNROTATED, raising=False)
    exact = found_by(tiny, None)
    distances = {name: apart(found_by(tiny, name), exact) for name in CACHE_TYPES}
    assert distances["f32"] == 0 < distances["f16"] < distances["bf16"] < distances["q8_0"] < distances["q5_0"]
    assert distances["q5_0"] < distances["iq4_nl"] < 0.2
    named = {name: LlamaRunner(tiny, cache_type=name).description for name in ("f16", "q4_0")}
    assert named["f16"].endswith("F32 weights, F16 cache")
    assert named["q4_0"].endswith("F32 weights, Q4_0 cache, flash attention")
    monkeypatch.setenv(UNROTATED, "1")
    assert LlamaRunner(tiny, cache_type="f16").description == named["f16"]
    assert f"Q4_0 cache not rotated ({UNROTATED}), flash" in LlamaRunner(tiny, cache_type="q4_0").description


def test_what_figures_depend_on_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNROTATED, raising=False)
    plain, q4_0 = cache_ways(None), cache_ways("q4_0")
    monkeypatch.setenv(UNROTATED, "1")
    assert plain == []  # as before there were types, so that what was kept still serves
    assert len({*map(tuple, (plain, q4_0, cache_ways("q8_0"), cache_ways("q4_0")))}) == 4


def test_a_type_that_is_not_there_and_heads_that_blocks_do_not_divide(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"'q4' is not one of f32, f16, .*iq4_nl") as refused:
        LlamaRunner(tiny, cache_type="q4")
    assert refused.value.where == "--cache-type"
    monkeypatch.setattr(gguf_files, "HEAD_DIM", 16)
    monkeypatch.setattr(gguf_files, "weights", gguf_files.weights.__wrapped__)
    sizes = dict.fromkeys(("attention.key_length", "attention.value_length"), (GGUFValueType.UINT32, 16))
    narrow = Tiny("llama", {**YARN, **sizes, "rope.dimension_count": 16}).write(tmp_path / "narrow.gguf")
    assert found_by(narrow, "f16").shape == (len(ROW), VOCABULARY)
    with pytest.raises(ConfigError, match="block size 32 does not divide n_embd_head_k=16") as refused:
        found_by(narrow, "q8_0")
    assert refused.value.try_ == "shorter --lengths, or another --cache-type"


def test_the_target_has_the_cache_and_the_file_beside_it_has_not(tmp_path: Path) -> None:
    tokens = tuple(chr(33 + n) for n in range(90))
    path = Tiny("llama", YARN, tokens=(*tokens, '!"'), merges=('! "',)).write(tmp_path / "words.gguf")
    texts = [Document(f"{n}.txt", "".join(tokens[(n * i * i + i) % 90] for i in range(200))) for n in range(1, 5)]
    result = verify(
        path,
        baseline=None,
        texts=texts,
        lengths=[16, 32],
        trained_length=32,
        runner=LlamaRunner,
        target_runner=partial(LlamaRunner, cache_type="q4_0"),
        against=ComparedFile(path, ("f32", "f32"), 1, before=(path, path)),
        suite=suites.choose("quick", (), 8),
    )
    assert result.divergence is not None
    mean = result.divergence.within.mean.mean
    assert mean > 1e-4  # the very same file: all of it is the cache's
    (kl,) = (check for check in result.checks if check.name == "KL")
    assert kl.limit == pytest.approx(2 * mean)  # and so is that of the pair before, which is the same pair here
