#!/usr/bin/env python3
"""Measure yardsticks beside extensions of the demo checkpoint, and write tests/verification/yardsticks_demo.json.

Two commands of `verify`, each in the record with the sections that it prints of yardsticks and with their figures, from which
scripts/docs.py makes docs/measurements.md; its sentences are held to them by a test. Due when losses of torch's runner or the
blocks of yardsticks change; some six minutes of one core.

    scripts/yardsticks/yardsticks_demo.py                  both
    scripts/yardsticks/yardsticks_demo.py --only m8        one of them
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from yardsticks_page import RESULT, RUNS, known

import ropetool
from ropetool.report.reference_attention import reference_attention_sections
from ropetool.report.terminal import terminal_text
from ropetool.verification.gate import Limits
from ropetool.verification.results import VerifyResult


def measured(name: str) -> dict[str, Any]:
    """Return what one command prints of yardsticks, and the figures of that."""
    run = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        extended = Path(folder) / name
        ropetool.apply(
            ropetool.plan(ROOT / "ropetool/demo/model", "yarn", factor=run.factor),
            ROOT / "ropetool/demo/model",
            extended,
        )
        found = ropetool.verify(
            extended, measures=run.measures, trials=run.trials, segments=run.segments, limits=Limits(grade="research"), lengths=run.lengths,
            compare_with=",".join(run.yardsticks), device="cpu", budget=math.inf,
        )  # fmt: skip
    shown = terminal_text(replace(section, legend=()) for section in reference_attention_sections(found))
    return {"rows": figures(found), "text": shown.strip("\n")}


def figures(found: VerifyResult) -> dict[str, Any]:
    """Return by name and length the ratio, the regression, and by how much the target is worse, each with half its interval."""
    rows: dict[str, Any] = {}
    every = [("target", found.lengths, None), *((one.name, one.lengths, one.differences) for one in found.yardsticks)]
    for name, lengths, differences in every:
        rows[name] = {}
        for index, entry in enumerate(lengths):
            row = rows[name][str(entry.length)] = {"ratio": entry.ratio}
            for key, estimate in ("regression", entry.tax), ("target_minus_this", differences and differences[index]):
                if estimate is not None:
                    row[key] = [estimate.mean, (estimate.high - estimate.low) / 2]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS)
    for name in parser.parse_args().only or RUNS:
        record = known() | {name: measured(name)}
        RESULT.write_text(
            json.dumps({run: record[run] for run in RUNS if run in record}, indent=1) + "\n", encoding="utf-8"
        )
        sys.stdout.write(f"{record[name]['text']}\n")


if __name__ == "__main__":
    main()
