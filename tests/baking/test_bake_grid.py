"""The committed grid of bakes: made by this code, complete, within its bounds, as docs/bake.md shows it; some cells again."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import bake_references as references
import pytest
from loading import script

from ropetool import families

grid = script("bake_grid/grid.py")
KNOWN: dict[str, Any] = json.loads(grid.RESULT.read_text(encoding="utf-8"))


# --- the file


def test_one_model_measured_again_keeps_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    part = grid.PARTS["transformers"]
    monkeypatch.setattr(part, "measure", lambda *_: {"refused": "not now"})
    found = grid.measured(
        "transformers", ["llama"], {"cells": {"qwen3": {"layout": {"refused": "before"}, "gone": {}}}}
    )
    assert found["cells"]["llama"]["layout"] == {"refused": "not now"}
    assert found["cells"]["qwen3"] == {"layout": {"refused": "before"}}


@pytest.mark.parametrize("by", grid.PARTS)
def test_every_model_has_every_cell(by: str) -> None:
    part = grid.PARTS[by]
    assert set(KNOWN[by]["cells"]) == set(part.MODELS)
    for name, cells in KNOWN[by]["cells"].items():
        assert list(cells) == list(part.RECIPES), name
        for cell in cells.values():
            assert set(cell) == {"refused"} or set(cell) == {"without", *part.FORMATS}


def test_every_family_with_a_place_is_in_the_grid() -> None:
    measured = {config["model_type"] for config in grid.PARTS["transformers"].MODELS.values()}
    assert measured == {name for name in families.names() if families.get(name).bake is not None}


def above(known: dict[str, Any]) -> list[str]:
    """Return the cells that claim an identity and are none, or that would not see a missing bake."""
    found = []
    for by, part in grid.PARTS.items():
        for name, cells in known[by]["cells"].items():
            for bake, cell in cells.items():
                if "refused" in cell:
                    continue
                found += [
                    f"{name}, {bake}, {form}: {cell[form]}"
                    for form, bound in part.EXACT.items()
                    if cell[form] > bound and not grid.excuse(name, bake, form)
                ]
                if cell["without"] < part.SEEN:
                    found.append(f"{name}, {bake}: moves the logits by {cell['without']} alone")
    return found


def test_what_says_exact_is_exact() -> None:
    assert above(KNOWN) == []


@pytest.mark.parametrize(
    ("by", "name", "bake", "key", "value"),
    [
        ("transformers", "llama", "attention-factor k", "float64", 2e-10),
        ("transformers", "qwen3", "layout", "float32", 2e-4),
        ("transformers", "deepseek_v32", "score k", "float64", 1e-3),
        ("transformers", "gemma3", "pair-gain k", "without", 1e-5),
        ("llama.cpp", "qwen2", "attention-factor q", "f32", 3e-4),
    ],
)
def test_a_cell_that_is_not_exact_is_seen(by: str, name: str, bake: str, key: str, value: float) -> None:
    spoiled = copy.deepcopy(KNOWN)
    spoiled[by]["cells"][name][bake][key] = value
    assert len(above(spoiled)) == 1


def test_only_one_excuse_allows_much() -> None:
    """A choice of tokens can swap; a table that is written in another way stays close."""
    cells = KNOWN["transformers"]["cells"]
    assert max(some["drop-pairs still, scaled"].get("float32", 0.0) for some in cells.values()) < 1e-3


def test_rounding_is_that_of_the_types() -> None:
    """Half a step of each type; a norm that adds one is held to more, for 1 + w can be small."""
    for name, cells in KNOWN["transformers"]["cells"].items():
        for cell in cells.values():
            highest, mean = cell.get("bfloat16", (0.0, 0.0))
            assert highest <= 2.0**-8 or name.startswith("gemma3"), name
            assert mean <= 2.0**-9
    for cells in KNOWN["llama.cpp"]["cells"].values():
        assert all(cell["q8_0"][1] <= 2.0**-11 for cell in cells.values() if "q8_0" in cell)


def test_what_is_refused() -> None:
    """No other cell is: what has a place is baked."""
    part, cells = grid.PARTS["transformers"], KNOWN["transformers"]["cells"]
    refused = {(name, bake) for name, some in cells.items() for bake, cell in some.items() if "refused" in cell}
    mla = {name for name in cells if families.get(part.MODELS[name]["model_type"]).mla}
    expected = {(name, bake) for name in cells if name not in mla for bake in cells[name] if "softmax" in bake}
    expected |= {(name, "softmax-scale norm") for name in cells if "no-query-latent" in name}
    expected |= {("olmo-clipped", bake) for bake in cells["olmo-clipped"] if "still" not in bake}
    expected |= {
        ("mistral4", "drop-pairs still"),
        ("ministral3", "drop-pairs still"),
        ("phi3", "drop-pairs still, scaled"),
    }
    assert refused == expected


# --- the page


def test_the_page_shows_the_grid() -> None:
    assert grid.page(KNOWN) == grid.PAGE.read_text(encoding="utf-8"), "run scripts/bake_grid/grid.py --docs"
    other = copy.deepcopy(KNOWN)
    other["transformers"]["cells"]["llama"]["layout"]["float64"] = 5e-12
    assert grid.page(other) != grid.page(KNOWN)


def test_the_page_names_every_bake() -> None:
    from ropetool.plans.bakes import BAKES

    text = grid.PAGE.read_text(encoding="utf-8")
    assert [name for name in BAKES if not re.search(rf"`{name}\b", text)] == []


# --- cells again


LIVE = [
    ("llama", "pair-gain k"), ("qwen3", "layout"), ("deepseek_v3", "softmax-scale norm"), ("stablelm", "drop-pairs still"),
    ("phi3", "score k"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bake"), LIVE)
def test_a_cell_measured_again(name: str, bake: str, tmp_path: Path) -> None:
    part = grid.PARTS["transformers"]
    cell, known = part.measure(part.MODELS[name], bake, tmp_path), KNOWN["transformers"]["cells"][name][bake]
    assert all(cell[form] <= bound for form, bound in part.EXACT.items())
    assert cell["without"] == pytest.approx(known["without"], rel=0.05)
    assert cell["bfloat16"] == pytest.approx(known["bfloat16"], rel=0.05)


def test_a_cell_of_llama_cpp_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    part = grid.PARTS["llama.cpp"]
    cell = part.measure(part.MODELS["qwen3"], "attention-factor k", tmp_path)
    known = KNOWN["llama.cpp"]["cells"]["qwen3"]["attention-factor k"]
    assert cell["f32"] <= part.EXACT["f32"]
    assert cell["without"] == pytest.approx(known["without"], rel=0.05)


WRONG_REFERENCES = {
    ("llama", "pair-gain k"): lambda view: references.with_gains(part_gains(view)[::-1]),
    ("phi3", "score k"): lambda view: references.with_score(1.29, (0, 1), 12),
    ("stablelm", "drop-pairs still"): lambda view: references.with_still_pairs(range(9, 16)),
}


def part_gains(view: Any) -> list[float]:
    found: list[float] = grid.PARTS["transformers"].gains(view)
    return found


@pytest.mark.parametrize(("name", "bake"), WRONG_REFERENCES)
def test_another_change_than_the_bake_is_seen(
    name: str, bake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = grid.PARTS["transformers"]
    wrong = replace(part.RECIPES[bake], reference=WRONG_REFERENCES[name, bake])
    monkeypatch.setitem(part.RECIPES, bake, wrong)
    assert part.measure(part.MODELS[name], bake, tmp_path)["float64"] > part.SEEN
