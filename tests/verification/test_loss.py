"""Verification as a whole: which tokens are scored, what is compared with what, and the verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import set_tensors
from verifying import verify

from ropetool.errors import CheckpointError, ConfigError
from ropetool.sections import half_width
from ropetool.verification import suites
from ropetool.verification.gate import Limits
from ropetool.verification.measures.loss import perplexity
from ropetool.verification.preparing import default_lengths
from ropetool.verification.scoring import Scores
from ropetool.verification.texts import Document

TRAINED, LENGTHS = 256, [64, 256, 512, 1024]
SCORED = 32
WIDTH = 100_000  # of a document's ids in the fake tokenizer


class FakeRunner:
    """A checkpoint whose loss at a token is a stated one for the length, plus what the token itself is worth.

    A text is "document tokens"; its ids say where they come from. Class attributes are set by `fake`.
    """

    curves: dict[str, dict[int, float]]
    prefix: tuple[int, ...]
    rows: dict[str, dict[int, list[list[int]]]]
    open_models: list[str]
    description = "a fake"

    def __init__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> None:
        self.name = path.name
        report(f"{self.name} on {device} in {dtype}")

    def tokenize(self, text: str) -> list[int]:
        document, tokens = map(int, text.split())
        return list(range(document * WIDTH + 1, document * WIDTH + 1 + tokens))

    def byte_lengths(self, text: str) -> list[int]:
        return [4] * len(self.tokenize(text))

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Scores:
        if self.name not in self.open_models:
            self.open_models.append(self.name)
        assert self.open_models == [self.name], "two models in memory"
        self.rows.setdefault(self.name, {})[len(rows[0])] = [list(row) for row in rows]
        done(sum(map(len, rows)))
        losses = np.array([[self.curves[self.name][len(row)] + worth(t) for t in row[-scored:]] for row in rows])
        return Scores(losses, losses < 0)

    def close(self) -> None:
        if self.name in self.open_models:
            self.open_models.remove(self.name)


def worth(token: int) -> float:
    """What makes a token hard, for every model: some of it its document's."""
    return math.sin(token) + (token // WIDTH) / 10


@pytest.fixture
def fake() -> Callable[..., type[FakeRunner]]:
    def make(prefix: tuple[int, ...] = (0,), **curves: Sequence[float]) -> type[FakeRunner]:
        by_length = {name: dict(zip(LENGTHS, values, strict=True)) for name, values in curves.items()}
        attributes = {"curves": by_length, "prefix": prefix, "rows": {}, "open_models": []}
        return type("Fake", (FakeRunner,), attributes)

    return make


def texts(*tokens: int) -> list[Document]:
    return [Document(f"{index}.txt", f"{index} {count}") for index, count in enumerate(tokens)]


def run(runner: type[FakeRunner], *, baseline: str | None = "base", **options: Any) -> Any:
    options = {"texts": texts(*[3000] * 8), "lengths": LENGTHS, "trained_length": TRAINED, **options}
    options["suite"] = suites.choose("quick", (), options.pop("segments", 32))
    options["limits"] = Limits(grade=options.pop("grade", "research"))
    path = None if baseline is None else Path(baseline)
    return verify(Path("target"), baseline=path, runner=runner, **options)


FLAT = (3.0, 3.0, 3.0, 3.0)


def test_the_scored_tokens_are_the_same_at_every_length_and_for_both_models_behind_their_own_text(fake: Any) -> None:
    runner = fake(target=FLAT, base=FLAT)
    result = run(runner, budget=math.inf)  # so that no row is computed for an estimate
    assert result.scored == SCORED
    assert set(runner.rows) == {"target", "base"}
    assert runner.rows["target"] == runner.rows["base"]
    by_length = runner.rows["target"]
    assert list(by_length) == LENGTHS
    for length, rows in by_length.items():
        assert [row[-SCORED:] for row in rows] == [row[-SCORED:] for row in by_length[1024]]
        for row in rows:
            assert len(row) == length
            assert row[0] == 0  # BOS
            assert row[1:] == list(range(row[-1] - length + 2, row[-1] + 1))  # one stretch of one document
            assert 1 <= row[1] % WIDTH <= row[-1] % WIDTH <= 3000


def test_without_bos_the_text_alone_fills_the_length(fake: Any) -> None:
    runner = fake(prefix=(), target=FLAT, base=FLAT)
    run(runner, texts=texts(*[1024] * 8))
    assert {row[-1] - row[0] for row in runner.rows["target"][1024]} == {1023}
    with pytest.raises(ConfigError, match="length of 1024 tokens needs a document of 1024, and the longest has 1023"):
        run(runner, texts=texts(*[1023] * 8))


def test_figures_are_those_of_the_tokens_and_comparisons_are_with_the_truncated_baseline(fake: Any) -> None:
    target, base = (3.0, 3.5, 3.2, 3.1), (3.2, 3.0, 5.0, 6.0)
    runner = fake(target=target, base=base)
    result = run(runner)
    tokens = np.array([row[-SCORED:] for row in runner.rows["target"][1024]])
    hard = np.vectorize(worth)(tokens).mean()
    for entry, loss, at_length, truncated in zip(result.lengths, target, base, (3.2, 3.0, 3.0, 3.0), strict=True):
        assert entry.target.mean == pytest.approx(loss + hard, abs=1e-12)
        assert entry.baseline.mean == pytest.approx(at_length + hard, abs=1e-12)
        assert entry.ratio == pytest.approx(math.exp(loss - truncated), rel=1e-12)
        assert entry.difference_to_truncation.mean == pytest.approx(loss - truncated, abs=1e-12)
        assert entry.difference_to_truncation.standard_error == pytest.approx(0, abs=1e-12)  # paired: no noise left
        assert entry.target.standard_error > 0.01
        assert (entry.segments, entry.documents) == (32, 8)
        assert (entry.target.tokens, entry.target.documents) == (32 * SCORED, 8)
    assert [entry.holds for entry in result.lengths] == [True, False, True, True]  # e^.5 = 1.65, e^.2 = 1.22
    assert [entry.verdict for entry in result.lengths] == ["better", "worse", "no worse", "no worse"]
    assert [entry.upper for entry in result.lengths] == pytest.approx([entry.ratio for entry in result.lengths])
    assert [entry.useful for entry in result.lengths] == [True, False, False, False]
    assert (result.verdict, result.exit_code) == ("fail", 3)


def test_the_trained_length_is_measured_even_where_it_is_not_asked_for(fake: Any) -> None:
    runner = fake(target=FLAT, base=(3.0, 2.0, 9.0, 9.0))
    result = run(runner, lengths=[512, 1024])
    assert sorted(runner.rows["base"]) == [256, 512, 1024]
    assert [entry.length for entry in result.lengths] == [512, 1024]
    assert [entry.ratio for entry in result.lengths] == pytest.approx([math.e, math.e])


@pytest.mark.parametrize(("better", "useful"), [(0.2, True), (0.02, False), (-0.2, False)])
def test_useful_needs_the_whole_interval_below_zero(fake: Any, better: float, useful: bool) -> None:
    class Noisy(fake(target=(3.0, 3.0, 3.0, 3.0 - better), base=FLAT)):
        def score(self, rows: Any, scored: int, done: Any) -> Scores:
            noise = np.array([0.1 * math.cos(row[-1] // WIDTH * 2.4) for row in rows])[:, None]
            found = super().score(rows, scored, done)
            return Scores(found.losses + noise * (self.name == "target"), found.hits)

    entry = run(Noisy).lengths[-1]
    assert entry.difference_to_truncation.mean == pytest.approx(-better, abs=0.04)
    assert 0.03 < half_width(entry.difference_to_truncation) < 0.1
    assert entry.useful is useful


@pytest.mark.parametrize("baseline", [None, "target", "./target"])
def test_without_a_baseline_the_target_is_its_own_within_the_trained_length(fake: Any, baseline: str | None) -> None:
    runner = fake(target=(3.1, 3.0, 2.9, 6.0))
    result = run(runner, baseline=baseline)
    assert result.baseline is None
    assert [entry.ratio for entry in result.lengths] == pytest.approx([1, 1, math.exp(-0.1), math.exp(3)])
    assert [entry.verdict for entry in result.lengths] == ["not judged", "not judged", "better", "worse"]
    assert [entry.useful for entry in result.lengths] == [None, None, True, False]
    assert [entry.difference_to_truncation is None for entry in result.lengths] == [True, True, False, False]
    assert [entry.baseline == entry.target for entry in result.lengths[:2]] == [True, True]
    assert [entry.baseline for entry in result.lengths[2:]] == [None, None]
    assert result.exit_code == 3


def test_too_few_documents_at_a_length_make_it_partial_and_a_failure_outweighs_that(fake: Any) -> None:
    documents = texts(3000, 3000, 600, 600, 600, 600)
    result = run(fake(target=FLAT, base=FLAT), texts=documents)
    assert [entry.partial for entry in result.lengths] == [False, False, False, True]
    assert [entry.documents for entry in result.lengths] == [6, 6, 6, 2]
    assert result.lengths[-1].note == (
        "partial: only 16 segments of 2 documents, as good as 2.0 documents with equal shares; a verdict needs 8 segments of 4 documents"
    )
    assert (result.verdict, result.exit_code) == ("partial", 1)
    assert result.documents == ("0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "5.txt")
    broken = run(fake(target=(3.0, 3.0, 9.0, 3.0), base=FLAT), texts=documents)
    assert (broken.verdict, broken.exit_code) == ("fail", 3)


def test_sets_that_differ_between_lengths_are_compared_on_the_same_tokens(fake: Any) -> None:
    # At 1024 only documents 6 and 7 serve, which are .45 harder than the mean: a reference over all would be off.
    documents = texts(600, 600, 600, 600, 600, 600, 3000, 3000)
    result = run(fake(target=FLAT, base=FLAT), texts=documents)
    assert result.lengths[-1].documents == 2
    assert result.lengths[-1].target.mean - result.lengths[1].target.mean > 0.1
    assert result.lengths[-1].ratio == pytest.approx(1, abs=1e-12)


def test_lengths_beyond_the_file_are_noted_and_count(fake: Any) -> None:
    result = run(fake(target=(3.0, 3.0, 3.0, 9.0), base=FLAT), context_length=512)
    assert [entry.note for entry in result.lengths] == ["", "", "", "beyond the context length of 512 tokens"]
    assert result.verdict == "fail"


def test_the_result_is_plain_data(fake: Any) -> None:
    result = run(fake(target=FLAT, base=FLAT), texts=texts(3000), seed=7)
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["verdict"] == "partial"
    assert (data["seed"], data["trained_length"], data["scored"], data["suite"]) == (7, 256, 32, "quick")
    assert (data["target"], data["baseline"], data["runtime"]) == ("target", "base", "a fake")
    assert data["notes"] == ["target on auto in auto", "base on auto in auto"]
    assert data["lengths"][0]["target"]["low"] is None  # one document: no interval
    assert data["lengths"][0]["length"] == 64
    assert run(fake(target=FLAT, base=FLAT)).verdict == "pass"


def test_the_seed_chooses_the_tokens(fake: Any) -> None:
    runner = fake(target=FLAT, base=FLAT)
    found = []
    for seed in (1, 1, 2):
        run(runner, seed=seed)
        found.append(runner.rows["target"][1024])
    assert found[0] == found[1] != found[2]


def test_progress_counts_all_tokens_of_both_models(fake: Any) -> None:
    told: list[tuple[str, int, int]] = []
    run(fake(target=FLAT, base=FLAT), progress=lambda *told_now: told.append(told_now))
    total = 2 * 32 * sum(LENGTHS)
    assert told[0] == ("reading the texts", 0, 0)
    assert told[1] == ("loading the target", 0, total)
    assert told[2] == ("target: last-segment", 32 * 64, total)
    assert told[-1] == ("baseline: last-segment", total, total)


def test_other_tokens_for_the_same_text_are_refused(fake: Any) -> None:
    class Swapped(fake(target=FLAT, base=FLAT)):
        def tokenize(self, text: str) -> list[int]:
            ids = super().tokenize(text)
            if self.name == "base" and text.startswith("2 "):
                ids[40], ids[41] = ids[41], ids[40]
            return ids

    with pytest.raises(
        ConfigError, match=r"does not match target: in 2\.txt, token 40 is 200042 instead of 200041"
    ) as e:
        run(Swapped)
    assert e.value.where == "base"
    assert not Swapped.rows  # before anything is measured


def test_another_start_or_end_of_the_text_is_refused(fake: Any) -> None:
    class OtherStart(fake(target=FLAT, base=FLAT)):
        prefix = property(lambda self: (0,) if self.name == "target" else ())

    class Shorter(fake(target=FLAT, base=FLAT)):
        def tokenize(self, text: str) -> list[int]:
            return super().tokenize(text)[: -1 if self.name == "base" else None]

    with pytest.raises(ConfigError, match="in the leading special tokens, token 0 is nothing instead of 0"):
        run(OtherStart)
    with pytest.raises(ConfigError, match="token 2999 is nothing instead of 3000"):
        run(Shorter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, "the list of lengths is empty"),
        ({"lengths": [0]}, "must be a whole number of at least 8, not 0"),
        ({"lengths": [-256, 512]}, "must be a whole number of at least 8, not -256"),
        ({"lengths": [7, 64]}, "must be a whole number of at least 8, not 7"),
        ({"lengths": [64.0]}, r"must be a whole number of at least 8, not 64\.0"),
        ({"lengths": [True]}, "must be a whole number of at least 8, not True"),
        ({"lengths": ["64"]}, "must be a whole number of at least 8, not '64'"),
        ({"lengths": [64, 64]}, "lengths must increase, but 64 follows 64"),
        ({"lengths": [512, 256]}, "lengths must increase, but 256 follows 512"),
        ({"trained_length": 0}, "must be a whole number of at least 8, not 0"),
        ({"segments": 7}, "must be a whole number of at least 8, not 7"),
        ({"budget": 0.0}, r"must be a number of minutes above 0, not 0\.0"),
        ({"budget": math.nan}, "must be a number of minutes above 0, not nan"),
        ({"grade": "good"}, "'good' is not one of publishable, usable, research"),
        ({"texts": []}, "tokens needs a document of 1023, and the longest has 0"),
        ({"lengths": [64, 2**40]}, "a length of 1099511627776 tokens needs a document of"),
    ],
)
def test_values_that_make_no_measurement_are_refused(fake: Any, options: dict[str, Any], message: str) -> None:
    runner = fake(target=FLAT, base=FLAT)
    with pytest.raises(ConfigError, match=message):
        run(runner, **options)
    assert not runner.rows


@pytest.mark.parametrize(
    ("trained", "target", "expected"),
    [
        (256, 2048, [64, 128, 256, 512, 1024, 2048]),
        (256, 1500, [64, 128, 256, 512, 1024, 1500]),
        (4096, 4096, [1024, 2048, 4096]),
        (16, 32, [8, 16, 32]),
        (256, 40, [40]),
    ],
)
def test_default_lengths_double_from_a_quarter_and_end_on_the_target(
    trained: int, target: int, expected: list[int]
) -> None:
    assert default_lengths(trained, target) == expected


def test_perplexity_beyond_a_float_is_infinite() -> None:
    assert perplexity(math.log(12)) == pytest.approx(12)
    assert perplexity(1e4) == math.inf


def test_a_real_pair_of_checkpoints(tiny: Path, dynamic: Path, documents: list[Document]) -> None:
    result = verify(
        dynamic,
        baseline=tiny,
        texts=documents,
        lengths=[32, 64, 128, 256],
        trained_length=64,
        dtype="float64",
        suite=suites.choose("quick", (), 10),
    )
    assert [entry.ratio for entry in result.lengths[:2]] == [1.0, 1.0]  # dynamic changes nothing within its length
    assert all(abs(entry.ratio - 1) > 1e-4 for entry in result.lengths[2:])
    same = verify(
        tiny,
        baseline=None,
        texts=documents,
        lengths=[32, 64, 128, 256],
        trained_length=64,
        dtype="float64",
        suite=suites.choose("quick", (), 10),
    )
    for ours, theirs in zip(same.lengths, result.lengths, strict=True):
        assert ours.target == theirs.baseline
    assert "float64" in result.runtime


def test_a_checkpoint_that_computes_nan_is_named(tiny: Path, make_variant: Any, documents: list[Document]) -> None:
    folder = set_tensors(make_variant(tiny), lambda tensors: tensors["model.norm.weight"][:1].fill_(math.nan))
    with pytest.raises(
        CheckpointError, match="the last norm computes values that are not finite, first at position 0 of"
    ):
        verify(folder, baseline=tiny, texts=documents, lengths=[32, 64], trained_length=64)


def test_tokenizers_trained_on_other_text_are_refused(
    tiny: Path, make_variant: Any, write_tokenizer: Any, documents: list[Document]
) -> None:
    folder = make_variant(tiny)
    write_tokenizer(folder, seed=9)
    with pytest.raises(ConfigError, match="the tokenizer does not match"):
        verify(folder, baseline=tiny, texts=documents, lengths=[32, 64], trained_length=64)
