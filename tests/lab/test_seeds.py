"""The table of published claims: every figure that it names exists, and its verdicts follow from the figures."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from loading import script


@pytest.fixture(scope="module")
def seeds() -> ModuleType:
    script("lab/train")  # puts the folder on the path
    import seeds

    return seeds


def test_each_row_has_claims_a_note_or_the_reason_why_it_is_not_run(seeds: ModuleType) -> None:
    rows = seeds.rows()
    assert [row["row"] for row in rows] == list(range(1, 62))
    assert all(len(row.keys() & {"claims", "note", "sentence"}) == 1 for row in rows)
    assert {row["what"] for row in rows if "sentence" in row} == {"CLEX", "Zebra", "Focused Transformer"}


def test_each_claim_names_figures_that_the_scripts_measure(seeds: ModuleType) -> None:
    designs = sys.modules["lab_designs"].DESIGNS
    labs = {lab.name: lab for lab in sys.modules["lab_training"].LABS}
    tunings, subjects = script("lab/finetune").TUNINGS, script("lab/training_free").SUBJECTS
    newer = [{"claims": claims} for claims in seeds.NEWER.values()]
    for row in [*seeds.rows(), *newer]:
        for first, sign, second in [*row.get("claims", ()), *([row["cause"]] if "cause" in row else [])]:
            assert sign in seeds.SIGNS
            for cell in (first, second):
                source, *names = cell.removesuffix("/loss").split("/")
                if source in labs:
                    design, method, context = names
                    assert design in labs[source].designs
                    assert method in designs[design].extensions
                    assert context in labs[source].contexts
                elif source == "pairs":
                    assert names[0] in designs
                    assert names[1] in ("none", "rerope")
                elif source == "tuned":
                    name, when, context = names
                    assert name in tunings
                    assert (when in ("before", "after"), context in ("trained", "longer", "repeated")) == (True, True)
                else:
                    entry, length = names
                    assert entry in ("as it is", *subjects[source].variants, *subjects[source].tables)
                    assert int(length) in subjects[source].lengths


FAR, NEAR = [30.0, 31.0, 33.0, 32.0], [20.0, 22.0, 21.0, 24.0]
CLOSE = [20.5, 21.9, 21.2, 24.0]
SCATTERED = [25.0, 17.0, 24.0, 22.0]


@pytest.mark.parametrize(
    ("first", "sign", "second", "verdict"),
    [
        (FAR, ">", NEAR, "as published"),
        (FAR, "<", NEAR, "otherwise"),
        (FAR, "=", NEAR, "otherwise"),
        (FAR, ">>", NEAR, "as published"),
        (NEAR, "<<", FAR, "as published"),
        (NEAR, "<", FAR, "as published"),
        (CLOSE, "=", NEAR, "as published"),
        (CLOSE, ">>", NEAR, "otherwise"),  # above or not, it is not far above
        (SCATTERED, "=", NEAR, "undecided"),  # a wide interval confirms nothing
        (SCATTERED, ">", NEAR, "undecided"),
        (CLOSE, ">=", NEAR, "as published"),
        (FAR, ">=", NEAR, "as published"),
        (NEAR, ">=", FAR, "otherwise"),
        (FAR, "<=", NEAR, "otherwise"),
        (SCATTERED, ">=", NEAR, "undecided"),
        (FAR, ">", None, "not measured"),
    ],
)
def test_a_verdict_follows_from_the_interval_of_the_paired_difference(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch, first: Any, sign: str, second: Any, verdict: str
) -> None:
    cells = {"a": first, "b": second}
    monkeypatch.setattr(seeds, "figures", lambda cell: None if cells[cell] is None else np.array(cells[cell]))
    assert seeds.outcome(("a", sign, "b")).verdict == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(">", "as published"), ("<", "otherwise"), (">>", "as published")])
def test_even_pairs_have_no_interval(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch, sign: str, verdict: str
) -> None:
    monkeypatch.setattr(seeds, "figures", lambda cell: np.array([100.0 if "hwfa" in cell else 77.0]))
    assert seeds.outcome(("pairs/hwfa/none", sign, "pairs/plain/none")).verdict == verdict


def test_losses_have_margins_in_nats(seeds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"a/loss": np.array([2.01, 2.13, 2.22]), "b/loss": np.array([2.0, 2.1, 2.2])}
    monkeypatch.setattr(seeds, "figures", cells.get)
    assert seeds.outcome(("a/loss", "=", "b/loss")).verdict == "as published"
    assert seeds.outcome(("a/loss", ">>", "b/loss")).verdict == "otherwise"


def test_a_large_model_without_all_its_seeds_is_not_measured(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"scores": {"none": {"longer": {"accuracy": [0.2, 0.4]}}}}
    monkeypatch.setattr(seeds, "_record", lambda name: {"plain/0": run, "plain/2": run})
    assert seeds.figures("large/plain/none/longer") is None
    monkeypatch.setattr(seeds, "_record", lambda name: {f"plain/{seed}": run for seed in (2, 0, 1)})
    assert seeds.figures("large/plain/none/longer") == pytest.approx([30, 30, 30])
    assert sys.modules["lab_training"].LABS[1].seeds == seeds.SEEDS


def test_the_interval_is_students(seeds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"a": FAR, "b": NEAR}
    monkeypatch.setattr(seeds, "figures", lambda cell: np.array(cells[cell]))
    outcome = seeds.outcome(("a", ">", "b"))
    differences = np.subtract(FAR, NEAR)
    assert outcome.difference == pytest.approx(differences.mean())
    assert outcome.half == pytest.approx(3.182446 * differences.std(ddof=1) / 2, rel=1e-5)  # three degrees of freedom


def test_newer_tables_stand_below_the_rows_once_they_are_measured(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Resonance" not in seeds.section() or seeds.figures("demo/resonance/2048") is not None
    monkeypatch.setattr(seeds, "figures", lambda cell: np.array(FAR if "resonance" in cell else NEAR))
    (line,) = [line for line in seeds.section().splitlines() if line.startswith("| Resonance")]
    assert line.endswith(
        "| **as published** (above): demo resonance at 2,048 31.5, demo yarn(8) at 2,048 21.8, difference +9.8 ± 2.7 |"
    )


def test_verdicts_between_single_runs_and_on_causes_are_marked(
    seeds: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "figures", lambda cell: np.array(FAR if "hwfa" in cell else NEAR))
    first, second = "small/hwfa/none/longer", "small/plain/none/longer"
    assert seeds._said((first, "<", second)).startswith("**otherwise** (below, one run): small hwfa at 512 31.5,")
    assert seeds._said((first, ">", first)).startswith("**otherwise** (above): ")
    assert seeds._said((f"large{first[5:]}", ">", f"large{second[5:]}")).startswith("**as published** (above): ")
    assert seeds._said((first, ">", second), seeds.CAUSES).startswith("**confirmed** (above, one run): ")
    assert seeds._said((first, "<", second), seeds.CAUSES).startswith("**not the cause** (below, one run): ")


def test_figures_are_read_from_the_records(seeds: ModuleType) -> None:
    record = sys.modules["lab_records"].known("small")
    by_text = seeds.figures("small/plain/none/longer")
    assert np.allclose(by_text, 100 * np.array(record["plain"]["scores"]["none"]["longer"]["accuracy"]))
    assert seeds.figures("pairs/hwfa/none") == [100 * record["hwfa"]["pairs"]["none"]["longer"]]
    assert seeds.figures("small/plain/no such method/longer") is None


def test_a_change_of_base_writes_the_numbers_of_the_text(seeds: ModuleType) -> None:
    conversion = sys.modules["base_conversion"]
    assert conversion.digits(1749 / 2, 10) == [8, 7, 4.5]
    assert conversion.digits(1749, 16) == [6, 13, 5]
    assert conversion.new_base() == 13  # 13 cubed is 2197, 12 cubed is 1728
    high, middle, low = conversion.digits(1749, 13)
    assert 169 * high + 13 * middle + low == 1749
    assert "| [10, 4, 7] | 12 | 1 | `ntk` |" in conversion.section()


def test_the_picture_has_the_divisors_of_the_formulas(seeds: ModuleType) -> None:
    conversion = sys.modules["base_conversion"]
    i, divisors = np.arange(64), dict(conversion.divisors())
    assert np.allclose(divisors["linear"], 8)
    assert np.allclose(divisors["ntk"], 8 ** (i / 63))
    assert np.allclose(divisors["base 80,000"], 8 ** (i / 64))
    assert conversion.farthest() == pytest.approx(1 - 8 ** (63 / 64) / 8)
    assert conversion.PICTURE.read_bytes() == conversion.picture()
