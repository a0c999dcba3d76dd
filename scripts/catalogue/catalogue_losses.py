#!/usr/bin/env python3
"""Measure the demo checkpoint and some extensions on every document of the catalogue, for what intervals are worth on real text.

Writes tests/verification/catalogue_losses.json: the mean loss of 64 tokens at each of four places of each document and at
each length. intervals.py draws documents from it. It needs the texts that text_catalogue.py builds, and takes ten minutes of one
core.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [*(str(ROOT / name) for name in ("tests", "tests/verification")), str(ROOT)]


import ropetool
from ropetool import machine
from ropetool.verification.catalogue import MANIFEST
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import ignore

RESULT = ROOT / "tests" / "verification" / "catalogue_losses.json"
MODEL = ROOT / "ropetool" / "demo" / "model"
TRAINED, SCORED, PLACES = 256, 64, 4
EXTENSIONS: dict[str, dict[str, Any]] = {
    "yarn x2": {"method": "yarn", "factor": 2, "params": {"beta_fast": 8.0}},
    "yarn x8": {"method": "yarn", "factor": 8},
}


def rows_of(runner: TorchRunner, name: str, text: str) -> list[list[int]]:
    """Return the rows of the longest length that end at the places of a document; shorter ones are their ends."""
    ids = runner.tokenize(text)
    longest = TRAINED * max(how["factor"] for how in EXTENSIONS.values())
    ends = range(len(ids) - random.Random(name).randrange(SCORED), longest, -SCORED)
    return [ids[end - longest : end] for end in random.Random(f"{name} places").sample(ends, PLACES)]


def losses(runner: TorchRunner, rows: list[list[int]], longest: int) -> dict[str, list[float]]:
    """Return the mean loss in nats of each row's scored tokens at each length."""
    prefix = list(runner.prefix)
    found = {}
    for length in sorted({TRAINED, longest}):
        cut = [[*prefix, *row[len(row) - length + len(prefix) :]] for row in rows]
        found[str(length)] = [round(float(mean), 4) for mean in runner.score(cut, SCORED, ignore).losses.mean(axis=1)]
    return found


def measured(folder: Path) -> dict[str, Any]:
    """Return all that the file holds."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    texts = machine.cache() / "texts" / manifest["sha256"][:16]
    runners = {"": (TorchRunner(MODEL, device="cpu", dtype="float32"), TRAINED)}
    for number, (name, how) in enumerate(EXTENSIONS.items()):
        made = ropetool.apply(ropetool.plan(MODEL, **how), MODEL, folder / str(number)).output
        runners[name] = (TorchRunner(made, device="cpu", dtype="float32"), TRAINED * how["factor"])
    documents = []
    for row in manifest["documents"]:
        text = lzma.decompress((texts / f"{row['name']}.txt.xz").read_bytes()).decode("utf-8")
        rows = rows_of(runners[""][0], row["name"], text)
        found = {name: losses(runner, rows, longest) for name, (runner, longest) in runners.items()}
        documents.append({"name": row["name"], "kind": row["kind"], "losses": found})
        print(row["name"], flush=True)
    return {"trained": TRAINED, "scored": SCORED, "documents": documents}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ropetool-losses-") as made:
        found = measured(Path(made))
    lines = ",\n".join(json.dumps(document) for document in found.pop("documents"))
    RESULT.write_text(f'{json.dumps(found)[:-1]}, "documents": [\n{lines}\n]}}\n', encoding="utf-8")
