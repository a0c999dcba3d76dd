"""How often the interval of a paired difference covers the truth, on real losses of two models.

The truth is the difference over all pieces of text; an interval is made from a random few of them. The losses stand in
demo_losses.json (test_effects.py).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recorded import RecordedRunner
from transformers import AutoTokenizer

import ropetool
from ropetool.verification.statistics import clustered, paired_difference
from ropetool.verification.texts import embedded_documents

MODEL = Path(ropetool.__file__).parent / "demo" / "model"
LENGTH, SCORED = 512, 128  # twice the trained length
PER_DOCUMENT = 9
# What is drawn has to be what is clustered by. Pieces of one book are alike, so books cut into pieces are no sample of
# books; but pieces drawn one by one from all of them are a sample of pieces, whatever book they are from.
# Drawn without putting back, a share f of the whole makes intervals wider than need be by 1 / sqrt(1 - f): at 12 of 135
# that is 5 %, and a right 95 % interval covers in 96 %. Larger shares would have to be corrected for.
DRAWN, DRAWS = 12, 200


def losses(folder: Path, rows: list[list[int]]) -> np.ndarray:
    return RecordedRunner(folder).score(rows, SCORED).losses


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
    """The losses of the demo checkpoint and of its yarn copy. Shapes: (pieces, SCORED)."""
    extended = tmp_path_factory.mktemp("coverage") / "yarn"
    ropetool.apply(ropetool.plan(MODEL, "yarn", factor=8), MODEL, extended)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rows = []
    for document in embedded_documents():
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        step = LENGTH - 1
        rows += [[tokenizer.bos_token_id, *ids[start : start + step]] for start in range(0, PER_DOCUMENT * step, step)]
    assert {len(row) for row in rows} == {LENGTH}
    return losses(MODEL, rows), losses(extended, rows)


def draws(pieces: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.choice(pieces, DRAWN, replace=False) for _ in range(DRAWS)]


def test_the_interval_covers_the_full_difference_as_often_as_it_says(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    baseline, target = pairs
    truth = float((target - baseline).mean())
    found = [paired_difference(target[drawn], baseline[drawn], range(DRAWN)) for drawn in draws(len(target))]
    assert len(target) >= 10 * DRAWN
    assert 0.90 <= np.mean([e.low <= truth <= e.high for e in found]) <= 0.98
    assert all(e.low < 0 and e.high < 0 for e in found[:20])  # wide enough is easy; they also tell the models apart


def test_an_interval_counted_over_tokens_does_not(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    baseline, target = pairs
    difference = target - baseline
    found = [clustered(difference[drawn].ravel(), range(DRAWN * SCORED)) for drawn in draws(len(target))]
    covered = np.mean([e.low <= difference.mean() <= e.high for e in found])
    assert covered < 0.85  # of 0.95 stated
