"""The measures, found by discovery.

A file in this folder or in `ropetool/lab/measures/` that defines `MEASURES` adds measures. The other files are shared
by measures.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from ropetool import registry
from ropetool.verification.measure import Measure

LENGTHS = "lengths"  # the key of the losses, which are a field of `VerifyResult`


@cache
def every() -> tuple[Measure, ...]:
    """Return all measures, in their order."""
    files = [
        f"{package}.{info.name}"
        for package in registry.MEASURE_PACKAGES
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
    listed = [measure for file in files for measure in getattr(importlib.import_module(file), "MEASURES", ())]
    return tuple(sorted(listed, key=lambda measure: measure.order))


def offered() -> tuple[str, ...]:
    """Return the names of the measures that a user can choose."""
    return tuple(measure.name for measure in every() if not measure.part_of)


def of(names: Collection[str]) -> list[Measure]:
    """Return the measures with these names, and the measures that are part of them."""
    return [measure for measure in every() if (measure.part_of or measure.name) in names]


def by_key() -> dict[str, Measure]:
    """Return one measure for each key of results, in the order of a report."""
    shown = sorted(every(), key=lambda measure: measure.order if measure.shown is None else measure.shown)
    first: dict[str, Measure] = {}
    for measure in shown:
        first.setdefault(measure.key, measure)
    return first


def keyed(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of all measures except the losses, by key. Without a result, the value is None or an empty tuple.

    results: the result of each measure by its name.
    """
    by_key: dict[str, Any] = {}
    for measure in every():
        result = results.get(measure.name)
        if measure.several:
            by_key[measure.key] = (*by_key.get(measure.key, ()), *([] if result is None else [result]))
        elif measure.key != LENGTHS:
            by_key[measure.key] = result
    return by_key
