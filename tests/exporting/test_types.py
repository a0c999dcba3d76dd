"""The types of an export: which tensor has which, FP8 sources, and weights that are refused with their place."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import models
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from ropetool.errors import CheckpointError, ConfigError, CorruptFile, LossyExport, UnknownName, UnsupportedDtype
from ropetool.gguf_model import outtypes, streaming
from ropetool.packed import fp8

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4}
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "F64"])
@pytest.mark.parametrize("outtype", ["q8_0", "q4_1"])
def test_matrices_are_blocks_of_the_numbers(outtype: str, dtype: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype=dtype, **WIDE)
    result = models.export(source, outtype=outtype)
    assert result.output == tmp_path / f"model-{outtype.upper()}.gguf"
    found = gguf_files.tensors(result.output)
    kind = gguf.GGMLQuantizationType[outtype.upper()]
    given = models.weights({**models.BY_HAND["llama"], **WIDE}, dtype)[UP][1]
    numbers = (given.astype("<u4") << 16).view("<f4") if dtype == "BF16" else given.astype("<f4")
    assert found["blk.1.ffn_up.weight"] == (outtype.upper(), (64, 96), quantize(numbers, kind).tobytes())
    assert {name for name, (type_, _, _) in found.items() if type_ == "F32"} == {n for n in found if "norm" in n}
    stated = gguf_files.keys(result.output)
    assert stated["general.file_type"] == {"q8_0": 7, "q4_1": 3}[outtype]
    assert stated["general.quantization_version"] == 2


def test_rows_that_are_no_whole_blocks_are_stored_in_f16(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", **{**WIDE, "intermediate_size": 40})
    result = models.export(source, tmp_path / "x.gguf", outtype="q8_0")
    types = {name: kind for name, (kind, _, _) in gguf_files.tensors(tmp_path / "x.gguf").items()}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert any(
        note.startswith("2 tensors are stored in F16 instead of q8_0, the first blk.0.ffn_down.weight: ")
        for note in result.notes
    )


def test_the_rule_for_f32_is_the_stock_converters() -> None:
    shape = (4, 64)
    for name in ("blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q_norm.weight"):
        assert outtypes.dtype_of(name, shape, "q8_0") == "F32"
    assert outtypes.dtype_of("blk.0.attn_q.weight", (64,), "q8_0") == "F32"
    assert outtypes.dtype_of("token_embd.weight", shape, "q5_0") == "Q5_0"


def test_file_types_are_llama_cpps() -> None:
    known = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").lower(): int(kind) for kind in gguf.LlamaFileType}
    known |= {alias: known[f"{alias}_m"] for alias in ("q3_k", "q4_k", "q5_k")}
    assert {name: kind.file_type for name, kind in outtypes.OUTTYPES.items()} == {
        name: known[name] for name in outtypes.OUTTYPES
    }


def test_threads_and_pieces_of_any_size_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="BF16", **WIDE)
    models.export(source, tmp_path / "whole.gguf", outtype="q5_1")
    monkeypatch.setattr(streaming, "CHUNK", 300)
    monkeypatch.setattr(streaming, "processors", lambda: 5)
    models.export(source, tmp_path / "pieces.gguf", outtype="q5_1")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


@pytest.mark.parametrize(("at_work", "most"), [(2048, 2), (1024, 1), (3, 1), (1 << 30, 8)])
def test_pieces_that_are_large_are_converted_by_few_threads(
    at_work: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of the keys is a piece of 1 KB here: 8 rows, which change places, of 32 numbers."""
    threads: list[int] = []

    def pool(count: int) -> ThreadPoolExecutor:
        threads.append(count)
        return ThreadPoolExecutor(count)

    source = models.checkpoint(tmp_path / "model", **{**WIDE, "hidden_size": 32, "head_dim": 8})
    monkeypatch.setattr(streaming, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(streaming, "CHUNK", 300)
    monkeypatch.setattr(streaming, "AT_WORK", at_work)
    monkeypatch.setattr(streaming, "processors", lambda: 16)
    models.export(source, tmp_path / "x.gguf")
    assert threads == [most]


def test_an_unknown_type_is_answered_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown type 'q9_0'.*known: auto, f32, f16, bf16, q8_0.*q4_k_m.*iq1_s"):
        models.export(models.checkpoint(tmp_path / "model"), tmp_path / "x.gguf", outtype="q9_0")


# --- numbers that are none


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "F64"])
@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN"), (np.inf, "an infinity"), (-np.inf, "an infinity")])
def test_a_number_that_is_none_is_named(bad: float, said: str, dtype: str, tmp_path: Path) -> None:
    source = planted(tmp_path / "model", bad, dtype)
    with pytest.raises(CheckpointError, match=f"{UP} contains {said} in row 3, column 5") as caught:
        models.export(source, tmp_path / "x.gguf")
    assert caught.value.exit_code == 1
    assert caught.value.where.endswith("model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("outtype", ["f32", "bf16", "f16"])
def test_allow_nan_exports_it(outtype: str, tmp_path: Path) -> None:
    for number, bad in enumerate((np.nan, np.inf)):
        source = planted(tmp_path / f"model{number}", bad, "F32")
        models.export(source, tmp_path / f"{number}.gguf", outtype=outtype, allow_nan=True)
        kind, shape, raw = gguf_files.tensors(tmp_path / f"{number}.gguf")["blk.1.ffn_up.weight"]
        numbers = dequantize(np.frombuffer(raw, np.uint8), gguf.GGMLQuantizationType[kind]).reshape(shape[::-1])
        np.testing.assert_array_equal(numbers[3, 5], np.float32(bad))
        assert np.isfinite(numbers).sum() == numbers.size - 1


def test_blocks_hold_no_nan_whatever_is_allowed(tmp_path: Path) -> None:
    source = planted(tmp_path / "model", np.nan, "F32")
    with pytest.raises(CheckpointError, match="contains NaN in row 3, column 5, which Q8_0 blocks cannot store"):
        models.export(source, tmp_path / "x.gguf", outtype="q8_0", allow_nan=True)


def test_a_scale_beyond_float16_is_refused(tmp_path: Path) -> None:
    source = planted(tmp_path / "model", 9e6, "F32")
    with pytest.raises(
        LossyExport, match=r"blk.1.ffn_up.weight contains 9e\+06, too large for the float16 scales of Q8_0"
    ):
        models.export(source, tmp_path / "x.gguf", outtype="q8_0")


def test_a_large_number_is_seen_beside_a_nan(tmp_path: Path) -> None:
    source = planted(tmp_path / "model", np.nan, "F32", also=1e6)
    with pytest.raises(LossyExport, match=r"contains 1e\+06, which becomes infinite in F16"):
        models.export(source, tmp_path / "x.gguf", outtype="f16", allow_nan=True)


def planted(path: Path, bad: float, dtype: str, also: float = 0.0) -> Path:
    """Write a checkpoint with one bad number, and return it."""
    source = models.checkpoint(path, dtype=dtype, **WIDE)
    given = models.weights({**models.BY_HAND["llama"], **WIDE}, dtype)
    values = given[UP][1].copy()
    with np.errstate(over="ignore"):
        values[3, 5] = models.stored(np.array([bad]), dtype)[0]
    if also:
        values[0, 0] = also
    models.write_safetensors(source / "model.safetensors", {**given, UP: (dtype, values)})
    return source


# --- FP8

QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [32, 48], "fmt": "e4m3"}


@pytest.mark.parametrize(("dtype", "torch_name"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_the_numbers_of_all_bytes_are_torchs(dtype: str, torch_name: str) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.arange(256, dtype=torch.uint8).view(getattr(torch, torch_name)).to(torch.float32).numpy()
    np.testing.assert_array_equal(fp8.TABLES[dtype], expected)
    assert np.array_equal(np.signbit(fp8.TABLES[dtype][::128]), [False, True])


def in_fp8(path: Path, scale_dtype: str = "F32", **changes: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a checkpoint whose matrices are FP8, and return it with the numbers that they stand for, by torch."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    config = {**models.BY_HAND["llama"], **WIDE}
    source = models.checkpoint(path, dtype="BF16", **WIDE, quantization_config={**QUANTIZATION, **changes})
    tensors, expected = models.weights(config, "BF16"), {}
    for name, (_, values) in list(tensors.items()):
        if values.ndim == 1 or "layers" not in name:
            continue
        height, width = values.shape
        codes = rng.integers(0, 256, values.shape).astype(np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 1
        scales = rng.uniform(0.5, 2, (-(-height // 32), -(-width // 48))).astype(np.float32)
        tensors[name] = ("F8_E4M3", codes)
        tensors[f"{name}_scale_inv"] = ("F32", scales)
        if scale_dtype == "BF16":
            tensors[f"{name}_scale_inv"] = ("BF16", models.stored(scales, "BF16"))
            scales = (tensors[f"{name}_scale_inv"][1].astype("<u4") << 16).view("<f4")
        each = torch.from_numpy(scales).repeat_interleave(32, 0).repeat_interleave(48, 1)[:height, :width]
        expected[name] = (torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * each).numpy()
    models.write_safetensors(source / "model.safetensors", tensors)
    return source, expected


@pytest.mark.parametrize("scale_dtype", ["F32", "BF16"])
def test_fp8_blocks_are_multiplied_in_float32(
    scale_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, expected = in_fp8(tmp_path / "model", scale_dtype)
    monkeypatch.setattr(streaming, "CHUNK", 700)  # pieces that end inside a block
    result = models.export(source, tmp_path / "x.gguf", outtype="f32")
    assert not any("rounded" in note for note in result.notes)
    found = gguf_files.tensors(tmp_path / "x.gguf")
    assert found["blk.1.ffn_up.weight"][2] == expected[UP].tobytes()
    assert found["blk.0.ffn_down.weight"][2] == expected["model.layers.0.mlp.down_proj.weight"].tobytes()
    queries = expected["model.layers.0.self_attn.q_proj.weight"].reshape(8, 2, 4, 64).swapaxes(1, 2)
    assert found["blk.0.attn_q.weight"][2] == queries.tobytes()


def test_fp8_becomes_bf16_unless_another_type_is_asked_for(tmp_path: Path) -> None:
    source, expected = in_fp8(tmp_path / "model")
    result = models.export(source)
    assert result.output.name == "model-BF16.gguf"
    assert "matrices in F8_E4M3 are rounded to bf16" in result.notes
    kind, _, raw = gguf_files.tensors(result.output)["blk.1.ffn_up.weight"]
    torch = pytest.importorskip("torch")
    assert (kind, raw) == ("BF16", torch.from_numpy(expected[UP]).bfloat16().view(torch.uint8).numpy().tobytes())


def test_fp8_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source, _ = in_fp8(tmp_path / "model", weight_block_size=[16, 48])
    with pytest.raises(CorruptFile, match=r"blocks of \[16, 48\] over .* require"):
        models.export(source, tmp_path / "x.gguf")
    source, _ = in_fp8(tmp_path / "other", weight_block_size=None)
    with pytest.raises(CorruptFile, match="weight_block_size is null"):
        models.export(source, tmp_path / "x.gguf")


def test_a_nan_in_fp8_is_named(tmp_path: Path) -> None:
    source, _ = in_fp8(tmp_path / "model")
    raw = (source / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    at = 8 + int.from_bytes(raw[:8], "little") + header[UP]["data_offsets"][0] + 2 * 64 + 7
    (source / "model.safetensors").write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
    with pytest.raises(CheckpointError, match=f"{UP} contains NaN in row 2, column 7"):
        models.export(source, tmp_path / "x.gguf")


def test_fp8_without_scales_is_refused(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", quantization_config=QUANTIZATION)
    given = models.weights(models.BY_HAND["llama"])
    given[UP] = ("F8_E4M3", np.zeros((24, 16), np.uint8))
    models.write_safetensors(source / "model.safetensors", given)
    with pytest.raises(UnsupportedDtype, match=f"{UP} has type F8_E4M3.*scales in {UP}_scale_inv"):
        models.export(source, tmp_path / "x.gguf")


# --- the disk


FULL = """
import resource, sys
from ropetool.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
main(sys.argv[2:])
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="BF16", **WIDE)
    command = [
        sys.executable,
        "-c",
        FULL,
        "40000",
        "export",
        str(source),
        "--outtype",
        "f16",
        "-o",
        str(tmp_path / "x.gguf"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {tmp_path / 'x.gguf'}: file too large")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_limit_of_that_test_is_what_stops_it(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="BF16", **WIDE)
    most = str(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    command = [sys.executable, "-c", FULL, most, "export", str(source), "-o", str(tmp_path / "x.gguf")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_an_importance_matrix_is_for_other_types(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="q8_0 does not use an importance matrix"):
        models.export(models.checkpoint(tmp_path / "model"), outtype="q8_0", imatrix=tmp_path / "absent")
