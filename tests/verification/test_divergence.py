"""Divergence of two models against torch's own KL, exact arithmetic, and models with a planted defect."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ropetool.errors import CheckpointError, ConfigError
from ropetool.verification.measures import divergence
from ropetool.verification.measures.divergence import MAX_SPANS, diverge, divergence_rows, span_edges
from ropetool.verification.results import DivergenceResult
from ropetool.verification.scoring import Corpus, Logits

PIECE = 24
LENGTH = 100  # 4 pieces of 24 and a rest
TRAINED = 64
DOCUMENTS = [3, 3, 5, 8]  # two rows of one document
ROWS = np.random.default_rng(0).integers(1, 300, size=(4, LENGTH)).tolist()


class Table:
    """A runner whose logits are a function of the row; every piece is overwritten by the next one."""

    def __init__(self, logits: Callable[[Sequence[int]], np.ndarray], name: str = "table", piece: int = PIECE) -> None:
        self._logits, self.description, self._piece = logits, name, piece

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        whole = self._logits(ids)
        buffer = np.full((self._piece, whole.shape[1]), np.nan, dtype=np.float32)
        for start in range(0, len(ids), self._piece):
            part = whole[start : start + self._piece]
            buffer[: len(part)] = part
            yield start, buffer[: len(part)]
            buffer[:] = np.nan


def of_model(folder: Path, change: Callable[[Any], None] = lambda model: None) -> Table:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    change(model)

    def logits(ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([list(ids)])).logits[0].numpy()

    return Table(logits)


def of_array(logits: np.ndarray, name: str = "table") -> Table:
    """The same logits for every row."""
    return Table(lambda ids: logits, name)


def compare(
    reference: Any, target: Any, rows: Sequence[Sequence[int]] = ROWS, trained: int = TRAINED
) -> DivergenceResult:
    return diverge(reference, target, rows, trained, DOCUMENTS[: len(rows)], lambda tokens: None)


def torch_kl(reference: Table, target: Table, rows: Sequence[Sequence[int]] = ROWS) -> np.ndarray:
    def distribution(table: Table, row: Sequence[int]) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=torch.tensor(table._logits(row), dtype=torch.float64))

    return np.array(
        [torch.distributions.kl_divergence(distribution(reference, r), distribution(target, r)).numpy() for r in rows]
    )


def slower(model: Any) -> None:
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            buffer /= 1.1


@pytest.fixture(scope="module")
def pair(tiny: Path) -> tuple[Table, Table]:
    return of_model(tiny), of_model(tiny, slower)


def test_the_figures_are_those_of_torch(pair: tuple[Table, Table]) -> None:
    reference, target = pair
    found = compare(reference, target)
    kl = torch_kl(reference, target)
    assert found.beyond is not None
    assert (found.rows, found.length, found.reference) == (4, LENGTH, "table")
    assert [(s.start, s.end, s.tokens) for s in (found.within, found.beyond)] == [(0, 64, 256), (64, 100, 144)]
    for span in (found.within, found.beyond, *found.by_position):
        part = kl[:, span.start : span.end]
        assert span.mean.mean == pytest.approx(part.mean(), abs=1e-12)
        assert span.median == pytest.approx(np.median(part), abs=1e-12)
        assert span.p99 == pytest.approx(np.percentile(part, 99), abs=1e-12)
        assert span.maximum == pytest.approx(part.max(), abs=1e-12)
        ours, theirs = (np.array([t._logits(r) for r in ROWS])[:, span.start : span.end] for t in pair)
        assert span.top1 == np.mean(ours.argmax(axis=-1) == theirs.argmax(axis=-1))
        assert span.logit_difference == pytest.approx(np.abs(ours - theirs).max() / np.abs(ours).max(), rel=1e-6)
    assert 0 < found.within.top1 < 1
    assert found.beyond.mean.mean > 1e-3
    assert found.beyond.mean.mean != pytest.approx(
        compare(target, reference).beyond.mean.mean, rel=0.01
    )  # KL has a side


def test_the_interval_is_clustered_by_document(pair: tuple[Table, Table]) -> None:
    found = compare(*pair, trained=LENGTH).within.mean
    kl = torch_kl(*pair)
    mean = kl.mean()
    parts = [float((kl[rows] - mean).sum()) ** 2 / (1 - len(rows) / 4) for rows in ([0, 1], [2], [3])]  # CR2
    error = math.sqrt(sum(parts)) / kl.size
    assert found.standard_error == pytest.approx(error, rel=1e-9)
    assert (found.documents, found.tokens) == (3, 400)


def test_the_same_model_gives_exactly_nothing(tiny: Path) -> None:
    found = compare(of_model(tiny), of_model(tiny))
    for span in (found.within, found.beyond, *found.by_position):
        assert span is not None
        assert (span.mean.mean, span.mean.low, span.mean.high) == (0, 0, 0)
        assert (span.median, span.p99, span.maximum, span.logit_difference, span.top1) == (0, 0, 0, 0, 1)
    assert found.note == ""


def test_a_shift_of_all_logits_is_seen_in_the_logits_alone() -> None:
    logits = np.random.default_rng(1).normal(0, 3, size=(LENGTH, 50)).astype(np.float32).round(3)
    found = compare(of_array(logits), of_array(logits + 4), trained=LENGTH)
    assert found.within.maximum < 1e-12
    assert found.within.logit_difference == pytest.approx(4 / np.abs(logits).max(), rel=1e-6)
    assert found.within.top1 == 1


@pytest.mark.parametrize("size", [1e-1, 1e-3, 3e-5])
def test_a_tiny_divergence_keeps_its_digits(size: float) -> None:
    rng = np.random.default_rng(2)
    ours = rng.normal(0, 3, size=(3, 40)).astype(np.float32)
    theirs = ours + rng.normal(0, size, size=ours.shape).astype(np.float32)
    exact = []
    with mpmath.workdps(40):
        for p, q in zip(ours.tolist(), theirs.tolist(), strict=True):
            sums = [mpmath.fsum(mpmath.exp(x) for x in row) for row in (p, q)]
            logs = [[x - mpmath.log(total) for x in row] for row, total in zip((p, q), sums, strict=True)]
            exact.append(float(mpmath.fsum(mpmath.exp(a) * (a - b) for a, b in zip(*logs, strict=True))))
    found = compare(of_array(ours), of_array(theirs), rows=[[1, 2, 3]], trained=3).within
    assert found.mean.mean == pytest.approx(np.mean(exact), rel=1e-5)
    assert found.maximum == pytest.approx(max(exact), rel=1e-5)
    assert (found.mean.mean < 2e-9) == (size == 3e-5)


def test_a_rest_below_zero_counts_as_none() -> None:
    rng = np.random.default_rng(3)
    ours = rng.normal(0, 10, size=(500, 200))
    theirs = ours + rng.uniform(-1, 1, size=(500, 1))  # nothing but rounding is left
    assert divergence._kl(ours, theirs).min() == 0
    assert divergence._kl(ours, theirs).max() < 1e-13


def test_rows_within_the_trained_length_have_nothing_beyond(pair: tuple[Table, Table]) -> None:
    assert compare(*pair, trained=LENGTH).beyond is None
    found = compare(*pair, trained=LENGTH - 1)
    assert found.beyond is not None
    assert (found.beyond.start, found.beyond.tokens) == (99, 4)
    assert found.within.tokens == 396
    assert compare(*pair, trained=10**6).within.end == LENGTH


@pytest.mark.parametrize(
    ("length", "border"), [(131072, 4096), (131072, 131072), (4096, 256), (100, 64), (10, 10), (700, 3)]
)
def test_spans_are_equally_wide_on_a_logarithmic_axis_and_meet_at_the_border(length: int, border: int) -> None:
    edges = span_edges(length, border)
    assert (edges[0], edges[-1]) == (0, length)
    assert edges == sorted(set(edges))
    assert len(edges) - 1 <= MAX_SPANS
    assert border < 16 or border in edges
    inner = edges[1:-1]
    assert all(later / earlier == pytest.approx(math.sqrt(2), rel=0.04) for earlier, later in pairwise(inner))
    if inner:
        assert inner[0] >= 16
        assert 2**0.25 < length / inner[-1] <= 2**0.75 * 1.04


def test_a_long_row_has_many_spans() -> None:
    assert len(span_edges(131072, 4096)) - 1 == MAX_SPANS
    assert span_edges(4096, 256)[-5:] == [1024, 1448, 2048, 2896, 4096]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("role", ["reference", "target"])
def test_a_logit_that_is_not_finite_is_named_with_its_position(role: str, value: float) -> None:
    good = np.zeros((LENGTH, 20), dtype=np.float32)
    bad = good.copy()
    bad[77, 5] = value
    bad[78] = np.nan
    tables = of_array(bad if role == "reference" else good, "one"), of_array(bad if role == "target" else good, "other")
    with pytest.raises(
        CheckpointError, match=f"the {role} computes the logit {value} at position 77 of row 0, token 5"
    ) as info:
        compare(*tables)
    assert info.value.where == ("one" if role == "reference" else "other")


def padded(table: Table, logit: float, count: int = 20) -> Table:
    def logits(ids: Sequence[int]) -> np.ndarray:
        return np.pad(table._logits(ids), ((0, 0), (0, count)), constant_values=logit)

    return Table(logits)


def test_padding_of_the_vocabulary_is_left_out(pair: tuple[Table, Table]) -> None:
    reference, target = pair
    plain = compare(reference, target)
    for one, other, sizes in [
        (padded(reference, -20), target, "320 and 300"),
        (reference, padded(target, -20), "300 and 320"),
    ]:
        found = compare(one, other)
        assert (found.within, found.beyond) == (plain.within, plain.beyond)
        assert (
            found.note
            == f"the vocabularies have {sizes} tokens; the first 300 are compared, because the rest is padding"
        )


def test_tokens_that_the_reference_never_says_count_in_neither() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = (rng.normal(size=(LENGTH, 40)).astype(np.float32) for _ in range(2))
    masked = ours.copy()
    masked[:, 4:30] = np.finfo(np.float32).min
    kept = [*range(4), *range(30, 40)]
    found = compare(of_array(masked), of_array(theirs))
    alone = compare(of_array(ours[:, kept]), of_array(theirs[:, kept]))
    assert found.within.mean.mean == pytest.approx(alone.within.mean.mean, rel=1e-12)
    assert found.within.logit_difference == alone.within.logit_difference
    assert compare(of_array(ours), of_array(masked)).within.mean.mean > 1  # what the target alone leaves out is lost


def test_another_vocabulary_is_refused(pair: tuple[Table, Table]) -> None:
    reference, target = pair
    with pytest.raises(
        ConfigError, match=r"reference has 300 tokens .* target 320; .* get \d+\.\d% of the probability"
    ):
        compare(reference, padded(target, 3))
    with pytest.raises(ConfigError, match=r"reference has 320 tokens .* target 300"):
        compare(padded(reference, 3), target)


def test_the_limit_on_padding_is_on_its_probability() -> None:
    for share, fits in [(0.0099, True), (0.0101, False)]:
        wide = np.ones((LENGTH, 21), dtype=np.float32)
        wide[:, 20] += math.log(20 * share / (1 - share))
        narrow = wide[:, :20]
        if fits:
            assert compare(of_array(wide), of_array(narrow)).within.maximum == 0
        else:
            with pytest.raises(ConfigError, match=r"get 1\.0% of the probability"):
                compare(of_array(wide), of_array(narrow))


def test_pieces_that_do_not_align_are_no_comparison() -> None:
    logits = np.zeros((LENGTH, 20), dtype=np.float32)
    with pytest.raises(ValueError, match="24 positions from 0 do not align with 25 from 0"):
        compare(of_array(logits), Table(lambda ids: logits, piece=25))


def test_only_pieces_are_held() -> None:
    """The logits come piece by piece; what is held beside them must not grow with the length."""

    class Endless:
        description = "endless"

        def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
            for start in range(0, len(ids), 16):
                yield start, np.random.default_rng(start).normal(size=(16, 4096)).astype(np.float32)

    def peak(length: int) -> int:
        tracemalloc.start()
        compare(Endless(), Endless(), rows=[[1] * length])
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    short, long = peak(64), peak(1024)
    assert long - short < 1024 * 4096 * 4 / 20  # a twentieth of the longer row's logits
    assert short > 16 * 4096 * 4  # the meter sees arrays


def test_blocks_do_not_matter_and_the_work_is_counted(pair: tuple[Table, Table], monkeypatch: Any) -> None:
    counted: list[int] = []
    whole = diverge(*pair, ROWS, TRAINED, DOCUMENTS, counted.append)
    assert sum(counted) == 4 * LENGTH
    assert counted[:5] == [24, 24, 24, 24, 4]
    monkeypatch.setattr(divergence, "BLOCK_LOGITS", 700)  # two rows of 300
    assert compare(*pair) == whole


def scaled(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 1.05


def one_row(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.weight.data[3] *= 1.2


def swapped_layers(model: Any) -> None:
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index


@pytest.mark.parametrize("defect", [slower, scaled, one_row, swapped_layers], ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_far_above_the_limit_for_parity(tiny: Path, defect: Callable[[Any], None]) -> None:
    found = compare(of_model(tiny), of_model(tiny, defect))
    assert found.within.mean.mean > 1e-3  # the limit is 1e-4
    assert found.within.logit_difference > 1e-3


def test_a_target_one_position_late_is_seen(pair: tuple[Table, Table]) -> None:
    reference, _ = pair
    late = Table(lambda ids: np.roll(reference._logits(ids), 1, axis=0))
    assert compare(reference, late).within.mean.mean > 1


def make_corpus(sizes: Sequence[int], prefix: tuple[int, ...] = (0,)) -> Corpus:
    tokens = tuple(1000 * (index + 1) + np.arange(size) for index, size in enumerate(sizes))
    return Corpus(tuple(map(str, sizes)), tokens, tuple(np.ones_like(t) for t in tokens), prefix)


@pytest.mark.parametrize("prefix", [(), (0,), (7, 9)])
def test_rows_are_pieces_of_different_documents(prefix: tuple[int, ...]) -> None:
    corpus = make_corpus((90, 400, 100 - len(prefix), 99 - len(prefix), 300, 250), prefix)
    rows, documents = divergence_rows(corpus, 100, 3, seed=4)
    assert len(set(documents)) == len(rows) == 3
    for row, document in zip(rows, documents, strict=True):
        assert len(row) == 100
        assert tuple(row[: len(prefix)]) == prefix
        text = row[len(prefix) :]
        assert text == list(range(text[0], text[0] + len(text)))  # in one piece
        assert {token // 1000 for token in text} == {document + 1}
    every, of_all = divergence_rows(corpus, 100, 50, seed=4)
    assert sorted(of_all) == [1, 2, 4, 5]  # 0 and 3 are too short
    assert len(every) == 4
    assert divergence_rows(corpus, 100, 3, seed=4) == (rows, documents)
    assert len({str(divergence_rows(corpus, 100, 3, seed=seed)) for seed in range(5)}) == 5


def test_texts_too_short_are_refused() -> None:
    corpus = make_corpus((98, 50))
    with pytest.raises(ConfigError, match="length of 100 tokens needs a document of 99, and the longest has 98"):
        divergence_rows(corpus, 100, 4, seed=0)
    assert divergence_rows(corpus, 99, 4, seed=0)[1] == [0]


# --- tokens that the texts do not show, and the worst positions


def test_rare_rows_show_what_the_others_do_not() -> None:
    rows = [[0, 1, 2, 3, 4, 5], [0, 4, 5, 6, 7, 8]]
    found = divergence.rare_rows(rows, 1000, [0], 700, seed=1)
    assert [len(row) for row in found] == [700, 700]
    assert [row[0] for row in found] == [0, 0]
    shown = [token for row in found for token in row[1:]]
    assert set(shown) == set(range(9, 1000))
    assert len(set(shown[:991])) == 991  # each once before one comes again
    assert divergence.rare_rows(rows, 1000, [0], 700, seed=1) == found
    assert divergence.rare_rows(rows, 1000, [0], 700, seed=2) != found
    assert divergence.rare_rows(rows, 9, [0], 700, seed=1) == []
    assert [len(row) for row in divergence.rare_rows(rows, 12, [0], 700, seed=1)] == [65]
    (one, other) = divergence.rare_rows(rows, 150_000, [], 131_072, seed=1)
    assert len(one) == len(other) == divergence.RARE_TOKENS
    assert len({*one, *other}) == 2 * divergence.RARE_TOKENS


def test_a_token_that_only_rare_rows_read_is_compared(pair: tuple[Table, Table]) -> None:
    """One row of the embedding, of a token that no text has."""
    reference = pair[0]
    lost = next(token for token in range(300) if token not in set(np.ravel(ROWS)))

    def logits(ids: Sequence[int]) -> np.ndarray:
        return reference._logits([7 if token == lost else token for token in ids])

    reference.prefix = (1,)  # type: ignore[attr-defined]
    target = Table(logits)
    assert compare(reference, target).within.maximum == 0
    found = diverge(reference, target, ROWS, TRAINED, DOCUMENTS, lambda tokens: None, 3)
    assert (found.within.maximum, found.beyond and found.beyond.maximum) == (0, 0)
    assert found.rare is not None
    assert found.rare.maximum > 1e-3
    same = diverge(reference, reference, ROWS, TRAINED, DOCUMENTS, lambda tokens: None, 3)
    assert same.rare is not None
    assert same.rare.maximum == 0


def test_the_worst_positions_are_those_of_all_rows() -> None:
    honest = np.random.default_rng(1).normal(0, 3, size=(LENGTH, 50)).astype(np.float32)
    broken = honest.copy()
    broken[40:48] *= 0.5
    found = compare(of_array(honest), of_array(broken), trained=LENGTH).within
    kl = torch_kl(of_array(honest), of_array(broken))
    assert (found.window_start, found.window) == (32, pytest.approx(kl[:, 32:64].mean(), rel=1e-9))
    assert found.window > 3 * found.mean.mean
    broken[40:48] = honest[40:48]
    broken[98] *= 0.5  # what is left over joins the last whole window
    last = compare(of_array(honest), of_array(broken), trained=LENGTH).within
    assert (last.window_start, last.window) == (
        64, pytest.approx(torch_kl(of_array(honest), of_array(broken))[:, 64:].mean(), rel=1e-9),
    )  # fmt: skip
