"""Which type llama.cpp's loader wants of each metadata key, and which names it knows; it converts nothing.

The data is key_types.json, read from llama.cpp's sources by scripts/gguf_keys/gguf_key_types.py. What values mean is key_rules.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_TEMPLATE = "%s."  # in front of a key that an architecture's name stands in front of


@cache
def facts() -> Mapping[str, Any]:
    """Return the data: architectures, tokenizers, pretokenizers, lengths, and the keys loaded and written."""
    found: Mapping[str, Any] = json.loads(Path(__file__).with_name("key_types.json").read_text(encoding="utf-8"))
    return found


def loaded(key: str, architecture: str) -> tuple[str, ...]:
    """Return the types, as their labels, that the loader takes for a key; none where it never asks for the key.

    Not every architecture asks for every key; one that does not ignores it, whatever its type.
    """
    return tuple(facts()["loaded"].get(template(key, architecture), ()))


def written(key: str, architecture: str) -> str:
    """Return the type that converters give to a key that the loader does not check, empty for one of others."""
    return str(facts()["written"].get(template(key, architecture), ""))


def known(architecture: str) -> list[str]:
    """Return all keys that llama.cpp or its converters know, as a file of this architecture spells them."""
    return [key.replace(_TEMPLATE, f"{architecture}.", 1) for key in (*facts()["loaded"], *facts()["written"])]


def template(key: str, architecture: str) -> str:
    """Return a key as the data has it: with %s for the architecture."""
    prefix = f"{architecture}."
    return _TEMPLATE + key.removeprefix(prefix) if architecture and key.startswith(prefix) else key
