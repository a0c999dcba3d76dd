"""Made-up results of a verification: full and minimal, passing and failing, with figures that no model would give."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ropetool.lab.measures.protocols import ProtocolLength, ProtocolResult
from ropetool.verification.measures.position import OffsetResult, PositionResult
from ropetool.verification.measures.repeats import DistanceResult, FarResult
from ropetool.verification.measures.retrieval import RetrievalCell, RetrievalResult
from ropetool.verification.results import (
    Check,
    DivergenceResult,
    DivergenceSpan,
    Estimate,
    KindResult,
    LengthResult,
    VerifyResult,
)

TRAINED = 256
PROTOCOL_NOTES = {
    "yarn": "windows every 256 tokens, each after the prefix; the original averages the means of the windows",
    "llama.cpp": "disjoint windows, with the prefix instead of their first token; the second half is scored, without its "
    "first token; the original needs text for two windows",
}
LENGTHS = (64, 128, 256, 512, 1024, 2048)


def estimate(mean: float, reach: float = 0.1, tokens: int = 2048) -> Estimate:
    return Estimate(mean, mean - reach, mean + reach, reach / 2, 16, tokens, 16.0, 15.0)


def single(mean: float) -> Estimate:
    """Return the estimate of one document, which has no interval."""
    return Estimate(mean, -math.inf, math.inf, math.inf, 1, 64, 1.0, 0.0)


def length(length: int, baseline: float, target: float, before: float | None) -> LengthResult:
    """Return a length whose truncated baseline has a perplexity of 12; `before`: the target's at the length before."""
    reference = baseline if length < TRAINED else 12.0
    cost = math.log(target / reference)
    upper, lower = math.exp(min(cost + 0.04, 709)), math.exp(cost - 0.04)
    verdict = "worse" if lower > 1.5 else "better" if upper < 1 else "no worse" if upper <= 1.5 else "undecided"
    return LengthResult(
        length=length,
        target=estimate(math.log(target)),
        baseline=estimate(math.log(baseline)),
        target_bits=math.log2(target) / 3.1,
        baseline_bits=math.log2(baseline) / 3.1,
        difference_to_truncation=estimate(cost, 0.047),
        ratio=target / reference,
        lower=lower,
        upper=upper,
        verdict=verdict,
        holds=verdict in ("better", "no worse"),
        useful=verdict == "better",
        tax=estimate(cost, 0.047) if length <= TRAINED else None,
        doubling=None if before is None else estimate(math.log(target / before), 0.009),
        segments=32,
        documents=16,
        partial=False,
        note="",
    )


def lengths(targets: tuple[float, ...] = (19.4, 17.3, 15.2, 14.9, 11.0, 15.1)) -> tuple[LengthResult, ...]:
    baselines = (15.1, 13.4, 12.0, 92.9, 107.0, 135.0)
    before = (None, *targets[:-1])
    return tuple(length(*entry) for entry in zip(LENGTHS, baselines, targets, before, strict=True))


def protocol(name: str) -> ProtocolResult:
    entries = tuple(
        ProtocolLength(n, estimate(math.log(t), 0.05, 65536), estimate(math.log(b), 0.05, 65536), 1.27, 1.16,
                       estimate(math.log(t / b), 0.02, 65536))
        for n, b, t in ((256, 13.1, 16.4), (2048, 118.0, 15.9))
    )  # fmt: skip
    return ProtocolResult(name, entries, PROTOCOL_NOTES[name])


def position(losses: tuple[float, ...] = (2.71, 2.72, 2.75, 2.79, 2.84)) -> PositionResult:
    fillers = (0, 256, 512, 1024, 1800)
    offsets = tuple(
        OffsetResult(filler, estimate(loss, 0.12), estimate(loss - losses[0], 0.03) if filler else None)
        for filler, loss in zip(fillers, losses, strict=True)
    )
    return PositionResult(160, 128, 16, 16, offsets, estimate(2.48, 0.11), "")


def far(gains: tuple[float, ...] = (0.102, 0.071, 0.057, 0.049)) -> FarResult:
    distances = tuple(
        DistanceResult(d, estimate(0.42 + gain, 0.031), estimate(0.42, 0.03), estimate(gain, 0.014))
        for d, gain in zip((250, 500, 1000, 1750), gains, strict=True)
    )
    return FarResult(160, 128, 24, 12, distances, "")


def wilson(hits: int, trials: int) -> tuple[float, float]:
    share, z = hits / trials, 1.959964
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def cell(length: int, depth: float, hits: int, trials: int = 16) -> RetrievalCell:
    return RetrievalCell(length, depth, hits, max(hits - 2, 0), trials, *wilson(hits, trials))


def retrieval(task: str = "keys", keys: int = 8, lost: int = 0) -> RetrievalResult:
    """Return a grid that loses `lost` more hits with each length and towards the front."""
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    cells = tuple(
        cell(n, depth, max(0, round(16 - lost * i * (1.2 - depth))))
        for i, n in enumerate(LENGTHS[2:])
        for depth in depths
    )
    baseline = tuple(cell(256, depth, 15) for depth in depths)
    return RetrievalResult(task, keys, 1 / keys, cells, baseline, "")


def span(start: int, end: int, mean: float) -> DivergenceSpan:
    tokens = (end - start) * 16
    return DivergenceSpan(
        start,
        end,
        estimate(mean, mean / 4, tokens),
        mean / 3,
        mean * 9,
        mean * 60,
        1 - mean,
        mean / 2,
        tokens,
        mean * 4,
        start,
    )


def divergence(means: tuple[float, ...] = (2.1e-5, 1.9e-5, 2.2e-5, 2.3e-5, 2.5e-5)) -> DivergenceResult:
    edges = (0, 128, 256, 512, 1024, 2048)
    spans = tuple(span(a, b, mean) for (a, b), mean in zip(pairwise(edges), means, strict=True))
    return DivergenceResult("demo-yarn-8x.gguf", 2048, 16, span(0, 256, 2e-5), span(256, 2048, 2.4e-5), spans, None, "")


def bands() -> dict[str, object]:
    """Return the frequencies of the demo checkpoint before and after a stretch that leaves the fast pairs."""
    before = [10000.0 ** (-i / 32) for i in range(32)]
    after = [f / (1 + 7 * min(1.0, max(0.0, (i - 4) / 12))) for i, f in enumerate(before)]
    return {"trained_length": TRAINED, "before": before, "after": after, "attention_factor": 1.2079}


KINDS = (KindResult("code", estimate(0.21, 0.09)), KindResult("prose", estimate(0.26, 0.05)))
CHECKS = (
    Check("weights", 0.0, 0.0, "pass", "38 of 38 tensors equal the source"),
    Check("rotation", 8.4e-8, 3e-6, "pass", "transformers 5.23.0 against the table of the plan, relative"),
    Check("ratio", 1.33712, 1.5, "pass", "largest 95 % upper bound, at 64 tokens"),
    Check("far text", 0.0312, 0.0, "pass", "95 % lower bound of the gain from a copy 1750 tokens before"),
    Check("retrieval, keys", 0.862, 0.75, "pass", "lowest score, at 2048 tokens; the baseline within 256 has 0.94"),
    Check("KL", 2.4e-5, 1e-4, "pass", "nats per token, the larger mean within or beyond the trained length"),
    Check("useful", None, None, "-", "useful lengths beyond the trained length: 1024"),
)


def full() -> VerifyResult:
    """Return a result with every measurement, which passes."""
    return VerifyResult(
        target="demo-yarn-8x",
        baseline="demo",
        against="demo-yarn-8x.gguf",
        suite="full",
        trained_length=TRAINED,
        context_length=2048,
        scored=64,
        seed=0,
        documents=("a.txt", "b.txt", "letters/c.txt", "d.jsonl:17"),
        text_fingerprint="sha256:5f2c8b1e0d9a7c64",
        lengths=tuple(replace(entry, kinds=KINDS) if entry.length in (256, 2048) else entry for entry in lengths()),
        measures={
            "protocols": tuple(protocol(name) for name in ("yarn", "llama.cpp")),
            "position": position(),
            "far": far(),
            "retrieval": (retrieval(lost=1), retrieval("many-keys", 32, lost=3)),
        },
        divergence=divergence(),
        bands=bands(),
        checks=CHECKS,
        runtime="transformers 5.23.0, torch 2.13.0, cpu, float32",
        grade="research",
        extension={"method": "yarn", "factor": 8.0, "params": {}},
        notes=("the baseline's loss of 0.4 nats per token is suspiciously low: it may know the text by heart",),
    )


def without(name: str, nothing: Any) -> VerifyResult:
    """Return the full result without one field or measure. nothing: what stands there then."""
    result = full()
    if name in result.measures:
        return replace(result, measures={**result.measures, name: nothing})
    return replace(result, **{name: nothing})


def minimal() -> VerifyResult:
    """Return a passing result of the quick suite on a checkpoint that is its own baseline."""
    entries = [
        replace(
            entry,
            difference_to_truncation=None,
            useful=None,
            tax=None,
            ratio=min(entry.ratio, 1.2),
            lower=None,
            upper=None,
            verdict="not judged",
            holds=False,
        )
        for entry in lengths()[2:4]
    ]
    checks = (CHECKS[1], CHECKS[2])
    return replace(
        full(), baseline=None, against=None, suite="quick", lengths=(entries[0], replace(entries[1], baseline=None)),
        measures={}, divergence=None, bands=None, checks=checks, notes=(),
    )  # fmt: skip


def failing() -> VerifyResult:
    """Return a result of a broken target: huge perplexities, one document, nothing retrieved, one check not run."""
    broken = list(lengths((19.4, 17.3, 15.2, 480.0, 5.2e173, 1e250)))
    broken[4] = replace(broken[4], note="beyond the context length of 512 tokens")
    broken[5] = replace(
        broken[5], target=single(576.0), ratio=math.inf, difference_to_truncation=single(574.0), doubling=single(176.0),
        segments=3, documents=1, partial=True, verdict="not judged", lower=0.0, upper=math.inf, holds=False, useful=None,
        note="too little text: 3 segments of 1 document",
    )  # fmt: skip
    rotten = "2 of 38 tensors differ: model.layers.2.self_attn.q_proj.weight in row 7, model.norm.weight in 256 values"
    checks = (
        replace(CHECKS[0], figure=2.0, verdict="fail", detail=rotten),
        replace(CHECKS[1], figure=None, limit=None, verdict="fail", detail="layer 0 has no rotary module"),
        replace(
            CHECKS[2],
            figure=5.1e172,
            verdict="fail",
            detail="95 % lower bound at 1024 tokens; worse than grade research allows at 512, 1024",
        ),
        CHECKS[3],
        replace(CHECKS[4], figure=0.7499, verdict="fail"),
        replace(CHECKS[5], figure=None, verdict="not run", detail="llama-cpp-python is not installed"),
        replace(CHECKS[6], detail="useful lengths beyond the trained length: none"),
    )
    return replace(
        full(),
        suite="standard",
        lengths=tuple(broken),
        measures={
            "position": position((2.71, 3.9, 76.0, 285.0, 285.3)),
            "far": far((0.1, 0.02, -0.003, 0.0)),
            "retrieval": (retrieval(lost=6),),
        },
        divergence=divergence((0.0, 0.0, 0.009, 0.033, 0.217)),
        checks=checks,
    )


def identical() -> VerifyResult:
    """Return the result of a file against itself: every divergence is zero."""
    return replace(full(), divergence=divergence((0.0, 0.0, 0.0, 0.0, 0.0)), against="demo-yarn-8x")


SAMPLES = {"full": full, "minimal": minimal, "failing": failing, "identical": identical}


def render(result: VerifyResult, *more: Any) -> dict[str, bytes]:
    """Return the files of a report by name. more: the arguments of `verify_page` after the result."""
    from ropetool.report.page import rendered
    from ropetool.report.verified import verify_page

    return rendered(verify_page(result, *more))
