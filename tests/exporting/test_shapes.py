"""The tables of the families: what the classes of transformers assume, and what is refused before weights are read."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import configs
import gguf_files
import models
import numpy as np
import pytest
import tokenizer_making

from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, CorruptFile, LossyExport, RopetoolError
from ropetool.families import exported as exported_families
from ropetool.families.tensors import DRAFTS, Export, Row, sized
from ropetool.gguf_model.shapes import ModelShape, read_model, tensors, unread
from ropetool.gguf_model.shapes.orders import (
    ORDERS,
    Permutation,
    delta_gate,
    delta_qkv,
    even,
    first_columns,
    interleave_pairs,
    last_columns,
    latent_keys,
    latent_values,
    odd,
    split_qkv,
    tiled_columns,
    tiled_rows,
    tiled_tail,
)
from ropetool.gguf_model.shapes.rules import RULES
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.exported import exported

# Counts whose class default is not a count: None stands for "must be stated".
OF_SOME_LAYERS = ("num_global_key_value_heads",)  # which the class takes apart, layer by layer
FAMILIES = exported_families()
NEWER = ("granite_swa", "hy_v3", "mellum")  # architectures that the gguf package in use does not know


def text_type(name: str) -> str:
    """Return the type of the text model's own config."""
    return configs.INNER.get(name, name)


def table_of(name: str) -> Export:
    table = families.get(name).export
    assert table is not None
    return table


def test_the_names_that_files_may_use_are_those_of_the_programs() -> None:
    hints = typing.get_type_hints(Row), typing.get_type_hints(Export)
    assert typing.get_args(hints[0]["order"]) == ("", *ORDERS)
    assert typing.get_args(hints[1]["rules"]) == (*RULES,)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_classes_assume(name: str) -> None:
    config = pytest.importorskip("transformers").AutoConfig.for_model(text_type(name))
    config.allow_global_per_layer_attribute_access = True  # that of the kinds of layer which have none of their own
    table = table_of(name)
    if families.get(name).alone:  # of another the wrapper's class decides
        assert table.tied == config.tie_word_embeddings
    assert not table.eps_key or table.eps == getattr(config, table.eps_key)
    for key, default in (*table.switches.items(), *table.assumed.items()):
        assert getattr(config, key) == default, key
    for size, one in table.counts.items():
        if size == DRAFTS and not hasattr(config, one.key):
            continue  # a class that leaves these layers aside need not know how many there are
        if one.key in OF_SOME_LAYERS:
            continue
        found = getattr(config, one.key)
        found = found.count(one.words[0]) if one.words and isinstance(found, list) else found
        if one.formula:
            common = {"hidden": config.hidden_size, "heads": config.num_attention_heads}
            assert sized(one.formula, common) == found, one.key
        if one.default is not None:
            assert (one.null if found is None else found) == one.default, one.key
    assert config.to_dict().get(table.activation_key, table.activations[0]) in (*table.activations, None)


@pytest.mark.parametrize("name", FAMILIES)
def test_other_names_of_keys_are_those_of_the_classes(name: str) -> None:
    names = pytest.importorskip("transformers").AutoConfig.for_model(text_type(name)).attribute_map
    expected = {frozenset(pair) for pair in names.items() if families.get(name).head_dim_key not in pair}
    assert {frozenset((one.key, other)) for one in table_of(name).counts.values() for other in one.others} | {
        frozenset(pair) for pair in table_of(name).switch_names.items()
    } == expected


@pytest.mark.parametrize(
    ("family", "changes", "size", "attribute"),
    [
        ("deepseek_v3", {"num_nextn_predict_layers": 2}, "drafts", "num_mtp_layers"),
        ("deepseek_v3", {"num_mtp_layers": 3}, "drafts", "num_mtp_layers"),
        ("deepseek_v3", {"num_local_experts": 6}, "experts", "n_routed_experts"),
        ("deepseek_v2", {"num_experts": 6}, "experts", "n_routed_experts"),
        ("deepseek_v2", {"n_routed_experts": 6}, "query_latent", "q_lora_rank"),
        ("deepseek_v2", {"n_routed_experts": 6, "q_lora_rank": None}, "query_latent", "q_lora_rank"),
        ("smollm3", {"num_key_value_heads": None, "num_attention_heads": 8}, "kv_heads", "num_key_value_heads"),
        ("mixtral", {"num_attention_heads": 8}, "kv_heads", "num_key_value_heads"),
    ],
)
def test_a_key_stands_for_what_the_class_makes_of_it(
    family: str, changes: dict[str, Any], size: str, attribute: str
) -> None:
    transformers = pytest.importorskip("transformers")
    tried = ("q_lora_rank", "num_key_value_heads", "n_routed_experts", "num_nextn_predict_layers")
    config = {key: value for key, value in configs.EXPORTED[family].items() if key not in tried}
    config |= changes if attribute != "num_mtp_layers" else {**changes, "n_routed_experts": 4}
    expected = getattr(transformers.AutoConfig.for_model(family, **config), attribute) or 0
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    assert read_model(families.get(family), config, "arch", head_dim, head_dim, "here").counts[size] == expected


@pytest.mark.parametrize("on", [True, False])
def test_a_switch_goes_by_its_other_name(on: bool) -> None:
    transformers = pytest.importorskip("transformers")
    kept = {key: value for key, value in configs.EXPORTED["internlm3"].items() if "bias" not in key}
    config = {**kept, "qkv_bias": on, "bias": on}
    switches = read_model(families.get("internlm3"), config, "llama", 32, 32, "here").switches
    expected = transformers.AutoConfig.for_model("internlm3", **config)
    assert (switches["attention_bias"], switches["mlp_bias"]) == (expected.attention_bias, expected.mlp_bias)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_that_is_exported_has_a_name_in_gguf(name: str) -> None:
    assert families.get(name).gguf_architecture
    assert {known for known in families.names() if families.get(known).gguf_architecture} == {*FAMILIES}


# By the configs of the tests, and for plain families by those that are made from their files.
DENSE = [
    *(pytest.param(name, configs.EXPORTED[name], id=name) for name in FAMILIES if not table_of(name).counts),
    *(
        pytest.param(name, configs.plain_config(name, configs.EXPORT_SIZES), id=f"{name}-made")
        for name in configs.others({}, exported=True)
    ),
]


@pytest.mark.parametrize(("name", "config"), DENSE)
def test_the_tensors_are_those_of_the_class(name: str, config: dict[str, Any]) -> None:
    """Each tensor that the class has, and no other, under its name and in its shape."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(text_type(name), **json.loads(json.dumps(config)))
    family = families.get(name)
    with torch.device("meta"):
        if family.alone:
            stored = transformers.AutoModelForCausalLM.from_config(made).state_dict()
        else:
            body = transformers.AutoModel.from_config(made).state_dict()
            head = torch.nn.Linear(config["hidden_size"], config["vocab_size"]).weight
            stored = {**{f"model.{key}": tensor for key, tensor in body.items()}, "lm_head.weight": head}
    wanted = {key: tuple(tensor.shape) for key, tensor in stored.items() if "rotary" not in key}
    head_dim = config.get(family.head_dim_key) or config["hidden_size"] // config["num_attention_heads"]
    model = read_model(family, config, family.gguf_architecture, head_dim, head_dim, "here")
    found = {source: one.shape for one in tensors(model, interleaved=False) for source in one.sources}
    head = wanted.pop("lm_head.weight")  # gpt_neox saves it as embed_out
    assert found == (wanted if config["tie_word_embeddings"] else {**wanted, model.head: head})


@pytest.mark.parametrize("name", FAMILIES)
def test_names_are_those_of_the_gguf_package(name: str) -> None:
    """llama.cpp's converter knows the same names, which its own table gives to the checkpoint's."""
    gguf = pytest.importorskip("gguf")
    arch = families.get(name).gguf_architecture
    if arch in NEWER:  # the converter's own copy of the package knows it, whose files test_stock_families.py compares
        assert arch not in gguf.MODEL_ARCH_NAMES.values()
        return
    number = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == arch)
    suffixes = {gguf.TENSOR_NAMES[tensor].format(bid=0) for tensor in gguf.MODEL_TENSORS[number]}
    config = {**configs.EXPORTED[name], "num_hidden_layers": 1, "num_kv_shared_layers": 0}
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    model = read_model(families.get(name), config, arch, head_dim, head_dim, "here")
    for one in tensors(model, interleaved=False):
        assert one.name.removesuffix(".weight").removesuffix(".bias") in suffixes, one.name


GEMMA4 = {
    "per_layer_config": (
        {"per_layer_config": {"1": {"head_dim": 64}}}, LossyExport, "per_layer_config sets sizes for each layer"
    ),
    "vocabulary": (
        {"vocab_size_per_layer_input": 200}, LossyExport, "vocab_size_per_layer_input is 200 and vocab_size 300"
    ),
    "shared": ({"num_kv_shared_layers": 5}, ConfigError, "5 is more than the 4 layers"),
    "experts": (
        {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3, "moe_intermediate_size": 8}, ConfigError,
        "3 must be from 1 to num_experts, 2",
    ),
    "bidirectional": ({"use_bidirectional_attention": "all"}, LossyExport, 'use_bidirectional_attention is "all"'),
    "biases": ({"attention_bias": True}, LossyExport, "llama.cpp has no output bias in the attention of gemma4"),
}  # fmt: skip


def gemma4(**changes: Any) -> ModelShape:
    return read_model(families.get("gemma4_text"), configs.EXPORTED["gemma4_text"] | changes, "gemma4", 64, 64, "here")


@pytest.mark.parametrize("name", GEMMA4)
def test_what_llama_cpp_does_not_compute_of_a_gemma4(name: str) -> None:
    changes, error, text = GEMMA4[name]
    with pytest.raises(error, match=text):
        gemma4(**changes)


def test_keys_of_layers_that_take_those_of_others_are_left_aside() -> None:
    model = gemma4()
    left, written = {*unread(model)}, {source for one in tensors(model, False) for source in one.sources}
    parts = ("k_proj", "v_proj", "k_norm")
    assert left == {f"model.layers.{layer}.self_attn.{part}.weight" for layer in (2, 3) for part in parts}
    assert {f"model.layers.{layer}.self_attn.{part}.weight" for layer in (0, 1) for part in parts} <= written
    assert not left & written


# --- orders, written out one by one

HEADS = {"heads": 2, "kv_heads": 2, "head_dim": 4, "plain": 3, "value": 2}


def turned(turns: tuple[Permutation, ...], stored: np.ndarray) -> np.ndarray:
    return np.concatenate([turn.apply(stored.reshape(-1)) for turn in turns])


def test_interleaved_pairs_are_the_halves_of_a_head() -> None:
    stored = np.arange(8 * 3).reshape(8, 3)
    expected = stored[[0, 2, 1, 3, 4, 6, 5, 7]]
    assert np.array_equal(turned(interleave_pairs(HEADS, (8, 3)), stored), expected.reshape(-1))
    bias = np.arange(8)
    assert turned(interleave_pairs(HEADS, (8,)), bias).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_sides_are_all_queries_then_all_keys_then_all_values() -> None:
    stored = np.arange(24 * 2).reshape(24, 2)
    rows = [*range(4), *range(12, 16), *range(4, 8), *range(16, 20), *range(8, 12), *range(20, 24)]
    assert np.array_equal(turned(split_qkv(HEADS, (24, 2)), stored), stored[rows].reshape(-1))
    shared = {**HEADS, "heads": 4}  # of two keys
    stored = np.arange(32 * 2).reshape(32, 2)
    rows = [*range(8), *range(16, 24), *range(8, 12), *range(24, 28), *range(12, 16), *range(28, 32)]
    assert np.array_equal(turned(split_qkv(shared, (32, 2)), stored), stored[rows].reshape(-1))


def test_gate_and_up_take_turns() -> None:
    stored = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    assert np.array_equal(turned(even({}, stored.shape), stored).reshape(2, 2, 3), stored[:, :, [0, 2]].swapaxes(1, 2))
    assert np.array_equal(turned(odd({}, stored.shape), stored).reshape(2, 2, 3), stored[:, :, [1, 3]].swapaxes(1, 2))
    bias = np.arange(2 * 4).reshape(2, 4)
    assert turned(odd({}, bias.shape), bias).tolist() == [1, 3, 5, 7]


def test_latent_keys_stand_before_their_values() -> None:
    stored = np.arange(10 * 6).reshape(10, 6)
    keys = np.stack([stored[0:3].T, stored[5:8].T])
    values = np.stack([stored[3:5], stored[8:10]])
    assert np.array_equal(turned(latent_keys(HEADS, stored.shape), stored), keys.reshape(-1))
    assert np.array_equal(turned(latent_values(HEADS, stored.shape), stored), values.reshape(-1))


DELTA = {"linear_keys": 2, "linear_values": 4, "linear_key_dim": 1, "linear_value_dim": 2}


def test_columns_of_gates_stand_before_those_of_up() -> None:
    stored = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    assert np.array_equal(turned(first_columns({}, stored.shape), stored), stored[:, :, :2].swapaxes(1, 2).reshape(-1))
    assert np.array_equal(turned(last_columns({}, stored.shape), stored), stored[:, :, 2:].swapaxes(1, 2).reshape(-1))


def test_a_gated_delta_net_has_all_queries_then_keys_then_values_and_its_gates_apart() -> None:
    stored = np.arange(20 * 3).reshape(
        20, 3
    )  # of each key's head a query, a key, four rows of values and four of gates
    rows = [0, 10, 1, 11, *range(2, 6), *range(12, 16)]
    assert np.array_equal(turned(delta_qkv(DELTA, stored.shape), stored), stored[rows].reshape(-1))
    gates = [*range(6, 10), *range(16, 20)]
    assert np.array_equal(turned(delta_gate(DELTA, stored.shape), stored), stored[gates].reshape(-1))


def test_first_value_heads_of_all_keys_come_before_the_second_ones() -> None:
    heads = [0, 1, 4, 5, 2, 3, 6, 7]  # the channels of value heads 0 and 1 of the first key, 2 and 3 of the second
    rows = np.arange(8 * 3).reshape(8, 3)
    assert np.array_equal(turned(tiled_rows(DELTA, (8, 3)), rows), rows[heads].reshape(-1))
    assert turned(tiled_rows(DELTA, (4,)), np.arange(4)).tolist() == [0, 2, 1, 3]
    assert np.array_equal(
        turned(tiled_columns(DELTA, (3, 8)), rows.reshape(3, 8)), rows.reshape(3, 8)[:, heads].reshape(-1)
    )
    tail = np.arange(12).reshape(12, 1, 1)
    expected = [*range(4), *(4 + head for head in heads)]
    assert turned(tiled_tail(DELTA, tail.shape), tail).tolist() == expected
    assert tiled_rows({**DELTA, "linear_keys": 4}, (8, 3)) == ()


# --- what llama.cpp does not compute

REFUSED: list[tuple[str, dict[str, Any], type[RopetoolError], str]] = [
    ("qwen2_moe", {"norm_topk_prob": True}, LossyExport, "norm_topk_prob is true; llama.cpp computes as if it were false"),
    ("qwen3_moe", {"norm_topk_prob": False}, LossyExport, "norm_topk_prob is false; llama.cpp computes as if it were true"),
    ("qwen3_moe", {"norm_topk_prob": None}, LossyExport, "norm_topk_prob is null"),
    ("qwen3_moe", {"mlp_only_layers": [1]}, LossyExport, r"mlp_only_layers is \[1\]"),
    ("gemma2", {"query_pre_attn_scalar": 24}, LossyExport, "query_pre_attn_scalar is 24; llama.cpp uses 32"),
    ("gemma2", {"final_logit_softcapping": None}, LossyExport, "final_logit_softcapping is null"),
    ("gemma2", {"tie_word_embeddings": False}, LossyExport, "uses the embedding as the head"),
    ("gemma3_text", {"layer_types": ["sliding_attention"] * 3}, LossyExport, "every layer has a sliding window"),
    ("gemma3_text", {"hidden_activation": "silu"}, LossyExport, 'hidden_activation is "silu"'),
    ("exaone4", {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}, LossyExport, "ignores the"),
    ("starcoder2", {"sliding_window": 64}, LossyExport, "ignores the sliding window of 64 tokens"),
    ("starcoder2", {"use_bias": False}, LossyExport, "use_bias is false"),
    ("cohere", {"use_qk_norm": True}, LossyExport, "64 layers or more"),
    ("olmo2", {"attention_bias": True}, LossyExport, "no output bias in the attention of olmo2"),
    ("gpt_oss", {"swiglu_limit": 5.0}, LossyExport, "swiglu_limit is 5.0"),
    ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}, LossyExport, "two best experts"),
    ("deepseek_v2", {"num_hidden_layers": 27}, LossyExport, "deepseek2 model of 27 layers"),
    ("deepseek_v3", {"rope_interleave": False}, LossyExport, "pairs neighbouring channels"),
    ("deepseek_v3", {"rms_norm_eps": 1e-3}, LossyExport, r"rms_norm_eps is 0\.001; llama\.cpp also uses it for the"),
    ("deepseek_v3", {"n_group": 4, "topk_group": 1}, ConfigError, "4 experts cannot form 4 equal groups of at least 2 with 1"),
    ("deepseek_v3", {"n_group": 2, "topk_group": 3}, ConfigError, "of at least 2 with 3 of the groups in use"),
    ("granite", {"residual_multiplier": 0}, LossyExport, "residual_multiplier is 0; llama.cpp computes as if it were not set"),
    ("granite", {"attention_multiplier": 0.0}, LossyExport, "attention_multiplier is 0"),
    ("cohere", {"logit_scale": 0}, LossyExport, "logit_scale is 0"),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 64}, LossyExport, "ignores the sliding window of 64 tokens"),
    ("smollm3", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 64}, LossyExport, "ignores the sliding window"),
    ("deepseek_v3", {"kv_lora_rank": 0}, ConfigError, "0 is not a whole number from 1"),
    ("falcon", {"parallel_attn": False}, LossyExport, "parallel_attn is false"),
    ("falcon", {"bias": True}, LossyExport, "bias is true"),
    ("minicpm3", {"scale_emb": 6}, LossyExport, "scale_emb is 6; llama.cpp computes as if it were 12"),
    ("minicpm3", {"rms_norm_eps": 1e-3}, LossyExport, r"also uses it for the latent norms"),
    ("minicpm3", {"q_lora_rank": None}, ConfigError, "q_lora_rank: 0 must be a whole number from 1"),
    ("jais2", {"mlp_bias": False}, LossyExport, "mlp_bias is false"),
    ("olmo", {"clip_qkv": 0}, LossyExport, "clip_qkv is 0; llama.cpp computes as if it were not set"),
    ("gemma", {"attention_bias": True}, LossyExport, "no output bias in the attention of gemma"),
    ("phi", {"qk_layernorm": True}, LossyExport, "qk_layernorm is true"),
    ("ernie4_5", {"use_bias": True}, LossyExport, "use_bias is true"),
    ("mellum", {"mlp_layer_types": ["sparse", "dense", "sparse"]}, LossyExport, "dense layers after others"),
    ("phi3", {"head_dim": 48}, LossyExport, "llama.cpp uses hidden_size"),
    ("qwen3_5_text", {"linear_value_head_dim": 32}, LossyExport, "linear_key_dim"),
    ("qwen3_5_text", {"linear_num_value_heads": 5}, ConfigError, "5 must be a multiple of linear_num_key_heads, 2"),
    ("lfm2", {"conv_bias": True}, LossyExport, "conv_bias is true"),
    ("lfm2_moe", {"norm_topk_prob": False}, LossyExport, "norm_topk_prob is false"),
    ("granite", {}, CorruptFile, "no weight file contains model.embed_tokens.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "error", "text"), REFUSED)
def test_what_llama_cpp_does_not_compute(
    family: str, changes: dict[str, Any], error: type[RopetoolError], text: str, tmp_path: Path
) -> None:
    source = tmp_path / "model"
    source.mkdir()
    models.save(source / "config.json", {"model_type": family, **configs.EXPORTED[family], **changes})
    models.write_safetensors(source / "model.safetensors", {"other": ("F32", np.zeros(4, np.float32))})
    models.save(source / "tokenizer.json", tokenizer_making.by_hand())
    with pytest.raises(error, match=text):
        models.export(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("family", "changes", "text"),
    [
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "no layer slides"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "other layers: they rotate with a different table"),
        ("exaone4", {"num_hidden_layers": 64, "sliding_window": None}, "layer types"),
    ],
)
def test_kinds_of_layer_that_llama_cpp_does_not_have(family: str, changes: dict[str, Any], text: str) -> None:
    config = {"model_type": family, **configs.EXPORTED[family], **changes}
    with pytest.raises(Refuses, match=text):
        exported(HfCheckpoint(config, families.get(family)))


def test_layers_of_an_exaone4_slide_where_it_has_64() -> None:
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 16
    changes = {"num_hidden_layers": 64, "sliding_window": 64, "layer_types": kinds}
    config = {"model_type": "exaone4", **configs.EXPORTED["exaone4"], **changes}
    _, view = exported(HfCheckpoint(config, families.get("exaone4")))
    rope = decoding.decode(view)
    assert rope.entries["full_attention"].layers == tuple(range(3, 64, 4))
    assert rope.entries["full_attention"].table is None
    assert rope.entries["sliding_attention"].sliding_window == 64


def test_drafting_layers_are_left_out(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", "deepseek_v3", {"num_hidden_layers": 2})
    config = {"model_type": "deepseek_v3", **configs.EXPORTED["deepseek_v3"], "num_hidden_layers": 1}
    models.save(source / "config.json", {**config, "num_nextn_predict_layers": 1, "first_k_dense_replace": 1})
    result = models.export(source, tmp_path / "x.gguf")
    assert not any(name.startswith("blk.1.") for name in gguf_files.tensors(result.output))
    assert any("of draft layers are left out" in note for note in result.notes)
    models.save(source / "config.json", {**config, "num_nextn_predict_layers": 0})
    with pytest.raises(LossyExport, match=r"has no place for model\.layers\.1"):
        models.export(source, tmp_path / "y.gguf")


def test_an_activation_that_llama_cpp_approximates_is_noted(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", "gpt_neox", {"hidden_act": "gelu"})
    assert any("gelu in its tanh form" in note for note in models.export(source, tmp_path / "x.gguf").notes)
    source = models.write(tmp_path / "other", "gpt_neox")
    assert not any("gelu" in note for note in models.export(source, tmp_path / "y.gguf").notes)
