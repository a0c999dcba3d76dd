"""The keys of a config.json that list the type of each layer, as a list, text or pattern, and their valid values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropetool import names
from ropetool.errors import InvalidRope
from ropetool.families.family import Family, at
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import is_number

Config = Mapping[str, Any]


def check(part: Config, family: Family, where: str) -> None:
    """Raise InvalidRope if a key does not give each layer a type that transformers 5 accepts.

    If only remote code knows the model type, the words in layer_types are not checked.
    """
    rules: dict[str, Callable[[Any, Config, Family], str]] = {
        **({} if family.remote else dict.fromkeys(family.kinds_keys, _layer_types)),
        family.kind_numbers_key: _numbers,
        family.kind_indices_key: _indices,
        family.pattern_offset_key: _offset,
    }
    if family.rotates == "no_rope_layers":
        rules[family.rotating_key] = _flags
    for key, rule in rules.items():
        value = at(part, key)
        fault = rule(value, part, family) if value is not None else ""
        if fault:
            raise InvalidRope(fault, where=f"{where}: {key}", try_=f"copy {key} from the published config.json")


def _layer_types(value: Any, part: Config, family: Family) -> str:
    """Return the fault of a list with a layer type, or a text with a letter, for each layer; or an empty text."""
    letters = [name for name in family.kind_names if len(name) == 1 and not name.isdigit()]
    if letters:  # the length of such a list is the number of layers
        listed = value if isinstance(value, list) else list(value) if isinstance(value, str) else []
        if listed and all(isinstance(word, str) and word in {*letters, *_words(family)} for word in listed):
            return ""
        return f"{shown(value)} is not a text with one of the letters {' '.join(letters)} for each layer"
    if not isinstance(value, list) or len(value) != part.get(names.NUM_HIDDEN_LAYERS, len(value)):
        return "it is not a list with one layer type for each of the num_hidden_layers layers"
    known = _words(family)
    strange = next((word for word in value if not isinstance(word, str) or word not in known), None)
    if strange is None:
        return ""
    has = (
        f"of {family.model_type}; its layer types are {', '.join(family.layer_types)}"
        if family.nested
        else "that transformers knows"
    )
    return f"{shown(strange)} is not a layer type {has}"


def _words(family: Family) -> set[str]:
    """Return the valid words for layer types.

    They are the family's own words if each type has its own rope keys, else all known words.
    """
    own = {*family.layer_types, *family.kind_names, *family.default_kinds}
    older = {old for old, layer_type in names.LAYER_TYPE_ALIASES.items() if not family.nested or layer_type in own}
    return own | older | (set() if family.nested else names.KNOWN_LAYER_TYPES)


def _numbers(value: Any, part: Config, family: Family) -> str:
    known = sorted((name for name in family.kind_names if name.isdigit()), key=int)
    count = part.get(names.NUM_HIDDEN_LAYERS, 0)
    listed = value if isinstance(value, list) else []
    if len(listed) >= max(1, count) and all(is_number(n) and f"{n:g}" in known for n in listed):
        return ""
    return f"{shown(value)} is not a list with one of {', '.join(known)} for each of the num_hidden_layers layers"


def _indices(value: Any, part: Config, family: Family) -> str:
    count = part.get(names.NUM_HIDDEN_LAYERS)
    if not isinstance(value, list) or not all(_is_whole(index) for index in value):
        return f"{shown(value)} is not a list of layer numbers"
    first = family.kind_indices_from
    if not any(index >= first and (count is None or index < first + count) for index in value):
        return f"{shown(value)} does not contain a layer of the model, so no layer would attend"
    return ""


def _offset(value: Any, part: Config, family: Family) -> str:
    period = part.get(family.pattern_key) or family.pattern or 1
    return (
        ""
        if _is_whole(value) and 0 <= value < period
        else f"{shown(value)} is not a layer of a pattern of {period}: it must be a whole number from 0 to {period - 1}"
    )


def _flags(value: Any, part: Config, family: Family) -> str:
    """Return the reason why a value is not a list of 1 for layers that rotate and 0 for others, or an empty text.

    An empty list is valid.
    """
    count = part.get(names.NUM_HIDDEN_LAYERS, 0)
    if isinstance(value, list) and all(map(_is_whole, value)) and (not value or len(value) >= count):
        return ""
    return f"{shown(value)} is not a list with 1 or 0 for each of the num_hidden_layers layers"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
