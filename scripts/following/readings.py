#!/usr/bin/env python3
"""Ask two releases of transformers which tables they compute from the same configs, and print where they differ.

    scripts/following/readings.py 5.12.1 5.23.0              every family, style and scaling
    scripts/following/readings.py 5.12.1 5.23.0 olmo3 phi3   these families

Each release is installed once, below the cache. A config is asked at several lengths, without loading weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "scripts", "tests", "tests/oracle")]

import configs
import peers

from following import registry

PROBE = ROOT / "tests" / "oracle" / "rotary_probe.py"
LENGTHS = (256, 512, 513, 2048)
SCALINGS = (
    "default",
    "linear",
    "dynamic",
    "llama3",
    "yarn",
    "yarn-attention-1",
    "yarn-mscales",
    "yarn-mscale-ratio",
    "longrope",
)
TOLERANCE = 1e-5  # relative: the tables are float32
Answer = Mapping[str, Any]


def cases(families: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs with their names: family, style and scaling."""
    for family in families:
        for scaling in SCALINGS:
            keys = peers.CELLS[scaling]
            older = configs.config(family, "v4")
            yield f"{family}, rope_scaling, {scaling}", {**older, "rope_scaling": keys}
            newer = configs.config(family, "v5")
            nested = "nested " if "full_attention" in newer["rope_parameters"] else ""
            yield f"{family}, {nested}rope_parameters, {scaling}", scaled(newer, keys or {})


def scaled(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with more rope keys in rope_parameters: in those of the full layers, if they are nested."""
    parameters = config["rope_parameters"]
    if "full_attention" in parameters:
        keys = {"full_attention": {**parameters["full_attention"], **keys}}
    return {**config, "rope_parameters": {**parameters, **keys}}


def answers(release: str, named: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    """Return what a release computes from each config."""
    with tempfile.TemporaryDirectory() as scratch:
        jobs = []
        for number, config in enumerate(named.values()):
            folder = Path(scratch, str(number))
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
            jobs.append({"path": str(folder), "lengths": LENGTHS})
        environment = {
            **os.environ,
            "PYTHONPATH": str(registry.installed("transformers", release)),
            "HF_HUB_OFFLINE": "1",
        }
        done = subprocess.run(
            [sys.executable, str(PROBE)], input=json.dumps(jobs) + "\n", capture_output=True, text=True, env=environment,
            check=True,
        )  # fmt: skip
    return dict(zip(named, json.loads(done.stdout), strict=True))


def difference(before: Answer, after: Answer) -> str:
    """Return how two answers differ, empty if they agree."""
    if "error" in before and "error" in after:
        return ""
    if "error" in before or "error" in after:
        return " became ".join(
            f"stops with {one['error'].splitlines()[0][:120]}" if "error" in one else "computes a table"
            for one in (before, after)
        )
    if before["layers"].keys() != after["layers"].keys():
        return f"tables for {', '.join(before['layers'])} became tables for {', '.join(after['layers'])}"
    changed = [
        f"{layer_type} at {length} tokens: {_change(one, other)}"
        for layer_type in before["layers"]
        for length, one, other in zip(LENGTHS, before["layers"][layer_type], after["layers"][layer_type], strict=True)
        if _change(one, other)
    ]
    if not math.isclose(before["softmax"], after["softmax"], rel_tol=TOLERANCE):
        changed.append(f"the score times {before['softmax']:.6g} became {after['softmax']:.6g}")
    return changed[0] if changed else ""


def _change(one: Answer, other: Answer) -> str:
    ours, theirs = one["inv_freq"], other["inv_freq"]
    if len(ours) != len(theirs):
        return f"{len(ours)} pairs became {len(theirs)}"
    count = sum(not math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(ours, theirs, strict=True))
    if count:
        return f"{count} of {len(ours)} frequencies changed"
    if not math.isclose(one["attention_factor"], other["attention_factor"], rel_tol=TOLERANCE):
        return f"the attention factor {one['attention_factor']:.6g} became {other['attention_factor']:.6g}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a release of transformers")
    parser.add_argument("after", help="a later one")
    parser.add_argument("families", nargs="*", help="model types; none: those of the tests")
    options = parser.parse_args()
    named = dict(cases(options.families or sorted({**configs.FAMILIES, **configs.MORE_FAMILIES})))
    before, after = (answers(release, named) for release in (options.before, options.after))
    lines = [f"  {name}: {words}" for name in named if (words := difference(before[name], after[name]))]
    print(f"Readings, transformers {options.before} to {options.after}: {len(lines)} of {len(named)} configs differ")
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
