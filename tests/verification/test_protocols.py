"""The published protocols against naive loops after their originals, on full float64 logits, token by token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ropetool.errors import ConfigError, UnknownName
from ropetool.lab.measures import protocols
from ropetool.lab.measures.protocols import MAX_WINDOWS, PROTOCOLS, YARN_STRIDE, ProtocolResult, prepare
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Done, Scores

BOS = 0
ALL = 10**6
SIZES = (200, 131, 96, 311)  # none a multiple of a stride below, so that last windows are ragged


class NaiveRunner:
    """All logits of every row, in float64; remembers the rows it was given."""

    def __init__(self, model: Any, prefix: tuple[int, ...] = (BOS,)) -> None:
        self.model, self.prefix, self.rows = model, prefix, []

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        assert len({len(row) for row in rows}) == 1
        losses = np.stack([token_losses(self.model, row)[-scored:] for row in rows])
        self.rows += [(len(row), scored) for row in rows]
        done(sum(map(len, rows)))
        return Scores(losses, np.zeros(losses.shape, dtype=np.bool_))


def token_losses(model: Any, row: Sequence[int]) -> np.ndarray:
    """The loss of every token after the first."""
    ids = torch.tensor([list(row)])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()


@pytest.fixture(scope="module")
def models(tiny: Path) -> list[Any]:
    """The tiny checkpoint, and one that rotates twice as slowly."""
    found = [AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64).eval() for _ in range(2)]
    for name, buffer in found[1].named_buffers():
        if name.endswith("inv_freq"):
            buffer /= 2
    return found


def make_corpus(sizes: Sequence[int] = SIZES, prefix: tuple[int, ...] = (BOS,)) -> Corpus:
    rng = np.random.default_rng(5)
    tokens = tuple(rng.integers(1, 300, size=size) for size in sizes)
    lengths = tuple(rng.integers(1, 9, size=size) for size in sizes)
    return Corpus(tuple(f"{size}.txt" for size in sizes), tokens, lengths, prefix)


# --- the originals: for each scored token its document, its index there, and its loss

Scored = list[tuple[int, int, float]]


def after_yarn(model: Any, corpus: Corpus, length: int, stride: int, most: int) -> Scored:
    """jquesnelle/yarn eval/perplexity.py: BOS before each window, labels of -100 for what was scored before."""
    scored: Scored = []
    room = length - len(corpus.prefix)
    for document, text in enumerate(corpus.tokens):
        previous_end = 0
        for begin in list(range(0, len(text), stride))[:most]:
            end = min(begin + room, len(text))
            ids = torch.tensor([[*corpus.prefix, *text[begin:end].tolist()]])
            labels, index = ids.clone(), torch.arange(begin - len(corpus.prefix), end)
            labels[:, : -(end - previous_end)] = -100
            scored += labelled(model, ids, labels, document, index)
            previous_end = end
            if end == len(text):
                break
    return scored


def labelled(model: Any, ids: torch.Tensor, labels: torch.Tensor, document: int, index: torch.Tensor) -> Scored:
    """What a transformers model called with labels averages over: they are shifted inside, and -100 is left out."""
    with torch.no_grad():
        logits = model(ids).logits[0, :-1]
    losses = torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100, reduction="none")
    kept = labels[0, 1:] != -100
    return [(document, int(i), float(loss)) for i, loss in zip(index[1:][kept], losses[kept], strict=True)]


def after_llama_cpp(model: Any, corpus: Corpus, length: int, stride: int, most: int) -> Scored:
    """ggml-org/llama.cpp tools/perplexity/perplexity.cpp, perplexity(): logits are wanted from position n_ctx/2 on."""
    scored: Scored = []
    for document, text in enumerate(corpus.tokens):
        tokens = [*corpus.prefix, *text.tolist()]
        for chunk in range(min(len(tokens) // length, most)):
            start, first = chunk * length, length // 2
            batch = tokens[start : start + length]
            if corpus.prefix:
                batch[0] = BOS
            with torch.no_grad():
                log_probs = model(torch.tensor([batch])).logits[0].log_softmax(dim=-1)
            for i in range(length - 1 - first):
                index = start + first + i + 1
                scored.append((document, index - len(corpus.prefix), -float(log_probs[first + i, tokens[index]])))
    return scored


ORIGINALS: dict[str, Callable[[Any, Corpus, int, int, int], Scored]] = {
    "yarn": after_yarn,
    "llama.cpp": after_llama_cpp,
}
assert set(ORIGINALS) == set(PROTOCOLS)


def measured(
    models: list[Any], corpus: Corpus, protocol: str, lengths: Sequence[int], **options: Any
) -> ProtocolResult:
    measurement = prepare(protocol, corpus, lengths, **options)
    target, baseline = (NaiveRunner(model, corpus.prefix) for model in models)
    return measurement.result(
        measurement.run(target, TARGET, lambda tokens: None), measurement.run(baseline, BASELINE, lambda tokens: None)
    )


CASES = [
    ("yarn", 16, ALL),
    ("yarn", 23, 3),
    ("yarn", YARN_STRIDE, ALL),  # windows shorter than the stride of 256 leave tokens out
    ("llama.cpp", YARN_STRIDE, ALL),
    ("llama.cpp", YARN_STRIDE, 1),
]


@pytest.mark.parametrize("prefix", [(BOS,), ()], ids=["bos", "no-bos"])
@pytest.mark.parametrize(("protocol", "stride", "most"), CASES)
def test_a_protocol_equals_its_original(
    models: list[Any],
    protocol: str,
    stride: int,
    most: int,
    prefix: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = make_corpus(prefix=prefix)
    monkeypatch.setattr(protocols, "YARN_STRIDE", stride)
    result = measured(models, corpus, protocol, [48, 65, 90], max_windows=most)
    for found in result.lengths:
        target, baseline = (ORIGINALS[protocol](model, corpus, found.length, stride, most) for model in models)
        losses, reference = (np.array([loss for _, _, loss in scored]) for scored in (target, baseline))
        assert found.target.tokens == losses.size > 80
        assert found.target.mean == pytest.approx(losses.mean(), abs=1e-9)
        assert found.baseline is not None
        assert found.baseline.mean == pytest.approx(reference.mean(), abs=1e-9)
        assert found.difference is not None
        assert found.difference.mean == pytest.approx((losses - reference).mean(), abs=1e-9)
        assert np.abs(losses - reference).max() > 1  # the two models are not alike
        size = sum(int(corpus.byte_lengths[document][index]) for document, index, _ in target)
        assert found.target_bits == pytest.approx(float(mpmath.fsum(losses) / mpmath.log(2) / size), abs=1e-9)
        assert found.baseline_bits == pytest.approx(float(mpmath.fsum(reference) / mpmath.log(2) / size), abs=1e-9)
        assert found.target.standard_error == pytest.approx(clustered_error(target), rel=1e-9)


def clustered_error(scored: Scored) -> float:
    """The standard error CR2 of a mean over tokens, written out: every document is a unit."""
    mean = sum(loss for _, _, loss in scored) / len(scored)
    rests = {document: 0.0 for document, _, _ in scored}
    for document, _, loss in scored:
        rests[document] += loss - mean
    shares = {unit: sum(document == unit for document, _, _ in scored) / len(scored) for unit in rests}
    return math.sqrt(sum(rest**2 / (1 - shares[unit]) for unit, rest in rests.items())) / len(scored)


def test_yarn_with_its_own_stride_scores_every_token_once(models: list[Any]) -> None:
    corpus = make_corpus((700, 531))
    (found,) = measured(models, corpus, "yarn", [300], max_windows=ALL).lengths
    scored = after_yarn(models[0], corpus, 300, 256, ALL)
    assert sorted((document, index) for document, index, _ in scored) == [
        (document, index) for document in range(2) for index in range(len(corpus.tokens[document]))
    ]
    assert found.target.mean == pytest.approx(np.mean([loss for _, _, loss in scored]), abs=1e-9)
    assert found.target.tokens == 1231


def test_the_mean_is_over_tokens_not_over_windows(models: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus()
    monkeypatch.setattr(protocols, "YARN_STRIDE", 16)
    measurement = prepare("yarn", corpus, [64])
    sums = measurement.run(NaiveRunner(models[0]), TARGET, lambda tokens: None)[64]
    counts = np.array([window.scored for window in measurement.windows[64]])
    of_windows = float((sums / counts).mean())
    found = measurement.result({64: sums}, None).lengths[0]
    assert found.target.mean == pytest.approx(float(sums.sum() / counts.sum()), rel=1e-12)
    assert abs(found.target.mean - of_windows) > 1e-3
    assert (found.baseline, found.baseline_bits, found.difference) == (None, None, None)


def continued(measurement: protocols.ProtocolMeasurement, window: protocols.Window) -> list[int]:
    corpus = measurement.corpus
    return [*corpus.prefix, *corpus.tokens[window.document].tolist()][window.begin : window.end]


DEFECTS: list[tuple[str, str, Any]] = [
    ("yarn", "YARN_STRIDE", YARN_STRIDE - 1),
    ("yarn", "_sliding", lambda *a: protocols_sliding(*a[:3], a[3] + 1)),  # the first token is not scored
    ("yarn", "_sliding", lambda *a: protocols_sliding(*a[:2], a[2] - 1, a[3])),  # less context
    ("llama.cpp", "ProtocolMeasurement._row", continued),  # only the first window starts with BOS
    ("llama.cpp", "_disjoint", lambda *a: [shifted(w) for w in protocols_disjoint(*a)]),  # scores half of the window
]
protocols_sliding, protocols_disjoint = protocols._sliding, protocols._disjoint


def shifted(window: protocols.Window) -> protocols.Window:
    return protocols.Window(window.document, window.begin, window.end, window.scored + 1)


@pytest.mark.parametrize(("protocol", "name", "defect"), DEFECTS, ids=lambda value: value if type(value) is str else "")
def test_a_planted_defect_moves_the_figure(
    models: list[Any], protocol: str, name: str, defect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus()
    (right,) = measured(models, corpus, protocol, [64], max_windows=ALL).lengths
    monkeypatch.setattr(f"{protocols.__name__}.{name}", defect)
    (wrong,) = measured(models, corpus, protocol, [64], max_windows=ALL).lengths
    assert abs(wrong.target.mean - right.target.mean) > 1e-4


def test_rows_are_counted_as_they_are_run_in_calls_of_one_shape(models: list[Any], monkeypatch: Any) -> None:
    for protocol in PROTOCOLS:
        measurement = prepare(protocol, make_corpus(), [48, 64])
        runner, counted = NaiveRunner(models[0]), []
        whole = measurement.run(runner, TARGET, counted.append)
        rows = measurement.rows(TARGET)
        assert measurement.name == protocol
        assert Counter(length for length, _ in runner.rows) == rows == measurement.rows(BASELINE)
        assert sum(counted) == sum(length * count for length, count in rows.items())
        assert max(rows) == 64
        with monkeypatch.context() as patch:
            patch.setattr(protocols, "CALL_IDS", 100)  # two rows of 48 in a call, one of 64
            pieces = measurement.run(NaiveRunner(models[0]), TARGET, lambda tokens: None)
        assert all(np.array_equal(whole[length], pieces[length]) for length in whole)


def test_work_is_bounded_by_the_first_windows_of_every_document() -> None:
    corpus = make_corpus((5000, 4000, 100))
    for protocol in PROTOCOLS:
        measurement = prepare(protocol, corpus, [64, 128])
        for length, windows in measurement.windows.items():
            per_document = Counter(window.document for window in windows)
            assert per_document[0] == per_document[1] == MAX_WINDOWS
            assert (2 in per_document) == (length == 64)  # the short document does not fill 128
            assert min(window.begin for window in windows) == 0
        assert f"at most {MAX_WINDOWS} windows" in measurement.note


def test_the_note_says_the_stride() -> None:
    corpus = make_corpus()
    assert "every 256 tokens" in prepare("yarn", corpus, [64]).note
    assert "mean over tokens" in prepare("llama.cpp", corpus, [64]).note


def test_what_cannot_be_measured_is_refused() -> None:
    corpus = make_corpus()
    with pytest.raises(UnknownName, match=r"'hf-stride' is not one of yarn, llama\.cpp$"):
        prepare("hf-stride", corpus, [64])
    with pytest.raises(ConfigError, match="length of 313 tokens needs a document of 312, and the longest has 311"):
        prepare("yarn", corpus, [64, 313])
    assert prepare("yarn", corpus, [312]).windows[312]
