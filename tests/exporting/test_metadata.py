"""The keys about the model: sizes, names, model card; and the container around them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from exporting import maker
from ropetool.exporting import export_checkpoint
from ropetool.exporting.sizes import KINDS, sizes
from ropetool.formats.gguf import read_header

CARD = """---
license: apache-2.0
language: [en, de]
tags:
- text-generation
base_model: some-org/some-model
---
# Hello
"""

# Each line holds nine of the one before; a reader that follows them all has 9 to the 12th pairs.
MERGING = (
    "---\n"
    + "".join(
        f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 9)}]}}\n" if n else "k0: &k0 {a: 1}\n" for n in range(12)
    )
    + "---\n"
)


def exported(tmp_path: Path, card: str | bytes | None = None, **changes: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    source = maker.checkpoint(tmp_path / "tiny-model-v2", changes.pop("family", "llama"), **changes)
    if card is not None:
        (source / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    result = export_checkpoint(source, tmp_path / "x.gguf")
    return maker.keys(result.output), maker.own_notes(result.notes)


def test_the_sizes_stand_under_the_architecture(tmp_path: Path) -> None:
    keys, _ = exported(tmp_path, family="qwen3")
    found = {key.removeprefix("qwen3."): value for key, value in keys.items() if key.startswith("qwen3.")}
    assert found.pop("attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert found == {
        "block_count": 2, "context_length": 512, "embedding_length": 16, "feed_forward_length": 24, "vocab_size": 300,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.value_length": 8, "rope.dimension_count": 8, "rope.freq_base": 10000.0,
    }  # fmt: skip


@pytest.mark.parametrize("family", KINDS)
def test_what_the_classes_assume(family: str) -> None:
    config = pytest.importorskip("transformers").AutoConfig.for_model(family, num_attention_heads=64)
    silent = {
        "num_attention_heads": 64, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 2, "vocab_size": 9
    }  # fmt: skip
    found = sizes(silent, replace(KINDS[family], kv_heads=1), "llama", 2, "here")
    assumed = KINDS[family].kv_heads or 64
    assert (assumed, found.rms_eps, found.tied) == (
        config.num_key_value_heads, config.rms_norm_eps, config.tie_word_embeddings,
    )  # fmt: skip
    experts = getattr(config, "num_local_experts", 0), getattr(config, "num_experts_per_tok", 0)
    assert (found.experts, found.experts_used) == experts
    assert found.output_bias == getattr(config, "attention_bias", False)
    assert found.mlp_bias == getattr(config, "mlp_bias", False)


def test_heads_that_are_not_stated_are_as_many(tmp_path: Path) -> None:
    source = maker.checkpoint(tmp_path / "model", num_key_value_heads=4, head_dim=8)
    config = {key: value for key, value in maker.CONFIGS["llama"].items() if key != "num_key_value_heads"}
    maker.save(source / "config.json", config)
    export_checkpoint(source, tmp_path / "x.gguf")
    assert maker.keys(tmp_path / "x.gguf")["llama.attention.head_count_kv"] == 4


def test_names_from_folder_and_card(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path, CARD)
    assert keys["general.architecture"] == "llama"
    assert keys["general.type"] == "model"
    assert keys["general.name"] == "Tiny Model v2"
    assert keys["general.license"] == "apache-2.0"
    assert keys["general.languages"] == ["en", "de"]
    assert keys["general.tags"] == ["text-generation"]
    assert keys["general.base_model.0.repo_url"] == "https://huggingface.co/some-org/some-model"
    assert keys["general.quantization_version"] == gguf.GGML_QUANT_VERSION
    assert keys["general.size_label"].endswith("K")
    assert notes == ()


@pytest.mark.parametrize(
    "card",
    ["---\nlicense: [\n---\n", b"---\n\xff\xfe: x\n---\n", "---\ndatasets: 5\nname: {a: [1]}\nlicense: {}\nlanguage: 3\n"
     "base_model: [[1]]\ntags: 7\nlicense_link: [2]\n---\n", "---\n" + "[" * 5000 + "\n---\n", "x" * (5 << 20),
     "---\n" + "- a\n" * 40_000 + "---\n", MERGING],
    ids=["no YAML", "no UTF-8", "odd types", "deep", "huge", "long", "merging"],
)  # fmt: skip
def test_a_card_that_cannot_be_used_does_not_stop_the_export(card: str | bytes, tmp_path: Path) -> None:
    keys, (note,) = exported(tmp_path, card)
    assert keys["general.name"] == "Tiny Model v2"
    assert "general.license" not in keys
    assert note.startswith("name, licence and the like come from the folder alone, not from README.md")


def test_a_path_in_the_config_that_is_none(tmp_path: Path) -> None:
    keys, (note,) = exported(tmp_path, _name_or_path=5)
    assert keys["general.name"] == "Tiny Model v2"
    assert "come from the folder alone" in note


def test_a_source_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(maker.checkpoint(tmp_path / "tiny-model-v2"))
    path = export_checkpoint(Path()).output
    assert path == tmp_path / "tiny-model-v2-F32.gguf"
    assert maker.keys(path)["general.name"] == "Tiny Model v2"


def test_numbers_and_dates_in_a_card_become_text(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path, "---\nversion: 1.5\nlicense: 2024-01-31\ntags: [1]\n---\n")
    assert (keys["general.version"], keys["general.license"], keys["general.tags"]) == ("1.5", "2024-01-31", ["1"])
    assert notes == ()


def test_generation_settings_that_are_none_are_noted(tmp_path: Path) -> None:
    source = maker.checkpoint(tmp_path / "model")
    for text in ("{", '{"top_k": "many"}', "[" * 10_000):
        (source / "generation_config.json").write_text(text)
        (note,) = maker.own_notes(export_checkpoint(source, tmp_path / "x.gguf", force=True).notes)
        assert "generation_config.json" in note
    assert not [key for key in maker.keys(tmp_path / "x.gguf") if "sampling" in key]


def test_sampling_settings_are_carried_over(tmp_path: Path) -> None:
    source = maker.checkpoint(tmp_path / "model")
    maker.save(source / "generation_config.json", {"top_k": 20, "temperature": 0.6})
    export_checkpoint(source, tmp_path / "x.gguf")
    keys = maker.keys(tmp_path / "x.gguf")
    assert keys["general.sampling.top_k"] == 20
    assert keys["general.sampling.temp"] == pytest.approx(0.6)


def test_the_container_keeps_the_rules_of_llama_cpp(tmp_path: Path) -> None:
    source = maker.checkpoint(tmp_path / "model", hidden_size=12, intermediate_size=7, head_dim=6)
    path = export_checkpoint(source, tmp_path / "x.gguf").output
    header = read_header(path)  # refuses gaps, overlaps, and any other order
    assert header.version == 3
    assert header.alignment == 32
    assert header.data_start % 32 == 0
    last = header.tensors[-1]
    assert 0 <= header.file_size - (header.data_start + last.end) < 32
    with path.open("rb") as file:
        file.seek(header.data_start + last.end)
        assert not any(file.read())


def test_vectors_come_last_and_the_table_stays_true(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    source = maker.checkpoint(tmp_path / "model", max_position_embeddings=2048, rope_scaling=llama3)
    path = export_checkpoint(source, tmp_path / "x.gguf").output
    assert [tensor.name for tensor in read_header(path).tensors][-1] == "rope_freqs.weight"
    reader = gguf.GGUFReader(path)
    found = next(t for t in reader.tensors if t.name == "rope_freqs.weight").data
    assert found.dtype == np.float32
    assert found[0] == 1.0
    assert found[-1] == 4.0
