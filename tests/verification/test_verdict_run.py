"""Runs of the default verification on made-up models and a made-up clock: what they read, when they stop, what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigError
from ropetool.verification.journal import Journal
from ropetool.verification.scoring import BASELINE, TARGET, NoMemory, Piece, TokenFilter
from ropetool.verification.texts import Document
from ropetool.verification.verdict import bounds
from ropetool.verification.verdict.answers import Answers
from ropetool.verification.verdict.deciding import DECIDED, TEXTS, TIME, Run
from ropetool.verification.verdict.pacing import Clock, Pace
from ropetool.verification.verdict.places import Place, Places, authors_of
from ropetool.verification.verdict.reading import STEP, OutOfTime, Pass, Shape, Timed

TRAINED, LENGTH = 8192, 16384
CHARACTERS = 4  # of a token

Cost = Callable[[np.ndarray], np.ndarray]
"""Tells how many nats tokens cost beyond what they cost anyway, by their index in the row."""


@dataclass
class Ticks:
    """A clock that only work moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Model:
    """Reads rows of made-up tokens. pace: seconds of a piece, by its start and its number."""

    ticks: Ticks
    cost: Cost = lambda at: np.zeros(len(at))
    pace: Callable[[int, int], float] = lambda start, number: STEP * (0.002 + 1e-6 * start)
    prefix: tuple[int, ...] = (0,)
    base: float = 2.5
    most: int = 1 << 30
    description: str = "made up"
    rows: list[int] = field(default_factory=list)
    pieces: int = 0

    def tokenize(self, text: str) -> list[int]:
        return [sum(map(ord, text[at : at + CHARACTERS])) for at in range(0, len(text), CHARACTERS)]

    def byte_lengths(self, text: str) -> list[int]:
        return [len(text[at : at + CHARACTERS]) for at in range(0, len(text), CHARACTERS)]

    def read(self, ids: Sequence[int], wanted: TokenFilter) -> Iterator[Piece]:
        if len(ids) > self.most:
            raise NoMemory(f"one row of {len(ids)} tokens does not fit into memory")
        self.rows.append(len(ids))
        row = np.array(ids)
        for start in range(0, len(ids), STEP):
            stop = min(start + STEP, len(ids))
            tokens = np.arange(start + 1, stop + 1)
            at = tokens[wanted(tokens) & (tokens < len(ids))]
            self.ticks.now += self.pace(start, self.pieces)
            self.pieces += 1
            noise = np.sin(row[at] * 12.9898 + np.roll(row, 1)[at] * 78.233) * 0.8
            yield Piece(stop, at, self.base + noise + self.cost(at))

    def close(self) -> None: ...


def book(number: int, tokens: int = 70_000) -> Document:
    generator = np.random.default_rng(number)
    words = generator.integers(97, 123, tokens * CHARACTERS, dtype=np.uint8).tobytes().decode()
    return Document(f"book-{number}", words, ("prose", "code")[number % 2])


BOOKS = [book(number) for number in range(6)]


def pays(nats: float, spread: float = 0.0) -> Cost:
    """Return a cost that is the same everywhere."""
    return lambda at: np.full(len(at), nats)


def lost_after(position: int, nats: float) -> Cost:
    return lambda at: np.where(at > position, nats, 0.0)


FREE = pays(0.0)


def run_of(
    cost: Cost = FREE, *, minutes: float = math.inf, length: int = LENGTH, trained: int = TRAINED, seed: int = 0,
    own: bool = False, moving: bool = False, kept: Journal | None = None, **model: Any,
) -> tuple[Run, Answers, Model, Model]:  # fmt: skip
    """Return a finished run, its answers, the target and the source."""
    ticks = Ticks()
    target, source = Model(ticks, cost, **model), Model(ticks, **{**model, "most": 1 << 30})
    clock = Clock(60 * minutes, 0.0, ticks)
    readers = {TARGET: target} if own else {TARGET: target, BASELINE: source}
    timed = {role: Timed(reader, clock, kept, lambda tokens: None) for role, reader in readers.items()}
    run = Run(
        timed[TARGET], timed.get(BASELINE), Shape.of(trained, length, moving), length, clock, lambda stage, tokens: None
    )
    places = Places(BOOKS, length, readers, dict.fromkeys(readers, Path("model")), seed)
    return run, run.result(run.decide(places)), target, source


# --- verdicts


def test_a_model_that_pays_little_is_kept_after_three_texts() -> None:
    _, found, _, source = run_of(pays(0.02))
    assert (found.verdict, found.ended, len(found.texts)) == (bounds.KEEP, DECIDED, 3)
    assert found.long is not None
    assert found.short is not None
    assert found.long.ratio == pytest.approx(math.exp(0.02))
    assert found.short.ratio == pytest.approx(math.exp(0.02))
    assert max(source.rows) == TRAINED  # it never reads beyond its own length
    assert {text.kind for text in found.texts} == {"prose", "code"}


def test_a_model_that_pays_a_third_costs() -> None:
    assert run_of(pays(0.3))[1].verdict == bounds.COSTS


def test_a_model_that_is_lost_at_length_is_broken_after_two_texts() -> None:
    _, found, target, source = run_of(lost_after(12_000, 4.0))
    assert (found.verdict, len(found.texts)) == (bounds.BROKEN, 2)
    assert [text.cut for text in found.texts] == [True, True]
    assert 12_000 < found.length < 14_500  # it is said where, and the passes end there
    assert max(target.rows) == LENGTH
    assert target.rows[-1] == found.length
    assert max(source.rows) == 2048  # no row of its whole length is needed
    assert found.long is not None
    assert found.long.ratio > 20


def test_the_second_lost_text_needs_no_time_for_a_long_pass_of_the_source() -> None:
    """Each text takes 126 seconds. With a pass of the source's whole length, the second would take 170."""
    _, answers, _, source = run_of(lost_after(12_000, 4.0), minutes=4.5)
    assert (answers.verdict, len(answers.texts), max(source.rows)) == (bounds.BROKEN, 2, 2048)
    assert 4 < answers.minutes < 4.5


def test_a_hard_passage_is_not_taken_for_a_lost_thread() -> None:
    """The source finds it as hard, and the pass goes on."""
    hard = lambda at: np.where((at > 9000) & (at < 11_500), 3.0, 0.0)  # noqa: E731
    ticks = Ticks()
    readers = {TARGET: Model(ticks, hard), BASELINE: Model(ticks, lambda at: np.full(len(at), 3.0))}
    clock = Clock(math.inf, 0.0, ticks)
    timed = {role: Timed(reader, clock, None, lambda tokens: None) for role, reader in readers.items()}
    run = Run(timed[TARGET], timed[BASELINE], Shape.of(TRAINED, LENGTH, False), LENGTH, clock, lambda *stage: None)
    place = next(iter(Places(BOOKS, LENGTH, readers, dict.fromkeys(readers, Path("x")), 0)))
    run.decide([place])
    assert [text.length for text in run.answers] == [LENGTH]
    assert not run.answers[0].cut


def test_one_text_that_breaks_does_not_shorten_the_others() -> None:
    """The second text is read with a loss, and the further ones are not."""
    ticks, texts = Ticks(), [0]

    class Once(Model):
        def read(self, ids: Sequence[int], wanted: TokenFilter) -> Iterator[Piece]:
            texts[0] += 1
            self.cost = lost_after(12_000, 4.0) if texts[0] == 2 else FREE
            yield from super().read(ids, wanted)

    readers = {TARGET: Once(ticks), BASELINE: Model(ticks)}
    clock = Clock(math.inf, 0.0, ticks)
    timed = {role: Timed(reader, clock, None, lambda tokens: None) for role, reader in readers.items()}
    run = Run(timed[TARGET], timed[BASELINE], Shape.of(TRAINED, LENGTH, False), LENGTH, clock, lambda *stage: None)
    found = run.result(run.decide(Places(BOOKS, LENGTH, readers, dict.fromkeys(readers, Path("x")), 0)))
    assert [text.cut for text in found.texts[:4]] == [False, True, True, False]
    assert [text.broken for text in found.texts[:4]] == [False, True, False, False]
    assert found.texts[-1].length == LENGTH
    assert found.verdict not in (bounds.KEEP, bounds.BROKEN)


def test_a_loss_at_the_end_alone_is_found_without_the_alarm() -> None:
    _, found, _, _ = run_of(lost_after(15_000, 1.5))
    assert found.verdict == bounds.BROKEN
    assert not any(text.cut for text in found.texts)


def test_short_texts_alone_can_break_a_model() -> None:
    assert run_of(lambda at: np.where(at < 4000, 1.0, 0.0))[1].verdict == bounds.BROKEN


def test_a_target_without_a_source_is_held_against_itself() -> None:
    _, found, target, _ = run_of(lost_after(9000, 0.8), own=True)  # below the alarm
    assert found.own
    assert found.short is None
    assert found.verdict == bounds.BROKEN
    assert {*target.rows} == {TRAINED, LENGTH}


def test_a_target_without_a_source_that_loses_the_thread_ends_early() -> None:
    """Its own short prompt predicts the same tokens much better."""
    _, found, target, _ = run_of(lost_after(9000, 4.0), own=True)
    assert (found.verdict, [text.cut for text in found.texts]) == (bounds.BROKEN, [True, True])
    assert found.length < 11_500
    assert {2048, found.length} < {*target.rows}


def test_a_table_that_follows_the_length_has_a_short_prompt_of_its_own() -> None:
    assert 2048 in run_of(moving=True)[2].rows
    assert 2048 not in run_of(moving=False)[2].rows


def test_texts_that_are_recited_are_left_out() -> None:
    run, found, _, _ = run_of(base=0.6)  # nats a token of four bytes: .2 bits a byte
    assert found.verdict == bounds.MEASURED
    assert not found.texts
    assert "0.21 bits per byte" in run.notes[0]
    assert "memorised" in run.notes[0]


def test_memory_that_does_not_suffice_halves_the_length() -> None:
    run, found, _, _ = run_of(length=4 * TRAINED, most=2 * TRAINED)
    assert found.length == 2 * TRAINED
    assert found.verdict == bounds.MEASURED
    assert f"continuing with texts of {2 * TRAINED} tokens" in run.notes[0]


# --- time

PACES: dict[str, Callable[[int, int], float]] = {
    "steady": lambda start, number: STEP * (0.004 + 1e-6 * start),
    "slowing": lambda start, number: STEP * (0.004 + 1e-6 * start) * (1 + number / 100),
    "three times worse than timed": lambda start, number: STEP * (0.004 + 1e-6 * start) * (1 if number < 8 else 3),
    "attention alone": lambda start, number: STEP * 4e-6 * (start + STEP / 2),
}


@pytest.mark.parametrize("minutes", [1, 4, 10, 30])
@pytest.mark.parametrize("pace", PACES)
def test_the_budget_is_a_cap(pace: str, minutes: float) -> None:
    _, found, target, _ = run_of(pays(math.log(1.1)), minutes=minutes, pace=PACES[pace])
    longest = PACES[pace](LENGTH, target.pieces)
    assert 60 * found.minutes <= 60 * minutes + longest
    assert found.ended in (TIME, DECIDED)


def test_a_text_that_does_not_fit_is_read_as_far_as_time_allows() -> None:
    _, found, _, source = run_of(minutes=4, pace=PACES["steady"])
    assert found.verdict == bounds.MEASURED
    assert TRAINED < found.length < LENGTH
    assert found.long is not None
    assert found.more_texts == 5
    assert found.more_minutes is not None
    # 5 texts of 16,384, 8,192 and 2,048 tokens, at 0.004 s and 1e-6 s for each token before
    spent = 5 * sum(0.004 * n + 1e-6 * n * n / 2 for n in (16384, 8192, 2048)) / 60
    assert found.more_minutes == pytest.approx(spent, rel=0.05)
    assert max(source.rows) == TRAINED


def test_no_time_at_all_still_tells_of_short_texts() -> None:
    _, found, _, _ = run_of(pays(0.05), minutes=0.5, pace=PACES["steady"])
    assert found.verdict == bounds.MEASURED
    assert found.short is not None
    assert found.short.ratio == pytest.approx(math.exp(0.05))


def test_time_that_is_too_little_for_a_whole_text_settles_the_short_ones() -> None:
    _, found, target, _ = run_of(pays(0.02), minutes=8, pace=PACES["steady"])
    lengths = [text.length for text in found.texts]
    assert lengths[0] == LENGTH
    assert lengths[-1] == 2048
    assert found.short is not None
    assert found.short.upper is not None
    assert found.short.upper < 1.1
    assert (found.verdict, found.ended) == (bounds.MEASURED, TIME)
    assert 60 * found.minutes <= 480
    assert 2048 not in target.rows  # it is the beginning of the same row, left early


def test_the_budget_changes_no_text_and_no_bound() -> None:
    noisy: Cost = lambda at: 0.09 + 0.1 * np.sin(at / 37.0)  # noqa: E731
    whole = run_of(noisy)[1]
    for minutes in (8, 15, 30):
        part = run_of(noisy, minutes=minutes)[1]
        read = [text for text in part.texts if text.length == LENGTH]
        assert read == [*whole.texts[: len(read)]]
        assert [text.short for text in part.texts] == [text.short for text in whole.texts[: len(part.texts)]]
        assert part.verdict in (whole.verdict, bounds.WORKS, bounds.MEASURED)


def test_a_pace_is_that_of_the_pieces_with_depth_and_load() -> None:
    pace = Pace()
    pace.add(0, STEP, 99.0)  # loads the model
    for start in range(STEP, 8 * STEP, STEP):
        pace.add(start, start + STEP, STEP * (0.003 + 2e-6 * (start + STEP / 2)))
    assert pace.seconds(0, 16384) == pytest.approx(0.003 * 16384 + 1e-6 * 16384**2, rel=1e-6)
    for start in range(8 * STEP, 16 * STEP, STEP):
        pace.add(start, start + STEP, 2 * STEP * (0.003 + 2e-6 * (start + STEP / 2)))
    assert pace.seconds(0, STEP) > 0
    assert Pace().seconds(0, 512) == 0.0


def test_no_time_is_left_after_the_budget() -> None:
    ticks = Ticks(650.0)
    assert Clock(600.0, 0.0, ticks).left < 0
    assert Clock(math.inf, 0.0, ticks).left == math.inf


# --- what is kept


def test_a_second_run_reads_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.verification.journal.folder", lambda: tmp_path)
    journal = Journal("key", {}, resume=False)
    _, first, target, source = run_of(pays(0.02), kept=journal)
    assert target.rows
    _, again, target, source = run_of(pays(0.02), kept=journal)
    assert (target.rows, source.rows) == ([], [])
    assert again.texts == first.texts
    _, _, target, _ = run_of(pays(0.02), kept=journal, seed=1)
    assert target.rows  # other texts are another run
    journal.close(remove=True)


def test_a_pass_that_was_cut_is_taken_over_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.verification.journal.folder", lambda: tmp_path)
    journal = Journal("key", {}, resume=False)
    first = run_of(lost_after(12_000, 4.0), kept=journal)[1]
    again = run_of(lost_after(12_000, 4.0), kept=journal)
    assert again[1].texts == first.texts
    assert again[2].rows == []
    journal.close(remove=True)


# --- places


def places(documents: Sequence[Document] = BOOKS, length: int = 4096, **readers: Model) -> Places:
    models = readers or {TARGET: Model(Ticks()), BASELINE: Model(Ticks())}
    return Places(documents, length, models, {role: Path(role) for role in models}, 0)


def test_places_of_a_book_do_not_overlap_and_kinds_take_turns() -> None:
    found = list(places())
    assert [place.kind for place in found[:4]] in (["prose", "code"] * 2, ["code", "prose"] * 2)
    assert len({place.name for place in found[:6]}) == 6
    for name in {place.name for place in found}:
        starts = sorted(place.start for place in found if place.name == name)
        assert all(b - a >= 4095 * CHARACTERS for a, b in pairwise(starts))


# Four authors, of two kinds; each has written two documents.
PAIRS = [replace(book(number, tokens=30_000), author=f"author {number // 2 % 2}, {number % 2}") for number in range(8)]


def test_authors_of_a_kind_take_turns_and_then_their_documents() -> None:
    found = list(places(PAIRS))
    assert [place.kind for place in found] in (["prose", "code"] * 24, ["code", "prose"] * 24)
    for kind in ("prose", "code"):
        of_kind = [place for place in found if place.kind == kind]
        authors = [place.author for place in of_kind]
        assert authors == authors[:2] * 12
        assert len({*authors}) == 2
        names = [place.name for place in of_kind]
        assert names == names[:4] * 6
        assert len({*names}) == 4
    other = list(Places(PAIRS, 4096, {TARGET: Model(Ticks())}, {TARGET: Path("model")}, 1))
    assert [place.name for place in other] != [place.name for place in found]


def test_documents_of_one_author_are_one_cluster() -> None:
    """Clustering by document gives bounds that are too narrow, because two documents of an author cost the same."""
    found = list(places(PAIRS))[:8]
    assert len({place.name for place in found}) == 8
    costs = {0: 0.01, 1: 0.09, 2: 0.05, 3: 0.03}
    assert {place.author for place in found} == {*costs}
    gaps = [costs[place.author] + 0.002 * (number // 4) for number, place in enumerate(found)]
    by_author = bounds.bounds(gaps, [place.author for place in found])
    by_document = bounds.bounds(gaps, range(8))
    assert by_author.mean == by_document.mean
    assert by_author.upper > by_document.upper + 0.02
    assert by_author.lower < by_document.lower - 0.02
    assert by_document.upper < math.log(bounds.KEPT) < by_author.upper  # keep, on four authors that look like eight


def test_documents_without_an_author_are_clusters_of_their_own() -> None:
    assert authors_of(BOOKS) == [0, 1, 2, 3, 4, 5]
    assert authors_of([BOOKS[0], *PAIRS[:2], PAIRS[4], BOOKS[1]]) == [0, 1, 2, 1, 3]


def test_both_rows_end_at_the_same_token_and_begin_with_the_prefix() -> None:
    place = next(iter(places()))
    whole, late = place.row(4096, 4096), place.row(4096, 1024)
    assert (len(whole), len(late)) == (4096, 1024)
    assert whole[0] == late[0] == 0
    assert whole[-1000:] == late[-1000:]
    assert place.row(2048, 512)[-1] == whole[2047]


def test_another_tokenizer_is_refused() -> None:
    other = Model(Ticks())
    other.tokenize = lambda text: [1, *Model(Ticks()).tokenize(text)[1:]]  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="the tokenizer does not match target"):
        next(iter(places(target=Model(Ticks()), baseline=other)))
    with pytest.raises(ConfigError, match="the leading special tokens"):
        places(target=Model(Ticks()), baseline=Model(Ticks(), prefix=(5,)))


def test_texts_that_are_too_short_give_no_place() -> None:
    assert list(places([book(9, tokens=1000)])) == []
    _, found, _, _ = run_of(length=80_000)
    assert (found.ended, found.verdict, found.texts) == (TEXTS, bounds.MEASURED, ())


# --- one pass


def test_a_pass_ends_where_its_last_tokens_are_still_to_come() -> None:
    found = Pass(range(LENGTH), Shape.of(TRAINED, LENGTH, False), watched=True)
    found.end = 4096
    assert found.can_end_later
    found.end_soon()
    assert found.goal == 4096 + STEP + 2048
    assert found.wanted(np.arange(found.goal - 2048, found.goal)).all()
    found.end = 5632
    found.end_soon()
    assert (found.goal, found.scored) == (5632, 5632 - (4096 + STEP))  # what was scored so far has to do
    early = Pass(range(LENGTH), Shape.of(TRAINED, LENGTH, False), watched=True)
    early.end = early.goal - early.scored
    with pytest.raises(OutOfTime):
        early.end_soon()


def test_no_more_logits_than_needed_are_asked_for() -> None:
    found = Pass(range(LENGTH), Shape.of(TRAINED, LENGTH, False), watched=True)
    share = found.wanted(np.arange(LENGTH)).mean()
    assert share == pytest.approx((1024 * 7 / 8 + 2048 * 7 / 8 + LENGTH / 8) / LENGTH, rel=1e-6)


def test_a_place_is_data() -> None:
    place = Place(0, "a", "prose", 0, (1,), tuple(range(10, 20)), 4.0)
    assert place.row(5, 3) == [1, 12, 13]
