"""What a cell came to: whether the engine computes what our decoder says of the config that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.rope.tables import Regime, RopeSet, RopeTable
from ropetool.runtimes import NotKnown, Refuses

# Nats, or where attention is sharp a share of what one percent on the frequencies changes: the largest difference of a log
# probability that the float32 kernels of two programs leave.
TOLERANCE = 3e-4
DIGITS = 9  # of recorded tables; float32 has seven
SAME = 1e-7  # relative: what a recorded number and one of today may differ by

EXPLAINED, REFUSED, UNEXPLAINED, NOT_KNOWN, NOT_MADE = (
    "explained", "refused", "unexplained", "not known", "not made",
)  # fmt: skip


def view(config: Mapping[str, Any]) -> HfCheckpoint:
    """Return a config as decoders take it."""
    return HfCheckpoint(config, families.of_config(config))


def claim(runtime: str, config: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return what a decoder says of a config, as plain numbers: the tables at a length, or why there are none."""
    try:
        rope = runtimes.get(runtime).decode(view(config))
    except NotKnown:
        return {"not known": True}
    except Refuses:
        return {"refuses": True}
    return {"context": rope.max_position_embeddings, "layers": layers(rope, length)}


def layers(rope: RopeSet, length: int) -> dict[str, Any]:
    """Return what each kind of layer computes at a length."""
    found: dict[str, Any] = {}
    for kind, entry in rope.entries.items():
        found[kind] = {
            "layers": list(entry.layers), "layout": entry.layout, "softmax": entry.softmax_multiplier,
            "window": entry.sliding_window,
        }  # fmt: skip
        if entry.table is not None:
            regime = entry.table.at(length)
            found[kind] |= {"inv_freq": regime.inv_freq.tolist(), "attention_factor": regime.attention_factor}
    return found


def agrees(difference: float, seen: float) -> bool:
    """Return whether the engine computes what was claimed. seen: what `off` changes."""
    return difference <= TOLERANCE * max(1.0, seen)


def off(rope: RopeSet) -> RopeSet:
    """Return the RopeSet with every frequency of its full layers one percent higher: what the comparison must see."""
    kind = families.records.FULL
    entry = rope.entries[kind]
    if entry.table is None:
        return rope
    regimes = tuple(Regime(1.01 * r.inv_freq, r.attention_factor, r.up_to) for r in entry.table.regimes)
    return rope.with_entry(kind, replace(entry, table=RopeTable(regimes)))


def apart(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Return the places at which a claim of today and a recorded one differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            one
            for key in sorted(ours.keys() | theirs.keys())
            for one in apart(ours.get(key), theirs.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if all(isinstance(one, (int, float)) for one in [*ours, *theirs]):
            return [] if np.allclose(ours, theirs, rtol=SAME, atol=0) else [place]
        return [one for i, pair in enumerate(zip(ours, theirs, strict=True)) for one in apart(*pair, f"{place}[{i}]")]
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        return [] if np.isclose(ours, theirs, rtol=SAME, atol=0) else [place]
    return [] if ours == theirs else [place]
