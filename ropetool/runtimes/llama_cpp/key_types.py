"""The type that llama.cpp's loader requires for each metadata key, and the names that it knows.

It does not convert types.

scripts/gguf_keys/gguf_key_types.py reads the data, key_types.json, from llama.cpp's sources. key_rules.py has the rules
for values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_TEMPLATE = "%s."  # the place of the architecture in front of a key


@cache
def facts() -> Mapping[str, Any]:
    """Return the data: architectures, tokenizers, pretokenizers, lengths, and the keys loaded and written."""
    data: Mapping[str, Any] = json.loads(Path(__file__).with_name("key_types.json").read_text(encoding="utf-8"))
    return data


def loaded(key: str, architecture: str) -> tuple[str, ...]:
    """Return the labels of the types that the loader accepts for a key; empty if it never reads the key.

    Not every architecture reads every key. It ignores the other keys, with any type.
    """
    return tuple(facts()["loaded"].get(template(key, architecture), ()))


def written(key: str, architecture: str) -> str:
    """Return the type that converters give to a key that the loader does not check; empty for other keys."""
    return str(facts()["written"].get(template(key, architecture), ""))


def known(architecture: str) -> list[str]:
    """Return all keys that llama.cpp or its converters know, as a file of this architecture spells them."""
    return [key.replace(_TEMPLATE, f"{architecture}.", 1) for key in (*facts()["loaded"], *facts()["written"])]


def template(key: str, architecture: str) -> str:
    """Return a key as the data has it: with %s for the architecture."""
    prefix = f"{architecture}."
    return _TEMPLATE + key.removeprefix(prefix) if architecture and key.startswith(prefix) else key
