"""Cached generation: the logits of generation token by token, compared with the logits of whole passes.

Losses are measured in whole passes, and answers are written with a cache. If the table depends on the text length, the
keys in a cache keep the rotation of an earlier length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array
from ropetool.sections import Section, Table, number, row
from ropetool.verification.measure import Measure, Setting, VerdictSentence
from ropetool.verification.measures.divergence import divergence_rows
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.scoring import TARGET, Corpus, Done, Generated, Measurement, Runner
from ropetool.verification.softmax import log_softmax

NAME = "cache"
TOKENS = 16  # generated tokens after each prompt
ROWS = 2  # rows of each length, from different documents


# Nats per token: the allowed difference between generation and a whole pass, which sum in different orders. At least 15 times
# the difference of the demo in torch and in llama.cpp. Quantised types of ggml also round the inputs and use COARSE.
ROUNDING = {"float64": 1e-8, "float32": 1e-8, "F32": 1e-8, "float16": 1e-4, "F16": 1e-4}
COARSE = 2e-3


@dataclass(frozen=True)
class CacheLength:
    """Generation of the last tokens of rows of `length` tokens after a prompt, compared with whole passes.

    length, prompt: the tokens of a row, and of its prompt.
    tokens: the number of generated tokens of all rows.
    crosses: generation begins within the trained length and ends beyond it.
    mean, maximum: of KL(whole pass || generation), in nats per token.
    same: the share of tokens with the same likeliest token in both.
    """

    length: int
    prompt: int
    tokens: int
    crosses: bool
    mean: float
    maximum: float
    same: float


@dataclass(frozen=True)
class CacheResult:
    """Cached generation by length.

    lengths: the comparison at each length.
    rounding: the number type of the computation.
    moving: whether the table depends on the text length.
    """

    lengths: tuple[CacheLength, ...]
    rounding: str
    moving: bool


@dataclass(frozen=True)
class Cache:
    """Rows of the longest length. Their beginnings are the rows of shorter lengths. Only the target computes them.

    texts: the ids of each row.
    lengths, trained_length: tokens.
    """

    texts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    trained_length: int
    name: str = NAME

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: 2 * len(self.texts) for length in self.lengths} if role == TARGET else {}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, list[Generated]]:
        """Return the logits of generation and of whole passes for each row, by length; empty for the baseline."""
        if role != TARGET:
            return {}
        logits = {}
        for length in self.lengths:
            count = min(TOKENS, length // 2)
            logits[length] = [
                runner.generated(row[:length], count, lambda tokens: done(2 * tokens)) for row in self.texts
            ]
        return logits

    def result(self, target: Mapping[int, list[Generated]], baseline: object) -> CacheResult:
        """Return the divergence of both at each length."""
        lengths = tuple(self._length(length, rows) for length, rows in target.items())
        (first, *_), *_ = target.values()
        return CacheResult(lengths, first.rounding, first.moving)

    def _length(self, length: int, rows: Sequence[Generated]) -> CacheLength:
        count = len(rows[0].grown)
        divergence = np.concatenate([_kl(log_softmax(row.whole), log_softmax(row.grown)) for row in rows])
        same = np.concatenate([row.whole.argmax(axis=1) == row.grown.argmax(axis=1) for row in rows])
        crosses = length - count <= self.trained_length < length
        return CacheLength(
            length,
            length - count,
            count * len(rows),
            crosses,
            float(divergence.mean()),
            float(divergence.max()),
            float(same.mean()),
        )


def prepare_cache(corpus: Corpus, lengths: Sequence[int], trained_length: int, *, seed: int) -> Cache:
    """Return the measurement at all lengths, and at one length where generation crosses the trained length.

    Raises: ConfigError if no document is long enough.
    """
    crossing = trained_length + TOKENS // 2
    measured = sorted({*lengths, *([crossing] if lengths[-1] > crossing else [])})
    texts, _ = divergence_rows(corpus, measured[-1], ROWS, seed)
    return Cache(tuple(map(tuple, texts)), tuple(measured), trained_length)


def _kl(reference: Array, other: Array) -> Array:
    """Return KL(reference || other) of each token, in nats. Values below zero from rounding become zero."""
    divergence: Array = np.maximum((np.exp(reference) * (reference - other)).sum(axis=1), 0.0)
    return divergence


def cache_check(result: CacheResult) -> Check:
    """Return the check that generation with a cache has the logits of whole passes, except for rounding.

    If the table depends on the text length, the method itself makes a difference, and the check only informs.
    """
    limit = ROUNDING.get(result.rounding, COARSE)
    worst = max(result.lengths, key=lambda entry: entry.mean)
    detail = f"largest KL between a whole pass and generation, nats per token, after {worst.prompt} tokens"
    if worst.mean <= limit:
        return Check("cache", worst.mean, limit, PASS, detail)
    if result.moving:
        return Check(
            "cache", worst.mean, limit, NOT_ASKED,
            f"{detail}; the table depends on the text length, and cached keys keep earlier tables",
        )  # fmt: skip
    return Check("cache", worst.mean, limit, FAIL, detail)


def cache_section(result: CacheResult) -> Section:
    """Return the report's table of the difference between cached generation and whole passes."""
    rows = tuple(
        row(
            f"{entry.prompt}-{entry.length - 1}", "crosses the trained length" if entry.crosses else "",
            str(entry.tokens), number(entry.mean), number(entry.maximum), f"{entry.same:.3f}",
        )
        for entry in result.lengths
    )  # fmt: skip
    legend = (
        ("positions", "the tokens that are generated one by one, after a prompt of all tokens before them"),
        ("KL", f"KL(whole pass || generation), nats per token, computed in {result.rounding}"),
        ("same", "share of tokens for which both have the same likeliest token"),
    )
    moving = (
        "the table depends on the text length: a whole pass rotates all keys by one table, but a cache keeps keys of "
        "earlier tables, so the measured losses do not apply to generation"
    )
    head = ("positions", "", "tokens", "mean KL", "maximum", "same")
    notes = (moving,) if result.moving else ()
    title = "Cached generation: does it equal a whole pass?"
    return Section("cache", title, Table(head, rows, words=(0, 1)), legend, notes)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> Cache:
    return prepare_cache(setting.corpus, setting.lengths, setting.trained_length, seed=setting.seed)


SENTENCES = {
    "cache": {
        FAIL: VerdictSentence(
            "it predicts differently when it generates token by token than when it reads the whole text",
            "another version of the runtime",
        ),
    },
}


JSON_PLACES = ({"key": "cache", "after": "judge", "order": 90, "of_variants": False},)
MEASURES = (
    Measure(
        NAME, "cache", 90, _prepare, of_variants=False, words=SENTENCES,
        checks=lambda generated, _: [cache_check(generated)], checked=75,
        sections=lambda generated, result: [cache_section(generated)],
    ),
)  # fmt: skip
