"""Whole exports: the file as the gguf package reads it, against the weights that went in; and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import gguf_files
import models
import numpy as np
import pytest

from ropetool.checkpoint import provenance
from ropetool.errors import (
    CheckpointError,
    ConfigError,
    CorruptFile,
    LossyExport,
    MissingFile,
    NotACheckpoint,
    OutputError,
    RopetoolError,
    UnknownFamily,
    UnknownName,
    UnsupportedDtype,
)
from ropetool.gguf_model import streaming, tensors
from ropetool.gguf_model.shapes import Permutation

SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Return the rows with channels j and j + d/2 of each head side by side, written out one by one."""
    found = rows.copy()
    for head in range(rows.shape[0] // head_dim):
        for pair in range(head_dim // 2):
            for half in range(2):
                found[head * head_dim + 2 * pair + half] = rows[head * head_dim + pair + half * head_dim // 2]
    return found


def expected_llama(config: dict[str, Any], dtype: str = "F32") -> dict[str, np.ndarray]:
    """Return the tensors of a dense llama file by name, from the same random weights."""
    given = {name: values for name, (_, values) in models.weights(config, dtype).items()}
    found = {"token_embd.weight": given["model.embed_tokens.weight"], "output_norm.weight": given["model.norm.weight"]}
    if "lm_head.weight" in given:
        found["output.weight"] = given["lm_head.weight"]
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, values in given.items():
        if name.startswith("model.layers."):
            layer, _, rest = name.removeprefix("model.layers.").partition(".")
            module, _, kind = rest.rpartition(".")
            moved = module in ("self_attn.q_proj", "self_attn.k_proj")
            found[f"blk.{layer}.{names[module]}.{kind}"] = interleaved(values, 8) if moved else values
    return found


def assert_same(path: Path, expected: dict[str, np.ndarray]) -> None:
    found = gguf_files.tensors(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == ("F32", values.shape[::-1], values.tobytes()), name


def test_a_llama_arrives_number_by_number(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", attention_bias=True, mlp_bias=True)
    result = models.export(source, tmp_path / "x.gguf")
    config = json.loads((source / "config.json").read_text())
    assert_same(tmp_path / "x.gguf", expected_llama(config))
    assert (result.outtype, result.arch, result.tensors) == ("f32", "llama", 3 + 2 * 16)
    assert result.nbytes == (tmp_path / "x.gguf").stat().st_size
    assert result.notes == ()


def test_rows_left_in_place_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model")
    monkeypatch.setattr(Permutation, "apply", lambda turn, elements: elements)
    models.export(source, tmp_path / "x.gguf")
    with pytest.raises(AssertionError, match="attn_q"):
        assert_same(tmp_path / "x.gguf", expected_llama(models.BY_HAND["llama"]))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_rows_stay_in_place(family: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", family)
    models.export(source, tmp_path / "x.gguf")
    given = models.weights(models.BY_HAND[family])
    found = gguf_files.tensors(tmp_path / "x.gguf")
    for name in ("q_proj.weight", "k_proj.weight", *(["q_proj.bias"] if family == "qwen2" else [])):
        short = name.replace("_proj", "")
        assert found[f"blk.1.attn_{short}"][2] == given[f"model.layers.1.self_attn.{name}"][1].tobytes()
    assert ("blk.0.attn_q_norm.weight" in found) == (family == "qwen3")


def test_experts_are_joined_in_order(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", "mixtral", "F16")
    models.export(source, tmp_path / "x.gguf")
    given = models.weights(models.BY_HAND["mixtral"], "F16")
    found = gguf_files.tensors(tmp_path / "x.gguf")
    for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        parts = [given[f"model.layers.1.block_sparse_moe.experts.{x}.{theirs}.weight"][1] for x in range(3)]
        joined = np.stack(parts)
        assert found[f"blk.1.ffn_{ours}_exps.weight"] == ("F16", joined.shape[::-1], joined.tobytes())
    gate = given["model.layers.0.block_sparse_moe.gate.weight"][1].astype(np.float32)
    assert found["blk.0.ffn_gate_inp.weight"] == ("F32", gate.shape[::-1], gate.tobytes())
    stated = gguf_files.keys(tmp_path / "x.gguf")
    assert (stated["llama.expert_count"], stated["llama.expert_used_count"]) == (3, 2)
    assert stated["general.size_label"].startswith("3x")


@pytest.mark.parametrize(
    ("dtype", "outtype", "expected"),
    [("BF16", "auto", "BF16"), ("F16", "auto", "F16"), ("F64", "auto", "F32"), ("BF16", "f32", "F32"),
     ("F32", "bf16", "BF16"), ("F32", "f16", "F16"), ("BF16", "f16", "F16")],
)  # fmt: skip
def test_matrices_get_the_type_and_vectors_stay_f32(dtype: str, outtype: str, expected: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype=dtype)
    result = models.export(source, tmp_path / "x.gguf", outtype=outtype)
    found = gguf_files.tensors(tmp_path / "x.gguf")
    assert {kind for name, (kind, _, _) in found.items() if "norm" not in name} == {expected}
    assert {kind for name, (kind, _, _) in found.items() if "norm" in name} == {"F32"}
    assert gguf_files.keys(tmp_path / "x.gguf")["general.file_type"] == {"F32": 0, "F16": 1, "BF16": 32}[expected]
    loses = dtype not in (expected, "BF16", "F16") or (dtype, expected) == ("BF16", "F16")
    rounded = (f"matrices in {dtype} are rounded to {expected.lower()}",) if loses else ()
    assert result.notes == rounded


def test_bfloat16_matrices_are_the_same_bytes(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="BF16")
    models.export(source, tmp_path / "x.gguf")
    expected = expected_llama(models.BY_HAND["llama"], "BF16")
    found = gguf_files.tensors(tmp_path / "x.gguf")
    for name, values in expected.items():
        wide = (values.astype(np.uint32) << 16).view(np.float32) if values.ndim == 1 else values
        assert found[name][2] == wide.tobytes(), name


def test_a_tied_head_is_left_out(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", tie_word_embeddings=True)
    models.export(source, tmp_path / "x.gguf")
    assert "output.weight" not in gguf_files.tensors(tmp_path / "x.gguf")


@pytest.mark.parametrize("chunk", [1 << 20, 777])
@pytest.mark.parametrize("differs_at", [None, 0, -1])
def test_a_stored_head_is_written_where_it_differs(
    differs_at: int | None, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers 5.23 has it, which ties two tensors that are stored only where they are the same."""
    monkeypatch.setattr(tensors, "CHUNK", chunk)
    source = models.checkpoint(tmp_path / "model", tie_word_embeddings=True)
    given = models.weights({**models.BY_HAND["llama"], "tie_word_embeddings": True})
    head = given["model.embed_tokens.weight"][1].copy()
    if differs_at is not None:
        head.reshape(-1)[differs_at] += 1
    models.write_safetensors(source / "model.safetensors", {**given, "lm_head.weight": ("F32", head)})
    result = models.export(source, tmp_path / "x.gguf")
    found = gguf_files.tensors(tmp_path / "x.gguf")
    if differs_at is None:
        assert "output.weight" not in found
        assert result.notes[0] == (
            "lm_head.weight is left out: tie_word_embeddings is true, and it equals the embedding"
        )
    else:
        assert found["output.weight"][2] == head.tobytes()
        assert result.notes[0].endswith("the file keeps both, as transformers does")


def test_a_head_that_is_all_there_is_serves_as_the_embedding_too(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", tie_word_embeddings=True)
    given = models.weights({**models.BY_HAND["llama"], "tie_word_embeddings": True})
    stored = given.pop("model.embed_tokens.weight")
    models.write_safetensors(source / "model.safetensors", {**given, "lm_head.weight": stored})
    result = models.export(source, tmp_path / "x.gguf")
    found = gguf_files.tensors(tmp_path / "x.gguf")
    assert found["token_embd.weight"][2] == stored[1].tobytes()
    assert "output.weight" not in found
    assert result.notes[0].startswith("lm_head.weight is also used as the embedding")


def test_shards_and_computed_buffers(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "model.safetensors").unlink()
    given = models.weights(models.BY_HAND["llama"])
    given["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.ones(4, np.float32))
    names = sorted(given)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        models.write_safetensors(source / file, {name: given[name] for name in held})
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    models.save(source / "model.safetensors.index.json", index)
    models.export(source, tmp_path / "x.gguf")
    assert_same(tmp_path / "x.gguf", expected_llama(models.BY_HAND["llama"]))
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(MissingFile, match="model-00002-of-00002"):
        models.export(source, tmp_path / "y.gguf")


def test_pieces_of_any_size_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F16")
    models.export(source, tmp_path / "whole.gguf", outtype="bf16")
    monkeypatch.setattr(streaming, "CHUNK", 300)
    models.export(source, tmp_path / "pieces.gguf", outtype="bf16")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", intermediate_size=400_000, num_hidden_layers=1)  # 25 MB each
    tracemalloc.start()
    models.export(source, tmp_path / "x.gguf", outtype="f16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25e6
    assert (tmp_path / "x.gguf").stat().st_size > 38e6


def test_progress_ends_with_the_whole_file(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    result = models.export(
        models.checkpoint(tmp_path / "model"), tmp_path / "x.gguf", progress=lambda *now: told.append(now)
    )
    assert [name for name, _, _ in told[:2]] == ["token_embd.weight", "blk.0.attn_norm.weight"]
    assert told[-1] == ("", result.nbytes, result.nbytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


# --- where it goes


def test_the_default_output_is_named_after_the_type(tmp_path: Path) -> None:
    result = models.export(models.checkpoint(tmp_path / "model", dtype="BF16"))
    assert result.output == tmp_path / "model-BF16.gguf"
    assert result.output.is_file()
    assert result.to_json()["output"] == str(result.output)


def test_an_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    output = tmp_path / "x.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(OutputError, match="exists already"):
        models.export(source, output)
    with pytest.raises(OutputError, match="is not listed in a ropetool record; force does not replace it"):
        models.export(source, output, force=True)
    assert output.read_bytes() == b"precious"


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model")
    before = {path: path.read_bytes() for path in source.iterdir()}

    def stop(tensor: str, done: int, total: int) -> None:
        if "ffn_down" in tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.export(source, tmp_path / "x.gguf", progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    assert {path: path.read_bytes() for path in source.iterdir()} == before


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(provenance, "write", fail)
    with pytest.raises(OutputError, match="no space left"):
        models.export(source, tmp_path / "x.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_the_trained_length_of_a_shipped_scaling_is_kept(tmp_path: Path) -> None:
    """A llama3 table becomes a vector, which does not say from which length it came; the record does."""
    scaling = {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }  # fmt: skip
    source = models.checkpoint(tmp_path / "model", rope_scaling=scaling)
    made = provenance.record(models.export(source).output)
    assert made is not None
    assert (made.trained_length, made.plan) == (128, {})


def test_a_weight_file_that_shrinks_meanwhile_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model")
    monkeypatch.setattr(streaming, "AHEAD", 0)

    def shrink(tensor: str, done: int, total: int) -> None:
        with (source / "model.safetensors").open("r+b") as file:
            file.truncate(3000)

    with pytest.raises(RopetoolError, match="shrank below"):
        models.export(source, tmp_path / "x.gguf", outtype="bf16", progress=shrink)
    assert not (tmp_path / "x.gguf").exists()


# --- what is refused

REFUSED: list[tuple[dict[str, Any], type[RopetoolError], str]] = [
    ({"model_type": "bitnet"}, LossyExport, "no tensor table for bitnet, only for [0-9]+ other families"),
    ({"model_type": "lama"}, UnknownFamily, "did you mean llama"),
    ({"hidden_act": "gelu"}, LossyExport, "hidden_act is \"gelu\""),
    *(
        ({"quantization_config": {"quant_method": method}}, UnsupportedDtype, f"packed by {method}: ")
        for method in ("gptq", "awq", "bitsandbytes")
    ),
    ({"quantization_config": {"quant_method": "hqq"}}, UnsupportedDtype, 'quantization_config has the quant_method "hqq"'),
    ({"vocab_size": None}, ConfigError, "is missing"),
    ({"vocab_size": 10}, CorruptFile, r"has shape \[300, 16\]; config.json requires \[10, 16\]"),
    ({"intermediate_size": True}, ConfigError, "true must be a whole number"),
    ({"intermediate_size": 2**40}, ConfigError, "must be a whole number from 1"),
    ({"num_hidden_layers": 3}, CorruptFile, "no weight file contains model.layers.2.input_layernorm.weight"),
    ({"num_hidden_layers": 1}, LossyExport, r"has no place for model.layers.1.input_layernorm.weight \(8 more\)"),
    ({"num_key_value_heads": 3}, ConfigError, "4 is not a multiple of num_key_value_heads 3"),
    ({"attention_bias": True}, CorruptFile, "no weight file contains model.layers.0.self_attn.q_proj.bias"),
    ({"rms_norm_eps": "small"}, ConfigError, "must be a number above 0"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, LossyExport, "depends on the length of the text"),
    ({"partial_rotary_factor": 0.5}, ConfigError, "rotates whole heads"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_config_that_cannot_be_exported_is_refused(
    changes: dict[str, Any], error: type[RopetoolError], text: str, tmp_path: Path
) -> None:
    source = models.checkpoint(tmp_path / "model")
    config = {**models.BY_HAND["llama"], **changes}
    models.save(source / "config.json", {key: value for key, value in config.items() if value is not None})
    with pytest.raises(error, match=text) as caught:
        models.export(source, tmp_path / "x.gguf")
    assert str(source) in caught.value.where
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_what_qwen_files_have_no_place_for(tmp_path: Path) -> None:
    biased = models.checkpoint(tmp_path / "qwen3", "qwen3", attention_bias=True)
    with pytest.raises(LossyExport, match="no output bias in the attention of qwen3"):
        models.export(biased, tmp_path / "x.gguf")
    wide = models.checkpoint(tmp_path / "qwen2", "qwen2", head_dim=8)
    with pytest.raises(LossyExport, match="hidden_size / num_attention_heads, 16 / 4, for qwen2"):
        models.export(wide, tmp_path / "x.gguf")


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
def test_an_unknown_type_names_the_tensor(dtype: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    given = models.weights(models.BY_HAND["llama"])
    name = "model.layers.1.mlp.up_proj.weight"
    given[name] = (dtype, np.zeros((24, 16), models.DTYPES[dtype]))
    models.write_safetensors(source / "model.safetensors", given)
    with pytest.raises(UnsupportedDtype, match=f"{name} has type {dtype}"):
        models.export(source, tmp_path / "x.gguf")


def test_a_number_that_f16_does_not_hold_is_refused(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    given = models.weights(models.BY_HAND["llama"])
    given["model.layers.1.mlp.up_proj.weight"][1][3, 5] = -65520.0
    models.write_safetensors(source / "model.safetensors", given)
    with pytest.raises(LossyExport, match=r"blk.1.ffn_up.weight contains 65520, which becomes infinite in F16"):
        models.export(source, tmp_path / "x.gguf", outtype="f16")
    given["model.layers.1.mlp.up_proj.weight"][1][3, 5] = -65519.0
    models.write_safetensors(source / "model.safetensors", given)
    models.export(source, tmp_path / "x.gguf", outtype="f16")


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "model.safetensors").unlink()
    with pytest.raises(NotACheckpoint, match="no weights"):
        models.export(source, tmp_path / "x.gguf")
    (source / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="pickles"):
        models.export(source, tmp_path / "x.gguf")


def test_an_unknown_outtype_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="known: auto, f32, f16, bf16"):
        models.export(models.checkpoint(tmp_path / "model"), tmp_path / "x.gguf", outtype="q9")


def test_the_output_may_not_lie_in_the_source(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    with pytest.raises(OutputError, match="inside the source"):
        models.export(source, source / "x.gguf")


@pytest.mark.parametrize("name", ["README.md", "chat_template.jinja"])
def test_what_a_link_reaches_outside_never_gets_into_the_file_or_its_card(name: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (tmp_path / "id_ed25519").write_text("secret")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "id_ed25519")
    with pytest.raises(CheckpointError, match="is a link to a file outside the checkpoint") as refused:
        models.export(source, tmp_path / "x.gguf")
    assert refused.value.where == str(source / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["id_ed25519", "model"]
