"""MXFP4 experts: their numbers in the file are those of the checkpoint, in every type, and what does not fit is refused.

The numbers of a checkpoint are by transformers, those of a file by the gguf package and by libllama.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_files
import models
import mxfp4_models
import numpy as np
import pytest
from running import refusal

from ropetool.errors import CheckpointError, CorruptFile, LossyExport, RopetoolError, UnknownName, UnsupportedDtype
from ropetool.gguf_export import export_checkpoint
from ropetool.gguf_model import mxfp4, streaming
from ropetool.gguf_model.shapes import Permutation
from ropetool.gguf_model.sources import SourceTensor

pytest.importorskip("torch")

TOLERANCE = 2e-4  # of the largest logit
# llama.cpp's kernel for processors rounds what it multiplies with MXFP4 to 8 bits. Measured .023; transformers with the
# same rounding before its two products is .023 away from itself too, and from llama.cpp .0034, at most places 1e-5.
ROUNDED = 0.05
NOTE = "experts stay in MXFP4; --outtype applies only to the other matrices"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mxfp4_models.write(tmp_path_factory.mktemp("mxfp4") / "model")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mxfp4_models.write(tmp_path_factory.mktemp("small") / "model", "BF16")


def experts_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: tensor for name, tensor in gguf_files.tensors(path).items() if name.endswith("_exps.weight")}


def differing(source: Path, file: Path) -> list[str]:
    """Return the expert tensors whose numbers are not the checkpoint's; to ggml the code of -0 is 0, which is equal."""
    wanted, found = mxfp4_models.dequantised(source), experts_of(file)
    assert found.keys() == wanted.keys()
    return [name for name in found if not np.array_equal(mxfp4_models.numbers(*found[name]), wanted[name])]


def test_every_number_is_the_checkpoints(source: Path, tmp_path: Path) -> None:
    result = export_checkpoint(source, tmp_path / "x.gguf")
    assert differing(source, result.output) == []
    assert {(kind, shape) for kind, shape, _ in experts_of(result.output).values()} == {
        ("MXFP4", (128, 64, 4)), ("MXFP4", (64, 128, 4))
    }  # fmt: skip


SPREAD, BLOCKS_OF, TURNED = mxfp4._spread, mxfp4.blocks, mxfp4.reordered


def as_stored(halves: np.ndarray) -> np.ndarray:
    return halves.view(np.uint8)


def swapped(halves: np.ndarray) -> np.ndarray:
    codes = SPREAD(halves)
    return codes >> 4 | codes << 4


def shifted(codes: np.ndarray, scales: bytes, *rest: Any) -> np.ndarray:
    return BLOCKS_OF(codes, scales[-1:] + scales[:-1], *rest)


def doubled(codes: np.ndarray, scales: bytes, *rest: Any) -> np.ndarray:
    return BLOCKS_OF(codes, bytes(scale + 1 for scale in scales), *rest)


def exchanged(source: SourceTensor, turn: Permutation | None) -> Permutation | None:
    found = TURNED(source, turn)
    if found is None or not mxfp4.is_packed(source) or len(found.part) == 1:
        return found
    return replace(found, part=(1 - found.part[0], *found.part[1:]))


DEFECTS: dict[str, tuple[str, Callable[..., object]]] = {
    "codes as they are stored": ("_spread", as_stored),
    "the halves of each byte swapped": ("_spread", swapped),
    "the scales of the block before": ("blocks", shifted),
    "scales that are one too large": ("blocks", doubled),
    "gate and up exchanged": ("reordered", exchanged),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_number_would_be_seen(name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mxfp4, *DEFECTS[name])
    assert differing(source, export_checkpoint(source, tmp_path / "x.gguf").output) != []


def test_pieces_and_shards_of_any_size_make_the_same_file(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_checkpoint(small, tmp_path / "whole.gguf")
    split = in_two_files(small, tmp_path / "model")
    monkeypatch.setattr(streaming, "CHUNK", 300)
    monkeypatch.setattr(streaming, "processors", lambda: 5)
    export_checkpoint(split, tmp_path / "pieces.gguf")
    assert gguf_files.tensors(tmp_path / "whole.gguf") == gguf_files.tensors(tmp_path / "pieces.gguf")


def in_two_files(source: Path, target: Path) -> Path:
    """Write the checkpoint again, scales in another file than codes."""
    models.copied(source, target)
    tensors = models.read_safetensors(source / "model.safetensors")
    (target / "model.safetensors").unlink()
    models.write_shards(
        target, tensors, {name: f"model-{1 + name.endswith('_scales')}.safetensors" for name in tensors}
    )
    return target


def test_a_file_of_several_parts(small: Path, tmp_path: Path) -> None:
    export_checkpoint(small, tmp_path / "whole.gguf")
    export_checkpoint(small, tmp_path / "x.gguf", split_max_tensors=13)
    parts = [gguf_files.tensors(path) for path in sorted(tmp_path.glob("x-*.gguf"))]
    assert len(parts) > 2
    assert {name: tensor for part in parts for name, tensor in part.items()} == gguf_files.tensors(
        tmp_path / "whole.gguf"
    )


# --- types


@pytest.mark.parametrize(
    ("outtype", "name", "others", "file_type"),
    [
        ("auto", "MXFP4_MOE", "BF16", 38),
        ("f32", "MXFP4_MOE", "F32", 38),
        ("f16", "MXFP4_MOE", "F16", 38),
        ("q8_0", "Q8_0", "Q8_0", 7),
        ("q4_0", "Q4_0", "Q4_0", 2),
    ],
)
def test_experts_stay_what_they_are(outtype: str, name: str, others: str, file_type: int, small: Path) -> None:
    result = export_checkpoint(small, outtype=outtype, force=True)
    assert (result.output.name, result.outtype) == (f"model-{name}.gguf", name.lower())
    assert NOTE in result.notes
    assert not any("do not fit blocks" in note for note in result.notes)
    found = gguf_files.tensors(result.output)
    assert {found[key][0] for key in ("token_embd.weight", "blk.1.attn_q.weight", "output.weight")} == {others}
    assert {kind for kind, _, _ in experts_of(result.output).values()} == {"MXFP4"}
    assert found["blk.0.ffn_up_exps.bias"][0] == "F32"
    assert gguf_files.keys(result.output)["general.file_type"] == file_type


def test_it_is_no_type_to_ask_for(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown type 'mxfp4_moe'"):
        export_checkpoint(small, tmp_path / "x.gguf", outtype="mxfp4_moe")


@pytest.mark.parametrize("outtype", ["q4_k_m", "iq4_xs"])
def test_libllama_quantises_the_rest(outtype: str, source: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    plain = export_checkpoint(source, tmp_path / "plain.gguf")
    result = export_checkpoint(source, tmp_path / "x.gguf", outtype=outtype)
    assert NOTE in result.notes
    assert experts_of(result.output) == experts_of(plain.output)
    before, after = gguf_files.tensors(plain.output), gguf_files.tensors(result.output)
    matrices = [name for name in before if name.endswith(("attn_q.weight", "attn_output.weight", "output.weight"))]
    assert {after[name][0] for name in matrices} <= {"Q5_0", "Q6_K", "Q8_0", "IQ4_NL"}
    assert len(matrices) == 5


def test_some_experts_may_be_plain(small: Path, tmp_path: Path) -> None:
    source = shutil.copytree(small, tmp_path / "model")
    plain = np.random.default_rng(1).standard_normal((4, 128, 128)).astype(np.float32)
    mxfp4_models.change(
        source, gate_up_proj_blocks=None, gate_up_proj_scales=None, gate_up_proj=("BF16", models.stored(plain, "BF16"))
    )
    found = experts_of(export_checkpoint(source, tmp_path / "x.gguf").output)
    assert [kind for kind, _, _ in found.values()] == ["BF16", "BF16", "MXFP4", "MXFP4", "MXFP4", "MXFP4"]


# --- llama.cpp


@pytest.fixture(scope="module")
def wanted(source: Path) -> np.ndarray:
    """Return transformers' logits, which it computes with the experts in float32."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("accelerate")
    return models.torch_logits(source)


def in_float32(path: Path, target: Path) -> Path:
    """Write the file again with every number as float32, by libllama."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, 1, True
    assert llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(target), params) == 0
    assert {kind for kind, _, _ in gguf_files.tensors(target).values()} == {"F32"}
    return target


def test_llama_cpp_computes_what_transformers_does(source: Path, wanted: np.ndarray, tmp_path: Path) -> None:
    path = export_checkpoint(source, tmp_path / "x.gguf").output
    assert models.apart(wanted, models.llama_logits(path)) < ROUNDED
    plain = in_float32(path, tmp_path / "plain.gguf")
    assert models.apart(wanted, models.llama_logits(plain)) < TOLERANCE


@pytest.mark.parametrize("name", DEFECTS)
def test_llama_cpp_would_compute_something_else(
    name: str, source: Path, wanted: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp4, *DEFECTS[name])
    path = export_checkpoint(source, tmp_path / "x.gguf").output
    assert models.apart(wanted, models.llama_logits(path)) > 2 * ROUNDED


# --- what is refused

GRID = (4, 128, 4)  # of the gate and up: experts, rows, blocks of a row
SCALES, BLOCKS = np.full(GRID, 121, np.uint8), np.zeros((*GRID, 16), np.uint8)
AWAY = None
WITH_NAN = SCALES.copy()
WITH_NAN[2, 5, 3] = 255
BAD: dict[str, tuple[dict[str, tuple[str, np.ndarray] | None], type[RopetoolError], str]] = {
    "no scales": (
        {"gate_up_proj_scales": AWAY}, CorruptFile,
        r"no weight file contains \S+\.gate_up_proj_scales, which \S+\.gate_up_proj_blocks requires$",
    ),
    "no codes": (
        {"down_proj_blocks": AWAY}, CorruptFile,
        r"no weight file contains \S+\.down_proj_blocks, which \S+\.down_proj_scales requires$",
    ),
    "neither": (
        {"down_proj_blocks": AWAY, "down_proj_scales": AWAY}, CorruptFile,
        r"no weight file contains \S+\.down_proj, which the config requires$",
    ),
    "codes of another type": (
        {"gate_up_proj_blocks": ("I8", BLOCKS)}, UnsupportedDtype,
        r"gate_up_proj_blocks has type I8; MXFP4 codes and scales must be U8$",
    ),
    "scales of another type": (
        {"gate_up_proj_scales": ("F32", SCALES.astype(np.float32))}, UnsupportedDtype,
        r"gate_up_proj_scales has type F32; MXFP4 codes and scales must be U8$",
    ),
    "scales of another shape": (
        {"gate_up_proj_scales": ("U8", SCALES[:, :, :3])}, CorruptFile,
        r"gate_up_proj_scales has shape \[4, 128, 3\]; the codes of shape \[4, 128, 4, 16\] require \[4, 128, 4\]$",
    ),
    "blocks of 30": (
        {"gate_up_proj_blocks": ("U8", BLOCKS[..., :15])}, CorruptFile,
        r"gate_up_proj_blocks has shape \[4, 128, 4, 15\], but config.json requires 4 experts of 128 rows of 128 numbers, "
        r"32 of them in 16 bytes$",
    ),
    "one expert": (
        {"gate_up_proj_blocks": ("U8", BLOCKS[:1]), "gate_up_proj_scales": ("U8", SCALES[:1])}, CorruptFile,
        r"has shape \[1, 128, 4, 16\], but config.json requires 4 experts",
    ),
    "no axis": (
        {"gate_up_proj_blocks": ("U8", BLOCKS[0, 0, 0, 0]), "gate_up_proj_scales": ("U8", SCALES[0, 0, 0])}, CorruptFile,
        r"has shape \[\], but config.json requires 4 experts",
    ),
    "NaN": (
        {"gate_up_proj_scales": ("U8", WITH_NAN)}, CheckpointError,
        r"gate_up_proj_scales contains 255 for expert 2, row 5, block 3; above 252 numbers become infinite or NaN$",
    ),
    "the plain weight too": (
        {"gate_up_proj": ("BF16", np.zeros((4, 128, 128), np.uint16))}, LossyExport,
        r"a gpt-oss file with this config has no place for \S+\.gate_up_proj_blocks \(1 more\)$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused(name: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, error, text = BAD[name]
    source = mxfp4_models.change(shutil.copytree(small, tmp_path / "model"), **tensors)
    monkeypatch.setattr(streaming, "CHUNK", 1)  # the place is told in a piece that is not the first
    with refusal(error, text):
        export_checkpoint(source, tmp_path / "x.gguf", allow_nan=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    source = mxfp4_models.write(tmp_path / "model", changes={"intermediate_size": 48})
    with pytest.raises(CorruptFile, match=r"down_proj_blocks has shape .*of 128 rows of 48 numbers, 32 of them in 16"):
        export_checkpoint(source, tmp_path / "x.gguf")


@pytest.mark.parametrize(("method", "said"), [("gptq", "packed by gptq"), (None, "has the quant_method null")])
def test_other_methods_are_refused(method: str | None, said: str, small: Path, tmp_path: Path) -> None:
    source = shutil.copytree(small, tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    models.save(source / "config.json", {**config, "quantization_config": {"quant_method": method}})
    with pytest.raises(UnsupportedDtype, match=said):
        export_checkpoint(source, tmp_path / "x.gguf")
