#!/usr/bin/env python3
"""Measure every bake of every family in every format, and write the result into tests/baking/ and docs/bake.md.

Each cell compares runs of the real program before and after the bake. A cell that ropetool refuses holds the sentence
that it refuses with.

    scripts/bake_grid/grid.py                       measure everything, about ten minutes; write both files
    scripts/bake_grid/grid.py --by llama.cpp        measure what llama.cpp runs, keep the rest
    scripts/bake_grid/grid.py --model llama         measure one model or architecture, keep the rest
    scripts/bake_grid/grid.py --docs                write docs/bake.md from the result as it is
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tests/baking", "tests/oracle")] + [str(ROOT)]

import grid_llama_cpp
import grid_transformers

RESULT = ROOT / "tests" / "baking" / "bake_grid.json"
PAGE = ROOT / "docs" / "bake.md"
PARTS: dict[str, ModuleType] = {part.BY: part for part in (grid_transformers, grid_llama_cpp)}
Grid = dict[str, Any]


# --- measuring


def measured(by: str, models: list[str], known: Grid) -> Grid:
    """Return the cells of a program, with those of these models measured now."""
    part, before = PARTS[by], known.get("cells", {})
    cells = {name: {b: c for b, c in before.get(name, {}).items() if b in part.RECIPES} for name in part.MODELS}
    for name in models:
        for bake in part.RECIPES:
            with tempfile.TemporaryDirectory() as folder:
                cells[name][bake] = part.measure(part.MODELS[name], bake, Path(folder))
            print(by, name, bake, cells[name][bake], file=sys.stderr, flush=True)
    return {"made_with": part.versions(), "cells": cells}


# --- which cells are held to what


def excuse(model: str, bake: str, form: str) -> str:
    """Return why a cell may lie above its bound, empty where it may not."""
    if model == "deepseek_v32" and form == "float32":
        return f"{model}: rounding can swap two tokens with nearly equal indexer scores; texts of at most index_topk tokens are exact"
    if bake == "drop-pairs still, scaled" and form == "float32":
        return f"{bake}: the same table by other steps, each rounded to float32"
    return ""


# --- the page


def tables(grid: Grid) -> str:
    """Return the grid as tables, one a format, and the refusals below."""
    parts = []
    for by, part in PARTS.items():
        if by in grid:
            parts += list(_tables_of(part, grid[by]))
    return "\n".join(parts)


def _tables_of(part: ModuleType, grid: Grid) -> Iterator[str]:
    letters = _letters(grid["cells"])
    versions = ", ".join(f"{name} {version}" for name, version in grid["made_with"].items())
    for form in part.FORMATS:
        yield f"### {part.BY}, {form}\n\n{_heading(part, form)} Measured with {versions}.\n"
        rows = [
            [name, *(_shown(part, name, bake, cells[bake], form, letters) for bake in part.RECIPES)]
            for name, cells in grid["cells"].items()
        ]
        lines = [["model", *part.RECIPES], ["---"] * (1 + len(part.RECIPES)), *rows]
        yield "".join(f"| {' | '.join(line)} |\n" for line in lines)
    yield f"Refused by ropetool ({part.BY}; MODEL is the name of the row):\n"
    yield "".join(f"- ({letter}) {sentence}\n" for sentence, letter in letters.items())
    excuses = {_excuse_of(part, m, b, c, f) for m, cells in grid["cells"].items() for b, c in cells.items() for f in c}
    yield "".join(f"- (*) {sentence}\n" for sentence in sorted(excuses - {""}))


def _heading(part: ModuleType, form: str) -> str:
    if form not in part.EXACT:
        return "Highest and mean relative error of the numbers that were multiplied; 0 where rows only move."
    share = ", as a share of the largest logit" if part.BY == "llama.cpp" else ""
    return f"Largest difference of any logit{share}; {part.EXACT[form]:g} is allowed."


def _letters(cells: Grid) -> dict[str, str]:
    """Return a letter for each sentence that a cell is refused with."""
    found = dict.fromkeys(_sentence(m, c) for m, some in cells.items() for c in some.values() if "refused" in c)
    return {sentence: chr(ord("a") + number) for number, sentence in enumerate(found)}


def _sentence(model: str, cell: Grid) -> str:
    """Return the refusal without the model's own name, so that models that are refused alike share it."""
    sentence: str = cell["refused"]
    for name in (model, model.partition("-")[0]):
        sentence = re.sub(rf"\b{name} (has|file)\b", r"MODEL \1", sentence)
    return sentence


def _excuse_of(part: ModuleType, model: str, bake: str, cell: Grid, form: str) -> str:
    above = form in part.EXACT and form in cell and cell[form] > part.EXACT[form]
    return excuse(model, bake, form) if above else ""


def _shown(part: ModuleType, model: str, bake: str, cell: Grid, form: str, letters: dict[str, str]) -> str:
    if "refused" in cell:
        return f"({letters[_sentence(model, cell)]})"
    value = cell[form]
    if isinstance(value, list):
        return "0" if value == [0, 0] else f"{value[0]:.2g}, {value[1]:.2g}"
    return f"{value:.0e}".replace("0e+00", "0") + (" (*)" if _excuse_of(part, model, bake, cell, form) else "")


def page(grid: Grid) -> str:
    """Return the text of docs/bake.md with the tables of this grid."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- grid -->\n).*?(<!-- /grid -->)", re.DOTALL)
    text, count = pattern.subn(lambda found: f"{found[1]}\n{tables(grid)}\n{found[2]}", text)
    if count != 1:
        raise SystemExit(f"{PAGE}: {count} places between <!-- grid --> and <!-- /grid -->; there must be one")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--by", choices=PARTS, help="measure what this program runs")
    parser.add_argument("--model", help="measure this model or architecture")
    parser.add_argument("--docs", action="store_true", help="measure nothing; write the page")
    options = parser.parse_args()
    grid: Grid = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for by, part in PARTS.items():
        chosen = [name for name in part.MODELS if options.model in (None, name)]
        if not options.docs and chosen and options.by in (None, by):
            grid[by] = measured(by, chosen, grid.get(by, {}))
            RESULT.write_text(json.dumps(grid, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(grid), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
