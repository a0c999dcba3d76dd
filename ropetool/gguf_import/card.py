"""The model card of an imported checkpoint: the file's general.* keys as front matter, which an export reads again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropetool.files.gguf import Value, ValueType

GENERAL = "general."
LONGEST = 4096  # characters of a value, and values of a list
# By GGUF key without `general.`: the key of the front matter. Source: gguf.Metadata, which reads cards for the converter.
TEXTS = {
    "name": "name", "author": "author", "version": "version", "organization": "organization", "description": "description",
    "finetune": "finetune", "basename": "basename", "size_label": "size_label", "license": "license",
    "license.name": "license_name", "license.link": "license_link", "source.url": "url", "source.doi": "doi",
    "source.uuid": "uuid", "source.repo_url": "repo_url",
}  # fmt: skip
LISTS = {"tags": "tags", "languages": "language"}
# Keys about the file, not about the model.
OF_THE_FILE = frozenset({"architecture", "type", "file_type", "quantization_version", "alignment", "quantized_by"})
_BASE = re.compile(r"base_model\.(\d{1,3})\.repo_url")
_ABOUT_A_BASE = re.compile(r"base_model\.(count|\d{1,3}\.(name|organization|version|repo_url))")
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029]")  # YAML breaks lines there, JSON does not
_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)/?")


def card_of(values: Mapping[str, Value]) -> tuple[str, tuple[str, ...]]:
    """Return the text of README.md, and a note on keys that the card does not keep.

    The text is empty without a fact.
    """
    given = {key.removeprefix(GENERAL): value for key, value in values.items() if key.startswith(GENERAL)}
    front: dict[str, Any] = {TEXTS[key]: text for key in TEXTS if (text := _text(given.get(key)))}
    front |= {LISTS[key]: listed for key in LISTS if (listed := _texts(given.get(key)))}
    if bases := _bases(given):
        front["base_model"] = bases
    kept = {key for key, name in {**TEXTS, **LISTS}.items() if name in front} | OF_THE_FILE
    lost = [GENERAL + key for key in given if key not in kept and not _ABOUT_A_BASE.fullmatch(key)]
    notes = (
        (f"the model card does not keep {', '.join(sorted(lost)[:8])}{' and more' if len(lost) > 8 else ''}",)
        if lost
        else ()
    )
    if not front:
        return "", notes
    lines = [f"{key}: {_LINE_ENDS.sub(_escape, json.dumps(value, ensure_ascii=False))}" for key, value in front.items()]
    title = " ".join(str(front.get("name") or front.get("basename") or "Model").split())
    return "\n".join(["---", *lines, "---", "", f"# {title}", ""]), notes


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _text(value: Value | None) -> str:
    if value is None or value.type is not ValueType.STR or len(value.raw) > LONGEST:
        return ""
    return str(value.decode())


def _texts(value: Value | None) -> list[str]:
    if value is None or value.element is not ValueType.STR or len(value.raw) > LONGEST:
        return []
    texts: Any = value.decode()
    return [str(text) for text in texts]


def _bases(given: Mapping[str, Value]) -> list[str]:
    """Return the base models of this model, as ORG/NAME or as a URL."""
    addresses = {int(match[1]): _text(value) for key, value in given.items() if (match := _BASE.fullmatch(key))}
    ordered = [addresses[number] for number in sorted(addresses) if addresses[number]]
    return [match[1] if (match := _REPOSITORY.fullmatch(address)) else address for address in ordered]
