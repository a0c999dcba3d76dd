"""What docs/measurements.md shows of yardsticks on the demo checkpoint, from the record of scripts/yardsticks/yardsticks_demo.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.lab.yardsticks.named import VARIANTS

RESULT = Path(__file__).resolve().parents[2] / "tests" / "verification" / "yardsticks_demo.json"


@dataclass(frozen=True)
class Run:
    """A command of `verify` on the demo checkpoint, extended by YaRN with this factor."""

    factor: int
    lengths: tuple[int, ...]
    yardsticks: tuple[str, ...]
    measures: tuple[str, ...] = ("last-segment",)
    trials: int | None = None
    segments: int = 16

    def command(self, name: str) -> str:
        """Return it as a user types it."""
        measures = "".join(f" --measure {measure}" for measure in self.measures)
        trials = "" if self.trials is None else f" --trials {self.trials}"
        lengths, yardsticks = ",".join(map(str, self.lengths)), ",".join(self.yardsticks)
        return (
            f"ropetool verify {name}{measures}{trials} --segments {self.segments} --grade research --lengths {lengths} "
            f"--compare-with {yardsticks}"
        )


RUNS = {
    "m16": Run(16, (256, 1024, 4096), ("rerope", "leaky-rerope", "rerope+log-n")),
    "m8": Run(
        8, (256, 2048),
        ("rerope", "rerope+log-n", "leaky-rerope", "self-extend", "lambda", "dynamic-yarn"),
        ("last-segment", "retrieval"), 2,
    ),
}  # fmt: skip


def known() -> dict[str, Any]:
    """Return the committed record, by the names of runs."""
    if not RESULT.exists():
        return {}
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def parts() -> dict[str, str]:
    """Return the table of variants, and each command with what it printed, by the page's markers."""
    return {
        "yardstick-names": "\n".join(_names()) + "\n",
        **{
            f"yardsticks-{name}": f"```console\n$ {run.command(name)}\n```\n\n```text\n{known()[name]['text']}\n```\n"
            for name, run in RUNS.items()
        },
    }


def _names() -> Iterator[str]:
    yield "| name | distance, visible keys, or what else differs | default parameters | source |"
    yield "| --- | --- | --- | --- |"
    for name, variant in VARIANTS.items():
        parameters = f"({','.join(variant.parameters)})" if variant.parameters else ""
        shown = parameters.replace("group1,group2,group3,group4,group5,group6,group7,group8", "group1,...,group8")
        yield f"| `{name}{shown}` | {variant.summary} | {variant.default} | {variant.source} |"
