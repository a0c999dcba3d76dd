"""Where GGUF files make queries and keys, and what is refused before anything is written. Without llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bake_gguf_models import ARCHITECTURES, HIDDEN, YARN, carry_out, opened, stored, write

import ropetool
from ropetool import families
from ropetool.errors import ConfigError, LossyExport, OutputError, UnknownFamily, UnsupportedDtype
from ropetool.families.engines import LlamaCpp
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.rope.arithmetic import half_to_interleaved
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.weights import bakes
from ropetool.weights.edits import by_tensor

Q, K = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


def raw_rows(rows: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (rows, nbytes), dtype=np.uint8)


def of_architecture(
    arch: str, folder: Path, tensors: Mapping[str, np.ndarray] | None = None, **keys: float | list[int]
) -> Path:
    """Write a llama model under another architecture's name, with both kinds of epsilon."""
    both = {**YARN, "attention.layer_norm_epsilon": 1e-6, **keys}
    header = read_header(write(folder / "l.gguf", "llama", both, tensors=tensors))
    values = {key.replace("llama.", f"{arch}."): value for key, value in header.values.items()}
    path = folder / f"{arch}{len(keys)}.gguf"
    write_patched(header, Patch({**values, "general.architecture": Value.of(ValueType.STR, arch)}), path)
    return path


def test_every_architecture_with_sites_is_made_here() -> None:
    assert ARCHITECTURES.keys() == families.by_gguf_architecture().keys()


def test_an_architecture_whose_keys_are_not_described_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_architecture("orion", tmp_path)
    assert opened(path).targets.steps.k[0].tensor == "attn_k"
    monkeypatch.setattr(folding, "PLAIN", folding.PLAIN - {"orion"})
    with pytest.raises(LossyExport, match="no data on the queries and keys of orion files"):
        opened(path)


def test_a_plain_architecture_may_be_described_by_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a later llama.cpp brings: files of it are inspected and baked once its family's file says how it runs."""
    assert not [f for f in map(families.get, families.names()) if f.llama_cpp and f.gguf_architecture in archs.names()]
    source = write(tmp_path / "m.gguf", "qwen3")
    values = {key.replace("qwen3.", "later."): value for key, value in read_header(source).values.items()}
    patch = Patch({**values, "general.architecture": Value.of(ValueType.STR, "later")})
    write_patched(read_header(source), patch, tmp_path / "l.gguf")
    with pytest.raises(UnknownFamily):
        ropetool.plan(tmp_path / "l.gguf", "linear", factor=2)
    known = replace(
        families.get("qwen3"), model_type="later", gguf_architecture="later", gguf_architectures=("later",),
        llama_cpp=LlamaCpp("half", whole_heads=True),
    )  # fmt: skip
    files, whole = families._with_files(), families.exported()
    monkeypatch.setattr(families, "_with_files", lambda: (*files, known))
    monkeypatch.setattr(families, "exported", lambda: (*whole, "later"))
    monkeypatch.setitem(families._LIVE, "later", known)
    archs._of_families.cache_clear()
    try:
        assert archs.get("later").layout == "half"
        assert archs.get("later").loads("none") == ()
        assert ropetool.plan(tmp_path / "l.gguf", "linear", factor=8, reading="original").edits
        model = opened(tmp_path / "l.gguf")
        touched = by_tensor(bakes.attention_factor(model).tensors)
        assert sorted(touched) == ["blk.0.attn_k_norm.weight", "blk.1.attn_k_norm.weight"]
    finally:
        archs._of_families.cache_clear()


def test_layers_of_different_sizes_are_each_taken_by_their_own(tmp_path: Path) -> None:
    """Of llama, llama.cpp loads none; deci is the architecture that has such layers."""
    narrow = {
        **{f"blk.1.attn_{name}.weight": np.ones((64, HIDDEN), np.float32) for name in "kv"},
        **{f"blk.1.attn_{name}.bias": np.ones(64, np.float32) for name in "kv"},
    }
    heads: dict[str, list[int]] = {"attention.head_count_kv": [2, 1]}
    found = bakes.attention_factor(opened(of_architecture("deci", tmp_path, narrow, **heads))).tensors
    weights = {edit.tensor: (edit.height, edit.starts) for edit in found if edit.tensor.endswith("weight")}
    assert weights == {"blk.0.attn_k.weight": (128, (0, 64)), "blk.1.attn_k.weight": (64, (0,))}
    (tmp_path / "wide").mkdir()
    wide = of_architecture("deci", tmp_path / "wide", **heads)
    with pytest.raises(LossyExport, match=r"blk\.1\.attn_k\.weight is 256 x 128; llama\.cpp loads only 256 x 64"):
        opened(wide)


def test_a_tensor_that_the_metadata_speaks_of_and_the_file_lacks(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "qwen3", leave_out=("attn_k_norm",))
    model = opened(source)
    with pytest.raises(LossyExport, match=r"has no blk\.0\.attn_k_norm\.weight"):
        bakes.attention_factor(model)


def test_layers_that_draft_tokens_are_baked_like_the_others(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "deepseek2", {**YARN, "nextn_predict_layers": 1}, layers=3)
    model = opened(source)
    touched = by_tensor(bakes.attention_factor(model).tensors)
    assert sorted(touched) == [f"blk.{layer}.attn_kv_a_mqa.weight" for layer in range(3)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention.clamp_kqv": 1}, r"clamp_kqv has wrong type u32 but expected type f32"),
        (
            {"attention.head_count_kv": 0},
            r"attn_k\.weight is 256 x 128; llama\.cpp loads only 256 x 0, from .*head_count_kv",
        ),
        (
            {"attention.head_count_kv": [1.5, 1.5]},
            r"head_count_kv is arr of f32; llama\.cpp reads it only as u32 or arr of ",
        ),
        ({"embedding_length": 0}, r"a head has 0 channels by llama.embedding_length"),
        ({"rope.dimension_count": 2**31}, r"invalid n_rot"),
    ],
)
def test_wrong_sizes_are_refused_in_a_sentence(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama", {**YARN, **keys})
    with pytest.raises(LossyExport, match=said):
        opened(source)


def test_clamped_projections_are_refused(tmp_path: Path) -> None:
    model = opened(of_architecture("olmo", tmp_path, **{"attention.clamp_kqv": 8.0}))
    with pytest.raises(LossyExport, match=r"attention.clamp_kqv is 8.0: the model clamps its projections"):
        bakes.attention_factor(model)
    assert bakes.attention_factor(opened(of_architecture("olmo", tmp_path))).tensors


@pytest.mark.parametrize(
    ("dtype", "nbytes", "said"), [("IQ1_M", 56, "no float16 scale"), ("MXFP4", 136, "2.91707 is not")]
)
def test_a_type_that_takes_no_factor_is_refused_before_anything_is_written(
    dtype: str, nbytes: int, said: str, tmp_path: Path
) -> None:
    rows = np.zeros((128, nbytes), np.uint8)
    source = write(tmp_path / "m.gguf", "llama", raw={K: (dtype, rows)})
    model = opened(source)
    with pytest.raises(UnsupportedDtype, match=said) as caught:
        bakes.attention_factor(model)
    assert "--bake-dtype f32" in caught.value.try_
    wide = bakes.attention_factor(opened(source, "F32"))
    with pytest.raises(UnsupportedDtype, match=said):
        carry_out(wide, source, tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()
    carry_out(wide, source, tmp_path / "b.gguf", bake_dtype="F32")
    assert stored(tmp_path / "b.gguf")[K][0] == "F32"


def test_rows_of_any_type_move_bit_for_bit(tmp_path: Path) -> None:
    rows = raw_rows(256, 56)
    source = write(tmp_path / "m.gguf", "qwen2", raw={Q: ("IQ1_M", rows)})
    model = opened(source)
    carry_out(bakes.rearch_llama(model), source, tmp_path / "llama.gguf")
    moved = np.frombuffer(stored(tmp_path / "llama.gguf")[Q][2], np.uint8).reshape(4, 64, 56)
    assert np.array_equal(moved, rows.reshape(4, 64, 56)[:, half_to_interleaved(64)])


def test_a_weight_too_large_for_float16_is_refused(tmp_path: Path) -> None:
    rows = np.full((128, HIDDEN), 6e4, np.float16)
    source = write(tmp_path / "m.gguf", "llama", raw={K: ("F16", rows)})
    model = opened(source)
    with pytest.raises(LossyExport, match="too large for F16") as caught:
        carry_out(bakes.attention_factor(model), source, tmp_path / "b.gguf")
    assert "--bake-dtype f32" in caught.value.try_


def test_an_output_that_exists_is_never_opened(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama")
    model = opened(source)
    before = source.read_bytes()
    with pytest.raises(OutputError):
        carry_out(bakes.attention_factor(model), source, source)
    assert source.read_bytes() == before


@pytest.mark.parametrize("side", ["v", "norm"])
def test_an_unknown_side_is_refused(side: str, tmp_path: Path) -> None:
    model = opened(write(tmp_path / "m.gguf", "llama"))
    with pytest.raises(ConfigError, match="is not one of k, q, both"):
        bakes.attention_factor(model, side)
