"""The context-extension methods, one file each, found by discovery.

`get("yarn")` returns a Method; `names()` lists them. A new file in this folder is a new method.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ropetool.errors import UnknownMethod, UnknownParameter, did_you_mean
from ropetool.escaping import command, read_number, read_whole
from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import PRESETS, Derived, Goal

__all__ = ["PRESETS", "Derived", "Goal", "Method", "Source", "get", "names"]


@dataclass(frozen=True)
class Method:
    """A context-extension method, from the constants of its module.

    auto_attention_factor: the preset of the attention factor for `auto`.
    params_type: the dataclass of its parameters.
    keeps_tables: whether it changes only the configured context length.
    """

    name: str
    aliases: tuple[str, ...]
    summary: str
    source: str
    auto_attention_factor: str
    params_type: type
    module: types.ModuleType
    keeps_tables: bool = False

    def params(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters from text or typed values.

        Raises: UnknownParameter for an unknown name or a value of a wrong type.
        """
        fields = {f.name: f for f in dataclasses.fields(self.params_type)}
        hints = typing.get_type_hints(self.params_type)
        typed = {}
        for name, value in values.items():
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise UnknownParameter(
                    f"{self.name} has no parameter {name}{did_you_mean(name, fields)}; it has: {known}",
                    where="-p",
                    try_=command("ropetool", "methods", self.name),
                )
            typed[name] = _typed(f"{self.name} -p {name}", hints[name], value)
        return self.params_type(**typed)

    def derive(self, source: Source, goal: Goal, params: Any) -> Derived:
        """Return the target table for this source and goal."""
        derived: Derived = self.module.derive(source, goal, params)
        return derived


def _typed(where: str, hint: Any, value: Any) -> Any:
    options = [one for one in typing.get_args(hint) if one is not type(None)] if not isinstance(hint, type) else [hint]
    value_type = options[0] if options and typing.get_origin(hint) is not tuple else hint
    try:
        if value_type is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if value_type is float:
            return read_number(value) if isinstance(value, str) else float(value)
        if value_type is int:
            if isinstance(value, float) and value != int(value):
                raise ValueError
            return read_whole(value) if isinstance(value, str) else int(value)
        if value_type is str:
            return str(value)
        if isinstance(value, str):  # a text of digits would pass as a list of numbers
            raise ValueError
        return tuple(float(v) for v in value)
    except (ValueError, TypeError, KeyError, OverflowError):
        expected = {bool: "true or false", float: "a number", int: "a whole number"}.get(
            value_type, "a list of numbers"
        )
        raise UnknownParameter(f"{value!r} is not {expected}", where=where) from None


@cache
def _files() -> tuple[str, ...]:
    """Return the names of the modules in this folder."""
    return tuple(info.name for info in pkgutil.iter_modules(__path__))


@cache
def _of_file(file: str) -> Method | None:
    """Return the method of a module, or None if the module is not a method."""
    module = importlib.import_module(f"{__name__}.{file}")
    if not hasattr(module, "NAME"):
        return None
    return Method(
        module.NAME,
        module.ALIASES,
        module.SUMMARY,
        module.SOURCE,
        module.AUTO_ATTENTION_FACTOR,
        typing.get_type_hints(module.derive)["params"],
        module,
        getattr(module, "KEEPS_TABLES", False),
    )


@cache
def _discovered() -> dict[str, Method]:
    methods = {method.name: method for file in _files() if (method := _of_file(file)) is not None}
    return dict(sorted(methods.items()))


def names() -> list[str]:
    """Return the names of all methods, sorted."""
    return list(_discovered())


def get(name: str) -> Method:
    """Return the method of this name or alias. The file with the name is read first, and often alone.

    Raises: UnknownMethod with the known names.
    """
    file = name.replace("-", "_")
    named = _of_file(file) if file in _files() else None
    if named is not None and named.name == name:
        return named
    for method in _discovered().values():
        if name == method.name or name in method.aliases:
            return method
    near = did_you_mean(name, (known for method in _discovered().values() for known in (method.name, *method.aliases)))
    raise UnknownMethod(
        f"no method is called {name!r}{near}; known: {', '.join(names())}", where="--method", try_="ropetool methods"
    )
