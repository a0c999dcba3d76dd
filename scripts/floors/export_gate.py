#!/usr/bin/env python3
"""Measure the gate of an export on tiny checkpoints: right files, and files with planted errors, a row a family.

docs/export.md summarises the result. Each figure is the worst of all cells and seeds: the largest KL of right files as
a part of its limit, the smallest KL of planted errors. One seed takes ten minutes of an idle core.

    scripts/floors/export_gate.py --seeds 7,8,9 [FAMILY...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "")]

from exporting import gate_cells as cells

from ropetool.verification import short_divergence


def row(family: str, seeds: list[int]) -> str:
    """Return the row of a family."""
    right: list[tuple[float, float]] = []
    queries, pairs, written = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for cell in cells.CELLS:
                source = cells.write(Path(folder), family, cell, seed)
                file = cells.export(source)
                kl, limit, kept = cells.judged(source, file)
                right.append((kl, limit))
                written += kept
                queries.append(cells.kl(source, cells.with_larger_queries(file, source)))
                with mock.patch.object(short_divergence, "TorchRunner", cells.with_a_faster_pair(source)):
                    pairs.append(cells.kl(source, file))
                print(seed, family, cell, kl, limit, kept, queries[-1], pairs[-1], file=sys.stderr, flush=True)
    kl, limit = max(right, key=lambda pair: pair[0] / pair[1])
    return f"| {family} | {written} of {len(right)} | {kl:.1e} | {limit:.1e} | {min(queries):.1e} | {min(pairs):.1e} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--seeds", default="7", help="of the weights, with commas; default: 7")
    options = parser.parse_args()
    print("| family | kept | KL of a right file | limit | queries 1 % larger | a pair 1 % faster |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.families or cells.FAMILIES:
        print(row(name, [int(seed) for seed in options.seeds.split(",")]), flush=True)
