"""Segments: inside their documents, apart from each other, the same at every length, and spread out."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool.errors import ConfigError
from ropetool.verification.measures.segments import Segment, choose_segments, enough, scored_tokens

DOCUMENTS = st.lists(st.integers(0, 4000), min_size=1, max_size=20)
LENGTHS = st.lists(st.integers(8, 4000), min_size=1, max_size=5, unique=True)


@given(DOCUMENTS, LENGTHS, st.integers(1, 128), st.integers(8, 40), st.integers(0, 9), st.integers(0, 2))
@settings(max_examples=200, deadline=None)
def test_any_texts(documents: list[int], lengths: list[int], scored: int, count: int, seed: int, prefix: int) -> None:
    longest = max(lengths)
    if max(documents) < longest - prefix:
        with pytest.raises(ConfigError, match=f"a length of {longest} tokens needs a document of {longest - prefix}, "):
            choose_segments(documents, lengths, scored, count, seed, prefix)
        return
    chosen = choose_segments(documents, lengths, scored, count, seed, prefix)
    assert sorted(chosen) == sorted(lengths)
    for length, segments in chosen.items():
        assert segments
        assert all(length - prefix <= s.end <= documents[s.document] for s in segments)
    for shorter, longer in pairwise(sorted(lengths)):
        assert chosen[shorter][: len(chosen[longer])] == chosen[longer]
        assert chosen[shorter] == chosen[longer] or not enough(chosen[longer])
    places = sorted((s.document, s.end) for s in chosen[min(lengths)])
    assert all(a[0] != b[0] or b[1] - a[1] >= scored for a, b in pairwise(places))
    assert len(chosen[longest]) <= count
    assert max(Counter(s.document for s in chosen[longest]).values()) <= -(-count // 4)


def test_long_documents_give_the_same_segments_at_every_length_in_equal_shares() -> None:
    chosen = choose_segments([5000] * 16, [256, 512, 1024, 2048], 64, 32, seed=0, prefix=1)
    assert len(set(chosen.values())) == 1
    assert set(Counter(s.document for s in chosen[2048]).values()) == {2}


def test_a_document_of_just_the_length_has_a_place() -> None:
    for seed in range(20):
        chosen = choose_segments([255] * 4, [64, 256], 64, 32, seed=seed, prefix=1)
        assert [s.end for s in chosen[256]] == [255] * 4


def test_places_are_inside_the_documents_and_vary_with_the_seed() -> None:
    ends = [s.end for seed in range(50) for s in choose_segments([5000] * 4, [1000], 100, 8, seed=seed)[1000]]
    # Uniform over 1000..5000: the mean of 400 ends has a standard error of 58.
    assert 2800 < sum(ends) / len(ends) < 3200
    assert len({end % 100 for end in ends}) > 30
    first, again, other = (choose_segments([5000] * 4, [1000], 100, 8, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_shorter_documents_help_out_only_where_the_long_ones_are_too_few() -> None:
    chosen = choose_segments([3000, 3000, 900, 900, 900], [256, 512, 2048], 64, 16, seed=0)
    assert {s.document for s in chosen[2048]} == {0, 1}
    assert not enough(chosen[2048])
    assert {s.document for s in chosen[512]} == {0, 1, 2, 3, 4}
    assert enough(chosen[512])
    assert chosen[256] == chosen[512]


def test_a_shorter_length_is_filled_up_from_the_same_documents() -> None:
    chosen = choose_segments([1030] * 4, [512, 1024], 64, 32, seed=0)
    assert len(chosen[1024]) == 4
    assert len(chosen[512]) == 32


def shares(documents: list[int], lengths: list[int], count: int) -> dict[int, list[int]]:
    """Return how many segments each document gives at each length, the most first."""
    found = {}
    for length, segments in choose_segments(documents, lengths, 64, count, seed=0).items():
        found[length] = sorted(Counter(s.document for s in segments).values(), reverse=True)
    return found


def test_one_long_document_beside_short_ones_does_not_decide() -> None:
    # Uncapped it would be 29, 1, 1, 1: four documents by name, 1.2 by what they tell.
    assert shares([100000, 2060, 2070, 2100], [2048], 32) == {2048: [1, 1, 1, 1]}
    assert shares([100000, *[2060] * 5], [2048], 32) == {2048: [3, 1, 1, 1, 1, 1]}
    assert shares([100000, *[2060] * 12], [2048], 32) == {2048: [8, *[1] * 12]}
    assert shares([100000, 5000, 5000, 5000], [2048], 32) == {2048: [8, 8, 8, 8]}


def test_a_document_that_alone_is_long_enough_leaves_room_at_shorter_lengths() -> None:
    found = shares([100000, *[900] * 5], [512, 2048], 32)
    assert found[2048] == [8]
    assert sum(found[512]) >= 8
    assert sum(found[512]) ** 2 / sum(n * n for n in found[512]) >= 4


def test_more_documents_than_segments_give_one_each() -> None:
    documents = [s.document for s in choose_segments([1000] * 100, [256], 64, 32, seed=0)[256]]
    assert len(documents) == len(set(documents)) == 32
    assert documents != sorted(documents)


@pytest.mark.parametrize(
    ("segments", "documents", "expected"),
    [(8, 4, True), (7, 4, False), (8, 3, False), (9, 4, False), (9, 5, True), (100, 1, False)],
)
def test_enough_is_eight_segments_of_four_effective_documents(segments: int, documents: int, expected: bool) -> None:
    assert enough([Segment(i % documents, i) for i in range(segments)]) is expected


@pytest.mark.parametrize(
    ("trained", "lengths", "expected"),
    [(8192, [2048, 8192], 128), (256, [256, 512], 64), (256, [64, 256], 32), (4096, [100, 4096], 50), (8, [8], 2)],
)
def test_the_scored_part_is_at_most_a_quarter_of_the_trained_length_and_half_of_the_shortest(
    trained: int, lengths: list[int], expected: int
) -> None:
    assert scored_tokens(trained, lengths) == expected
