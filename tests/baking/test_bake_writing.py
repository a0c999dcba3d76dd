"""The writer: which bytes change, how numbers are rounded, what is measured, what is refused."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bake_models import stored
from safetensors.torch import load_file, save_file

from ropetool.errors import LossyExport, PlanMismatch, UnsupportedDtype
from ropetool.files.hf import read_header
from ropetool.weights.edits import PERMUTE, SCALE, TensorEdit
from ropetool.weights.weight_files import Shard
from ropetool.weights.writing import Baked, growth, marks, write_weights

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def shard(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path, {"format": "pt"})
    return path


def bake(edits: list[TensorEdit], source: Path, out: Path, **options: Any) -> Baked:
    out.mkdir(exist_ok=True)
    return write_weights(edits, [Shard(read_header(source))], [out / source.name], **options)


def numbers(rows: int = 8, width: int = 40, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn.to(dtype)


def half_of(factor: float) -> TensorEdit:
    return TensorEdit("w", SCALE, 8, (0, 4), 2, factors=(factor,), reason="test")


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_rounded_once_to_nearest_even(dtype: str, tmp_path: Path) -> None:
    """The oracle is torch's own rounding of the float64 products."""
    old = numbers(dtype=DTYPES[dtype])
    source = shard(tmp_path / "a.safetensors", {"w": old, "other": numbers(3)})
    done = bake([half_of(1.296477)], source, tmp_path / "out")
    new = load_file(tmp_path / "out" / "a.safetensors")["w"]
    rows = [0, 1, 4, 5]
    exact = old.double()[rows] * 1.296477
    assert torch.equal(new[rows], exact.to(DTYPES[dtype]))
    assert torch.equal(new[[2, 3, 6, 7]], old[[2, 3, 6, 7]])
    relative = ((new.double()[rows] - exact) / exact).abs()
    (change,) = done.tensors
    assert change.max_error == pytest.approx(relative.max().item(), rel=1e-12)
    assert change.mean_error == pytest.approx(relative.mean().item(), rel=1e-9)
    assert (change.rows, change.dtype, change.reasons) == (4, dtype, ("test",))


def test_ties_go_to_the_even_number(tmp_path: Path) -> None:
    """1 + 2^-7 times 1.5 lies between two bfloat16 numbers; float32 on the way would round twice."""
    values = torch.tensor([[1 + 2**-7, 1 + 2**-6, 1 + 3 * 2**-7, 2.0]], dtype=torch.bfloat16)
    source = shard(tmp_path / "a.safetensors", {"w": values})
    bake([TensorEdit("w", SCALE, 1, (0,), 1, factors=(1.5,))], source, tmp_path / "out")
    new = load_file(tmp_path / "out" / "a.safetensors")["w"]
    assert torch.equal(new, (values.double() * 1.5).to(torch.bfloat16))
    assert new[0, 0].item() == 1.515625  # 1.51171875 is a tie; the even neighbour is above


def test_a_double_rounding_would_be_seen(tmp_path: Path) -> None:
    """A product just above a tie of bfloat16, by less than float32 can hold."""
    factor = (1 + 2**-8) * (1 + 2**-40)
    source = shard(tmp_path / "a.safetensors", {"w": torch.ones(1, 4, dtype=torch.bfloat16)})
    bake([TensorEdit("w", SCALE, 1, (0,), 1, factors=(factor,))], source, tmp_path / "out")
    assert load_file(tmp_path / "out" / "a.safetensors")["w"].unique().item() == 1 + 2**-7
    assert torch.tensor(factor).float().bfloat16().item() == 1.0  # what two roundings give


def test_powers_of_two_and_permutations_lose_nothing(tmp_path: Path) -> None:
    old = numbers(dtype=torch.bfloat16)
    source = shard(tmp_path / "a.safetensors", {"w": old})
    edits = [half_of(2.0), TensorEdit("w", PERMUTE, 8, (0,), 8, order=(7, 6, 5, 4, 3, 2, 1, 0))]
    done = bake(edits, source, tmp_path / "out")
    assert done.tensors[0].max_error == 0
    scaled = old.clone()
    scaled[[0, 1, 4, 5]] *= 2
    assert torch.equal(load_file(tmp_path / "out" / "a.safetensors")["w"], scaled.flip(0))


def test_an_offset_norm_keeps_what_the_runtime_adds(tmp_path: Path) -> None:
    old = numbers(1, 16)[0]
    source = shard(tmp_path / "a.safetensors", {"w": old})
    bake([TensorEdit("w", SCALE, 16, (0,), 16, factors=(1.3,), offset=1.0)], source, tmp_path / "out")
    new = load_file(tmp_path / "out" / "a.safetensors")["w"]
    assert torch.equal(new, ((1 + old.double()) * 1.3 - 1).float())


def test_a_norm_of_heads_and_channels_is_seen_element_by_element(tmp_path: Path) -> None:
    old = numbers(2, 4)
    source = shard(tmp_path / "a.safetensors", {"w": old})
    bake([TensorEdit("w", SCALE, 8, (0, 4), 2, factors=(3.0,))], source, tmp_path / "out")
    expected = old.clone()
    expected[:, :2] *= 3
    assert torch.equal(load_file(tmp_path / "out" / "a.safetensors")["w"], expected)


def test_everything_else_keeps_its_bytes(tmp_path: Path) -> None:
    """Header and other tensors; a NaN with a payload beside the scaled rows too."""
    bits = np.arange(320, dtype=np.uint32) + 0x7F800001
    old = torch.from_numpy(bits.view(np.float32).reshape(8, 40).copy())
    tensors = {"a": numbers(2), "w": old, "z": numbers(2, 3, torch.float16), "q": torch.arange(9, dtype=torch.int8)}
    source = shard(tmp_path / "a.safetensors", tensors)
    bake([half_of(0.5)], source, tmp_path / "out")
    before, after = stored(tmp_path), stored(tmp_path / "out")
    assert {name: data for name, data in before.items() if name != "w"} == {n: d for n, d in after.items() if n != "w"}
    new, kept = (np.frombuffer(x["w"][2], np.uint32).reshape(8, 40) for x in (after, before))
    np.testing.assert_array_equal(new[[2, 3, 6, 7]], kept[[2, 3, 6, 7]])
    header = read_header(source).data_start
    assert (tmp_path / "out" / "a.safetensors").read_bytes()[:header] == source.read_bytes()[:header]


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_touched_tensors_can_be_stored_wider(dtype: str, tmp_path: Path) -> None:
    old = numbers(dtype=torch.bfloat16)
    odd = torch.arange(3, dtype=torch.int8)
    tensors = {"a": odd, "w": old, "moved": old.clone(), "z": numbers(2, 3, torch.float16)}
    source = shard(tmp_path / "a.safetensors", tensors)
    moved = TensorEdit("moved", PERMUTE, 8, (0,), 2, order=(1, 0))
    done = bake([half_of(1.3), moved], source, tmp_path / "out", bake_dtype=dtype)
    after = load_file(tmp_path / "out" / "a.safetensors")
    assert after["w"].dtype == DTYPES[dtype]
    expected = old.double()
    expected[[0, 1, 4, 5]] *= 1.3
    assert torch.equal(after["w"], expected.to(DTYPES[dtype]))
    assert after["moved"].dtype == torch.bfloat16  # nothing was rounded there
    assert torch.equal(after["a"], odd)
    assert torch.equal(after["z"], tensors["z"])
    more = old.numel() * {"F32": 2, "F64": 6}[dtype]
    assert growth([half_of(1.3), moved], Shard(read_header(source)).tensors, dtype) == more
    sizes = [
        sum(info.end - info.begin for info in read_header(path).tensors.values()) for path in (source, *done.files)
    ]
    assert sizes[1] - sizes[0] == more
    assert {change.tensor: change.dtype for change in done.tensors} == {"w": dtype, "moved": "BF16"}
    with pytest.raises(UnsupportedDtype, match="must be F32 or F64"):
        bake([half_of(1.3)], source, tmp_path / "other", bake_dtype="F16")


def test_only_the_shards_that_change_are_written(tmp_path: Path) -> None:
    first, second = (shard(tmp_path / f"{n}.safetensors", {n: numbers()}) for n in "vw")
    files = [Shard(read_header(first)), Shard(read_header(second))]
    (tmp_path / "out").mkdir()
    done = write_weights([half_of(2.0)], files, [tmp_path / "out" / file.path.name for file in files])
    assert [path.name for path in done.files] == ["w.safetensors"] == sorted(os.listdir(tmp_path / "out"))
    assert list(marks([half_of(2.0)], files)) == ["w.safetensors"]


def test_a_source_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    source = shard(tmp_path / "a.safetensors", {"w": numbers()})
    expected = marks([half_of(2.0)], [Shard(read_header(source))])
    bake([half_of(2.0)], source, tmp_path / "same", expected=expected)
    os.utime(source, ns=(1, 1))
    with pytest.raises(PlanMismatch, match="a weight file has changed since the plan was made"):
        bake([half_of(2.0)], source, tmp_path / "out", expected=expected)
    assert os.listdir(tmp_path / "out") == []
    shard(source, {"w": numbers(9)})
    with pytest.raises(PlanMismatch, match="the weights have no w with 8 rows"):
        bake([half_of(2.0)], source, tmp_path / "out")


def test_a_product_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = shard(tmp_path / "a.safetensors", {"w": torch.full((8, 4), 60000.0, dtype=torch.float16)})
    with pytest.raises(LossyExport, match="too large for F16") as refusal:
        bake([half_of(1.3)], source, tmp_path / "out")
    assert refusal.value.try_ == "--bake-dtype f32"
    bake([half_of(1.3)], source, tmp_path / "wide", bake_dtype="F32")


def test_memory_is_one_tensor_and_a_little(tmp_path: Path) -> None:
    big = torch.zeros(4096, 4096, dtype=torch.bfloat16)  # 32 MiB; 128 MiB as float64
    source = shard(tmp_path / "a.safetensors", {"w": big, "x": big.clone(), "y": big.clone()})
    edit = TensorEdit("w", SCALE, 4096, (0,), 4096, factors=(1.3,))
    tracemalloc.start()
    bake([edit], source, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < big.nbytes + (90 << 20)
