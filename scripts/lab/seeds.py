"""The table of what texts on length extrapolation publish, row by row, beside what was measured here, for docs/measurements.md.

scripts/lab/seeds.json has the rows. A claim compares two figures of the records in tests/lab: `lab/design/method/context` of
scripts/lab/train, `tuned/name/when/context` of scripts/lab/finetune, `checkpoint/entry/length` of scripts/lab/training_free, and
`pairs/design/method`, the task of even pairs. Figures are accuracies in percent, with `/loss` at the end losses in nats.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import base_conversion
import lab_page
import numpy as np
from lab_records import known
from lab_scoring import DEMO
from lab_training import FACTOR, LABS

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.costs import weights
from ropetool.rope import reach
from ropetool.runtimes.inspection import inspect
from ropetool.sections import half_width
from ropetool.verification.statistics import clustered, wilson

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts" / "real_models"), str(ROOT / "scripts" / "yardsticks")]

import real_models_page
import yardsticks_page

SEEDS = 3  # of the large laboratory
TRAINED = {**{lab.name: lab.sizes.trained for lab in LABS}, "tuned": 256}  # tokens
ROWS = Path(__file__).with_name("seeds.json")
AS_PUBLISHED, OTHERWISE, OPEN, MISSING = "as published", "otherwise", "undecided", "not measured"
CAUSES = {AS_PUBLISHED: "confirmed", OTHERWISE: "not the cause"}
LOSS = "/loss"
SAME, FAR = (
    (2.0, 0.05),
    (3.0, 0.3),
)  # points of percent, and nats: at most so much is "the same", at least so much is "far"
SIGNS = {
    ">": "above", "<": "below", "=": "the same", ">>": "far above", "<<": "far below", ">=": "not below", "<=": "not above",
}  # fmt: skip
# What newer texts claim, and where the demo model differs from larger ones.
NEWER = {
    "CoPE ([arXiv:2602.05258](https://arxiv.org/abs/2602.05258)) needs training": (
        ("demo/cope/2048", "<", "demo/yarn(8)/2048"), ("demo/cope/256", "=", "demo/as it is/256"),
    ),
    "Resonance ([arXiv:2403.00071](https://arxiv.org/abs/2403.00071)) on YaRN": (
        ("demo/resonance/2048", ">", "demo/yarn(8)/2048"),
    ),
    "DPE ([arXiv:2504.18857](https://arxiv.org/abs/2504.18857)) is above other attention variants": (
        ("demo/dpe/2048", ">", "demo/ntk(8)/2048"), ("demo/dpe/2048", ">", "demo/self-extend(11,64)/2048"),
    ),
    "STRING ([arXiv:2410.18745](https://arxiv.org/abs/2410.18745)) uses the stated length better": (
        ("smollm2/string(2730,128)/8192/loss", "<", "smollm2/as it is/8192/loss"),
    ),
    "A window needs the first tokens of a text, on the demo model": (
        ("demo/sliding-window(256)/2048/loss", ">>", "demo/lambda(256,10)/2048/loss"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a claim: its two figures, their difference, and half of its 95 % interval (NaN without one)."""

    verdict: str
    difference: float = 0.0
    half: float = 0.0
    figures: tuple[float, float] = (0.0, 0.0)


_record = cache(known)


def figures(cell: str) -> np.ndarray | None:
    """Return the figures of a cell, by text or by seed, or None if it is not measured."""
    name, loss, _ = cell.partition(LOSS)
    source, *names = name.split("/")
    key, unit = ("loss", 1) if loss else ("accuracy", 100)
    try:
        if source == "pairs":
            design, method = names
            return 100 * np.array([_record("small")[design]["pairs"][method]["longer"]])
        if source in ("small", "large"):
            design, method, context = names
            runs = [design] if source == "small" else [f"{design}/{seed}" for seed in range(SEEDS)]
            by_seed = unit * np.array([_record(source)[run]["scores"][method][context][key] for run in runs])
            return by_seed[0] if source == "small" else by_seed.mean(axis=1)
        record = _record("finetuned") if source == "tuned" else _record("training_free")[source]
        for step in names:
            record = record[step]
        return unit * np.array(record[key])
    except KeyError:
        return None


def outcome(claim: Sequence[str]) -> Outcome:
    """Return what the records say of a claim, with 95 % confidence: see `SIGNS`, `SAME` and `FAR`."""
    first, sign, second = claim
    one, other = figures(first), figures(second)
    if one is None or other is None:
        return Outcome(MISSING)
    means = float(one.mean()), float(other.mean())
    if first.startswith("pairs/"):  # a share of 256 answers, without texts or seeds to vary over
        return Outcome(_verdict(means[0] - means[1], 0.0, sign, 0), means[0] - means[1], np.nan, means)
    estimate = clustered(one - other, range(len(one)))
    difference, half = float(estimate.mean), half_width(estimate)
    return Outcome(_verdict(difference, half, sign, int(first.endswith(LOSS))), difference, half, means)


def _verdict(difference: float, half: float, sign: str, unit: int) -> str:
    """Return the verdict on a difference with an interval. unit: 0 for percent, 1 for nats."""
    if sign == "=":
        inside, outside = abs(difference) + half <= SAME[unit], abs(difference) - half > SAME[unit]
    else:
        up = difference if sign.startswith(">") else -difference
        least = -SAME[unit] if "=" in sign else FAR[unit] if len(sign) == 2 else 0.0
        inside, outside = up - half > least, up + half <= least
    return AS_PUBLISHED if inside else OTHERWISE if outside else OPEN


def rows() -> list[dict[str, Any]]:
    """Return the rows of the table."""
    every: list[dict[str, Any]] = json.loads(ROWS.read_text(encoding="utf-8"))
    return every


def section() -> str:
    """Return the table of the rows that are measured, or not to be run, and that of newer texts."""
    shown, every = [row for row in rows() if _is_measured(row)], len(rows())
    missing = [f"\n{every - len(shown)} of {every} rows are not measured yet."] if len(shown) < every else []
    newer = [
        f"| {what} | {'<br>'.join(map(_said, claims))} |"
        for what, claims in NEWER.items()
        if _is_measured({"claims": claims})
    ]
    head = ("| | what | published | here |", "| --: | --- | --- | --- |")
    more = ("\n| newer texts, and the demo model | here |", "| --- | --- |")
    return "\n".join([*head, *map(_line, shown), *missing, *more, *newer]) + "\n"


def _is_measured(row: dict[str, Any]) -> bool:
    return all(outcome(claim).verdict != MISSING for claim in row.get("claims", ()))


def _line(row: dict[str, Any]) -> str:
    links = ", ".join(f"[{number}](https://kexue.fm/archives/{number})" for number in row["articles"])
    published = f"{row['published']} {f'({links})' if links else ''}".strip()
    return f"| {row['row']} | {row['what']} | {published} | {_here(row)} |"


def _here(row: dict[str, Any]) -> str:
    if "sentence" in row:
        return f"not run: {row['sentence']}"
    if "note" in row:
        return NOTES[row["note"]]()
    cause = [f"Tested as the cause: {_said(row['cause'], CAUSES)}"] if "cause" in row else []
    return "<br>".join([*map(_said, row["claims"]), *cause])


def _said(claim: Sequence[str], verdicts: Mapping[str, str] | None = None) -> str:
    """Return the verdict on a claim, the relation that it states, and the figures in words. verdicts: other words for some."""
    first, sign, second = claim
    result = outcome(claim)
    if result.verdict == MISSING:
        return f"{MISSING}: {_named(first)} {SIGNS[sign]} {_named(second)}"
    digits = 3 if first.endswith(LOSS) else 1
    one, other = (f"{figure:.{digits}f}" for figure in result.figures)
    interval = "" if np.isnan(result.half) else f" ± {result.half:.{digits}f}"
    difference = f"{result.difference:+.{digits}f}{interval}"
    once = ", one run" * _is_of_two_runs(first, second)
    verdict = (verdicts or {}).get(result.verdict, result.verdict)
    stated = f"**{verdict}** ({SIGNS[sign]}{once})"
    return f"{stated}: {_named(first)} {one}, {_named(second)} {other}, difference {difference}"


def _is_of_two_runs(first: str, second: str) -> bool:
    """Return whether two figures are of two designs that were trained once each."""
    (source, design), (_, other) = (cell.split("/")[:2] for cell in (first, second))
    return source in ("small", "pairs") and design != other


def _named(cell: str) -> str:
    """Return the name of a figure: model, what was changed, and the tokens."""
    name, loss, _ = cell.partition(LOSS)
    source, *names = name.split("/")
    if source in TRAINED:
        length = lab_page.column(names.pop(), TRAINED[source], FACTOR * TRAINED[source])
        names.append(f"at {length}")
    elif source != "pairs":
        names.append(f"at {int(names.pop()):,}")
    shown = (name.replace("as it is", "unchanged") for name in names if name != "none")
    return " ".join([source, *shown, *([loss[1:]] if loss else [])])


# --- rows that other records and tests answer


def _of_base() -> str:
    return f"the divisors of the pairs differ by at most {base_conversion.farthest():.1%} at 8 times the length, in heads of 128 channels"


def _least_base() -> str:
    return f"{reach.least_base(128, 4096):,.0f}, by the same theorem; `advise` shows it for a target"


def _digits() -> str:
    number, base = base_conversion.NUMBER, base_conversion.new_base()
    ways = (base_conversion.digits(number / 2, 10), base_conversion.digits(number, base))
    interpolated, converted = (f"[{', '.join(f'{digit:g}' for digit in way)}]" for way in ways)
    table = "[the table](choosing.md#ntk-as-a-change-of-base)"
    return f"{interpolated} with gaps of 0.5, and {converted} in base {base} with gaps of 1: {table}"


def _needles() -> str:
    """Return how many keys the demo with YaRN finds at each length of its retrieval run."""
    run = yardsticks_page.RUNS["m8"]
    table = yardsticks_page.known()["m8"]["text"].partition("retrieval, keys")[2]
    counts = re.findall(r"(\d+)/(\d+)", next(line for line in table.splitlines() if "target" in line))
    shown = (
        f"{hits} of {trials} keys at {length:,} tokens ({' to '.join(f'{100 * bound:.0f} %' for bound in wilson(int(hits), int(trials)))})"
        for length, (hits, trials) in zip(run.lengths, counts, strict=True)
    )
    return f"YaRN {run.factor}x on the demo: {', '.join(shown)}, see [retrieval](#results-on-the-demo-model)"


def _cost() -> str:
    """Return the speed of the demo in long texts against short ones, by the multiplications of a token."""
    inspected, checkpoint = inspect(DEMO), HfCheckpoint.open(DEMO)
    products = weights.of(checkpoint, inspected.rope).products
    assert products is not None
    costs = [
        2 * products.in_layers + sum(cache.flops_at(length) or 0 for cache in inspected.kv_bytes.values()) / length
        for length in (TRAINED["tuned"], FACTOR * TRAINED["tuned"])
    ]
    return f"{costs[0] / costs[1]:.0%} of the speed in texts 8 times as long, for the demo model, by `inspect --cost`"


def _real(at: int) -> Callable[[], str]:
    """Return the ratios of perplexity by YaRN at 2x in the longer runs of published models. at: 0 for short texts, -1 at length."""

    def words() -> str:
        by_model = (
            (title, ratios) for title, extension, ratios in real_models_page.compared() if extension == "yarn x2"
        )
        shown = (f"{title} {ratios[at]} tokens" for title, ratios in by_model if len(ratios) > 1)
        return f"ratio of perplexity by YaRN 2x: {', '.join(shown)} ([published models](#real-models))"

    return words


NOTES: Mapping[str, Callable[[], str]] = {
    "base conversion": _of_base,
    "least base": _least_base,
    "digits": _digits,
    "ratio": _real(-1),
    "tax": _real(0),
    "blocks": lambda: (
        "1.13 to 1.20 times the time of plain attention on one thread of a CPU, up to 1.30 on two ([speed](#speed))"
    ),
    "frozen": lambda: "exact: `dynamic -p freeze N` writes the table of one length, compared with transformers' table",
    "deepseek": lambda: (
        "exact: logits against transformers and vLLM ([runtimes.md](runtimes.md)); no published weights were run"
    ),
    "as row 3": lambda: "as row 3",
    "encoders": lambda: "for encoders only, says the article; for causal models see row 36",
    "field": lambda: "the windows here reach 46 of 64 tokens, 72 %: a test counts the inputs that a layer depends on",
    "lm-eval": lambda: "left to lm-eval, whose scores `verify --lm-eval` reads",
    "needles": _needles,
    "cost": _cost,
}
