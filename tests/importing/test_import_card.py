"""The model card of an import: the gguf package, which reads cards for the converter, finds in it what the file had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_import.card import LONGEST, card_of

FACTS = {
    "general.name": "SmolLM2 135M", "general.organization": "HuggingFaceTB", "general.license": "apache-2.0",
    "general.license.name": "Apache", "general.license.link": "https://apache.org/licenses", "general.finetune": "instruct",
    "general.basename": "smollm2", "general.size_label": "135M", "general.author": "the authors", "general.version": "2",
    "general.description": "small: a #model\nof \"two\" lines", "general.source.url": "https://a.example/b",
}  # fmt: skip
LISTS = {"general.tags": ["long-context", "no"], "general.languages": ["en", "no"]}
BASE = {
    "general.base_model.0.repo_url": "https://huggingface.co/HuggingFaceTB/SmolLM2-135M", "general.base_model.0.name": "SmolLM2",
}  # fmt: skip


def values(**more: Any) -> dict[str, Value]:
    texts = {key: Value.of(ValueType.STR, text) for key, text in {**FACTS, **BASE, **more}.items()}
    lists = {key: Value.array(ValueType.STR, entries) for key, entries in LISTS.items()}
    about = {"general.architecture": Value.of(ValueType.STR, "llama"), "general.file_type": Value.of(ValueType.U32, 3)}
    return {**about, **texts, **lists, "general.base_model.count": Value.of(ValueType.U32, 1)}


def read(folder: Path, card: str) -> gguf.Metadata:
    (folder / "README.md").write_text(card, encoding="utf-8")
    return gguf.Metadata.load(None, folder, None, 0)


def test_the_gguf_package_reads_what_the_file_had(tmp_path: Path) -> None:
    card, notes = card_of(values())
    known = read(tmp_path, card)
    assert notes == ()
    assert (known.name, known.organization, known.license) == ("SmolLM2 135M", "HuggingFaceTB", "apache-2.0")
    assert (known.license_name, known.license_link) == ("Apache", "https://apache.org/licenses")
    assert (known.finetune, known.basename, known.size_label) == ("instruct", "smollm2", "135M")
    assert (known.author, known.version, known.source_url) == ("the authors", "2", "https://a.example/b")
    assert known.description == FACTS["general.description"]
    assert (known.tags, known.languages) == (LISTS["general.tags"], LISTS["general.languages"])
    (base,) = known.base_models
    assert base["repo_url"] == BASE["general.base_model.0.repo_url"]


def test_what_a_card_does_not_keep_is_named(tmp_path: Path) -> None:
    long = Value.of(ValueType.STR, "x" * (LONGEST + 1))
    card, notes = card_of({**values(), "general.datasets": Value.array(ValueType.STR, ["a"]), "general.author": long})
    assert notes == ("the model card does not keep general.author, general.datasets",)
    assert read(tmp_path, card).name == "SmolLM2 135M"


@pytest.mark.parametrize("name", ["a\n---\nlicense: mit", "{{ x }}", "\u2028: [", "'\"", "- a", "&a *a", "yes"])
def test_no_text_of_the_file_changes_the_structure_of_the_card(name: str, tmp_path: Path) -> None:
    card, _ = card_of(values(**{"general.name": name}))
    known = read(tmp_path, card)
    assert (known.name, known.license) == (name, "apache-2.0")
    assert card.count("\n# ") == 1


def test_a_file_without_facts_has_no_card() -> None:
    assert card_of({"general.architecture": Value.of(ValueType.STR, "llama")}) == ("", ())
