"""How long a run will take: two short probes of the model, and the rows that it has to compute.

Knows nothing of what the rows are for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ropetool.verification.scoring import Corpus, Runner, ignore

PROBE_TOKENS = 1024  # in each probe
LONG_PROBE = 2048


def seconds(runner: Runner, corpus: Corpus, rows: Mapping[int, int], scored: int = 1) -> float:
    """Return about how long the rows will take, by their lengths.

    scored: tokens of a row that are asked about, where each of them takes a request. A row of n tokens costs a n + b n^2:
    matrices by the token, attention by the pair. Two lengths give a and b; the first call, which loads the model, does not
    count.
    """
    source = max(corpus.tokens, key=len).tolist()
    short = min(rows)
    long = max(short, min(max(rows), LONG_PROBE, len(source)))

    def per_token(length: int) -> float:
        count = max(1, PROBE_TOKENS // (length * scored))
        start = time.perf_counter()
        runner.score([source[:length]] * count, min(scored, length - 1), ignore)
        return (time.perf_counter() - start) / (count * length)

    runner.score([source[:short]], 1, ignore)
    first, second = per_token(short), per_token(long)
    growth = max(0.0, (second - first) / (long - short)) if long > short else 0.0
    return sum(
        count * length * max(first + growth * (length - short), min(first, second)) for length, count in rows.items()
    )


def in_words(duration: float) -> str:
    """Return a duration as people say it."""
    if duration < 90:
        return f"{duration:.0f} s"
    return f"{duration / 60:.0f} min" if duration < 5400 else f"{duration / 3600:.1f} h"
