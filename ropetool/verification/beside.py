"""Reference attention variants: the same measurements on the same tokens, and the target compared with each variant.

They do not affect the verdict.
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
    """The reference attention variants of a run.

    on: the name of the checkpoint that they are applied to.
    served: a sentence for each variant about the program that runs it, by name.
    make: returns the runner of each variant by name, from the runner of the checkpoint.
    """

    on: str
    served: Mapping[str, str]
    make: Callable[[Runner], Mapping[str, Runner]]


def kept_as(name: str, trained: int) -> str:
    """Return the journal name of a variant's rows. It includes the trained length, because some variants depend on it."""
    return f"yardstick {name} {trained}"


def for_variants(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements that also run on reference attention variants."""
    left_out = {measure.measured_as for measure in measures.every() if not measure.of_variants}
    return [measurement for measurement in measurements if measurement.name not in left_out]


def yardstick_result(
    name: str,
    beside: Beside,
    own: VerifyResult,
    measurements: Sequence[Measurement],
    target: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> YardstickResult:
    """Return the result of a variant, with the target's losses minus the variant's losses on the same tokens.

    own: the variant's figures, in the form of a target's result.
    target, raw: the raw figures of the target and of the variant, by measurement.
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
    measured = {key: value for key, value in own.measures.items() if key in of_variants}
    return YardstickResult(name, beside.on, beside.served[name], own.lengths, differences, measured)
