"""The gate of an export on tiny checkpoints of 22 families: right files are kept, and what is planted is found.

CI tries each family once. ROPETOOL_ALL_FAMILIES=1 tries every cell of gate_cells.py with three seeds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("torch")

from exporting import gate_cells as cells
from exporting.gate_cells import CELLS, FAMILIES, PLAIN, YARN
from ropetool.errors import VerificationFailed
from ropetool.verification import short_divergence
from ropetool.verification.floors import MOST_OF_NOISE
from ropetool.verification.results import PASS

ALL = bool(os.environ.get("ROPETOOL_ALL_FAMILIES"))
SEEDS = (7, 8, 9) if ALL else (7,)
GRID = [
    (family, cell, seed)
    for index, family in enumerate(FAMILIES)
    for cell in (CELLS if ALL else (CELLS[index % 3],))
    for seed in SEEDS
]


@pytest.mark.parametrize(("family", "cell", "seed"), GRID)
def test_right_files_are_kept_and_planted_errors_are_found(
    family: str, cell: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = cells.write(tmp_path, family, cell, seed)
    file = cells.export(source)
    found = cells.checks(source, file)
    assert {check.verdict for check in found.values()} == {PASS}
    assert found["KL"].limit is not None
    assert found["KL"].limit <= MOST_OF_NOISE
    assert ("GELU table" in found["KL"].detail) == (family in cells.GELU)
    with pytest.raises(VerificationFailed, match=r"was deleted: (KL|weights) is"):
        cells.checks(source, cells.with_larger_queries(file, source))
    monkeypatch.setattr(short_divergence, "TorchRunner", cells.with_a_faster_pair(source))
    with pytest.raises(VerificationFailed, match="was deleted: KL is"):
        cells.checks(source, file)


@pytest.mark.parametrize(("family", "cell"), [("mixtral", PLAIN), ("qwen3_moe", YARN)])
def test_tokens_whose_experts_are_tied_are_left_out(family: str, cell: str, tmp_path: Path) -> None:
    """Sixteen tokens get two experts of equal score, between which llama.cpp and torch choose by the order of their sums."""
    source = cells.write(tmp_path, family, cell, 7)
    tied = cells.tie_experts(source, 16)
    found = cells.checks(source, cells.export(source))
    assert {check.verdict for check in found.values()} == {PASS}
    left_out = re.search(
        r"rounding selects other experts for (\d+) of \d+ tokens, which are left out", found["KL"].detail
    )
    assert left_out is not None
    assert tied <= int(left_out[1]) < 2 * tied  # others are tied by chance
    with pytest.raises(VerificationFailed, match=r"was deleted: (KL|weights) is"):
        cells.checks(source, cells.with_larger_queries(cells.export(source), source))


def test_an_error_of_routing_names_it(tmp_path: Path) -> None:
    """A router whose experts are all nearly tied: rounding decides nearly everywhere, and the message says so."""
    source = cells.write(tmp_path, "mixtral", PLAIN, 7)
    cells.tie_all(source)
    with pytest.raises(VerificationFailed, match=r"rounding selects other experts for \d+ of \d+ tokens, too many"):
        cells.checks(source, cells.export(source))
