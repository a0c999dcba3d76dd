"""FP8 weights: exact in float32 scales where whole blocks take the factor, refused elsewhere with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import configs
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport, UnsupportedDtype
from ropetool.files.hf import read_header
from ropetool.runtimes.transformers import decode
from ropetool.weights.block_scales import on_scales
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.operations import gain_edits, layout_edits, score_edits
from ropetool.weights.weight_files import Shard
from ropetool.weights.writing import write_weights

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
# DeepSeek-V3's own sizes in the rows, narrow in the columns.
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "q_lora_rank": 256,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rope_parameters": configs.YARN,
}  # fmt: skip
PREFIX = "model.layers.0.self_attn."
KV_A, Q_B, KV_B = f"{PREFIX}kv_a_proj_with_mqa.weight", f"{PREFIX}q_b_proj.weight", f"{PREFIX}kv_b_proj.weight"
SHAPES = {KV_A: (576, 256), Q_B: (768, 256), KV_B: (1024, 512)}
FULL = "full_attention"


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]


def view(scales: str = "F32", **quantization: Any) -> FoldTargets:
    tensors = {name: Tensor("F8_E4M3", shape) for name, shape in SHAPES.items()}
    tensors |= {f"{n}_scale_inv": Tensor(scales, (-(-r // 128), -(-c // 128))) for n, (r, c) in SHAPES.items()}
    tensors[f"{PREFIX}q_a_layernorm.weight"] = Tensor("BF16", (256,))
    family = families.get("deepseek_v3")
    return FoldTargets(family, CONFIG, decode(HfCheckpoint(CONFIG, family)), tensors, {**FP8, **quantization})


def write(path: Path) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(2)
    tensors: dict[str, torch.Tensor] = {}
    for name, (rows, columns) in SHAPES.items():
        tensors[name] = torch.randn(rows, columns, generator=made).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.rand(-(-rows // 128), -(-columns // 128), generator=made) + 0.5
    tensors[f"{PREFIX}q_a_layernorm.weight"] = torch.ones(256, dtype=torch.bfloat16)
    save_file(tensors, path)
    return tensors


def dequantised(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    weight = tensors[name].double()
    scales = tensors[f"{name}_scale_inv"].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return weight * scales[: weight.shape[0], : weight.shape[1]]


def baked(edits: tuple[TensorEdit, ...], tmp_path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    before = write(tmp_path / "m.safetensors")
    (tmp_path / "out").mkdir()
    write_weights(edits, [Shard(read_header(tmp_path / "m.safetensors"))], [tmp_path / "out" / "m.safetensors"])
    return before, load_file(tmp_path / "out" / "m.safetensors")


def test_the_decoupled_key_rows_stand_alone_in_their_block_row(tmp_path: Path) -> None:
    edits = on_scales(gain_edits(view(), FULL, [1.3] * 32, "k", "test"), view())
    assert [edit.tensor for edit in edits] == [f"{KV_A}_scale_inv"]
    before, after = baked(edits, tmp_path)
    expected = dequantised(before, KV_A)
    expected[512:] *= 1.3
    torch.testing.assert_close(dequantised(after, KV_A), expected, rtol=1e-7, atol=0)
    assert torch.equal(before[KV_A].view(torch.uint8), after[KV_A].view(torch.uint8))
    torch.testing.assert_close(dequantised(after, Q_B), dequantised(before, Q_B), rtol=0, atol=0)


def test_rows_that_share_a_scale_with_others_are_refused() -> None:
    with pytest.raises(UnsupportedDtype, match="rows 128 to 255 share a scale, but only some of them need the factor"):
        on_scales(gain_edits(view(), FULL, [1.3] * 32, "q", "test"), view())
    different = [1.0 + 0.1 * i for i in range(32)]
    with pytest.raises(UnsupportedDtype, match="rows 512 to 575 share a scale"):
        on_scales(gain_edits(view(), FULL, different, "k", "test"), view())


@pytest.mark.parametrize("side", ["q", "k", "norm"])
def test_the_softmax_scale_is_exact_on_every_side(side: str, tmp_path: Path) -> None:
    edits = on_scales(score_edits(view(), FULL, 1.25, side, "test"), view())
    before, after = baked(edits, tmp_path)
    q = {"q": 1.25}.get(side, 1.0)
    torch.testing.assert_close(dequantised(after, Q_B), dequantised(before, Q_B) * q, rtol=1e-7, atol=0)
    keys = dequantised(before, KV_B).reshape(4, 256, 512)
    if side == "k":
        keys[:, :128] *= 1.25  # the plain keys of a head; its values are the other 128 rows
    torch.testing.assert_close(dequantised(after, KV_B).reshape(4, 256, 512), keys, rtol=1e-7, atol=0)


def test_an_order_within_a_block_moves_bytes_alone(tmp_path: Path) -> None:
    edits = on_scales(layout_edits(view(), FULL, "half", "test"), view())
    assert {edit.tensor for edit in edits} == {KV_A, Q_B}
    before, after = baked(edits, tmp_path)
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    expected = dequantised(before, KV_A)
    expected[512:] = expected[512:][order]
    assert torch.equal(dequantised(after, KV_A), expected)
    queries = dequantised(before, Q_B).reshape(4, 192, -1)
    queries[:, 128:] = queries[:, 128:][:, order]
    assert torch.equal(dequantised(after, Q_B).reshape(4, 192, -1), queries)


def test_an_order_across_blocks_is_refused() -> None:
    small = view(weight_block_size=[48, 128])
    small = replace(small, tensors={**small.tensors, f"{KV_A}_scale_inv": Tensor("F32", (12, 2)),
                                    f"{Q_B}_scale_inv": Tensor("F32", (16, 2))})  # fmt: skip
    with pytest.raises(UnsupportedDtype, match="needs rows to move between blocks of 48"):
        on_scales(layout_edits(small, FULL, "half", "test"), small)
    wrong = view(weight_block_size=[64, 128])
    edits = gain_edits(wrong, FULL, [1.3] * 32, "k", "test")
    with pytest.raises(UnsupportedDtype, match="5 rows of scales for 576 rows in blocks of 64"):
        on_scales(edits, wrong)


def test_compressed_tensors_says_the_size_of_its_blocks_elsewhere() -> None:
    """Of 576 rows with 5 rows of scales, a block has 128 rows; a fifth of the rows would be 116."""

    def grouped(*sizes: list[int]) -> FoldTargets:
        groups = {str(i): {"weights": {"block_structure": size}} for i, size in enumerate(sizes)}
        return view(weight_block_size=None, config_groups=groups)

    some = grouped([128, 128])
    (expected,) = on_scales(gain_edits(view(), FULL, [1.3] * 32, "k", "test"), view())
    (edit,) = on_scales(gain_edits(some, FULL, [1.3] * 32, "k", "test"), some)
    assert edit.factors == expected.factors
    assert edit.factors[-1] == 1.3
    two = grouped([128, 128], [64, 128])
    with pytest.raises(UnsupportedDtype, match="groups have blocks of different sizes"):
        on_scales(gain_edits(two, FULL, [1.3] * 32, "k", "test"), two)


@pytest.mark.parametrize("how", ["E8M0", "ue8m0"])
def test_powers_of_two_take_powers_of_two_alone(how: str) -> None:
    some = view("F8_E8M0") if how == "E8M0" else view(scale_fmt="ue8m0")
    for factor in (2.0, 0.25):
        (edit,) = on_scales(gain_edits(some, FULL, [factor] * 32, "k", "test"), some)
        assert set(edit.factors) == {1.0, factor}
    with pytest.raises(UnsupportedDtype, match=r"stores only powers of two, and 1\.3 is not a power of two"):
        on_scales(gain_edits(some, FULL, [1.3] * 32, "k", "test"), some)


def test_exponents_are_added(tmp_path: Path) -> None:
    bits = torch.tensor([[1, 127], [100, 250]], dtype=torch.uint8)
    save_file({"s": bits.view(torch.float8_e8m0fnu)}, tmp_path / "m.safetensors")
    file = Shard(read_header(tmp_path / "m.safetensors"))
    (tmp_path / "out").mkdir()
    write_weights(
        [TensorEdit("s", "scale", 2, (0,), 2, factors=(2.0, 0.25))], [file], [tmp_path / "out" / "m.safetensors"]
    )
    after = load_file(tmp_path / "out" / "m.safetensors")["s"]
    assert after.view(torch.uint8).tolist() == [[2, 128], [98, 248]]
    (tmp_path / "far").mkdir()
    with pytest.raises(LossyExport, match="leaves the range"):
        write_weights(
            [TensorEdit("s", "scale", 2, (0,), 2, factors=(0.25,))], [file], [tmp_path / "far" / "m.safetensors"]
        )


@pytest.mark.parametrize(
    ("suffix", "tool"),
    [(".qweight", "GPTQ or AWQ"), (".weight_packed", "compressed-tensors"), (".weight.absmax", "bitsandbytes")],
)
def test_packed_projections_are_refused_with_the_reason(suffix: str, tool: str) -> None:
    family = families.get("llama")
    config = {
        "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": configs.YARN,
    }  # fmt: skip
    name = "model.layers.0.self_attn.k_proj"
    rope = decode(HfCheckpoint(config, family))
    packed = FoldTargets(family, config, rope, {f"{name}{suffix}": Tensor("I32", (16, 64))}, {})
    with pytest.raises(UnsupportedDtype, match=rf"is packed \({tool}\).*only config.json works") as refusal:
        gain_edits(packed, FULL, [1.3] * 16, "k", "test")
    assert refusal.value.where == name
    integers = FoldTargets(family, config, rope, {f"{name}.weight": Tensor("I8", (64, 128))}, {})
    with pytest.raises(UnsupportedDtype, match="has type I8"):
        on_scales(gain_edits(integers, FULL, [1.3] * 16, "k", "test"), integers)


def test_a_norm_of_a_packed_model_is_not_packed() -> None:
    """qwen3 carries the factor in k_norm, which packing tools leave in 16 bits."""
    family = families.get("qwen3")
    config = {
        "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "rope_parameters": configs.YARN,
    }  # fmt: skip
    prefix = "model.layers.0.self_attn"
    tensors = {f"{prefix}.k_proj.qweight": Tensor("I32", (16, 64)), f"{prefix}.k_norm.weight": Tensor("F16", (32,))}
    some = FoldTargets(family, config, decode(HfCheckpoint(config, family)), tensors, {"quant_method": "gptq"})
    (edit,) = on_scales(gain_edits(some, FULL, [1.3] * 16, "k", "test"), some)
    assert (edit.tensor, edit.length) == (f"{prefix}.k_norm.weight", 32)
