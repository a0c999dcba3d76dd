"""Measures that predict use, as text."""

from __future__ import annotations

from dataclasses import replace

from ropetool.lab.lm_eval import EXACT, HarnessResult, HarnessScore, lm_eval_section
from ropetool.lab.measures.effective_length import (
    EffectiveLengthResult,
    EffectiveLengthStep,
    EffectiveLengthTask,
    effective_length_section,
)
from ropetool.lab.measures.many_shot import ManyShotLength, ManyShotResult, many_shot_section
from ropetool.report.terminal import terminal_text
from ropetool.sections import Section
from ropetool.verification.measures.cached_generation import CacheLength, CacheResult, cache_section
from ropetool.verification.results import BETTER, NO_WORSE, UNDECIDED, Estimate

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
    note="left out, because room or words of one token are missing: variables",
)


def test_the_effective_length_stands_in_the_title_with_its_interval() -> None:
    text = explained(effective_length_section(FOUND, 256))
    assert "Effective length: 512 tokens (bounds: 256 to 512 or more)" in text
    assert "0.84..1.04" in text
    assert "undecided" in text
    assert "left out, because room" in text


def test_what_is_not_judged_shows_no_number() -> None:
    weak = replace(
        FOUND, steps=(), longest=None, surely=None, possibly=None, note="the score within 256 tokens is 0.02"
    )
    text = explained(effective_length_section(weak, 256))
    assert "Effective length: not judged" in text
    assert "ratio   score /" in text  # the legend
    assert "1.15" not in text
    assert "0.02" in text


def test_a_length_that_does_not_reach_the_first_one_is_said_so() -> None:
    none = replace(FOUND, longest=0, surely=0, possibly=256)
    assert "less than 256 tokens (bounds: less than 256 to 256)" in explained(effective_length_section(none, 256))


def explained(section: Section) -> str:
    """Return a section with its legend."""
    return terminal_text([section], 80, explained=True)


def test_many_shot_learning_stands_by_length_beside_what_can_be_known() -> None:
    loss, gain = (Estimate(mean, mean - 0.5, mean + 0.5, 0.25, 80, 80, 80.0, 79.0) for mean in (1.5, 0.8))
    lengths = (
        ManyShotLength(256, 15, 0.4, 38, loss, None, ""),
        ManyShotLength(512, 31, 0.69, 51, loss, gain, BETTER),
    )
    text = explained(many_shot_section(ManyShotResult(80, loss, lengths, ""), 256))
    assert "51/80  1.500 (1.000 to 2.000)  +0.800 ± 0.500   better" in text
    assert "38/80" in text
    unsaid = explained(many_shot_section(ManyShotResult(0, None, (), "no words"), 256))
    assert "no words" in unsaid


def test_generation_stands_by_its_positions_and_says_where_tables_move() -> None:
    found = CacheResult((CacheLength(72, 56, 32, True, 0.05, 0.1, 0.75),), "float32", True)
    text = explained(cache_section(found))
    assert "56-71" in text
    assert "crosses the trained length" in text
    assert "the table depends on the text length" in text
    still = explained(cache_section(CacheResult(found.lengths, "float32", False)))
    assert "the table depends" not in still


def test_tasks_of_others_stand_with_filter_and_bounds() -> None:
    score = HarnessScore("gsm8k", "exact_match", "strict-match", 400, 0.6, 0.59, -0.01, -0.04, 0.02, EXACT, NO_WORSE)
    text = explained(lm_eval_section(HarnessResult((score,), "no scores: perplexity")))
    assert "exact_match, strict-match" in text
    assert "-0.040..+0.020" in text
    assert "no scores: perplexity" in text
