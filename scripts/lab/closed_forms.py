"""The table of closed forms for docs/measurements.md, from the record of scripts/lab/measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from lab_records import known

from ropetool.sections import half_width
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import chance_of_less, chance_of_more, clustered, rejected

PLANS = ("ramp", "gains", "halved", "both", "tune")
MODELS = {"demo": "demo", "second": "second", "smollm2": "SmolLM2 135M"}
Cell = tuple[str, str, str]  # subject, length and plan


def differences(record: Mapping[str, Any]) -> dict[Cell, Estimate]:
    """Return each plan's loss minus that of default YaRN on the same tokens, with intervals over the texts. Units: nats."""
    every = {}
    for subject, plans in record.items():
        for length, default in plans["yarn"].items():
            for plan in PLANS:
                if plans.get(plan):
                    values = np.subtract(plans[plan][length]["loss"], default["loss"])
                    every[subject, length, plan] = clustered(values, range(len(values)))
    return every


def significant(estimates: Mapping[Cell, Estimate]) -> set[Cell]:
    """Return the cells that differ from 0, with an error of 5 % over all of them by Holm's rule."""
    chances = [2 * min(chance_of_less(each, 0), chance_of_more(each, 0)) for each in estimates.values()]
    return {cell for cell, sure in zip(estimates, rejected(chances), strict=True) if sure}


def section() -> str:
    """Return the table: two lines for each model and factor of which the default is measured, the cost on short texts first."""
    head = ("model", "tokens", "ramp ends at", "default", *PLANS)
    lines = [f"| {' | '.join(head)} |", f"| --- {'| --: ' * (len(head) - 1)}|"]
    record = {name: plans for name, plans in known("measured").items() if "yarn" in plans}
    return "\n".join([*lines, *_lines(record)]) + "\n"


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    estimates = differences(record)
    sure = significant(estimates)
    for subject, plans in sorted(record.items(), key=lambda item: (list(MODELS).index(item[0].split("-")[0]), item[0])):
        model, _, factor = subject.partition("-")
        for length, default in plans["yarn"].items():
            cells = [f"{MODELS[model]} {factor}", f"{int(length):,}", f"{plans['beta_fast']:.3g}"]
            cells += [f"{np.mean(default['loss']):.3f}"]
            for plan in PLANS:
                cell = (subject, length, plan)
                cells.append(_shown(estimates[cell], cell in sure) if cell in estimates else "")
            yield f"| {' | '.join(cells)} |"


def _shown(estimate: Estimate, sure: bool) -> str:
    mark = "**" if sure else ""
    return f"{mark}{estimate.mean:+.4f} ± {half_width(estimate):.4f}{mark}"
