"""What `identify` said of hundreds of servers, honest and with a planted mistake: the record, and some of its cells again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loading import script

planted = script("identify/planted_tables.py")
RECORD: dict[str, Any] = json.loads(planted.RESULT.read_text(encoding="utf-8"))
HONEST = [run for run in RECORD["runs"] if run[5] == planted.AS_MEANT]
PLANTED = [run for run in RECORD["runs"] if run[5] != planted.AS_MEANT]


def test_no_honest_server_is_named_otherwise() -> None:
    assert len(HONEST) >= 300
    assert {len({run[at] for run in HONEST}) for at in (0, 3, 4)} == {
        len(planted.MODELS),
        3,
    }  # models, types, interfaces
    assert {run[6] for run in HONEST} <= {"named", "none"}
    none = [run for run in HONEST if run[6] == "none"]
    assert {(run[0], run[3]) for run in none} <= {("gpt_oss", "float16")}  # its router is tipped by rounding
    assert len(none) <= 0.01 * len(HONEST)


def test_the_mistakes_are_named() -> None:
    expected = [(name, plant.name) for name, made in planted.MODELS.items() for plant in made.plants]
    assert sorted((run[0], run[5]) for run in PLANTED) == sorted(expected)
    differing = [run for run in PLANTED if run[5] and run[6] != "same table"]
    assert len(differing) >= 80
    assert sum(run[6] == "named" for run in differing) >= 0.95 * len(differing)
    assert {run[6] for run in PLANTED if not run[5]} == {"named"}  # none of the list is none of these
    assert not [run for run in PLANTED if run[6] not in ("named", "none", "not told apart", "same table")]


def test_the_page_says_what_the_record_says() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "inspecting.md").read_text(encoding="utf-8").split())
    differing = [run for run in PLANTED if run[5] and run[6] != "same table"]
    named = sum(run[6] == "named" for run in differing)
    assert f"named {named} of {len(differing)} mistakes" in page
    assert f"{sum(run[6] == 'named' for run in HONEST)} of {len(HONEST)} correct servers" in page
    assert f"{sum(not run[5] for run in PLANTED)} tables outside the list" in page


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("deepseek_v3", "softmax scale not read"),
        ("llama", "layout swapped"),
        ("phi3", "short list always"),
        ("gpt_oss", planted.AS_MEANT),
    ],
)
def test_cells_are_what_the_record_says(model: str, name: str, tmp_path: Path) -> None:
    made = planted.MODELS[model]
    plant = next((one for one in made.plants if one.name == name), planted.Plant(name))
    path = planted.make(made, 0, tmp_path / "m")
    found = planted.asked(path, plant, "float32", "sglang", planted.LENGTHS[0])
    assert planted.says(found, name) == "named", found.to_json()
