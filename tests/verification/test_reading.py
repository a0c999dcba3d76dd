"""Whether the longer context is read: checks on made-up pairs at both sides of each limit, and their power by simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from ropetool.verification.gate import GRADES, Grade
from ropetool.verification.measures.position import OffsetResult, PositionResult, position_check
from ropetool.verification.measures.repeats import DistanceResult, FarResult, copies_check
from ropetool.verification.measures.retrieval import DEPTHS, RetrievalPair, RetrievalResult, retrieval_checks
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, UNDECIDED, Estimate
from ropetool.verification.shares import paired_bounds
from ropetool.verification.statistics import t_quantile

TRAINED = 256
PUBLISHABLE, USABLE, RESEARCH = GRADES["publishable"], GRADES["usable"], GRADES["research"]


def pair(
    length: int,
    hits: int,
    own: int,
    trials: int,
    depth: float | None = None,
    written: bool = False,
    both: int | None = None,
) -> RetrievalPair:
    both = min(hits, own) if both is None else both
    gained, lost = hits - both, own - both
    return RetrievalPair(
        length, depth, written, trials, hits, own, gained, lost, (hits - own) / trials, *paired_bounds(gained, lost, trials)
    )  # fmt: skip


def grid(*pairs: RetrievalPair, note: str = "") -> RetrievalResult:
    return RetrievalResult("keys", 8, 0.125, (), (), note, pairs)


def chosen(found: RetrievalResult, grade: Grade = USABLE, copies: bool = True) -> str:
    return retrieval_checks(found, grade, TRAINED, copies)[0].verdict


@pytest.mark.parametrize(
    ("hits", "own", "trials", "publishable", "usable", "research"),
    [
        (100, 100, 100, PASS, PASS, PASS),
        (25, 25, 25, UNDECIDED, PASS, PASS),  # 25 that agree exclude a loss of .098
        (97, 100, 100, UNDECIDED, PASS, PASS),
        (92, 100, 100, UNDECIDED, UNDECIDED, PASS),
        (86, 100, 100, FAIL, UNDECIDED, PASS),
        (82, 100, 100, FAIL, FAIL, PASS),
        (70, 100, 100, FAIL, FAIL, FAIL),
    ],
)
def test_no_more_answers_may_be_lost_than_the_grade_allows(
    hits: int, own: int, trials: int, publishable: str, usable: str, research: str
) -> None:
    found = grid(pair(1024, hits, own, trials))
    assert [chosen(found, grade) for grade in (PUBLISHABLE, USABLE, RESEARCH)] == [publishable, usable, research]


def test_the_figure_is_the_score_and_the_limit_what_it_may_fall_to() -> None:
    check, written = retrieval_checks(grid(pair(512, 80, 80, 100), pair(1024, 78, 80, 100)), USABLE, TRAINED, True)
    assert (check.name, check.figure, check.verdict) == ("retrieval, keys", 0.78, PASS)
    assert check.limit == pytest.approx(0.7)
    assert check.detail.startswith("78 of 100 right at 1024 tokens, 80 at 256: difference -0.02")
    assert (written.name, written.verdict) == ("retrieval, keys, written", NOT_RUN)


def test_written_answers_are_judged_by_themselves() -> None:
    found = grid(pair(1024, 90, 90, 100), pair(1024, 50, 90, 100, written=True))
    assert [check.verdict for check in retrieval_checks(found, USABLE, TRAINED, True)] == [PASS, FAIL]
    mute = grid(pair(1024, 90, 90, 100), pair(1024, 0, 5, 100, written=True))
    assert [check.verdict for check in retrieval_checks(mute, USABLE, TRAINED, True)] == [PASS, NOT_ASKED]


def test_one_lost_depth_does_not_hide_behind_the_others() -> None:
    """All together lose .12, which usable does not exclude; the front alone loses most."""
    cells = [pair(1024, 8 if depth == 0 else 20, 20, 20, depth) for depth in DEPTHS]
    whole = pair(1024, 88, 100, 100)
    assert chosen(grid(whole)) == UNDECIDED
    check = retrieval_checks(grid(whole, *cells), USABLE, TRAINED, True)[0]
    assert (check.verdict, check.figure) == (FAIL, 0.4)
    assert "8 of 20 right at 1024 tokens, depth 0.00, 20 at 256" in check.detail


def test_each_depth_has_to_be_shown_to_be_read() -> None:
    """At a fifth of the trials a depth that lost half may be dead, though all together lost .05 and nothing is sure."""
    cells = [pair(1024, 4 if depth == 0.5 else 8, 8, 20, depth) for depth in DEPTHS]
    whole = pair(1024, 96, 100, 250)  # as many as another task has; .016 lost
    assert chosen(grid(whole)) == PASS
    check = retrieval_checks(grid(whole, *cells), USABLE, TRAINED, True)[0]
    assert (check.verdict, check.figure) == (UNDECIDED, 0.384)
    assert "not better than guessing at depth 0.50" in check.detail


def test_any_length_can_fail_and_the_longest_has_to_show() -> None:
    assert chosen(grid(pair(512, 60, 100, 100), pair(1024, 100, 100, 100))) == FAIL
    assert chosen(grid(pair(512, 92, 100, 100), pair(1024, 100, 100, 100))) == PASS
    assert chosen(grid(pair(512, 100, 100, 100), pair(1024, 92, 100, 100))) == UNDECIDED
    assert chosen(grid(pair(256, 60, 100, 100), pair(1024, 100, 100, 100))) == FAIL  # within, against the baseline
    assert chosen(grid(pair(256, 100, 100, 100))) == NOT_RUN


@pytest.mark.parametrize("copies", [True, False])
def test_where_the_twins_are_guesses_copies_stand_in(copies: bool) -> None:
    expected = NOT_ASKED if copies else NOT_RUN
    assert chosen(grid(pair(1024, 12, 24, 100)), copies=copies) == expected  # below twice a guess
    assert chosen(grid(pair(1024, 12, 32, 100)), copies=copies) == expected  # a guesser would lose about .2
    assert chosen(grid(pair(1024, 33, 33, 100)), copies=copies) == PASS
    assert chosen(grid(note="the vocabulary has 3 common words"), copies=copies) == expected


def test_who_guesses_passes_nowhere() -> None:
    """Against any baseline good enough to be judged by, of which a guess is right in one of eight."""
    rng = np.random.default_rng(0)
    for grade in (PUBLISHABLE, USABLE):
        for own in (0.35, 0.6, 0.9):
            found = Counter(
                chosen(grid(pair(1024, int((right := rng.random(100) < 0.125).sum()),
                                 int((twin := rng.random(100) < own).sum()), 100, both=int((right & twin).sum()))), grade)
                for _ in range(300)
            )  # fmt: skip
            assert found[PASS] <= 300 * 0.05


def simulated(own: float, alive: Sequence[float], trials: int, seed: int) -> RetrievalResult:
    """Pairs at two lengths, of which the longer has these chances at the depths; twins agree as far as their chances do."""
    rng = np.random.default_rng(seed)
    pairs = []
    for length, chances in ((512, [own] * 5), (1024, alive)):
        right, twin = [], []
        for chance in chances:
            hard = rng.random(trials)  # a trial that is hard is hard for both
            again = np.where(rng.random(trials) < 0.5, hard, rng.random(trials))
            twin.append(hard < own)
            right.append(again < chance)
        for depth, here, there in [
            (None, np.concatenate(right), np.concatenate(twin)),
            *zip(DEPTHS, right, twin, strict=True),
        ]:
            both = int((here & there).sum())
            pairs.append(pair(length, int(here.sum()), int(there.sum()), len(here), depth, both=both))
    return grid(*pairs)


@pytest.mark.parametrize(("own", "least"), [(1.0, 1.0), (0.9, 0.9), (0.8, 0.8), (0.6, 0.35)])
def test_a_dead_depth_fails(own: float, least: float) -> None:
    """Twenty trials at each depth, as the standard suite has; a limit on the sum alone let 97 of 100 pass."""
    dead = [chosen(simulated(own, [0.125, *[own] * 4], 20, seed)) for seed in range(200)]
    assert dead.count(FAIL) >= least * 200
    assert dead.count(PASS) == 0
    alive = [chosen(simulated(own, [own] * 5, 20, seed)) for seed in range(200)]
    assert alive.count(FAIL) <= 1
    assert alive.count(PASS) >= 0.6 * 200


def about(mean: float, error: float = 0.01) -> Estimate:
    reach = t_quantile(0.95, 9) * error
    return Estimate(mean, mean - reach, mean + reach, error, 10, 1000, 10.0, 9.0)


def far(*gains: float, own: float = 0.3, error: float = 0.01, note: str = "") -> FarResult:
    distances = tuple(
        DistanceResult(
            128 << i, about(0.5), about(0.5 - gain), about(gain, error), about(gain - own, error) if i else None
        )
        for i, gain in enumerate((own, *gains))
    )
    return FarResult(128, 64, 16, 10, distances, note, 128, about(own))


@pytest.mark.parametrize(
    ("gains", "own", "verdicts"),
    [
        ((0.3, 0.29), 0.3, (PASS, PASS, PASS)),
        ((0.3, 0.25), 0.3, (UNDECIDED, PASS, PASS)),
        ((0.3, 0.2), 0.3, (FAIL, UNDECIDED, PASS)),
        ((0.15, 0.3), 0.3, (FAIL, FAIL, PASS)),  # at any distance
        ((0.02, 0.0), 0.3, (FAIL, FAIL, FAIL)),
        ((0.01, 0.0), 0.04, (UNDECIDED, UNDECIDED, PASS)),  # hardly less than little, and nothing
    ],
)
def test_copies_help_as_much_beyond_the_trained_length_and_at_all(
    gains: Sequence[float], own: float, verdicts: Sequence[str]
) -> None:
    found = [copies_check(far(*gains, own=own), grade) for grade in (PUBLISHABLE, USABLE, RESEARCH)]
    assert [check.verdict for check in found] == list(verdicts)
    assert found[0].limit == pytest.approx(own - 0.05)
    assert found[1].figure in gains


def test_copies_of_thin_texts_or_within_the_trained_length_say_nothing() -> None:
    assert copies_check(far(0.3, note="only 3 passages"), USABLE).verdict == NOT_RUN
    assert copies_check(far(), USABLE).verdict == NOT_RUN


def position(*differences: float, error: float = 0.005, note: str = "") -> PositionResult:
    offsets = tuple(
        OffsetResult(128 * i, about(2.5), about(0.1) if i else None, about(difference, error))
        for i, difference in enumerate(differences)
    )
    return PositionResult(128, 64, 16, 10, offsets, about(2.4), note, 128)


@pytest.mark.parametrize(
    ("differences", "verdicts", "surely"),
    [
        ((0.0, 0.0, 0.01), (PASS, PASS, PASS), False),
        ((0.0, 0.025, 0.0), (NOT_ASKED, PASS, PASS), False),
        ((0.0, 0.0, 0.09), (NOT_ASKED, NOT_ASKED, PASS), True),
        ((0.15, 0.0, 0.0), (NOT_ASKED, NOT_ASKED, PASS), True),
        ((0.0, 0.0, 0.6), (NOT_ASKED, NOT_ASKED, NOT_ASKED), True),
    ],
)
def test_a_passage_that_costs_more_behind_far_text_informs_and_fails_nothing(
    differences: Sequence[float], verdicts: Sequence[str], surely: bool
) -> None:
    found = [position_check(position(*differences), grade) for grade in (PUBLISHABLE, USABLE, RESEARCH)]
    assert [check.verdict for check in found] == list(verdicts)
    bound = max(differences) + (-1 if surely else 1) * t_quantile(0.90, 9) * 0.005
    assert found[0].figure == pytest.approx(bound)
    assert found[0].limit == pytest.approx(math.log(1.03))


def test_a_probe_of_thin_texts_or_within_the_trained_length_says_nothing() -> None:
    assert position_check(position(0.0, 0.0, 0.0, note="only 3 passages"), USABLE).verdict == NOT_RUN
    assert position_check(position(0.0, 0.0), USABLE).verdict == NOT_RUN
