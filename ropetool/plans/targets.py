"""What a plan promises, as plain data and back: the tables, and everything else that the layers compute.

Whatever `RopeSet.differences` compares is in it; how a file spells it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.files.hf.typed import NUMBER, OBJECT, TEXT, JsonType, checked, list_of, taken, whole
from ropetool.rope.tables import MAX_LENGTH, LayerRope, Regime, RopeSet, RopeTable, Temperature

MAX_CHANNELS, MAX_LAYERS = 2**20, 2**16
_RULE = JsonType(
    "a list of texts and numbers",
    lambda value: isinstance(value, list) and all(type(part) in (str, int, float) for part in value),
)
_LENGTH, _CHANNELS = whole(1, MAX_LENGTH), whole(0, MAX_CHANNELS)
_LAYERS = list_of(whole(0, MAX_LAYERS), MAX_LAYERS)


def tables_of(target: RopeSet) -> dict[str, Any]:
    """Return the tables as plain data, by layer type; one that follows the length has no regimes to state."""
    return {
        layer_type: _regimes(entry.table)
        for layer_type, entry in target.entries.items()
        if entry.table is not None and entry.table.rule is None
    }


def rope_tables(tables: Mapping[str, Any]) -> dict[str, RopeTable]:
    """Return such data as tables that can be compared.

    Raises: KeyError, TypeError, InvalidRope for what is none.
    """
    return {layer_type: RopeTable(_read_regimes(regimes)) for layer_type, regimes in tables.items()}


def target_json(target: RopeSet) -> dict[str, Any]:
    """Return all but the tables as plain data; a rule that follows the length by its name and its numbers."""
    return {
        "max_position_embeddings": target.max_position_embeddings,
        "layers": {layer_type: _layer_json(entry) for layer_type, entry in target.entries.items()},
    }


def target_of(data: Mapping[str, Any], tables: Mapping[str, Any]) -> RopeSet:
    """Return what `target_json` and `tables_of` made plain.

    Raises: CorruptFile, KeyError, TypeError, InvalidRope for what is none.
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


def _read_regimes(regimes: Any) -> tuple[Regime, ...]:
    return tuple(Regime(each["inv_freq"], each["attention_factor"], each["up_to"]) for each in regimes)


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

    def said(key: str, kind: JsonType, *absent: Any) -> Any:
        return taken(data, key, kind, place, *absent)

    checked(data, OBJECT, layer_type, "target")
    rule, grows = said("rule", OBJECT, None), said("temperature", OBJECT, None)
    if rule is not None:
        name = taken(rule, "name", _RULE, place)
        table = RopeTable(_read_regimes(rule["regimes"]), _uncalled, tuple(name))
    temperature = None
    if grows is not None:
        temperature = Temperature(taken(grows, "beta", NUMBER, place), taken(grows, "length", _LENGTH, place))
    return LayerRope(
        "", table, said("head_dim", _CHANNELS), said("rotary_dim", _CHANNELS), said("layout", TEXT),
        tuple(said("layers", _LAYERS)), softmax_multiplier=said("softmax_multiplier", NUMBER), temperature=temperature,
        sliding_window=said("sliding_window", _LENGTH, None),
    )  # fmt: skip


def _uncalled(length: int) -> Regime:
    """Stand for a rule that is known by its name; two rules are compared by theirs."""
    raise NotImplementedError("a plan stores only the name of a rule")
