"""Perplexity by the published protocols, for comparison with their tables.

Windows and contexts are those of the originals, but the mean is always over tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ropetool.errors import UnknownName
from ropetool.rope.tables import Array
from ropetool.sections import Section, Table, change, optional, perplexity, row
from ropetool.verification.measure import Measure, Setting
from ropetool.verification.results import Estimate
from ropetool.verification.scoring import Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import clustered_sums
from ropetool.verification.texts import too_short

YARN, LLAMA_CPP = "yarn", "llama.cpp"
PROTOCOLS = (YARN, LLAMA_CPP)
YARN_STRIDE = 256  # as in the original and its tables
MAX_WINDOWS = 8
CALL_IDS = 2**20  # ids per call of a runner; as Python integers they take 36 MB
NOTES = {
    YARN: f"windows every {YARN_STRIDE} tokens, each after the prefix; the original averages the means of the windows",
    LLAMA_CPP: "disjoint windows, with the prefix instead of their first token; the second half is scored, without its "
    "first token; the original needs text for two windows",
}


@dataclass(frozen=True)
class Window:
    """A stretch of a document with the prefix in front.

    document: the number of the document.
    begin, end: its first position, and the position after the last, in tokens of prefix and document.
    scored: the number of ids at the end that are scored.
    """

    document: int
    begin: int
    end: int
    scored: int

    @property
    def length(self) -> int:
        """Return the number of ids that the model gets."""
        return self.end - self.begin


@dataclass(frozen=True)
class ProtocolLength:
    """Perplexity by a published protocol at one window length.

    length: tokens in a window.
    target, baseline: losses in nats per token. None without a baseline.
    target_bits, baseline_bits: bits per byte of text. None without a baseline.
    difference: target minus baseline in nats per token, paired. None without a baseline.
    """

    length: int
    target: Estimate
    baseline: Estimate | None
    target_bits: float
    baseline_bits: float | None
    difference: Estimate | None


@dataclass(frozen=True)
class ProtocolResult:
    """The result of a protocol.

    protocol: `yarn` or `llama.cpp`.
    lengths: the result of each window length.
    note: how it differs from the original.
    """

    protocol: str
    lengths: tuple[ProtocolLength, ...]
    note: str


@dataclass(frozen=True)
class ProtocolMeasurement:
    """One protocol at some lengths. Target and baseline get the same windows.

    protocol: `yarn` or `llama.cpp`.
    corpus: the documents.
    windows: the windows of each length.
    note: how it differs from the original.
    """

    protocol: str
    corpus: Corpus
    windows: Mapping[int, tuple[Window, ...]]
    note: str

    @property
    def name(self) -> str:
        """Return the protocol's name."""
        return self.protocol

    def rows(self, role: str) -> Mapping[int, int]:
        """Return the number of rows of each length for either model. The last window of a document may be shorter."""
        return Counter(window.length for windows in self.windows.values() for window in windows)

    def run(self, runner: Runner, role: str, done: Done) -> dict[int, Array]:
        """Return the loss of every window at each length, summed over its scored tokens.

        Shapes: a value is (windows of that length,). Units: nats.
        """
        return {length: self._losses(windows, runner, done) for length, windows in self.windows.items()}

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> ProtocolResult:
        """Return the losses with their intervals, and the paired difference, from the results of `run`."""
        lengths = [
            self._length(length, target[length], None if baseline is None else baseline[length])
            for length in self.windows
        ]
        return ProtocolResult(self.protocol, tuple(lengths), self.note)

    def _losses(self, windows: Sequence[Window], runner: Runner, done: Done) -> Array:
        losses = np.empty(len(windows))
        for members in _calls(windows):
            rows = [self._row(windows[index]) for index in members]
            losses[members] = runner.score(rows, windows[members[0]].scored, done).losses.sum(axis=1)
        return losses

    def _row(self, window: Window) -> list[int]:
        """Return the ids of a window. The prefix takes the place of its first ids."""
        prefix, tokens = self.corpus.prefix, self.corpus.tokens[window.document]
        return [*prefix, *tokens[window.begin : window.end - len(prefix)].tolist()]

    def _length(self, length: int, target: Array, baseline: Array | None) -> ProtocolLength:
        windows = self.windows[length]
        counts, documents = [window.scored for window in windows], [window.document for window in windows]
        nats_per_bit = math.log(2) * sum(self._bytes(window) for window in windows)
        return ProtocolLength(
            length=length,
            target=clustered_sums(target, counts, documents),
            baseline=None if baseline is None else clustered_sums(baseline, counts, documents),
            target_bits=float(target.sum()) / nats_per_bit,
            baseline_bits=None if baseline is None else float(baseline.sum()) / nats_per_bit,
            difference=None if baseline is None else clustered_sums(target - baseline, counts, documents),
        )

    def _bytes(self, window: Window) -> int:
        """Return the number of bytes of text in the scored tokens."""
        end = window.end - len(self.corpus.prefix)
        return int(self.corpus.byte_lengths[window.document][end - window.scored : end].sum())


def prepare(
    protocol: str, corpus: Corpus, lengths: Sequence[int], *, max_windows: int = MAX_WINDOWS
) -> ProtocolMeasurement:
    """Return the measurement with windows of each length, in tokens of model input: the first windows of each document.

    A document has windows only of the lengths that it fills.
    Raises: UnknownName for any other protocol. ConfigError if no document fills a length.
    Source: jquesnelle/yarn@70d45d3:eval/perplexity.py; ggml-org/llama.cpp@0c1e570:tools/perplexity/perplexity.cpp,
    perplexity().
    """
    if protocol not in PROTOCOLS:
        raise UnknownName(f"{protocol!r} is not one of {', '.join(PROTOCOLS)}", where="protocol")
    windows = {length: _windows(protocol, corpus, length, max_windows) for length in sorted(lengths)}
    note = f"{NOTES[protocol]}; at most {max_windows} windows per document; mean over tokens"
    return ProtocolMeasurement(protocol, corpus, windows, note)


def _windows(protocol: str, corpus: Corpus, length: int, most: int) -> tuple[Window, ...]:
    """Return the first windows, at most `most`, of each document that fills one."""
    prefix = len(corpus.prefix)
    all_windows: list[Window] = []
    for document, tokens in enumerate(corpus.tokens):
        size = prefix + len(tokens)
        if size < length:
            continue
        if protocol == LLAMA_CPP:
            windows = _disjoint(document, size, length)
        else:
            windows = _sliding(document, size, length, prefix)
        all_windows += islice((window for window in windows if window.scored > 0), most)
    if not all_windows:
        raise too_short(length, length - prefix, max(map(len, corpus.tokens), default=0))
    return tuple(all_windows)


def _disjoint(document: int, size: int, length: int) -> Iterator[Window]:
    """Yield llama.cpp's chunks. It uses the logits from position length // 2 on, which score the following tokens."""
    for begin in range(0, size - length + 1, length):
        yield Window(document, begin, begin + length, length - length // 2 - 1)


def _sliding(document: int, size: int, length: int, prefix: int) -> Iterator[Window]:
    """Yield windows that score the tokens beyond the previous window.

    The last window has fewer tokens and less context. A window below 257 tokens is shorter than the stride, so tokens
    between windows are left out, as in the original.
    """
    scored_to = prefix
    for begin in range(0, size, YARN_STRIDE):
        end = min(begin + length, size)
        yield Window(document, begin, end, min(end - scored_to, end - begin - 1))
        scored_to = end
        if end == size:
            break


def _calls(windows: Sequence[Window]) -> Iterator[list[int]]:
    """Yield the indexes of windows for one call: windows of the same length with the same number of scored ids."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, window in enumerate(windows):
        groups.setdefault((window.length, window.scored), []).append(index)
    for (length, _), members in groups.items():
        step = max(1, CALL_IDS // length)
        for start in range(0, len(members), step):
            yield members[start : start + step]


def _protocols(results: Sequence[ProtocolResult]) -> Section:
    rows = tuple(
        row(
            protocol.protocol,
            str(entry.length),
            str(entry.target.tokens),
            perplexity(entry.baseline),
            perplexity(entry.target),
            change(entry.difference),
            optional(entry.baseline_bits),
            optional(entry.target_bits),
        )
        for protocol in results
        for entry in protocol.lengths
    )
    legend = (
        *((protocol.protocol, protocol.note) for protocol in results if protocol.note),
        ("window", "in tokens; all scored tokens have the same weight"),
        ("change", "target minus baseline, nats per token, paired, ± 95 % interval"),
    )
    head = ("protocol", "window", "tokens", "ppl baseline", "ppl target", "change", "bits baseline", "bits target")
    return Section("protocols", "Perplexity by published protocols", Table(head, rows, words=(0,)), legend)


def _prepare(protocol: str) -> Callable[[Setting, Sequence[Measurement]], ProtocolMeasurement]:
    """Return the function that prepares the measurement of a protocol."""

    def prepared(setting: Setting, measurements: Sequence[Measurement]) -> ProtocolMeasurement:
        lengths = [length for length in setting.lengths if length >= setting.trained_length]
        return prepare(protocol, setting.corpus, lengths or setting.lengths[-1:])

    return prepared


JSON_PLACES = ({"key": "protocols", "after": "lengths", "order": 15, "several": True},)
MEASURES = tuple(
    Measure(
        protocol, "protocols", 100 + index, _prepare(protocol), several=True,
        sections=lambda each, result: [_protocols(each)], shown=15 + index,
    )
    for index, protocol in enumerate(PROTOCOLS)
)  # fmt: skip
