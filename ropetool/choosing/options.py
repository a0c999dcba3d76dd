"""The options of a comparison: its candidates. How they are measured is in `VerifyOptions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ropetool.escaping import read_length
from ropetool.verification.options import MeasureArguments, VerifyOptions


class CompareArguments(MeasureArguments, total=False):
    """The arguments of `compare`; `CandidateOptions` and `VerifyOptions` explain them."""

    methods: Sequence[str]
    factors: Sequence[float]
    target_lengths: Sequence[int | str]
    plans: Sequence[str | Path]
    reading: str | None
    original_length: int | None
    for_runtimes: Sequence[str]
    baseline_beyond: bool


@dataclass(frozen=True)
class CandidateOptions:
    """The candidates of a comparison, and the reach of their baseline.

    methods: names of methods; each is planned at each factor and at each target length.
    factors: multiples of the trained length, above 1.
    target_lengths: context lengths in tokens beyond the trained length, as numbers or as texts like "32k".
    plans: files with saved plans; each is one more candidate.
    reading: `original` or `current`, the interpretation of a source that already has a scaling; None for other sources.
    original_length: trained length in tokens. None uses the length in the file.
    for_runtimes: the runtimes that must read the output of a method. Empty means transformers.
    baseline_beyond: also score the source beyond its trained length.
    """

    methods: Sequence[str] = ()
    factors: Sequence[float] = ()
    target_lengths: Sequence[int] = ()
    plans: Sequence[str | Path] = ()
    reading: str | None = None
    original_length: int | None = None
    for_runtimes: Sequence[str] = ()
    baseline_beyond: bool = False

    def __post_init__(self) -> None:
        lengths = tuple(read_length(length, "target_lengths") for length in self.target_lengths)
        object.__setattr__(self, "target_lengths", lengths)


def split_arguments(arguments: CompareArguments) -> tuple[CandidateOptions, VerifyOptions]:
    """Sort the arguments of `compare` into the options of its candidates and the options of its measures.

    Raises: TypeError for an argument that `compare` does not have; ConfigError as `VerifyOptions`.
    """
    for name in arguments.keys() - CompareArguments.__optional_keys__:  # `VerifyOptions` has more fields
        raise TypeError(f"compare() got an unexpected keyword argument {name!r}")
    measuring = dict[str, Any](arguments)
    own = [field.name for field in fields(CandidateOptions) if field.name in measuring]
    candidates = {name: measuring.pop(name) for name in own}
    return CandidateOptions(**candidates), VerifyOptions(**measuring)
