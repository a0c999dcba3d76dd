"""The named arguments of `verify`, which mypy checks, are the fields of its options."""

from __future__ import annotations

from dataclasses import fields

import pytest

import ropetool
from ropetool.verification.options import MeasureArguments, VerifyArguments, VerifyOptions


def test_each_argument_is_a_field_of_the_same_type() -> None:
    arguments = {**MeasureArguments.__annotations__, **VerifyArguments.__annotations__}
    types = {name: getattr(each, "__forward_arg__", each) for name, each in arguments.items()}
    assert types == {field.name: field.type for field in fields(VerifyOptions)}


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="suites"):
        ropetool.verify("model", suites="quick")  # type: ignore[call-arg]
