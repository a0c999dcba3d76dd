"""An estimate of the duration of a run, from two short probes of the model and the number of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from itertools import count

from ropetool.verification.scoring import Corpus, Runner, ignore

PROBE_TOKENS = 1024  # in each probe
LONG_PROBE = 2048
TINY_PROBE = 64
PATIENCE = 20.0  # seconds that a probe may take; a slow model gets shorter probes


Pace = Callable[[Mapping[int, int]], float]
"""Returns the estimated time of rows, in seconds. Its argument is the number of rows of each length."""


def pace(runner: Runner, corpus: Corpus, lengths: Collection[int], scored: int = 1) -> Pace:
    """Return a function that estimates the time of rows with these lengths.

    A row of n tokens costs a n + b n^2: matrices per token, attention per pair. Two lengths give a and b. The first
    call loads the model and does not count. The second call is short and limits the length of the two probes. Each
    probe starts at a different token, as the rows do, so that a server's prefix cache cannot answer it.

    scored: the number of scored tokens per row, if each needs a request.
    """
    source: list[int] = max(corpus.tokens, key=len).tolist()
    tiny = min(*lengths, TINY_PROBE)
    reach = LONG_PROBE
    begins = count()

    def probe(length: int) -> list[int]:
        begin = next(begins) % max(1, len(source) - length + 1)
        return source[begin : begin + length]

    def per_token(length: int) -> float:
        probes = [probe(length) for _ in range(max(1, min(PROBE_TOKENS, reach) // (length * scored)))]
        start = time.perf_counter()
        runner.score(probes, min(scored, length - 1), ignore)
        return (time.perf_counter() - start) / (len(probes) * length)

    runner.score([probe(tiny)], 1, ignore)
    start = time.perf_counter()
    runner.score([probe(tiny)], 1, ignore)
    reach = min(LONG_PROBE, int(PATIENCE * tiny / max(time.perf_counter() - start, 1e-3)))
    short = max(tiny, min(*lengths, reach // 4))
    long = max(short, min(max(lengths), reach, len(source)))
    first, second = per_token(short), per_token(long)
    growth = max(0.0, (second - first) / (long - short)) if long > short else 0.0
    return lambda rows: sum(
        number * length * max(first + growth * (length - short), min(first, second)) for length, number in rows.items()
    )


def tokens(rows: Mapping[int, int]) -> int:
    """Return the number of tokens in these rows. rows: the number of rows of each length."""
    return sum(length * number for length, number in rows.items())


def in_words(duration: float) -> str:
    """Return a duration in s, min or h. duration: seconds."""
    if duration < 90:
        return f"{duration:.0f} s"
    return f"{duration / 60:.0f} min" if duration < 5400 else f"{duration / 3600:.1f} h"
