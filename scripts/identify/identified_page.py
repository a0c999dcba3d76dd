"""What docs/inspecting.md says of real servers that were started with options, from the record of scripts/identify/identified.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "tests" / "identify" / "identified.json"
LLAMA_SERVER, VLLM = "llama-server", "vLLM"
NONE = "none of these"


def known() -> list[dict[str, Any]]:
    """Return the committed record; empty where there is none."""
    found: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    return found


def table() -> str:
    """Return the rows of each engine, by what was served."""
    parts = []
    for engine, source in dict.fromkeys((row["engine"], row["source"]) for row in known()):
        rows = [row for row in known() if (row["engine"], row["source"]) == (engine, source)]
        parts.append(f"{rows[0]['program']}, serving {source}:\n\n" + _lines(rows))
    return "\n".join(parts)


def _lines(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| started with | type | answer | nats from the nearest | the next one, nats worse |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        options = f"`{row['options']}`" if row["options"] else "nothing"
        names = ", ".join([row["name"], *row["rivals"]])
        margin = "" if row["name"] == NONE else f"{row['margin']:g}"
        lines.append(f"| {options} | {row['kind']} | {names} | {row['divergence']:g} | {margin} |")
    return "\n".join(lines) + "\n"
