"""The cost of a checkpoint: as parts for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropetool.costs.lines import BYTES, FLOPS, NUMBERS, Cost, CostLine
from ropetool.files.counting import byte_size
from ropetool.sections import Part, listing

_POWERS = {
    FLOPS: (1000, ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")),
}


def cost_parts(cost: Cost) -> Iterator[Part]:
    """Yield what `ropetool inspect --cost` prints below the inspection."""
    rows = [(line.name, _figure(line), line.how) for line in cost.lines]
    yield listing(f"cost of one sequence of {cost.length} tokens", rows)


def _figure(line: CostLine) -> str:
    if line.value is None:
        return "not known:"
    if line.unit == NUMBERS:
        return f"{line.value:,}"
    if line.unit == BYTES:
        return byte_size(line.value)
    base, units = _POWERS.get(line.unit, (1000, ()))
    power = next((p for p in range(len(units), 0, -1) if line.value >= base**p), 0)
    return f"{line.value / base**power:.2f} {units[power - 1]}" if power else f"{line.value:,} {line.unit}"


def cost_json(cost: Cost) -> dict[str, Any]:
    """Return the cost as `inspect --cost --json` prints it; a value of null is not known, for the reason in `how`."""
    return {"length": cost.length, "lines": [vars(line) for line in cost.lines]}
