#!/usr/bin/env python3
"""Draw the picture of README from measured figures: the demo checkpoint as it is, and extended eight times by three methods.

scripts/front/front_picture.py             draw docs/front.svg from the record
scripts/front/front_picture.py --measure   measure again first, about two minutes of two idle cores
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ropetool import charts
from ropetool.report import drawing
from ropetool.report.losses import trained_line

RECORD, PICTURE = ROOT / "tests" / "choosing" / "front.json", ROOT / "docs" / "front.svg"
COMMAND = (
    "compare", "ropetool/demo/model", "--methods", "yarn,ntk,linear", "--factors", "8", "--lengths", "256,512,1024,2048",
    "--baseline-beyond", "--measure", "last-segment", "--json",
)  # fmt: skip
LOOKS = {
    "as it is": charts.BASELINE,
    "yarn x8": charts.TARGET,
    "ntk x8": charts.Look("ink", "D", "-."),
    "linear x8": charts.Look("quiet", "^", ":"),
}


def measured() -> dict[str, Any]:
    """Return the mean loss of each by length, in nats a token, as the command measures them."""
    done = subprocess.run(
        [sys.executable, "-m", "ropetool", *COMMAND], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    found = json.loads(done.stdout)
    losses = {"as it is": {entry["length"]: entry["loss"]["mean"] for entry in found["baseline"]}}
    for candidate in found["candidates"]:
        losses[candidate["name"]] = {entry["length"]: entry["target"]["mean"] for entry in candidate["lengths"]}
    return {
        "command": " ".join(["ropetool", *COMMAND]), "trained_length": found["trained_length"], "documents": len(found["documents"]),
        "scored": found["scored"], "losses": {name: list(each.items()) for name, each in losses.items()},
    }  # fmt: skip


def drawn(record: dict[str, Any]) -> bytes:
    """Return the picture, which is dark on a dark page."""
    marks = []
    for name, look in LOOKS.items():
        places, losses = zip(*record["losses"][name], strict=True)
        marks.append(charts.Series(name, look, places, losses))
    lengths = charts.Axis(
        "context that is read", charts.TOKENS, tokens=tuple(length for length, _ in record["losses"]["as it is"])
    )
    panel = charts.Panel(
        lengths, charts.Axis("loss (nats a token)", charts.LOSSES), (*marks, trained_line(record["trained_length"]))
    )
    return drawing.images(charts.Chart("front", "", "", "", (panel,), 3.2), "svg")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        RECORD.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    PICTURE.write_bytes(drawn(json.loads(RECORD.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
