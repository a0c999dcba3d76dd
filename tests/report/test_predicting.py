"""Measures that predict use, as text."""

from __future__ import annotations

from dataclasses import replace

from ropetool.report.predicting import effective_length_section
from ropetool.report.verified import section_text
from ropetool.verification.results import (
    NO_WORSE,
    UNDECIDED,
    EffectiveLengthResult,
    EffectiveLengthStep,
    EffectiveLengthTask,
)

FOUND = EffectiveLengthResult(
    kept=0.9,
    tasks=(EffectiveLengthTask("single", 0.11, 36, {256: 38, 512: 36}),),
    trials=40,
    own=0.444,
    steps=(
        EffectiveLengthStep(256, 0.512, 1.15, 1.05, 1.27, NO_WORSE),
        EffectiveLengthStep(512, 0.416, 0.936, 0.84, 1.04, UNDECIDED),
    ),
    longest=512,
    surely=256,
    possibly=512,
    note="left out, for want of room or of words of one token: variables",
)


def test_the_effective_length_stands_in_the_title_with_its_interval() -> None:
    text = section_text(effective_length_section(FOUND, 256))
    assert "Effective length: 512 tokens (95 %: 256 to 512 or more)" in text
    assert "0.84..1.04" in text
    assert "undecided" in text
    assert "left out, for want of room" in text


def test_what_is_not_judged_shows_no_number() -> None:
    weak = replace(
        FOUND, steps=(), longest=None, surely=None, possibly=None, note="the score within 256 tokens is 0.02"
    )
    text = section_text(effective_length_section(weak, 256))
    assert "Effective length: not judged" in text
    assert "ratio   to" in text  # the legend
    assert "1.15" not in text
    assert "0.02" in text


def test_a_length_that_does_not_reach_the_first_one_is_said_so() -> None:
    none = replace(FOUND, longest=0, surely=0, possibly=256)
    assert "less than 256 tokens (95 %: less than 256 to 256)" in section_text(effective_length_section(none, 256))
