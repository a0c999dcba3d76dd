"""`ropetool diff` as a user sees it: checkpoints that the tests changed themselves with numpy, and what is said of them."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import gguf
import numpy as np
import pytest
import torch
from diff_making import Tensors, diff, edited, multiplied, relations, unchanged, weights_of, written
from documenting import documented
from models import write_config
from running import run
from safetensors.torch import load_file, save_file

import ropetool
from ropetool import comparison
from ropetool.comparison import reading
from ropetool.report.differing import folded

pytestmark = pytest.mark.usefixtures("here")

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
YARN_FACTOR = 0.1 * np.log(8) + 1  # the attention factor of the demo's extension


@pytest.fixture
def demo() -> Path:
    return Path(shutil.copytree(DEMO, "model"))


@pytest.fixture
def extended(demo: Path) -> Path:
    ropetool.apply(ropetool.plan(demo, "yarn", factor=8), demo, "X")
    return Path("X")


# --- the demo checkpoint, its extension, its exports


def test_a_checkpoint_and_itself(demo: Path) -> None:
    found = diff(demo, demo, 0)
    assert found["tensors"] == {"counts": {"identical": 38}, "not_identical": []}
    assert found["notes"] == ["A and B are the same path"]


EXTENDED = """\
A: model: llama, v4, as transformers computes it
B: X: llama, v4, as transformers computes it

model
                  A      B
  family          llama  llama
  model type      llama  llama
  trained length  256    256
  context         256    2048   differs

full_attention
                                    A         B
  layers                            0-3       0-3
  layout                            half      half
  head dim                          64        64
  rotary dim                        64        64
  rope type                         default   yarn
  rope theta                        10000     10000
  factor                            -         8
  original max position embeddings  256       256
  table                             32 pairs  31 of 32 differ by up to 8x  differs
  attention factor                  1         1.20794                      differs

weights
  identical  38
"""


def test_an_extension_differs_in_its_tables_alone(extended: Path) -> None:
    done = run("diff", "model", "X")
    assert (done.code, done.err) == (3, "")
    head, _, verdict = done.out.rpartition("\n\n")
    assert head + "\n" == EXTENDED
    assert re.match(
        "differs: context 2048 instead of 256.*; table: 31 of 32 .*; attention factor 1.20794 instead", verdict
    )


@pytest.mark.parametrize("outtype", ["f32", "bf16", "f16"])
def test_an_export_is_the_same_in_meaning(extended: Path, outtype: str) -> None:
    ropetool.export(extended, "x.gguf", outtype=outtype, allow_unverified=True, check=False)
    for a, b in ((extended, "x.gguf"), ("x.gguf", extended)):
        found = diff(a, b, 0)
        assert sum(found["tensors"]["counts"].values()) == 38
        assert set(relations(found).values()) <= {"converted", "rows permuted"}
        orders = {e["name"] for e in found["tensors"]["not_identical"] if e["order"]}
        assert len(orders) == 8
        assert all(re.search(r"[qk]_proj|attn_[qk]\.", name) for name in orders)


def test_an_export_of_another_model_is_not(demo: Path, extended: Path) -> None:
    ropetool.export(demo, "m.gguf", outtype="f32", check=False)
    assert diff(extended, "m.gguf", 3)["tensors"]["counts"] == {"converted": 38}


def rewritten(path: Path, name: str, tensor: str, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Write a copy of a GGUF file whose tensor, of float32, was changed in place."""
    target = Path(shutil.copy(path, name))
    (found,) = [t for t in gguf.GGUFReader(target).tensors if t.name == tensor]
    raw = bytearray(target.read_bytes())
    data = change(np.array(found.data)).astype("<f4").tobytes()
    assert len(data) == found.n_bytes
    raw[found.data_offset : found.data_offset + found.n_bytes] = data
    target.write_bytes(raw)
    return target


def to_half(rows: np.ndarray) -> np.ndarray:
    """Undo llama.cpp's order in each head of 64 rows."""
    return rows.reshape(-1, 32, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def test_rows_that_an_export_should_have_moved(demo: Path) -> None:
    ropetool.export(demo, "m.gguf", outtype="f32", check=False)
    rewritten(Path("m.gguf"), "wrong.gguf", "blk.1.attn_k.weight", to_half)
    found = diff(demo, "wrong.gguf", 3)
    (entry,) = [e for e in found["tensors"]["not_identical"] if e["differs"]]
    assert entry["name_in_b"] == "blk.1.attn_k.weight"
    assert entry["relation"] == "rows not moved with the layout"


def test_a_changed_number_in_an_export(demo: Path) -> None:
    ropetool.export(demo, "m.gguf", outtype="f32", check=False)

    def change(values: np.ndarray) -> np.ndarray:
        values[3, 5] += 0.5
        return values

    rewritten(Path("m.gguf"), "wrong.gguf", "blk.1.ffn_up.weight", change)
    for a, b in ((demo, "wrong.gguf"), ("wrong.gguf", demo), ("m.gguf", "wrong.gguf")):
        found = diff(a, b, 3)
        (entry,) = [e for e in found["tensors"]["not_identical"] if e["differs"]]
        assert (entry["relation"], entry["changed_rows"]) == ("changed", [[3, 3]])


# --- what the tests change


def test_one_changed_number(demo: Path) -> None:
    def change(tensors: Tensors) -> None:
        one = tensors["model.layers.2.mlp.up_proj.weight"].view(torch.int16)
        one[17, 100] ^= 1  # the last bit

    edited(demo, "B", change)
    assert relations(diff(demo, "B", 3)) == {"model.layers.2.mlp.up_proj.weight": "changed"}
    (line,) = weights_of(run("diff", demo, "B"))
    assert line.startswith("  model.layers.2.mlp.up_proj.weight: changed in row 17, by up to 0.00")


def test_swapped_heads(demo: Path) -> None:
    def change(tensors: Tensors) -> None:
        for layer in range(4):
            q = tensors[f"model.layers.{layer}.self_attn.q_proj.weight"]
            q[:128] = torch.cat([q[64:128], q[:64]])

    edited(demo, "B", change)
    assert set(relations(diff(demo, "B", 3)).values()) == {"rows permuted"}
    assert weights_of(run("diff", demo, "B")) == [
        "  model.layers.{0-3}.self_attn.q_proj.weight: rows permuted: 128 rows (0-127)"
    ]


def test_a_new_layout_of_the_rows_under_the_old_rotation(demo: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if re.search("[qk]_proj", name):
                tensor[:] = tensor.reshape(-1, 2, 32, 256).swapaxes(1, 2).reshape(tensor.shape)

    edited(demo, "B", change)
    found = diff(demo, "B", 3)
    assert {(e["relation"], e["order"]["name"], e["order"]["run"]) for e in found["tensors"]["not_identical"]} == {
        ("rows permuted", "half to interleaved", 64)
    }


def test_a_baked_factor_is_told_with_the_score_that_stays(extended: Path) -> None:
    scaling = {**json.loads((extended / "config.json").read_text())["rope_scaling"], "attention_factor": 1.0}
    edited(extended, "B", multiplied(YARN_FACTOR**2, "k_proj"), rope_scaling=scaling)
    found = diff(extended, "B", 3)
    assert found["tensors"]["counts"] == {"identical": 34, "scaled": 4}
    for entry in found["tensors"]["not_identical"]:
        assert entry["scales"][0]["low"] <= YARN_FACTOR**2 <= entry["scales"][0]["high"]
    (score,) = found["scores"]
    assert score["same"] is True
    assert score["tables"] == pytest.approx(YARN_FACTOR**-2)
    text = run("diff", extended, "B")
    assert weights_of(text)[0].startswith("  model.layers.{0-3}.self_attn.k_proj.weight: scaled by 1.4591")
    assert "net rotary score unchanged\n" in text.out
    verdict = text.out.splitlines()[-1]
    assert verdict.startswith("differs: attention factor 1 instead of 1.20794")
    assert verdict.endswith("; scaled: 4 tensors")


def test_a_factor_in_both_sides_counts_twice(extended: Path) -> None:
    scaling = {**json.loads((extended / "config.json").read_text())["rope_scaling"], "attention_factor": 1.0}
    edited(extended, "B", multiplied(YARN_FACTOR, "[qk]_proj"), rope_scaling=scaling)
    assert [score["same"] for score in diff(extended, "B", 3)["scores"]] == [True]
    edited(extended, "C", multiplied(YARN_FACTOR, "k_proj"), rope_scaling=scaling)
    (score,) = diff(extended, "C", 3)["scores"]
    assert (score["same"], score["net"]) == (False, pytest.approx(1 / YARN_FACTOR, rel=1e-4))


def test_a_bake_of_some_layers_has_no_net_score(extended: Path) -> None:
    edited(extended, "B", multiplied(1.5, r"layers\.1\..*k_proj"))
    found = diff(extended, "B", 3)
    assert (found["tensors"]["counts"]["scaled"], found["scores"]) == (1, [])


def test_a_baked_export_against_its_unbaked_source(extended: Path) -> None:
    scaling = {**json.loads((extended / "config.json").read_text())["rope_scaling"], "attention_factor": 1.0}
    edited(extended, "B", multiplied(YARN_FACTOR**2, "k_proj"), rope_scaling=scaling)
    ropetool.export("B", "b.gguf", outtype="f32", allow_unverified=True, check=False)
    found = diff(extended, "b.gguf", 3)
    scaled = {e["name"]: e["order"]["name"] for e in found["tensors"]["not_identical"] if e["relation"] == "scaled"}
    assert scaled == {f"model.layers.{i}.self_attn.k_proj.weight": "half to interleaved" for i in range(4)}
    assert [score["same"] for score in found["scores"]] == [True]


def test_another_type_is_the_same_in_meaning(demo: Path) -> None:
    edited(demo, "B", lambda tensors: {name: tensor.float() for name, tensor in tensors.items()})
    assert diff(demo, "B", 0)["tensors"]["counts"] == {"converted": 38}
    assert weights_of(run("diff", demo, "B")) == ["  38 tensors: BF16 to F32, exactly"]
    edited(Path("B"), "C", lambda tensors: {name: tensor.half() for name, tensor in tensors.items()})
    assert diff("B", "C", 0)["tensors"]["counts"] == {"converted": 38}


def test_tensors_of_one_side_alone(demo: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["model.layers.3.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(32)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # the demo's are tied
        tensors["extra.weight"] = torch.ones(3)

    edited(demo, "B", change)
    assert relations(diff(demo, "B", 3)) == {
        "model.layers.3.mlp.up_proj.weight": "only in A",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "not computed with",
        "lm_head.weight": "not computed with",
        "extra.weight": "only in B",
    }


def test_another_shape(demo: Path) -> None:
    edited(demo, "B", lambda tensors: {**tensors, "model.norm.weight": torch.ones(128, dtype=torch.bfloat16)})
    (entry,) = diff(demo, "B", 3)["tensors"]["not_identical"]
    assert entry["reason"] == "shape [128] instead of [256]"


@pytest.mark.parametrize(
    ("key", "value"), [("rms_norm_eps", 1e-6), ("hidden_act", "gelu"), ("tie_word_embeddings", False)]
)
def test_another_key_that_models_compute_with(demo: Path, key: str, value: Any) -> None:
    edited(demo, "B", unchanged, **{key: value})
    (reason,) = diff(demo, "B", 3)["differences"]
    assert reason.startswith(f"{key} {json.dumps(value)} instead of")


@pytest.mark.parametrize(
    ("key", "value"), [("torch_dtype", "float32"), ("use_cache", False), ("transformers_version", "5")]
)
def test_a_key_without_meaning(demo: Path, key: str, value: Any) -> None:
    edited(demo, "B", unchanged, **{key: value})
    diff(demo, "B", 0)


def test_a_checkpoint_in_one_file_and_in_two(demo: Path) -> None:
    other = write_config(Path("B"), json.loads((demo / "config.json").read_text()))
    tensors = load_file(demo / "model.safetensors")
    place = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for shard in set(place.values()):
        save_file({name: tensors[name] for name in tensors if place[name] == shard}, other / shard)
    (other / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    assert diff(demo, other, 0)["tensors"]["counts"] == {"identical": 38}


# --- what cannot be compared in full


def test_a_config_alone(demo: Path) -> None:
    write_config(Path("B"), json.loads((demo / "config.json").read_text()))
    found = diff(demo, "B", 0)
    assert found["notes"] == ["B contains a config but no weights, so only the settings were compared"]
    assert found["tensors"] == {"counts": {}, "not_identical": []}
    assert run("diff", demo, "B").out.endswith("\nthe same in meaning; weights were not compared\n")


def test_pickles_are_not_loaded(demo: Path) -> None:
    other = write_config(Path("B"), json.loads((demo / "config.json").read_text()))
    (other / "pytorch_model.bin").write_bytes(b"no pickle at all")
    assert "pickles, which ropetool never loads" in diff(demo, "B", 0)["notes"][0]


def test_other_families_and_sizes() -> None:
    written("A", configs.config("llama", "v4"), {"a.weight": np.ones((4, 4), np.float32)})
    written("B", {**configs.config("qwen2", "v4"), "vocab_size": 97}, {"a.weight": np.ones((4, 4), np.float32)})
    found = diff("A", "B", 3)
    assert "the model types differ: llama and qwen2" in found["notes"]
    assert "vocab_size 97 instead of 96" in found["differences"]


def test_an_unknown_family_is_compared_as_written() -> None:
    config = {"model_type": "nobody_knows", "rope_theta": 1e4, "max_position_embeddings": 64}
    tensors = {"a.weight": np.ones((4, 4), np.float32)}
    written("A", config, tensors)
    assert diff("A", written("B", config, tensors), 0)["tensors"]["counts"] == {"identical": 1}
    found = diff("A", written("C", {**config, "rope_theta": 2e4}, tensors), 3)
    assert found["differences"] == ["rope_theta 20000.0 instead of 10000.0"]


def test_types_that_are_not_decoded_are_compared_by_their_bytes() -> None:
    config = configs.config("llama", "v4")
    for name, value in (("A", 1.0), ("B", 1.0), ("C", 2.0)):
        tensor = torch.full((4, 4), value).to(torch.float8_e4m3fn)
        save_file({"a.weight": tensor}, write_config(Path(name), config) / "model.safetensors")
    diff("A", "B", 0)
    (entry,) = diff("A", "C", 3)["tensors"]["not_identical"]
    assert entry["reason"] == "16 of 16 bytes differ; F8_E4M3 is not decoded"


@pytest.mark.parametrize(
    ("content", "message"), [("nothing", "nowhere: does not exist"), ("text", "nowhere: is a file; a checkpoint is")]
)
def test_no_checkpoint(demo: Path, content: str, message: str) -> None:
    if content == "text":
        Path("nowhere").write_text("no checkpoint")
    for arguments in ((demo, "nowhere"), ("nowhere", demo)):
        done = run("diff", *arguments)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"Error: {message}")


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_a_truncated_file(demo: Path, kind: str) -> None:
    if kind == "gguf":
        ropetool.export(demo, "m.gguf", check=False)
        Path("B.gguf").write_bytes(Path("m.gguf").read_bytes()[:-4096])
    else:
        broken = Path(shutil.copytree(demo, "B")) / "model.safetensors"
        broken.write_bytes(broken.read_bytes()[:-4096])
    done = run("diff", demo, "B.gguf" if kind == "gguf" else "B")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: B")


def test_a_file_that_becomes_shorter_meanwhile(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(shutil.copytree(demo, "B"))
    real = reading.read_at
    monkeypatch.setattr(reading, "read_at", lambda stored, start, size: real(stored, start + 2**40, size))
    done = run("diff", demo, "B")
    assert done.code == 1
    assert "became shorter while it was read" in done.err


# --- memory, folding, documentation


def test_large_tensors_are_read_in_pieces() -> None:
    config = configs.config("llama", "v4")
    rng = np.random.default_rng(0)
    big = torch.from_numpy(rng.normal(0, 1, (2048, 4096)).astype(np.float32)).bfloat16()
    for name, tensor in (("A", big), ("B", (big.double() * 1.29).bfloat16())):
        save_file({"a.weight": tensor}, write_config(Path(name), config) / "model.safetensors")
    tracemalloc.start()
    found = comparison.compare("A", "B")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tensors[0].relation.kind == "scaled"
    assert peak < 2**25  # one of the two as float64 would be twice as much


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.0.w", "a.1.w", "a.2.w"], "a.{0-2}.w"),
        (["a.0.w", "a.2.w"], "a.{0, 2}.w"),
        (["a.0.e.0.w", "a.0.e.1.w", "a.1.e.0.w", "a.1.e.1.w"], "a.{0-1}.e.{0-1}.w"),
        (["a.0.e.0.w", "a.1.e.1.w"], "a.0.e.0.w, a.1.e.1.w"),
        (["a.5.w"], "a.5.w"),
        (["norm.weight"], "norm.weight"),
    ],
)
def test_names_are_folded(names: list[str], shown: str) -> None:
    assert folded(names) == shown


def key_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: key_tree(inner) for key, inner in value.items()}
    return key_tree(value[0]) if isinstance(value, list) and value and isinstance(value[0], dict) else None


def test_the_json_is_documented(extended: Path) -> None:
    example = documented("diff --json")
    scaling = {**json.loads((extended / "config.json").read_text())["rope_scaling"], "attention_factor": 1.0}
    edited(extended, "B", multiplied(YARN_FACTOR**2, "k_proj"), rope_scaling=scaling)
    found = diff(extended, "B", 3)
    counts = example["tensors"].pop("counts"), found["tensors"].pop("counts")
    assert counts[0] == counts[1]
    assert key_tree(example) == key_tree(found)
