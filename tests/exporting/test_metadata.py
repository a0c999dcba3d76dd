"""The keys about the model: sizes, names, model card; and the container around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import gguf_files
import models
import numpy as np
import pytest

import ropetool
from ropetool.files.gguf import read_header

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
TAGGED = MERGING.replace("<<", "!!merge x")
NESTED = (
    "---\n"
    + "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]\n" if n else "k0: &k0 [a]\n" for n in range(12))
    + "name: *k11\n---\n"
)
HIDDEN = MERGING.replace("---\n", "---\nx: |\n ---\n----: 1\n", 1)  # no line of three, where the front matter ends


def exported(tmp_path: Path, card: str | bytes | None = None, **changes: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    source = models.checkpoint(tmp_path / "tiny-model-v2", changes.pop("family", "llama"), **changes)
    if card is not None:
        (source / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    result = models.export(source, tmp_path / "x.gguf")
    return gguf_files.keys(result.output), result.notes


def test_the_sizes_stand_under_the_architecture(tmp_path: Path) -> None:
    keys, _ = exported(tmp_path, family="qwen3")
    found = {key.removeprefix("qwen3."): value for key, value in keys.items() if key.startswith("qwen3.")}
    assert found.pop("attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert found == {
        "block_count": 2, "context_length": 512, "embedding_length": 16, "feed_forward_length": 24, "vocab_size": 300,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.value_length": 8, "rope.dimension_count": 8, "rope.freq_base": 10000.0,
    }  # fmt: skip


def test_heads_that_are_not_stated_are_as_many(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", num_key_value_heads=4, head_dim=8)
    config = {key: value for key, value in models.BY_HAND["llama"].items() if key != "num_key_value_heads"}
    models.save(source / "config.json", config)
    models.export(source, tmp_path / "x.gguf")
    assert gguf_files.keys(tmp_path / "x.gguf")["llama.attention.head_count_kv"] == 4


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
     "---\n" + "- a\n" * 40_000 + "---\n", MERGING, TAGGED, NESTED, HIDDEN],
    ids=["no YAML", "no UTF-8", "odd types", "deep", "huge", "long", "merging", "tagged", "nested", "hidden"],
)  # fmt: skip
def test_a_card_that_cannot_be_used_does_not_stop_the_export(card: str | bytes, tmp_path: Path) -> None:
    keys, (note,) = exported(tmp_path, card)
    assert keys["general.name"] == "Tiny Model v2"
    assert "general.license" not in keys
    assert note.startswith("general.* keys such as name and licence come from the folder only, not from README.md")


@pytest.mark.parametrize("start", ["\n", "\ufeff"])
def test_a_card_whose_front_matter_begins_late_is_noted(start: str, tmp_path: Path) -> None:
    keys, (note,) = exported(tmp_path, f"{start}{CARD}")
    assert "general.license" not in keys
    assert note.endswith("README.md: its front matter must begin in the first line")


def test_a_prompt_in_a_card_is_no_reference(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path, '---\nlicense: mit\nwidget:\n- text: "[INST] <<SYS>> *this* & that"\n---\n')
    assert (keys["general.license"], notes) == ("mit", ())


def test_norwegian_is_a_language(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path, "---\nlanguage: [en, no, sv]\nlicense: [mit, apache-2.0]\n---\n")
    assert (keys["general.languages"], notes) == (["en", "no", "sv"], ())
    assert keys["general.license"] == "mit,apache-2.0"


def test_a_path_in_the_config_that_is_none(tmp_path: Path) -> None:
    keys, (note,) = exported(tmp_path, _name_or_path=5)
    assert keys["general.name"] == "Tiny Model v2"
    assert "come from the folder only" in note


def test_a_source_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models.checkpoint(tmp_path / "tiny-model-v2"))
    path = models.export(Path()).output
    assert path == tmp_path / "tiny-model-v2-F32.gguf"
    assert gguf_files.keys(path)["general.name"] == "Tiny Model v2"


def test_numbers_and_dates_in_a_card_become_text(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path, "---\nversion: 1.5\nlicense: 2024-01-31\ntags: [1]\n---\n")
    assert (keys["general.version"], keys["general.license"], keys["general.tags"]) == ("1.5", "2024-01-31", ["1"])
    assert notes == ()


def test_generation_settings_that_are_none_are_noted(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    for text in ("", "{", "[]", '{"top_k": "many"}', "[" * 10_000):
        (source / "generation_config.json").write_text(text)
        notes = models.export(source, tmp_path / "x.gguf", force=True).notes
        assert all("generation_config.json" in note for note in notes)
        ends = [note for note in notes if note.startswith("end-of-text tokens come from config.json only")]
        assert (len(notes), len(ends)) == ((1, 0) if "top_k" in text else (2, 1))
        assert gguf_files.keys(tmp_path / "x.gguf")["tokenizer.ggml.eos_token_id"] == 257
    assert not [key for key in gguf_files.keys(tmp_path / "x.gguf") if "sampling" in key]


@pytest.mark.parametrize("content", [{}, {"eos_token_id": None, "top_k": None, "temperature": None, "do_sample": True}])
def test_generation_settings_without_values(content: dict[str, Any], tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", eos_token_id=[257, 260])
    models.save(source / "generation_config.json", content)
    result = models.export(source, tmp_path / "x.gguf")
    keys = gguf_files.keys(result.output)
    assert result.notes == ()
    assert (keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.eot_token_id"]) == (257, 260)  # config.json's
    assert not [key for key in keys if "sampling" in key]


def test_sampling_settings_are_carried_over(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    models.save(source / "generation_config.json", {"top_k": 20, "temperature": 0.6})
    models.export(source, tmp_path / "x.gguf")
    keys = gguf_files.keys(tmp_path / "x.gguf")
    assert keys["general.sampling.top_k"] == 20
    assert keys["general.sampling.temp"] == pytest.approx(0.6)


def test_the_container_keeps_the_rules_of_llama_cpp(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", hidden_size=12, intermediate_size=7, head_dim=6)
    path = models.export(source, tmp_path / "x.gguf").output
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
    source = models.checkpoint(tmp_path / "model", max_position_embeddings=2048, rope_scaling=llama3)
    path = models.export(source, tmp_path / "x.gguf").output
    assert [tensor.name for tensor in read_header(path).tensors][-1] == "rope_freqs.weight"
    reader = gguf.GGUFReader(path)
    found = next(t for t in reader.tensors if t.name == "rope_freqs.weight").data
    assert found.dtype == np.float32
    assert found[0] == 1.0
    assert found[-1] == 4.0


@pytest.mark.parametrize(
    ("name", "output", "parts"),
    [
        ("model", "model-yarn-4x", {}), ("model", "mine-4x", {}), ("model", "model-4x-yarn-2048", {}),
        ("Demo-2.5-Instruct", "Demo-2.5-Instruct-yarn-4x", {"basename": "Demo-2.5", "finetune": "Instruct"}),
    ],
)  # fmt: skip
def test_how_far_a_model_was_extended_is_no_fine_tune_of_it(
    name: str, output: str, parts: dict[str, str], tmp_path: Path
) -> None:
    source = models.checkpoint(tmp_path / name)
    before = gguf_files.keys(models.export(source, tmp_path / "before.gguf").output)
    options: dict[str, Any] = {"target_length": 2048} if output.endswith("2048") else {"factor": 4}
    made = ropetool.apply(ropetool.plan(source, "yarn", **options), source, tmp_path / output).output
    keys = gguf_files.keys(models.export(made, tmp_path / "x.gguf", allow_unverified=True).output)
    held = {key: keys.get(f"general.{key}") for key in ("basename", "finetune", "version", "size_label")}
    assert held == {key: before.get(f"general.{key}") for key in held}
    assert {key: value for key, value in held.items() if value and key != "size_label"} == parts
    assert keys["general.name"] == gguf.Metadata.id_to_title(output)


def test_a_factor_in_the_name_of_others_is_left_alone(tmp_path: Path) -> None:
    """By the package's rules it is a fine-tune, as in the stock converter's file."""
    keys = gguf_files.keys(models.export(models.checkpoint(tmp_path / "model-8x"), tmp_path / "x.gguf").output)
    assert keys["general.finetune"] == "8x"
