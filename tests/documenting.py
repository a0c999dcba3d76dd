"""The JSON examples of docs/api.md, with their abbreviations replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

API = Path(__file__).resolve().parents[1] / "docs" / "api.md"


def documented(name: str) -> Any:
    """Return the JSON example under a heading of docs/api.md."""
    text = API.read_text(encoding="utf-8")
    (block,) = _examples(text.partition(f"\n### {name}\n")[2].partition("\n### ")[0])
    interval = _examples(text.partition("\n## JSON\n")[2].partition("\n### ")[0])[-1]
    return _spelled_out(json.loads(block), {}, json.loads(interval))


def _examples(section: str) -> list[str]:
    return re.findall(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def _spelled_out(value: Any, around: dict[str, Any], interval: Any) -> Any:
    """Replace each "INTERVAL" by the documented interval, and each "AS x" by the value of the key x of the object around it."""
    if isinstance(value, dict):
        return {key: _spelled_out(inner, value, interval) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spelled_out(inner, around, interval) for inner in value]
    if isinstance(value, str) and value.startswith("AS "):
        return _spelled_out(around[value.removeprefix("AS ")], around, interval)
    return interval if value == "INTERVAL" else value
