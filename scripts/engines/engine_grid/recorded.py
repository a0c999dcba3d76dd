"""tests/oracle/engines_ENGINE.json: what each cell came to, with the config and the claim, each table once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_grid.judging import DIGITS

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "oracle"
Cell = dict[str, Any]


class Recorded:
    """The recorded grid of an engine. Cells hold whole configs and claims; the file has what they share once."""

    def __init__(self, engine: str) -> None:
        self.path = FOLDER / f"engines_{engine.replace('-', '_')}.json"
        self.families: dict[str, dict[str, Cell]] = {}
        self.made_with: dict[str, str] = {}
        if self.path.is_file():
            data = json.loads(self.path.read_text(encoding="utf-8"))
            self.made_with = data["made_with"]
            for model_type, entry in data["families"].items():
                self.families[model_type] = {
                    name: _whole(entry["config"], data["tables"], cell) for name, cell in entry["cells"].items()
                }

    def put(self, model_type: str, cells: Mapping[str, Cell]) -> None:
        """Replace these cells of a family; others stay."""
        kept = {name: json.loads(json.dumps(cell)) for name, cell in cells.items()}
        self.families[model_type] = {**self.families.get(model_type, {}), **kept}

    def write(self) -> None:
        """Write the file, with an entry a line."""
        tables: list[Any] = []
        found = {}
        for model_type, cells in sorted(self.families.items()):
            config = next((cell["config"] for cell in cells.values() if "config" in cell), {})
            found[model_type] = {
                "config": config,
                "cells": {name: _packed(config, tables, cell) for name, cell in cells.items()},
            }
        lines = ",\n".join(f"{json.dumps(name)}: {_block(entry)}" for name, entry in found.items())
        text = ",\n".join(json.dumps(table) for table in tables)
        made = json.dumps(self.made_with, sort_keys=True)
        self.path.write_text(
            f'{{\n"made_with": {made},\n"families": {{\n{lines}\n}},\n"tables": [\n{text}\n]\n}}\n', encoding="utf-8"
        )


def _block(entry: Mapping[str, Any]) -> str:
    cells = ",\n".join(f"{json.dumps(name)}: {json.dumps(cell)}" for name, cell in entry["cells"].items())
    return f'{{"config": {json.dumps(entry["config"])}, "cells": {{\n{cells}\n}}}}'


def _packed(config: Mapping[str, Any], tables: list[Any], cell: Cell) -> Cell:
    found = dict(cell)
    if "config" in cell:
        found["config"] = changes(config, cell["config"])
    layers = cell.get("claim", {}).get("layers")
    if layers is not None:
        packed = {}
        for kind, layer in layers.items():
            packed[kind] = dict(layer)
            if "inv_freq" in layer:
                table = [float(f"{one:.{DIGITS}g}") for one in layer["inv_freq"]]
                if table not in tables:
                    tables.append(table)
                packed[kind]["inv_freq"] = tables.index(table)
        found["claim"] = {**cell["claim"], "layers": packed}
    return found


def _whole(config: Mapping[str, Any], tables: list[Any], cell: Cell) -> Cell:
    found = dict(cell)
    if "config" in cell:
        found["config"] = changed(config, cell["config"])
    for layer in found.get("claim", {}).get("layers", {}).values():
        if "inv_freq" in layer:
            layer["inv_freq"] = tables[layer["inv_freq"]]
    return found


def changes(source: Any, target: Any) -> Any:
    """Return what makes one JSON object another: values by key, null for a key that is gone.

    A value that is null itself stands as [null].
    """
    found: dict[str, Any] = dict.fromkeys(source.keys() - target.keys())
    for key, value in target.items():
        if isinstance(value, dict) and isinstance(source.get(key), dict):
            if inner := changes(source[key], value):
                found[key] = inner
        elif key not in source or source[key] != value:
            found[key] = {"new": value} if isinstance(value, dict) else [value]
    return found


def changed(source: Any, made: Mapping[str, Any]) -> Any:
    """Return the object that `changes` gave these for."""
    found = {key: value for key, value in source.items() if made.get(key, 0) is not None}
    for key, value in made.items():
        if isinstance(value, list):
            found[key] = value[0]
        elif isinstance(value, dict):
            new = list(value) == ["new"] and isinstance(value["new"], dict) and not isinstance(source.get(key), dict)
            found[key] = value["new"] if new else changed(source[key], value)
    return found
