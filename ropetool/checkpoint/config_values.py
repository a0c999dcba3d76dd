"""The values of a config.json that affect rotation, as transformers 5 accepts them: numbers, and layer types as lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropetool import names
from ropetool.errors import InvalidRope
from ropetool.families.family import Family, at
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import LARGEST, MAX_LENGTH, SMALLEST, is_number

Config = Mapping[str, Any]
MAX_SIZE = 2**16  # heads or channels: no model has more, and a hostile number would use too much memory
MAX_LAYERS = 2**12  # each layer is an entry of several lists; the deepest known model has 126, llama.cpp reads 512
PUBLISHED = "set the key to the value in the published config.json"
_POSITIVE = {
    names.FACTOR, names.ATTENTION_FACTOR, names.ATTN_FACTOR, names.LOW_FREQ_FACTOR, names.HIGH_FREQ_FACTOR,
}  # fmt: skip
_NOT_NEGATIVE = {
    names.BETA_FAST, names.BETA_SLOW, names.MSCALE, names.MSCALE_ALL_DIM, names.LLAMA_4_SCALING_BETA,
}  # fmt: skip
LARGEST_DIVISOR = 1e30  # of one pair, which then does not rotate; divisors are not multiplied by each other
_LISTS = {names.SHORT_FACTOR, names.LONG_FACTOR}


def _refused(message: str, where: str) -> InvalidRope:
    return InvalidRope(message, where=where, try_=PUBLISHED)


def base(value: Any, where: str) -> float | None:
    """Return the RoPE base, or None if the config does not set it. Raises: InvalidRope if the value is not a base."""
    if value is None:
        return None
    if not is_number(value) or value <= 1 or _is_beyond(value, LARGEST):
        raise _refused(f"{shown(value)} is not a base; it is a finite number above 1, up to {LARGEST:g}", where)
    return float(value)


def check_sizes(part: Mapping[str, Any], family: Family, context_key: str, where: str) -> None:
    """Raise InvalidRope if a length or a size in this object is not a whole number within bounds."""
    for key in (context_key, names.ORIGINAL_MAX_POSITION_EMBEDDINGS, family.window_key):
        if key == family.window_key and _is_whole(part.get(key), 0, 0) and _window_is_off(part, family):
            continue
        # null means "none" for the other two keys, but every model has a context length.
        if part.get(key) is not None or (key in part and key == context_key):
            _check_length(part[key], f"{where}: {key}")
    sizes = (
        names.NUM_HIDDEN_LAYERS, names.NUM_ATTENTION_HEADS, names.NUM_KEY_VALUE_HEADS, names.HIDDEN_SIZE,
        names.KV_LORA_RANK, family.pattern_key, family.head_dim_key, names.NO_ROPE_LAYER_INTERVAL,
    )  # fmt: skip
    for key in (key for key in sizes if key in part):
        value = part[key]
        if value is None and key != names.NUM_HIDDEN_LAYERS:
            continue
        if key == family.pattern_key and family.pattern_letters and _is_letters(value):
            continue
        most = MAX_LAYERS if key == names.NUM_HIDDEN_LAYERS else MAX_SIZE
        if not _is_whole(value, 1, most):
            own = family.size_keys.get(key, key)
            raise _refused(
                f"{shown(value)} is not a whole number from 1 to {most}",
                f"{where}: {own if own in part else key}",
            )
    for key in (family.partial_rotary_key, family.rotary_dim_key, names.PARTIAL_ROTARY_FACTOR):
        if part.get(key) is not None:
            _check_share(part[key], f"{where}: {key}")


def _check_share(value: Any, where: str) -> None:
    if not is_number(value):
        raise _refused(f"{shown(value)} is not a number; this key sets the share of each head that rotates", where)


def _window_is_off(part: Mapping[str, Any], family: Family) -> bool:
    """Return whether the family's switch is off. transformers 5 then saves the window of a qwen2_moe as 0."""
    switched = family.sliding_window not in ("never", "always", "alternate")
    return switched and part.get(family.sliding_window) is not True


def _is_letters(value: Any) -> bool:
    """Return whether this is a pattern of letters such as LLLG: L for a local layer, G for a global one."""
    return isinstance(value, str) and bool(value) and set(value) <= {"L", "G"}


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def not_a_length(value: object) -> str:
    """Return the message for a value that is not a valid context length."""
    return f"{value} is not a length; it is a whole number of tokens from 2 to {MAX_LENGTH}"


def _check_length(value: Any, where: str) -> None:
    if not _is_whole(value, 2, MAX_LENGTH):
        raise _refused(not_a_length(shown(value)), where)


def _is_beyond(value: Any, largest: float) -> bool:
    """Return whether this is a number above 0 that is too small or too large.

    Its square or product would overflow or be 0.
    """
    return is_number(value) and value > 0 and not SMALLEST <= value <= largest


def check_param(key: str, value: Any, where: str) -> None:
    """Raise InvalidRope if a rope key must not have this value. A key that no rope type reads may have any value."""
    if value is None:
        return  # transformers treats null like a missing key
    if key in _POSITIVE | _NOT_NEGATIVE | _LISTS:
        values, largest = (value, LARGEST_DIVISOR) if isinstance(value, list) else ([value], LARGEST)
        beyond = next((v for v in values if _is_beyond(v, largest)), None)
        if beyond is not None:
            raise _refused(f"{shown(beyond)} is outside the supported range, {SMALLEST:g} to {largest:g}", where)
    if key in _POSITIVE and not (is_number(value) and value > 0):
        raise _refused(f"{shown(value)} is not a finite number above 0", where)
    if key in _NOT_NEGATIVE and not (is_number(value) and value >= 0):
        raise _refused(f"{shown(value)} is not a finite number of at least 0", where)
    if key == names.ORIGINAL_MAX_POSITION_EMBEDDINGS:
        _check_length(value, where)
    if key == names.PARTIAL_ROTARY_FACTOR:
        _check_share(value, where)
    if key == names.MROPE_SECTION and not (
        isinstance(value, list) and value and all(_is_whole(n, 0, MAX_SIZE) for n in value)
    ):
        raise _refused(f"{shown(value)} is not a list of whole numbers, the rotary pairs of each axis", where)
    if key == names.TRUNCATE and not isinstance(value, bool):
        raise _refused(f"{shown(value)} is neither true nor false", where)
    if key in _LISTS and not (isinstance(value, list) and value and all(is_number(v) and v > 0 for v in value)):
        raise _refused("it must be a list of finite numbers above 0, one per rotary pair", where)


# --- the type of each layer, as a list, text or pattern


def check_layer_lists(part: Config, family: Family, where: str) -> None:
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
    if not isinstance(value, list) or not all(_is_integer(index) for index in value):
        return f"{shown(value)} is not a list of layer numbers"
    first = family.kind_indices_from
    if not any(index >= first and (count is None or index < first + count) for index in value):
        return f"{shown(value)} does not contain a layer of the model, so no layer would attend"
    return ""


def _offset(value: Any, part: Config, family: Family) -> str:
    period = part.get(family.pattern_key) or family.pattern or 1
    return (
        ""
        if _is_integer(value) and 0 <= value < period
        else f"{shown(value)} is not a layer of a pattern of {period}: it must be a whole number from 0 to {period - 1}"
    )


def _flags(value: Any, part: Config, family: Family) -> str:
    """Return the reason why a value is not a list of 1 for layers that rotate and 0 for others, or an empty text.

    An empty list is valid.
    """
    count = part.get(names.NUM_HIDDEN_LAYERS, 0)
    if isinstance(value, list) and all(map(_is_integer, value)) and (not value or len(value) >= count):
        return ""
    return f"{shown(value)} is not a list with 1 or 0 for each of the num_hidden_layers layers"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
