"""The named arguments of `verify`, `compare` and `tune`, which mypy checks, are the fields of their options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import ropetool
from ropetool.choosing.options import CandidateOptions, CompareArguments, split_arguments
from ropetool.lab.tuning.options import TuneArguments, TuneOptions
from ropetool.verification.options import MeasureArguments, VerifyArguments, VerifyOptions


def types_of(*arguments: Any) -> dict[str, str]:
    """Return the types of named arguments, as text."""
    types = {name: each for of_one in arguments for name, each in of_one.__annotations__.items()}
    return {name: getattr(each, "__forward_arg__", each) for name, each in types.items()}


def fields_of(*options: Any) -> dict[str, Any]:
    """Return the types of the fields of dataclasses, as text."""
    return {field.name: field.type for of_one in options for field in fields(of_one)}


def test_each_argument_is_a_field_of_the_same_type() -> None:
    assert types_of(MeasureArguments, VerifyArguments) == fields_of(VerifyOptions)
    assert types_of(TuneArguments) == fields_of(TuneOptions)
    shared, own = fields_of(VerifyOptions), fields_of(CandidateOptions)
    assert not shared.keys() & own.keys()
    measuring = {name: shared[name] for name in types_of(MeasureArguments)}
    read = {"target_lengths": "Sequence[int | str]"}  # which the options turn into numbers
    assert types_of(MeasureArguments, CompareArguments) == {**measuring, **own, **read}


def test_the_arguments_of_compare_are_split() -> None:
    candidates, measuring = split_arguments(
        {"methods": ["yarn"], "baseline_beyond": True, "seed": 3, "compare_with": ""}
    )
    assert candidates == CandidateOptions(methods=["yarn"], baseline_beyond=True)
    assert measuring == VerifyOptions(seed=3, compare_with="")


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="suites"):
        ropetool.verify("model", suites="quick")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="generation"):
        ropetool.tune("model", 512, generation=1)  # type: ignore[call-arg]
    for name in ("suites", "baseline", "certificate_file"):  # the last two are only for `verify`
        with pytest.raises(TypeError, match=name):
            ropetool.compare("model", **{name: "quick"})
