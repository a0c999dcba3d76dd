"""Exports of packed weights: the numbers of FP8 and compressed-tensors, and commands that unpack the other formats.

The expected numbers are computed from codes and scales before packing (packed_models), and by transformers.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf_files
import models
import numpy as np
import packed_models
import pytest

from ropetool.errors import CorruptFile, MissingDependency, RopetoolError, UnsupportedDtype
from ropetool.gguf_model import streaming
from ropetool.packed import compressed_tensors, fp8

FP8 = ("fp8", "fp8-ragged")
COMPRESSED = ("pack-quantized", "pack-quantized-zeros", "int-quantized", "float-quantized", "float-quantized-blocks")
UP, SCALE = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj.weight_scale"
PLACES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def exported(source: Path, folder: Path, outtype: str = "f32") -> dict[str, bytes]:
    """Export a checkpoint, and return the bytes of its packed matrices by their names in it, in the order of it."""
    models.export(source, folder / "x.gguf", outtype=outtype, force=True)
    return in_file(folder / "x.gguf")


def in_file(file: Path) -> dict[str, bytes]:
    tensors, of_source = gguf_files.tensors(file), {}
    for layer in range(2):
        for ours, theirs in PLACES.items():
            kind, shape, raw = tensors[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):  # llama.cpp pairs neighbouring rows of a head
                values = np.frombuffer(raw, "<u4" if kind == "F32" else "<u2").reshape(-1, 8, 2, shape[0])
                raw = values.swapaxes(1, 2).tobytes()
            of_source[f"model.layers.{layer}.{theirs}.weight"] = raw
    return of_source


def apart(found: Mapping[str, bytes], numbers: Mapping[str, np.ndarray], dtype: str = "F32") -> list[str]:
    """Return the names of the matrices whose bytes are not those of the numbers."""
    assert found.keys() == numbers.keys()
    return [name for name in found if found[name] != as_torch(numbers[name], dtype)]


def as_torch(values: np.ndarray, dtype: str) -> bytes:
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    torch = pytest.importorskip("torch")
    kind = {"BF16": torch.bfloat16, "F16": torch.float16}[dtype]
    raw: bytes = torch.from_numpy(np.ascontiguousarray(values)).float().to(kind).view(torch.uint8).numpy().tobytes()
    return raw


def needs(name: str) -> None:
    if name not in FP8:
        pytest.importorskip("compressed_tensors")


@pytest.mark.parametrize("name", [*FP8, *COMPRESSED])
def test_every_number_is_its_code_times_its_scale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name)
    source, numbers = packed_models.write(tmp_path / "m", name)
    monkeypatch.setattr(streaming, "CHUNK", 700)  # chunks of some rows, several in each matrix
    assert apart(exported(source, tmp_path), numbers) == []
    assert apart(exported(source, tmp_path, "auto"), numbers, "BF16") == []


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["fp8", *COMPRESSED])
def test_transformers_loads_the_same_numbers(name: str, tmp_path: Path) -> None:
    needs(name)
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    source, _ = packed_models.write(tmp_path / "m", name)
    config = transformers.AutoConfig.from_pretrained(source)
    config.quantization_config = {**config.quantization_config, "dequantize": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.bfloat16)
    found = exported(source, tmp_path, "bf16")
    loaded = {name: one.contiguous().view(torch.uint8).numpy().tobytes() for name, one in model.state_dict().items()}
    assert {name: loaded[name] for name in found} == found


def test_scales_in_float16_keep_their_precision(tmp_path: Path) -> None:
    """AWQ, repacked by the command in the error: the same codes, with zeros and scales in float16."""
    pytest.importorskip("compressed_tensors")
    source, numbers = packed_models.write(tmp_path / "it's packed", "awq")
    with pytest.raises(UnsupportedDtype, match="packed by awq: whole numbers of 4 bits") as caught:
        exported(source, tmp_path)
    install, repack, export = caught.value.try_.split(", then ")
    assert install == "pip install compressed-tensors"
    python, option, code = shlex.split(repack)
    assert (python, option) == ("python", "-c")
    exec(code, {})
    ropetool, command, copy = shlex.split(export)
    assert (ropetool, command) == ("ropetool", "export")
    assert apart(exported(Path(copy), tmp_path), numbers) == []
    assert apart(exported(Path(copy), tmp_path, "auto"), numbers, "F16") == []


def test_another_layout_names_the_command_that_unpacks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("compressed_tensors")
    source, numbers = packed_models.write(tmp_path / "'m' 😀", "int-quantized")
    monkeypatch.setattr(compressed_tensors, "FORMATS", ())
    with pytest.raises(UnsupportedDtype, match='weights in the layout "int-quantized"') as caught:
        exported(source, tmp_path)
    exec(shlex.split(caught.value.try_)[-1], {})
    assert apart(exported(Path(f"{source}-bf16"), tmp_path, "auto"), numbers, "BF16") == []


def test_that_command_keeps_what_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("compressed_tensors")
    safetensors = pytest.importorskip("safetensors.torch")
    source, _ = packed_models.write(tmp_path / "m", "int-quantized")
    tensors = safetensors.load_file(source / "model.safetensors")
    router = tensors["model.layers.0.input_layernorm.weight"].repeat(4, 1)
    safetensors.save_file(
        {**tensors, "model.layers.0.mlp.gate.weight": router}, source / "model.safetensors", {"format": "pt"}
    )
    monkeypatch.setattr(compressed_tensors, "FORMATS", ())
    with pytest.raises(UnsupportedDtype) as caught:
        exported(source, tmp_path)
    exec(shlex.split(caught.value.try_)[-1], {})
    (copy,) = Path(f"{source}-bf16").glob("*.safetensors")
    assert safetensors.load_file(copy)["model.layers.0.mlp.gate.weight"].equal(router)


def test_gptq_names_the_library_that_unpacks_it(tmp_path: Path) -> None:
    """The command itself was run once, with gptqmodel 7.7.0: it needs minutes, a compiler and another torch."""
    source, numbers = packed_models.write(tmp_path / "m", "gptq")
    with pytest.raises(UnsupportedDtype, match="packed by gptq") as caught:
        exported(source, tmp_path)
    code = shlex.split(caught.value.try_)[-1]
    compile(code, "next step", "exec")
    assert "gptqmodel.utils.model_dequant import dequantize_model" in code
    assert repr(str(source)).strip("'") in code
    assert len(numbers) == 14


# --- planted defects


def nibbles_swapped(module: Any, raw: Any, first: int, parts: Any) -> Any:
    return RIGHT(module, (raw >> 4) | (raw << 4), first, parts)


def scales_forgotten(module: Any, raw: bytes, first: int, count: int) -> Any:
    return np.ones_like(RIGHT_SCALES(module, raw, first, count))


def zeros_of_the_first_rows(module: Any, raw: bytes, first: int, count: int) -> Any:
    return RIGHT_ZEROS(module, raw, 0, count)


def blocks_transposed(blocks: Any, raw: Any, first: int, parts: Any) -> Any:
    return RIGHT_FP8(fp8.Blocks(blocks.weight, blocks.scales, blocks.block[::-1]), raw, first, parts)


RIGHT, RIGHT_FP8 = compressed_tensors.Module.numbers, fp8.Blocks.numbers
RIGHT_SCALES, RIGHT_ZEROS = compressed_tensors.Module._scales, compressed_tensors.Module._zeros


@pytest.mark.parametrize(
    ("name", "part", "defect"),
    [
        ("pack-quantized", (compressed_tensors.Module, "numbers"), nibbles_swapped),
        ("float-quantized", (compressed_tensors.Module, "_scales"), scales_forgotten),
        ("pack-quantized-zeros", (compressed_tensors.Module, "_zeros"), zeros_of_the_first_rows),
        ("fp8-square", (fp8.Blocks, "numbers"), blocks_transposed),
    ],
)
def test_a_planted_defect_is_seen(
    name: str, part: tuple[Any, str], defect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.removesuffix("-square")
    needs(name)
    source, numbers = packed_models.write(tmp_path / "m", name)
    monkeypatch.setattr(streaming, "CHUNK", 700)
    monkeypatch.setattr(*part, defect)
    try:
        found = exported(source, tmp_path)
    except (IndexError, ValueError):
        return  # a grid that does not cover the matrix
    assert len(apart(found, numbers)) > 7


# --- what is refused


def without(tensor: str) -> Any:
    return lambda tensors: tensors.pop(tensor)


def cut(tensor: str) -> Any:
    return lambda tensors: tensors.update({tensor: (tensors[tensor][0], tensors[tensor][1][:-1])})


def flat(tensor: str) -> Any:
    return lambda tensors: tensors.update({tensor: (tensors[tensor][0], tensors[tensor][1].reshape(-1))})


def planted(tensor: str) -> Any:
    return lambda tensors: tensors.update({tensor: ("I32", np.zeros(64, np.int32))})


@pytest.mark.parametrize(
    ("name", "change", "error", "said"),
    [
        ("pack-quantized", without(f"{UP}.weight_packed"), CorruptFile, f"no weight file contains {UP}.weight_packed"),
        ("pack-quantized", without(f"{UP}.weight_shape"), CorruptFile, "needs its two sizes as I64"),
        ("pack-quantized", without(SCALE), UnsupportedDtype, f"{UP}.weight_packed belongs to a layout"),
        ("pack-quantized", cut(SCALE), CorruptFile, r"group scales of a matrix of \[96, 64\] require \[96, 2\]"),
        ("pack-quantized", planted(f"{UP}.weight_g_idx"), UnsupportedDtype, "weight_g_idx belongs to a layout"),
        ("pack-quantized-zeros", without(f"{UP}.weight_zero_point"), CorruptFile, "which asymmetric weights require"),
        ("pack-quantized-zeros", cut(f"{UP}.weight_zero_point"), CorruptFile, r"require \[9, 2\]"),
        ("int-quantized", without(f"{UP}.weight"), CorruptFile, f"no weight file contains {UP}.weight, which"),
        ("float-quantized", without(SCALE), UnsupportedDtype, f"{UP}.weight has type F8_E4M3"),
        ("fp8", flat(f"{UP}.weight_scale_inv"), CorruptFile, r"weight_scale_inv has shape \[\d+\]; blocks of"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    name: str, change: Any, error: type[RopetoolError], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors")
    source, _ = packed_models.write(tmp_path / "m", name)
    tensors = models.read_safetensors(source / "model.safetensors")
    change(tensors)
    models.write_safetensors(source / "model.safetensors", tensors)
    with pytest.raises(error, match=said):
        exported(source, tmp_path)
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"config_groups": {"a": {"targets": ["re:.*q_proj"], "weights": {"num_bits": 8, "strategy": "channel"}}}},
            CorruptFile,
            "no group .* targets",
        ),
        ({"config_groups": {"a": {"targets": 3}}}, CorruptFile, "compressed-tensors cannot read quantization_config"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, UnsupportedDtype, "with a sparsity_config"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, UnsupportedDtype, "with a transform_config"),
        ({"format": "nvfp4-pack-quantized"}, UnsupportedDtype, 'in the layout "nvfp4-pack-quantized"'),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    change: dict[str, Any], error: type[RopetoolError], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors")
    source, _ = packed_models.write(tmp_path / "m", "int-quantized")
    quantization = models.config_of(source)["quantization_config"]
    models.set_config(source, quantization_config={**quantization, **change})
    with pytest.raises(error, match=said):
        exported(source, tmp_path)


def test_a_group_by_name_comes_before_a_group_by_class(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    source, numbers = packed_models.write(tmp_path / "m", "int-quantized")
    quantization = models.config_of(source)["quantization_config"]
    (group,) = quantization["config_groups"].values()
    wrong = {**group, "format": "pack-quantized"}
    named = {**group, "targets": ["re:.*(proj)$"], "format": "int-quantized"}
    models.set_config(source, quantization_config={**quantization, "config_groups": {"all": wrong, "named": named}})
    assert apart(exported(source, tmp_path), numbers) == []


def test_a_missing_library_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = packed_models.write(tmp_path / "m", "int-quantized")
    monkeypatch.setattr(compressed_tensors, "_PACKAGES", ("no_such_library",))
    with pytest.raises(MissingDependency, match="no_such_library is not installed") as caught:
        exported(source, tmp_path)
    assert "packed" in caught.value.try_ or "compressed-tensors" in caught.value.try_
