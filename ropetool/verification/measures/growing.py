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
from ropetool.verification.measure import Grading, Measure, Setting, VerdictSentence
from ropetool.verification.measures.divergence import divergence_rows
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.scoring import TARGET, Corpus, Done, Generated, Logits, Measurement, Runner

NAME = "cache"
TOKENS = 16  # generated behind each prompt
ROWS = 2  # of each length, of documents of their own


# Nats a token that generation may be off a whole pass by the order in which sums are taken: 15 times and more what the demo is,
# in torch and in llama.cpp; other types, ggml's, round the inputs too.
ROUNDING = {"float64": 1e-8, "float32": 1e-8, "F32": 1e-8, "float16": 1e-4, "F16": 1e-4}
COARSE = 2e-3


@dataclass(frozen=True)
class CacheLength:
    """Generation of the last tokens of rows of `length` tokens after a prompt, compared with whole passes.

    mean, maximum: of KL(whole pass || generation), in nats a token.
    same: the share of tokens at which both have the same most likely token.
    crosses: whether generation begins within the trained length and ends beyond it.
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

    rounding: the type of the computation.
    moving: whether the table depends on the text length.
    """

    lengths: tuple[CacheLength, ...]
    rounding: str
    moving: bool


@dataclass(frozen=True)
class Cache:
    """Rows of the longest length, whose beginnings are those of the others; the target alone computes them."""

    texts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    trained_length: int
    name: str = NAME

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: 2 * len(self.texts) for length in self.lengths} if role == TARGET else {}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, list[Generated]]:
        """Return both kinds of logits of each row, by length; nothing of the baseline."""
        if role != TARGET:
            return {}
        found = {}
        for length in self.lengths:
            count = min(TOKENS, length // 2)
            found[length] = [
                runner.generated(row[:length], count, lambda tokens: done(2 * tokens)) for row in self.texts
            ]
        return found

    def result(self, target: Mapping[int, list[Generated]], baseline: object) -> CacheResult:
        """Return how far the two are apart at each length."""
        lengths = tuple(self._length(length, rows) for length, rows in target.items())
        (first, *_), *_ = target.values()
        return CacheResult(lengths, first.rounding, first.moving)

    def _length(self, length: int, rows: Sequence[Generated]) -> CacheLength:
        count = len(rows[0].grown)
        found = np.concatenate([_kl(_log_probs(row.whole), _log_probs(row.grown)) for row in rows])
        same = np.concatenate([row.whole.argmax(axis=1) == row.grown.argmax(axis=1) for row in rows])
        crosses = length - count <= self.trained_length < length
        return CacheLength(
            length,
            length - count,
            count * len(rows),
            crosses,
            float(found.mean()),
            float(found.max()),
            float(same.mean()),
        )


def prepare_cache(corpus: Corpus, lengths: Sequence[int], trained_length: int, *, seed: int) -> Cache:
    """Return the measurement at all lengths, and at one of which generation crosses the trained length.

    Raises: ConfigError if no document is as long.
    """
    crossing = trained_length + TOKENS // 2
    wanted = sorted({*lengths, *([crossing] if lengths[-1] > crossing else [])})
    texts, _ = divergence_rows(corpus, wanted[-1], ROWS, seed)
    return Cache(tuple(map(tuple, texts)), tuple(wanted), trained_length)


def _log_probs(logits: Logits) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    found: Array = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return found


def _kl(reference: Array, other: Array) -> Array:
    """Return KL(reference || other) of each token, in nats; not below zero, which rounding may give."""
    found: Array = np.maximum((np.exp(reference) * (reference - other)).sum(axis=1), 0.0)
    return found


def cache_check(found: CacheResult) -> Check:
    """Return whether generation with a cache has the logits of whole passes, except for rounding.

    If the table depends on the text length, the method itself makes a difference, and the check only informs.
    """
    limit = ROUNDING.get(found.rounding, COARSE)
    worst = max(found.lengths, key=lambda entry: entry.mean)
    told = f"largest KL between a whole pass and generation, nats per token, after {worst.prompt} tokens"
    if worst.mean <= limit:
        return Check("cache", worst.mean, limit, PASS, told)
    if found.moving:
        return Check(
            "cache", worst.mean, limit, NOT_ASKED,
            f"{told}; the table depends on the text length, and cached keys keep earlier tables",
        )  # fmt: skip
    return Check("cache", worst.mean, limit, FAIL, told)


def cache_section(found: CacheResult) -> Section:
    """Return how far generation with a growing cache is from whole passes, by length."""
    rows = tuple(
        row(
            f"{entry.prompt}-{entry.length - 1}", "crosses the trained length" if entry.crosses else "",
            str(entry.tokens), number(entry.mean), number(entry.maximum), f"{entry.same:.3f}",
        )
        for entry in found.lengths
    )  # fmt: skip
    legend = (
        ("positions", "the tokens that are generated one by one, after a prompt of all tokens before them"),
        ("KL", f"KL(whole pass || generation), nats per token, computed in {found.rounding}"),
        ("same", "share of tokens for which both have the same likeliest token"),
    )
    moving = (
        "the table depends on the text length: a whole pass rotates all keys by one table, but a cache keeps keys of "
        "earlier tables, so the measured losses do not apply to generation"
    )
    head = ("positions", "", "tokens", "mean KL", "maximum", "same")
    notes = (moving,) if found.moving else ()
    title = "Cached generation: does it equal a whole pass?"
    return Section("cache", title, Table(head, rows, words=(0, 1)), legend, notes)


def _prepare(setting: Setting, made: Sequence[Measurement]) -> Cache:
    return prepare_cache(setting.corpus, setting.lengths, setting.trained_length, seed=setting.seed)


def _checks(generated: CacheResult, grading: Grading) -> list[Check]:
    return [cache_check(generated)]


SENTENCES = {
    "cache": {
        FAIL: VerdictSentence(
            "it predicts differently when it generates token by token than when it reads the whole text",
            "another version of the runtime",
        ),
    },
}


MEASURES = (
    Measure(
        NAME, "cache", 90, _prepare, of_variants=False, checks=_checks, checked=75, words=SENTENCES,
        sections=lambda generated, result: [cache_section(generated)],
    ),
)  # fmt: skip
