"""How often intervals cover the truth and verdicts are wrong: what scripts/catalogue/intervals.py counted, a part of it again.

Documents are what is drawn and what is clustered by: made-up ones, and those of the catalogue with the demo's real losses.
"""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import script

import ropetool
from ropetool import machine
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.verdict import bounds

CACHE = machine.cache()  # the user's, before the tests get one of their own
AGAIN = 600
intervals = script("catalogue/intervals.py")
FOUND: dict[str, Any] = json.loads(intervals.RESULT.read_text(encoding="utf-8"))
FAIR = [
    name
    for name, cell in FOUND["simulated"].items()
    if cell["judged"] and "broken" not in name and "sample" not in name
]


def test_the_counts_are_on_the_page() -> None:
    current = intervals.PAGE.read_text(encoding="utf-8")
    assert intervals.page(FOUND) == current, "run scripts/catalogue/intervals.py --docs"


def near(share: float, stated: float, draws: int) -> bool:
    """Return whether a share of that many draws may be the stated one, to four standard errors of both counts."""
    spread = math.sqrt(max(stated * (1 - stated), 0.01) * (1 / draws + 1 / intervals.DRAWS))
    return abs(share - stated) < 4 * spread


@pytest.mark.parametrize(
    "name", ["8 documents of 4", "29, 1, 1, 1", "16 of 2, skewed", "16 of 2, two kinds as a sample of kinds"]
)
def test_made_up_documents_counted_again(name: str) -> None:
    again = intervals.coverage(intervals.made_up(name), AGAIN, f"again {name}")
    for key in ("interval", "upper", "lower", "former"):
        assert near(again[key], FOUND["simulated"][name][key], AGAIN), key


@pytest.mark.parametrize("length", ["256", "2048"])
def test_documents_of_the_catalogue_counted_again(length: str) -> None:
    table, design = intervals.differences()["yarn x8"][length], "8 documents of 4"
    again = intervals.coverage(intervals.real(table, intervals.REAL[design]), AGAIN, "again")
    assert table.shape == (195, 4)
    assert near(again["interval"], FOUND["real"][f"yarn x8 at {length}, {design}"]["interval"], AGAIN)


def test_effective_lengths_that_are_too_long_are_counted_and_nothing_less_is_promised() -> None:
    name, own = "40 of each of 7", 0.5
    again = intervals.too_long(intervals.TRIALS[name], own, True, AGAIN, "again")
    assert near(again, FOUND["effective lengths"][f"{name}, {own:g} right"]["nested"], AGAIN)
    cells = {key: cell for key, cell in FOUND["effective lengths"].items() if "7" in key.partition(",")[0]}
    shares = [
        f"{100 * bound(cell[key] for cell in cells.values()):.1f}"
        for key in ("nested", "independent")
        for bound in (min, max)
    ]
    page = " ".join(intervals.PAGE.read_text(encoding="utf-8").split())
    assert f"too long in {shares[0]} to {shares[1]} % of the draws if the target only loses answers" in page
    assert f"in {shares[2]} to {shares[3]} % if answers are independent" in page
    assert max(cell["nested"] for cell in FOUND["effective lengths"].values()) <= 0.13
    assert float(shares[1]) > 5  # the page must not promise 5 %
    assert "too long in no more than" not in page


def test_an_interval_over_segments_would_not_cover() -> None:
    draw = intervals.made_up("4 of 8")

    def over_segments(rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
        values, _ = draw(rng)
        return values, list(range(len(values)))

    assert intervals.coverage(over_segments, AGAIN, "over segments")["interval"] < 0.85


def test_where_a_verdict_is_given_intervals_cover() -> None:
    assert len(FAIR) >= 8
    for name in FAIR:
        cell = FOUND["simulated"][name]
        assert 0.93 <= cell["interval"] <= 0.99, name
        assert min(cell["upper"], cell["lower"]) >= 0.925, name
    assert all(cell["interval"] >= 0.9 for cell in FOUND["real"].values())
    lost = FOUND["simulated"]["29, 1, 1, 1"]
    assert lost["former"] < 0.5 < 0.9 < lost["interval"]
    assert not lost["judged"]
    assert FOUND["simulated"]["16 of 2, two kinds as a sample of kinds"]["interval"] < 0.8  # the page says so


def test_false_alarms_are_below_one_in_a_hundred() -> None:
    honest = [cell for cell in FOUND["verdicts"].values() if cell["ratio"] < cell["limit"] - 0.01]
    assert len(honest) == 5
    assert intervals.SEEDS >= 300
    assert all(cell["fail"] < 0.01 for cell in honest)


def test_what_is_exactly_on_the_limit_passes_and_fails_no_oftener_than_it_may() -> None:
    limit = [cell for name, cell in FOUND["verdicts"].items() if name.endswith("put on the limit")]
    assert len(limit) == 6
    for cell in limit:
        assert cell["pass"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / intervals.SEEDS)
        assert cell["fail"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / intervals.SEEDS)
    above = [cell for cell in FOUND["verdicts"].values() if cell["ratio"] > cell["limit"] + 0.01]
    assert above
    assert all(cell["pass"] <= 0.01 and cell["fail"] > 0.2 for cell in above)


def test_verdicts_counted_again_with_a_planted_error_are_others() -> None:
    tables, sizes = intervals.differences()["yarn x2"], intervals.REAL["16 of 2"]
    usable = math.log(1.1)
    again = intervals.judgements(tables, sizes, usable, 300, "again")
    assert (again["fail"], again["pass"] > 0.97) == (0, True)
    shifted = {length: table + usable - tables["256"].mean() for length, table in tables.items()}
    assert intervals.judgements(shifted, sizes, usable, 300, "again")["pass"] < 0.1
    hardly = 0.45  # bounds that are hardly above the mean
    assert intervals.judgements(shifted, sizes, usable, 300, "again", hardly)["pass"] > 0.3


def test_runs_text_by_text_are_seldom_wrong() -> None:
    cells = FOUND["looks"]
    assert len(cells) == 24
    at_limit = [cell for name, cell in cells.items() if name.endswith(f", {bounds.KEPT:g}")]
    assert all(cell[bounds.KEEP] <= 0.06 for cell in at_limit)
    honest = [cell for name, cell in cells.items() if float(name.rpartition(", ")[2]) <= 1.3]
    assert all(cell[bounds.BROKEN] <= 0.02 for cell in honest)
    lost = [cell for name, cell in cells.items() if name.endswith(", 2")]
    assert all(cell[bounds.BROKEN] >= 0.95 and not cell[bounds.KEEP] for cell in lost)


def test_runs_text_by_text_counted_again() -> None:
    table = intervals.differences()["yarn x8"]["2048"]
    again = intervals.looked(table, 1.1, AGAIN, "again")
    for end in (bounds.KEEP, bounds.WORKS, bounds.COSTS):
        assert near(again[end], FOUND["looks"]["yarn x8 at 2048, 1.1"][end], AGAIN), end


def test_a_document_of_the_catalogue_measured_again(tmp_path: Path) -> None:
    losses = script("catalogue/catalogue_losses.py")
    known = json.loads(losses.RESULT.read_text(encoding="utf-8"))
    manifest = json.loads(losses.MANIFEST.read_text(encoding="utf-8"))
    entry = known["documents"][100]
    file = CACHE / "texts" / manifest["sha256"][:16] / f"{entry['name']}.txt.xz"
    if not file.is_file():
        pytest.skip(f"{file} is not there; scripts/catalogue/text_catalogue.py fetches the catalogue")
    made = ropetool.apply(
        ropetool.plan(losses.MODEL, **losses.EXTENSIONS["yarn x2"]), losses.MODEL, tmp_path / "x2"
    ).output
    runner = TorchRunner(made, device="cpu", dtype="float32")
    rows = losses.rows_of(runner, entry["name"], lzma.decompress(file.read_bytes()).decode("utf-8"))
    found = losses.losses(runner, rows, 512)
    assert found.keys() == entry["losses"]["yarn x2"].keys()
    for length, means in found.items():
        assert means == pytest.approx(entry["losses"]["yarn x2"][length], abs=2e-3)
    assert found["512"] != pytest.approx(entry["losses"][""]["256"], abs=2e-3)
