"""The types of an export against the stock converter, byte for byte: every type that both write, FP8 sources too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import converter
import models
import numpy as np
import pytest

from ropetool.packed import fp8

# 328 is not a multiple of 32, so the rows of down_proj are no whole blocks; 48 and 80 leave blocks cut off at the edges.
CHANGES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 328, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 50257, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [48, 80], "fmt": "e4m3", "activation_scheme": "dynamic"}

pytestmark = converter.needs_tokenizer_too


def write_source(path: Path, dtype: str, *, fp8: bool = False) -> Path:
    rng = np.random.default_rng(9)
    source = models.checkpoint(path, dtype=dtype, **CHANGES, **({"quantization_config": FP8} if fp8 else {}))
    tensors = models.weights({**models.BY_HAND["llama"], **CHANGES}, dtype)
    for name, (_, values) in list(tensors.items()):
        if fp8 and "layers" in name and values.ndim == 2:
            height, width = values.shape
            codes = rng.integers(0, 256, values.shape).astype(np.uint8)
            codes[(codes & 0x7F) == 0x7F] = 1  # NaN
            tensors[name] = ("F8_E4M3", codes)
            scales = rng.uniform(1e-3, 2e-3, (-(-height // 48), -(-width // 80))).astype(np.float32)
            tensors[f"{name}_scale_inv"] = ("F32", scales)
    models.write_safetensors(source / "model.safetensors", tensors)
    converter.copy_tokenizer(source)
    return source


CASES = [("BF16", "q8_0"), ("F32", "q8_0"), ("FP8", "q8_0"), ("FP8", "bf16")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("types")
    for kind in ("BF16", "F32", "FP8"):
        write_source(folder / kind, "BF16" if kind == "FP8" else kind, fp8=kind == "FP8")
    return folder


def stock(folder: Path, kind: str, outtype: str) -> dict[str, Any]:
    """Return the tensors that the stock converter writes; the first call makes all files `<kind>-<outtype>.gguf`."""
    made = {(kind, outtype): folder / f"{kind}-{outtype}.gguf" for kind, outtype in [*CASES, ("FP8", "f16")]}
    if not made[kind, outtype].is_file():
        calls = [[folder / kind, "--outtype", outtype, "--outfile", path] for (kind, outtype), path in made.items()]
        converter.convert(folder, calls)
    return converter.tensors(made[kind, outtype])


@pytest.mark.parametrize(("kind", "outtype"), CASES)
def test_the_tensors_are_the_stock_converters(kind: str, outtype: str, folder: Path, tmp_path: Path) -> None:
    ours = models.export(folder / kind, tmp_path / "x.gguf", outtype=outtype).output
    found = converter.tensors(ours)
    made = converter.compared(f"{kind} as {outtype}", folder / kind, ours)
    if not made.settled:
        expected = stock(folder, kind, outtype)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []
        made.passed()
    types = {"q8_0": {"Q8_0", "F16", "F32"}, "bf16": {"BF16", "F32"}}
    assert {kind for kind, _, _ in found.values()} == types[outtype]


def test_scales_of_the_wrong_rows_would_be_seen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fp8.Blocks.numbers
    monkeypatch.setattr(
        fp8.Blocks, "numbers", lambda blocks, raw, first, parts: right(blocks, raw, max(0, first - 1), parts)
    )
    monkeypatch.setattr("ropetool.gguf_model.streaming.CHUNK", 5000)
    ours = models.export(folder / "FP8", tmp_path / "x.gguf", outtype="f16").output
    made = converter.compared("scales of the wrong rows", folder / "FP8", ours)
    if made.settled:
        return
    found, expected = converter.tensors(ours), stock(folder, "FP8", "f16")
    assert found["blk.0.ffn_up.weight"] != expected["blk.0.ffn_up.weight"]
    assert found["blk.0.attn_norm.weight"] == expected["blk.0.attn_norm.weight"]
    made.passed()
