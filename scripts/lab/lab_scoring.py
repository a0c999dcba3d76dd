"""Passages of texts and their scores by a runner, for scripts/lab/training_free and measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import ropetool
from ropetool import machine
from ropetool.verification.scoring import Runner
from ropetool.verification.texts import long_documents

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "ropetool" / "demo" / "model"
Rows = Mapping[int, list[list[int]]]
"""Passages by their length, those of a text after each other."""


def demo_texts() -> list[str]:
    """Return the texts that the demo was not trained on."""
    return [file.read_text(encoding="utf-8") for file in sorted((ROOT / "ropetool" / "demo" / "text").glob("*.txt"))]


def package_texts() -> list[str]:
    return [document.text for document in long_documents()]


def smollm2() -> Path:
    """Return SmolLM2 as a directory, which is made once."""
    folder = machine.cache() / "lab" / "smollm2"
    if not folder.exists():
        ropetool.import_gguf(os.environ["ROPETOOL_SMOLLM2"], folder)
    return folder


def passages(runner: Runner, texts: Sequence[str], lengths: Sequence[int], per_text: int) -> Rows:
    """Return so many passages of each text in every length, which end with the same tokens."""
    longest = max(lengths) - len(runner.prefix)
    ends = []
    for text in texts:
        ids = runner.tokenize(text[: 12 * per_text * longest])
        ends += [ids[start * longest : (start + 1) * longest] for start in range(per_text)]
    assert {len(ids) for ids in ends} == {longest}, "a text is too short"
    return {length: [[*runner.prefix, *ids[len(runner.prefix) - length :]] for ids in ends] for length in lengths}


def scores(runner: Runner, rows: Rows, scored: int, texts: int) -> dict[str, dict[str, list[float]]]:
    """Return accuracy and loss of each text at each length, of the last tokens. Units: nats."""
    by_length = {}
    for length, ids in rows.items():
        parts = [runner.score([row], scored, lambda _: None) for row in ids]
        hits, losses = (
            np.concatenate(each).reshape(texts, -1).mean(axis=1)
            for each in zip(*((p.hits, p.losses) for p in parts), strict=True)
        )
        by_length[str(length)] = {"accuracy": hits.round(5).tolist(), "loss": losses.round(5).tolist()}
    return by_length
