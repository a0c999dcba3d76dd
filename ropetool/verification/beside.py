"""Yardsticks measured beside a target: the same measurements of the same tokens, and the target held against each.

They inform and gate nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropetool.verification import measures
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.results import VerifyResult, YardstickResult
from ropetool.verification.scoring import Measurement, Runner
from ropetool.verification.statistics import paired_difference

OPTION = "--compare-with"


@dataclass(frozen=True)
class Beside:
    """The yardsticks of a run. on: the checkpoint that they are put on. make: their runners beside its own, by name.

    served: what else runs each of them, by name.
    """

    on: str
    served: Mapping[str, str]
    make: Callable[[Runner], Mapping[str, Runner]]


def kept_as(name: str, trained: int) -> str:
    """Return the journal name of a variant's rows. It includes the trained length, because some variants depend on it."""
    return f"yardstick {name} {trained}"


def told_by(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements that yardsticks are asked for."""
    left_out = {measure.measured_as for measure in measures.every() if not measure.of_variants}
    return [measurement for measurement in measurements if measurement.name not in left_out]


def yardstick_result(
    name: str,
    beside: Beside,
    found: VerifyResult,
    measurements: Sequence[Measurement],
    target: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> YardstickResult:
    """Return what a yardstick gave, and the target's losses minus its own on the same tokens.

    found: its own measurements, as they would be a target's. target, raw: what was measured of the target and of it, by name.
    """
    segments = next((m for m in measurements if isinstance(m, LastSegment)), None)
    differences = (
        ()
        if segments is None
        else tuple(
            paired_difference(
                target[segments.name][length], raw[segments.name][length],
                [segment.document for segment in segments.chosen[length]],
            )
            for length in segments.asked
        )
    )  # fmt: skip
    of_variants = {measure.key for measure in measures.every() if measure.of_variants}
    own = {key: value for key, value in found.measures.items() if key in of_variants}
    return YardstickResult(name, beside.on, beside.served[name], found.lengths, differences, own)
