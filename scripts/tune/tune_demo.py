#!/usr/bin/env python3
"""Run whole searches of `tune` on the demo checkpoint, and write what they found to tests/choosing/tune_demo.json.

A search is a target, a space and a number of generations, by one seed: no clock decides anything, so that it is the same again. Of
it are kept the judgement and what the command prints, from which scripts/docs.py makes the table and the example of docs/choosing.md. A
row that is there is not run again; one that was interrupted goes on. Some three minutes of one core for 12 points.

    scripts/tune/tune_demo.py                          run what is missing
    scripts/tune/tune_demo.py --only '1024 pairs'      that one, again if it is there
    scripts/tune/tune_demo.py --list                   every row, and which are missing
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tune_demo_page import PLAN, RESULT, ROWS, known, named

from ropetool import machine
from ropetool.lab.tuning.report import tune_json, tune_parts
from ropetool.lab.tuning.tuning import tune
from ropetool.report.terminal import terminal_text

SEED = 0
CACHE = machine.cache() / "tune-demo"


def measured(length: int, space: str, generations: int) -> dict[str, Any]:
    """Return what one search found: the result as `--json` has it, and as text."""
    begun = time.process_time()
    # A cache of its own for each row: each is the first judgement on its documents.
    os.environ["ROPETOOL_CACHE"] = str(CACHE / named(length, space))
    found = tune(
        ROOT / "ropetool/demo/model", length, space=space, generations=generations, seed=SEED, device="cpu", resume=True
    )
    plan = PLAN.format(length=length, space=space)
    data = tune_json(found, Path(plan))
    kept = ("target_length", "space", "seed", "points", "generations", "searched", "unseen", "winner", "recommended")
    minutes = round((time.process_time() - begun) / 60, 1)
    return {name: data[name] for name in kept} | {
        "minutes": minutes, "judgement": data["judgement"], "text": terminal_text(tune_parts(found, "model", Path(plan))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=[named(*row[:2]) for row in ROWS])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for row in ROWS:
        name = named(*row[:2])
        if options.list:
            sys.stdout.write(f"{name}{'' if name in known() else ', not run'}\n")
            continue
        if name not in options.only if options.only else name in known():
            continue
        entry = measured(*row)
        rows = known() | {name: entry}
        ordered = {
            known_name: rows[known_name] for known_name in (named(*each[:2]) for each in ROWS) if known_name in rows
        }
        text = json.dumps(ordered, indent=1) + "\n"
        RESULT.with_suffix(".part").write_text(text, encoding="utf-8")
        RESULT.with_suffix(".part").replace(RESULT)
        sys.stdout.write(f"{name}, {entry['minutes']} minutes of the processor\n{entry['text']}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
