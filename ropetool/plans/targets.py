"""A plan's target as plain data and back: all values that `RopeSet.differences` compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.files.json_types import NUMBER, OBJECT, TEXT, JsonType, checked, list_of, optional, taken, whole
from ropetool.rope.tables import MAX_LENGTH, LayerRope, Regime, RopeSet, RopeTable, Temperature

MAX_CHANNELS, MAX_LAYERS, MAX_REGIMES = 2**20, 2**16, 2**10
_RULE = JsonType(
    "a list of texts and numbers",
    lambda value: isinstance(value, list) and all(type(part) in (str, int, float) for part in value),
)
_LENGTH, _CHANNELS = whole(1, MAX_LENGTH), whole(0, MAX_CHANNELS)
_LAYERS = list_of(whole(0, MAX_LAYERS), MAX_LAYERS)
_REGIMES, _FREQUENCIES = list_of(OBJECT, MAX_REGIMES), list_of(NUMBER, MAX_CHANNELS)


def tables_of(target: RopeSet) -> dict[str, Any]:
    """Return the tables as plain data, by layer type.

    A table that follows the text length has no fixed regimes: it is left out.
    """
    return {
        layer_type: _regimes(entry.table)
        for layer_type, entry in target.entries.items()
        if entry.table is not None and entry.table.rule is None
    }


def rope_tables(tables: Mapping[str, Any]) -> dict[str, RopeTable]:
    """Return the tables of this data, for comparison.

    Raises: CorruptFile, InvalidRope for invalid data.
    """
    return {layer_type: RopeTable(_read_regimes(tables, layer_type, "tables")) for layer_type in tables}


def target_json(target: RopeSet) -> dict[str, Any]:
    """Return all values except the tables as plain data.

    A rule that follows the text length has a name and its regimes.
    """
    return {
        "max_position_embeddings": target.max_position_embeddings,
        "layers": {layer_type: _layer_json(entry) for layer_type, entry in target.entries.items()},
    }


def target_of(data: Mapping[str, Any], tables: Mapping[str, Any]) -> RopeSet:
    """Return the target of the data from `target_json` and `tables_of`.

    Raises: CorruptFile, InvalidRope for invalid data.
    """
    fixed = rope_tables(tables)
    layers = taken(data, "layers", OBJECT, "target")
    entries = {layer_type: _layer(layers[layer_type], layer_type, fixed.get(layer_type)) for layer_type in layers}
    return RopeSet(entries, taken(data, "max_position_embeddings", _LENGTH, "target"), None)


def _regimes(table: RopeTable) -> list[dict[str, Any]]:
    return [
        {"up_to": regime.up_to, "attention_factor": regime.attention_factor, "inv_freq": regime.inv_freq.tolist()}
        for regime in table.regimes
    ]


def _read_regimes(data: Mapping[str, Any], key: str, place: str) -> tuple[Regime, ...]:
    within = f"{key} of {place}"
    return tuple(
        Regime(
            taken(each, "inv_freq", _FREQUENCIES, within),
            taken(each, "attention_factor", NUMBER, within),
            taken(each, "up_to", optional(_LENGTH), within),
        )
        for each in taken(data, key, _REGIMES, place)
    )


def _layer_json(entry: LayerRope) -> dict[str, Any]:
    rule = None
    if entry.table is not None and entry.table.rule is not None:
        rule = {"name": list(entry.table.rule_key), "regimes": _regimes(entry.table)}
    return {
        "layers": list(entry.layers), "head_dim": entry.head_dim, "rotary_dim": entry.rotary_dim, "layout": entry.layout,
        "softmax_multiplier": entry.softmax_multiplier, "sliding_window": entry.sliding_window,
        "temperature": None if entry.temperature is None else vars(entry.temperature), "rule": rule,
    }  # fmt: skip


def _layer(data: Any, layer_type: str, table: RopeTable | None) -> LayerRope:
    place = f"target of {layer_type}"

    def value(key: str, json_type: JsonType, *absent: Any) -> Any:
        return taken(data, key, json_type, place, *absent)

    checked(data, OBJECT, layer_type, "target")
    rule, grows = value("rule", OBJECT, None), value("temperature", OBJECT, None)
    if rule is not None:
        name = taken(rule, "name", _RULE, place)
        table = RopeTable(_read_regimes(rule, "regimes", place), _uncalled, tuple(name))
    temperature = None
    if grows is not None:
        temperature = Temperature(taken(grows, "beta", NUMBER, place), taken(grows, "length", _LENGTH, place))
    return LayerRope(
        "", table, value("head_dim", _CHANNELS), value("rotary_dim", _CHANNELS), value("layout", TEXT),
        tuple(value("layers", _LAYERS)), softmax_multiplier=value("softmax_multiplier", NUMBER), temperature=temperature,
        sliding_window=value("sliding_window", _LENGTH, None),
    )  # fmt: skip


def _uncalled(length: int) -> Regime:
    """Take the place of a rule. A plan only stores its name, and rules are compared by name."""
    raise NotImplementedError("a plan stores only the name of a rule")
