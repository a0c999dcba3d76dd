"""Read a family's file strictly: the types of the dataclasses determine the valid keys and values.

The error for an unknown key, a value of a wrong type or a missing key has the file, the place and the valid values.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from ropetool.errors import ConfigError, did_you_mean
from ropetool.families import tensors
from ropetool.families.tensors import Row, Rows

TRY = "docs/families.md explains each key"
GROUP = "use"
_KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes", type(None): "null",
}  # fmt: skip


def parsed(text: str, file: str) -> dict[str, Any]:
    """Return the JSON object in a family's file.

    Raises: ConfigError if the text is not JSON, is not an object, or sets a key twice.
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise wrong(file, f"sets {key!r} twice in one object")
            members[key] = value
        return members

    try:
        data = json.loads(text, object_pairs_hook=members)
    except json.JSONDecodeError as error:
        raise wrong(file, f"is not JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(data, dict):
        raise wrong(file, "must be a JSON object, from { to }")
    return data


def wrong(where: str, sentence: str) -> ConfigError:
    """Return the error about a place in a family's file."""
    return ConfigError(sentence, where=f"ropetool/families/{where}", try_=TRY)


def record(data_class: Any, data: Any, where: str) -> Any:
    """Return the object as an instance of a dataclass, read by the types of its fields.

    Raises: ConfigError.
    """
    if not isinstance(data, dict):
        raise wrong(where, f"{_shown(data)} must be an object in braces with the keys {', '.join(_fields(data_class))}")
    hints = _fields(data_class)
    _check_keys(data, hints, where)
    lacking = [f.name for f in fields(data_class) if f.default is MISSING and f.default_factory is MISSING]
    _check_present(data, lacking, where)
    return data_class(**{key: _read(hints[key], value, _inside(where, key)) for key, value in data.items()})


@cache
def _fields(data_class: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(data_class)
    return {field.name: hints[field.name] for field in fields(data_class) if not field.metadata.get("not_in_file")}


def _inside(where: str, key: str) -> str:
    return f"{where}: {key}" if where.endswith(".json") else f"{where}.{key}"


def _check_keys(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in data:
        if key not in known:
            near = did_you_mean(key, known)
            raise wrong(_inside(where, key), f"unknown key {key!r}{near}; known: {', '.join(known)}")


def _check_present(data: Mapping[str, Any], required: Iterable[str], where: str) -> None:
    for key in required:
        if key not in data:
            raise wrong(where, f"{key!r} is missing; required: {', '.join(required)}")


def _read(hint: Any, value: Any, where: str) -> Any:
    """Return the JSON value as the hinted type."""
    if hint is Any:
        return value
    if hint == Rows:
        return _rows(value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in arguments:
            near = did_you_mean(value, filter(None, arguments)) if isinstance(value, str) else ""
            raise wrong(where, f"unknown value {_shown(value)}{near}; known: {', '.join(map(json.dumps, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong(where, f"{_shown(value)} must be a list in brackets")
        return tuple(_read(arguments[0], one, f"{where}[{number}]") for number, one in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise wrong(where, f"{_shown(value)} must be an object in braces")
        return {key: _read(arguments[1], one, f"{where}.{key}") for key, one in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        types_left = [one for one in arguments if one is not type(None)]
        return _read(type(value) if type(value) in types_left else types_left[0], value, where)
    if is_dataclass(hint):
        return record(hint, value, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise wrong(where, f"{_shown(value)} must be {_KINDS[hint]}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- rows


def _rows(entries: Any, where: str) -> Rows:
    """Return the rows of a list. An entry is a row, the name of a group, or a group with its arguments."""
    if not isinstance(entries, list):
        raise wrong(where, f"{_shown(entries)} must be a list in brackets")
    rows: list[Row] = []
    for number, entry in enumerate(entries):
        place = f"{where}[{number}]"
        if isinstance(entry, str):
            rows += _group(entry, {}, place)
        elif isinstance(entry, dict) and GROUP in entry:
            rows += _group(entry[GROUP], {key: value for key, value in entry.items() if key != GROUP}, place)
        elif isinstance(entry, dict):
            rows.append(record(Row, entry, place))
        else:
            raise wrong(place, f"{_shown(entry)} must be a tensor, an object with hf, gguf and shape, or a group")
    return tuple(rows)


def _group(name: Any, given: Mapping[str, Any], where: str) -> Rows:
    if not isinstance(name, str) or name not in tensors.GROUPS:
        near = did_you_mean(name, tensors.GROUPS) if isinstance(name, str) else ""
        known = ", ".join(tensors.GROUPS)
        raise wrong(where, f"unknown group of tensors {_shown(name)}{near}; known: {known}")
    hints, needed = _parameters(tensors.GROUPS[name])
    _check_keys(given, (GROUP, *hints), where)
    _check_present(given, needed, where)
    read = {key: _read(hints[key], value, f"{where}.{key}") for key, value in given.items()}
    try:
        return tensors.GROUPS[name](**read)
    except ValueError as error:
        raise wrong(where, f"{name}: {error}") from None


@cache
def _parameters(group: Callable[..., Rows]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the types of a group's parameters, and the names of the required ones."""
    hints = {name: hint for name, hint in typing.get_type_hints(group).items() if name != "return"}
    parameters = inspect.signature(group).parameters.values()
    return hints, tuple(one.name for one in parameters if one.default is inspect.Parameter.empty)
