"""The tables of conformance.md, from the recorded scores and the known faults of engines; scripts/docs.py writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance_kit.cases import CASES
from conformance_kit.record import known

FAULTS = Path(__file__).parent / "faults.json"
EXACT = 3
# The columns: what was recorded by this name, and what stands above it.
ENGINES = {
    "transformers float32": "transformers", "transformers-4.57 float32": "transformers", "vllm float32": "vLLM",
    "mlx-lm float32": "mlx-lm", "llama.cpp float32": "llama.cpp",
    "llama.cpp-converter float32": "llama.cpp's converter",
}  # fmt: skip
LEVELS = ("fails", "loads", "table", "exact")


def faults() -> list[dict[str, Any]]:
    """Return the causes of failing cases.

    Keys: engine, cases, the file and line at fault, code (a piece of that line), title (of a report), and does.
    """
    found: list[dict[str, Any]] = json.loads(FAULTS.read_text(encoding="utf-8"))
    return found


def tables() -> dict[str, str]:
    """Return the parts of the page by the name of their marks."""
    record = known()
    return {"scores": _scores(record), "bfloat16": _narrow(record), "faults": _faults(record), "cases": _cases(record)}


def failing(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each engine and case below level 3."""
    for engine in ENGINES:
        for name, case in record["engines"][engine]["cases"].items():
            if case["level"] is not None and case["level"] < EXACT:
                yield engine, name


def _scores(record: Mapping[str, Any]) -> str:
    engines = [record["engines"][name] for name in ENGINES]
    heads = ["case", *(f"{title} {one['release']}" for title, one in zip(ENGINES.values(), engines, strict=True))]
    rows = [[name, *(_cell(one["cases"][name]) for one in engines)] for name in CASES]
    for level, words in enumerate(("**loads**", "**reads the table**", "**exact**"), 1):
        reached = [[case["level"] for case in one["cases"].values() if case["level"] is not None] for one in engines]
        rows.append([words, *(f"{sum(one >= level for one in levels)} of {len(levels)}" for levels in reached)])
    return _table(heads, rows)


def _narrow(record: Mapping[str, Any]) -> str:
    """Return the counts of engines in bfloat16, and the cases that come out otherwise than in float32."""
    rows = []
    for name, one in record["engines"].items():
        if name in ENGINES or one["dtype"] != "bfloat16":
            continue
        wide = record["engines"][name.replace("bfloat16", "float32")]["cases"]
        other = [
            f"{case}: {_cell(found)} instead of {_cell(wide[case])}"
            for case, found in one["cases"].items()
            if _cell(found) != _cell(wide[case])
        ]
        levels = [case["level"] for case in one["cases"].values() if case["level"] is not None]
        counts = [f"{sum(level >= at for level in levels)} of {len(levels)}" for at in (1, 2, 3)]
        rows.append([f"{one['engine']} {one['release']}", *counts, "; ".join(other) or "none"])
    return _table(["engine in bfloat16", "loads", "reads the table", "exact", "other than in float32"], rows)


def _cell(case: Mapping[str, Any]) -> str:
    if case["level"] is None:
        return "n/a"
    if case["level"] == 1:
        return f"loads: {case['nearest'] or 'none of the tables'}"
    return LEVELS[case["level"]]


def _faults(record: Mapping[str, Any]) -> str:
    rows = [
        [_title(record, one["engine"]), ", ".join(one["cases"]), one["does"], f"`{one['file']}:{one['line']}`"]
        for one in faults()
    ]
    return _table(["engine", "cases", "what it does", "line"], rows)


def _title(record: Mapping[str, Any], engine: str) -> str:
    return f"{ENGINES[engine]} {record['engines'][engine]['release']}"


def _cases(record: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            case.asks,
            str(one["wrong"]),
            f"{one['nearest']}, {one['apart']}",
            f"{one['float32']:.1e}",
            str(one["bfloat16"]),
            case.gguf or case.quantised or "yes",
        ]
        for name, case, one in ((name, case, record["kit"]["measured"][name]) for name, case in CASES.items())
    ]
    heads = ["case", "asks for", "wrong tables", "the nearest, nats on average", "float32", "bfloat16", "GGUF file"]
    measured = record["kit"]["measured"]
    worst = max(one["float32"] for one in measured.values())
    name = min(measured, key=lambda name: measured[name]["apart"])
    said = (
        f"transformers itself is off by at most {worst:.1e} nats in float32. The nearest wrong table of all is {measured[name]['apart']} "
        f"nats from the right one on average ({name}, {measured[name]['nearest']}). All {record['kit']['files']} files of the kit are "
        f"{record['kit']['bytes'] / 1e6:.1f} MB."
    )
    return f"{said}\n\n{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"
