"""`ropetool diff` on models of many families and on GGUF files: styles, bakes, layouts, quantised tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import configs
import gguf
import gguf_files
import numpy as np
import pytest
from baking import bake_gguf_models, bake_models
from diff_making import diff, relations, weights_of, written
from models import set_tensors
from running import run

from ropetool.weights import bakes

pytestmark = pytest.mark.usefixtures("here")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


# --- families


@pytest.mark.parametrize("family", ["llama", "qwen2", "deepseek_v3", "gemma3_text"])
def test_two_config_styles_with_the_same_tables(family: str) -> None:
    tensors = {"model.norm.weight": np.ones(128, np.float32)}
    old, new = configs.config(family, "v4"), configs.config(family, "v5")
    if "layer_types" not in old:
        old["rope_scaling"] = YARN
        new["rope_parameters"] = {**new["rope_parameters"], **YARN}
    found = diff(written("A", old, tensors), written("B", new, tensors), 0)
    assert any("v4 and v5" in note and "transformers-v4" in note for note in found["notes"])
    new["rope_parameters"] = json.loads(json.dumps(new["rope_parameters"]).replace("10000.0", "20000.0"))
    diff("A", written("C", new, tensors), 3)


def test_what_another_runtime_alone_reads_differs() -> None:
    """A stated attention_factor that equals the default is not the same to runtimes that drop the key or square it."""
    tensors = {"model.norm.weight": np.ones(128, np.float32)}
    plain = {**configs.config("llama", "v4"), "head_dim": 32}
    one = {**plain, "rope_scaling": YARN}
    other = {**plain, "rope_scaling": {**YARN, "attention_factor": 0.1 * np.log(4) + 1}}
    found = diff(written("A", one, tensors), written("B", other, tensors), 3)
    assert all(re.match(r"(vllm|sglang|mlx-lm|exllamav3|transformers-v4)", reason) for reason in found["differences"])


def mla_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn"
        shapes = {
            "q_a_proj.weight": (24, 128), "q_a_layernorm.weight": (24,), "q_b_proj.weight": (4 * 48, 24),
            "kv_a_proj_with_mqa.weight": (64, 128), "kv_a_layernorm.weight": (32,), "kv_b_proj.weight": (4 * 32, 32),
        }  # fmt: skip
        found |= {f"{prefix}.{name}": rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    return found


def mla_to_half(tensors: Mapping[str, np.ndarray], pattern: str) -> dict[str, np.ndarray]:
    """Return the tensors with the rotary rows of those that match taken from pairs of neighbours to two halves."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if re.search(pattern, name):
            starts = [32] if "kv_a" in name else [head * 48 + 16 for head in range(4)]
            new = tensor.copy()
            for start in starts:
                new[start : start + 32] = np.concatenate(
                    [tensor[start : start + 32 : 2], tensor[start + 1 : start + 32 : 2]]
                )
            found[name] = new
    return found


def test_a_layout_that_rows_and_config_change_together() -> None:
    config = configs.config("deepseek_v3", "v4")
    tensors = mla_tensors()
    written("A", {**config, "rope_interleave": True}, tensors)
    half = {**config, "rope_interleave": False}
    found = diff("A", written("B", half, mla_to_half(tensors, "q_b_proj|kv_a_proj")), 0)
    assert found["tensors"]["counts"] == {"identical": 8, "rows permuted": 4}
    wrong = diff("A", written("C", half, mla_to_half(tensors, "q_b_proj")), 3)
    differing = {e["name"]: e["relation"] for e in wrong["tensors"]["not_identical"] if e["differs"]}
    names = [f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight" for layer in range(2)]
    assert differing == dict.fromkeys(names, "rows not moved with the layout")
    assert wrong["differences"] == ["rows not moved with the layout: 2 tensors"]


def fused_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        f"model.layers.{i}.self_attn.qkv_proj.weight": rng.normal(0, 0.2, (256, 128)).astype(np.float32) for i in (0, 1)
    }


PHI3 = {
    **configs.SMALL, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rope_theta": 10000.0,
    "original_max_position_embeddings": 512, "rope_scaling": None, "partial_rotary_factor": 0.5,
}  # fmt: skip


def test_scaled_rows_of_a_fused_projection() -> None:
    tensors = fused_tensors()
    written("A", PHI3, tensors)
    keys = [128 + head * 32 + i for head in range(2) for i in range(16)]  # the rotary half of the two key heads
    for tensor in tensors.values():
        tensor[keys] = tensor[keys] * np.float32(1.29)
    found = diff("A", written("B", PHI3, tensors), 3)
    assert found["tensors"]["not_identical"][0]["changed_rows"] == [[128, 143], [160, 175]]
    assert {s["part"]: round(s["net"], 6) for s in found["scores"]} == {"rotary": 1.29}
    assert weights_of(run("diff", "A", "B"))[0].startswith(
        "  model.layers.{0-1}.self_attn.qkv_proj.weight: 32 rows (128-143, 160-175) scaled by 1.29"
    )


def test_rows_of_each_head_are_told_shortly() -> None:
    config = {**configs.config("llama", "v4")}
    rng = np.random.default_rng(1)
    shapes = {"q_proj": (128, 128), "k_proj": (64, 128)}
    tensors = {
        f"model.layers.{i}.self_attn.{name}.weight": rng.normal(0, 0.2, shape).astype(np.float32)
        for i in (0, 1)
        for name, shape in shapes.items()
    }
    written("A", config, tensors)
    for name, tensor in tensors.items():
        if "q_proj" in name:
            tensor.reshape(4, 32, 128)[:, :8] *= np.float32(0.5)
    diff("A", written("B", config, tensors), 3)
    (line,) = weights_of(run("diff", "A", "B"))
    assert line.startswith("  model.layers.{0-1}.self_attn.q_proj.weight: rows 0-7 of each 32 scaled by 0.5")


def test_a_norm_with_an_offset_is_scaled_around_it() -> None:
    config = configs.config("gemma3_text", "v4")
    rng = np.random.default_rng(2)
    tensors = {}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}.self_attn"
        tensors |= {f"{prefix}.{s}_proj.weight": rng.normal(0, 1, (128 if s == "q" else 64, 128)) for s in "qk"}
        tensors |= {f"{prefix}.{s}_norm.weight": rng.normal(0, 0.2, 32) for s in "qk"}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    written("A", config, tensors)
    for name, value in tensors.items():
        if "k_norm" in name:
            value[:] = ((1 + value.astype(np.float64)) * 1.3 - 1).astype(np.float32)
    found = diff("A", written("B", config, tensors), 3)
    assert found["tensors"]["counts"] == {"identical": 6, "scaled": 2}
    assert [round(score["net"], 5) for score in found["scores"]] == [1.3, 1.3]


BAKED = (
    "qwen2", "qwen3", "gemma3_text", "gpt_neox", "falcon-groups", "stablelm-norms", "phi-norms", "cohere-norms",
    "deepseek_v3", "mistral4",
)  # fmt: skip


def in_bfloat16(name: str) -> Path:
    """Write a random checkpoint of a family by transformers, its weights rounded to bfloat16."""
    source = bake_models.write(Path("source"), configs.BAKED[name])
    return set_tensors(source, lambda tensors: {key: tensor.bfloat16() for key, tensor in tensors.items()})


@pytest.mark.parametrize("name", BAKED)
def test_a_bake_leaves_the_net_score(name: str) -> None:
    source = in_bfloat16(name)
    model = bake_models.opened(source)
    mla = model.targets.rope.entries["full_attention"].softmax_multiplier != 1
    bake = (bakes.softmax_scale if mla else bakes.attention_factor)(model)
    bake_models.carry_out(bake, source, Path("baked"))
    for a, b in ((source, "baked"), ("baked", source)):
        found = diff(a, b, 3)
        scaled = [e["name"] for e in found["tensors"]["not_identical"] if e["relation"] in ("scaled", "rows scaled")]
        assert sorted(scaled) == sorted({edit.tensor for edit in bake.tensors})
        assert len(scaled) == len(found["tensors"]["not_identical"])
        assert [score["same"] for score in found["scores"]] == [True, True][: 1 + mla]
        assert all(abs(score["tables"] - 1) > 0.1 for score in found["scores"])


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3-half", "mistral4"])
def test_a_baked_layout_is_the_same_in_meaning(name: str) -> None:
    source = in_bfloat16(name)
    model = bake_models.opened(source)
    now = model.targets.rope.entries["full_attention"].layout
    to = "half" if now == "interleaved" else "interleaved"
    bake_models.carry_out(bake_models.reordered(model, to), source, Path("B"))
    for a, b in ((source, "B"), ("B", source)):
        assert set(relations(diff(a, b, 0)).values()) == {"rows permuted"}


def test_a_norm_for_each_head_moves_with_its_rows() -> None:
    source = in_bfloat16("cohere-norms")
    bake_models.carry_out(bake_models.reordered(bake_models.opened(source), "half"), source, Path("B"))
    found = relations(diff(source, "B", 3))  # no key of cohere's config says which layout it is
    assert set(found.values()) == {"rows permuted"}
    assert any("q_norm" in name for name in found)


# --- GGUF


def test_a_quantised_export_against_its_source() -> None:
    """The keys of one layer as 8-bit blocks, in the order that llama.cpp's rotation asks for."""
    config, rng = {**configs.config("llama", "v4"), "tie_word_embeddings": True}, np.random.default_rng(3)
    names = {"self_attn.q_proj": (128, 128), "self_attn.k_proj": (64, 128), "self_attn.v_proj": (64, 128)}
    tensors = {f"model.layers.0.{name}.weight": rng.normal(0, 0.2, shape) for name, shape in names.items()}
    written(
        "A", {**config, "num_hidden_layers": 1}, {name: value.astype(np.float32) for name, value in tensors.items()}
    )
    keys = {
        "context_length": 512, "embedding_length": 128, "feed_forward_length": 64, "block_count": 1,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "no_vocab", "vocab_size": config["vocab_size"],
    }  # fmt: skip
    held = {}
    for name, value in tensors.items():
        moved = value.reshape(-1, 2, 16, 128).swapaxes(1, 2).reshape(value.shape) if "v_proj" not in name else value
        rows = gguf.quantize(moved.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
        held[f"blk.0.attn_{name.split('.')[-2][0]}.weight"] = (gguf.GGMLQuantizationType.Q8_0, rows)
    gguf_files.write("b.gguf", "llama", keys, held)
    for a, b in (("A", "b.gguf"), ("b.gguf", "A")):
        found = diff(a, b, 3)
        assert found["differences"] == ["quantised otherwise: 3 tensors"]
        assert all(0.001 < entry["rms"] < 0.02 for entry in found["tensors"]["not_identical"])


def quantised(name: str, kind: str | None, scale: float = 1.0, **changes: float) -> Path:
    """Write a GGUF file of one llama layer, its keys quantised by the gguf package and then their block scales scaled."""

    def tensor(tensor: str, one: Any) -> tuple[gguf.GGMLQuantizationType, np.ndarray]:
        if not kind or tensor != "blk.0.attn_k.weight":
            return one.tensor_type, one.data
        number = gguf.GGMLQuantizationType[kind]
        raw = gguf.quantize(np.array(one.data, np.float32), number)
        blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[number][1])
        scales = np.ascontiguousarray(blocks[:, :2]).view("<f2")
        blocks[:, :2] = (scales.astype(np.float64) * scale).astype("<f2").view(np.uint8)
        return number, raw

    source = gguf_files.model(Path(f"{name}-plain.gguf"))
    return gguf_files.copy(source, name, changes, tensor)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_quantised_tensor(kind: str) -> None:
    plain, one = quantised("plain.gguf", None), quantised("one.gguf", kind)
    assert diff(one, quantised("same.gguf", kind), 0)["tensors"]["not_identical"] == []
    (entry,) = diff(plain, one, 3)["tensors"]["not_identical"]
    assert (entry["relation"], entry["dtypes"]) == ("quantised otherwise", ["F32", kind])
    values = next(t.data for t in gguf.GGUFReader("plain.gguf").tensors if t.name == "blk.0.attn_k.weight")
    again = gguf.dequantize(
        gguf.quantize(np.array(values), gguf.GGMLQuantizationType[kind]), gguf.GGMLQuantizationType[kind]
    )
    exact = np.array(values, np.float64)
    assert entry["rms"] == pytest.approx(np.sqrt(np.sum((again - exact) ** 2) / np.sum(exact**2)), rel=1e-6)


def test_scaled_block_scales_are_a_scale() -> None:
    one, scaled = quantised("one.gguf", "Q8_0"), quantised("scaled.gguf", "Q8_0", 1.29)
    found = diff(one, scaled, 3)
    (entry,) = found["tensors"]["not_identical"]
    assert entry["relation"] == "scaled"
    assert entry["scales"][0]["value"] == pytest.approx(1.29, rel=1e-3)
    assert [round(score["net"], 2) for score in found["scores"]] == [1.29]


@pytest.mark.parametrize("arch", ["llama", "gemma3", "deepseek2", "phi3"])
@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_a_baked_gguf_file_has_the_same_net_score(arch: str, dtype: str) -> None:
    source = bake_gguf_models.write(Path("a.gguf"), arch, dtype=dtype)
    bake_gguf_models.bake_factor(source, Path("b.gguf"))
    for a, b in ((source, "b.gguf"), ("b.gguf", source)):
        scores = diff(a, b, 3)["scores"]
        assert scores
        assert all(score["same"] and score["part"] == "rotary" for score in scores)


def test_a_score_of_rows_that_are_not_known_is_not_told() -> None:
    """Of a deepseek2 file only the decoupled keys are known, so nothing is said of the channels that do not rotate."""
    source = bake_gguf_models.write(Path("a.gguf"), "deepseek2")
    raw = bytearray(source.read_bytes())
    for tensor in gguf.GGUFReader(source).tensors:
        if re.search(r"attn_q_b|attn_k_b|attn_kv_b", tensor.name):
            part = slice(tensor.data_offset, tensor.data_offset + int(tensor.n_bytes))
            raw[part] = (np.frombuffer(raw[part], "<f4") * np.float32(1.5)).tobytes()
    Path("b.gguf").write_bytes(raw)
    scores = diff(source, "b.gguf", 3)["scores"]
    assert [(score["part"], round(score["net"], 5)) for score in scores] == [("rotary", 1.5)]


def test_a_quantised_file_with_another_number() -> None:
    one = quantised("one.gguf", "Q8_0")
    (found,) = [t for t in gguf.GGUFReader(one).tensors if t.name == "blk.0.attn_k.weight"]
    raw = bytearray(one.read_bytes())
    raw[found.data_offset + 34 + 10] ^= 0x40
    Path("other.gguf").write_bytes(raw)
    (entry,) = diff(one, "other.gguf", 3)["tensors"]["not_identical"]
    assert (entry["relation"], entry["changed_rows"]) == ("changed", [[0, 0]])


def test_keys_of_gguf_files() -> None:
    one = quantised("one.gguf", None)
    assert (
        diff(one, quantised("a.gguf", None, **{"llama.rope.freq_base": 20000.0}), 3)["tensors"]["not_identical"] == []
    )
    (reason,) = diff(one, quantised("b.gguf", None, **{"llama.attention.layer_norm_rms_epsilon": 0.5}), 3)[
        "differences"
    ]
    assert reason == "attention.layer_norm_rms_epsilon 0.5 instead of 9.999999974752427e-07"


def test_a_table_in_a_tensor_is_told_by_the_tables() -> None:
    gguf_files.model(Path("one.gguf"))
    gguf_files.model(Path("other.gguf"), divisors=np.full(32, 4.0, np.float32))
    found = diff("one.gguf", "other.gguf", 3)
    assert relations(found) == {"rope_freqs.weight": "not computed with"}
    assert [reason.partition(" differ")[0] for reason in found["differences"]] == ["table: 32 of 32 pairs"]


def test_a_model_in_one_file_and_in_several() -> None:
    gguf_files.model(Path("one.gguf"))
    shard = gguf_files.model(Path("split.gguf"), shards=2)
    counts = diff("one.gguf", shard, 0)["tensors"]["counts"]
    assert list(counts) == ["identical"]
    assert counts["identical"] > 8
