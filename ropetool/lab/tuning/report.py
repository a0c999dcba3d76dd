"""A tuning: as parts for a terminal, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import charts, names
from ropetool.escaping import command
from ropetool.lab.tuning import spaces
from ropetool.lab.tuning.figures import ratio
from ropetool.lab.tuning.judging import ERROR, LEAST, Judgement
from ropetool.lab.tuning.results import TuneResult
from ropetool.report.bands import PAIR, by_pair
from ropetool.report.page import Page
from ropetool.rope.tables import TABLE_TOLERANCE
from ropetool.sections import BAD, GOOD, WARN, Cell, Line, Part, Section, Table, counted, listing, row
from ropetool.verification.results import Estimate

SCHEMA = 1


def tune_parts(result: TuneResult, source: str, plan: Path) -> Iterator[Part]:
    """Yield the output of `ropetool tune`. plan: the path of the written plan."""
    times = f"{result.target_length / result.trained_length:g}"
    yield listing(
        f"{result.source}: {result.target_length} tokens, {times} times the trained {result.trained_length}",
        _searched(result),
    )
    if result.judgement is not None:
        unseen, segments = len(result.unseen), result.segments[1]
        title = f"evaluated once, on {segments} segments of {unseen} documents that the search did not use"
        head = ("nats per token", "default", "tuned", "difference", "95 % interval", "")
        yield listing(title, _rows(result.judgement), head=head, figures=(1, 2, 3), whole=True)
        yield listing("", _bounds(result, result.judgement))
    yield from ("", Line(result.verdict))
    yield listing("", [(command("ropetool", "apply", source, plan),)], whole=True)


def _searched(result: TuneResult) -> list[tuple[str, str]]:
    gain = result.steps[-1].gain if result.steps else 0.0
    lengths = ", ".join(map(str, result.lengths))
    best = (
        f"{result.winner}; {gain:.4f} nats below the default in the search"
        if result.winner
        else "none better than the default"
    )
    return [
        ("space", f"{result.space}: {spaces.get(result.space).summary}"),
        (
            "searched",
            f"{result.points} points in {counted(len(result.steps), 'generation')}, on {result.segments[0]} segments of "
            f"{len(result.searched)} documents, at {lengths} tokens",
        ),
        ("best", best),
    ]


def _rows(judgement: Judgement) -> list[tuple[str, str, str, str, str, str]]:
    """Return a line for each part, and below the text a line for each of its lengths."""
    rows = []
    for part in judgement.parts:
        verdict = "better" if part.better else "worse" if part.worse else "not significant"
        rows.append((part.name, *_figures(part.default, part.tuned, part.difference), verdict))
        if part.name == "text" and len(judgement.lengths) > 1:
            rows += [
                (f"  at {each.length}", *_figures(each.default, each.tuned, each.difference), "")
                for each in judgement.lengths
            ]
    return rows


def _figures(default: float, tuned: float, difference: Estimate) -> tuple[str, str, str, str]:
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return f"{default:.4f}", f"{tuned:.4f}", f"{difference.mean:+.4f}", interval


def _bounds(result: TuneResult, judgement: Judgement) -> list[tuple[str, str]]:
    low, high = ratio(judgement.regression.low), ratio(judgement.regression.high)
    lines = [
        (
            f"within {result.trained_length} tokens",
            f"{ratio(judgement.regression.mean):.3f} times the source's perplexity ({low:.3f} to {high:.3f}); the default has "
            f"{ratio(judgement.default_regression.mean):.3f}, the limit is {ratio(judgement.limit):.3f}",
        )
    ]
    if judgement.retrieved is not None:
        default, tuned = judgement.retrieved
        lines.append(("retrieval", f"{tuned:.2f} of the answers are right; with the default {default:.2f}"))
    return lines


def tune_json(result: TuneResult, plan: Path) -> dict[str, Any]:
    """Return the result as `tune --json` prints it."""
    judgement = result.judgement
    return {
        "schema": SCHEMA, "source": result.source, "space": result.space, "trained_length": result.trained_length,
        "target_length": result.target_length, "lengths": list(result.lengths), "runtimes": list(result.runtimes),
        "seed": result.seed, "minutes": result.minutes, "points": result.points,
        "generations": [{"points": step.points, "gain": step.gain} for step in result.steps],
        "searched": list(result.searched), "unseen": list(result.unseen),
        "segments": {"searched": result.segments[0], "unseen": result.segments[1]}, "winner": result.winner or None,
        "max_regression": result.max_regression, "judgement": None if judgement is None else _judgement_json(judgement),
        "recommended": "tuned" if result.is_better else "default", "plan": str(plan), "text_fingerprint": result.text_fingerprint,
        "runtime": result.runtime,
        "notes": list(result.notes),
    }  # fmt: skip


def _judgement_json(judgement: Judgement) -> dict[str, Any]:
    return {
        "verdict": judgement.verdict, "reason": judgement.reason or None,
        "parts": [
            {
                "name": part.name, "default": part.default, "tuned": part.tuned, "difference": vars(part.difference),
                "better": part.better, "worse": part.worse,
            }
            for part in judgement.parts
        ],
        "lengths": [
            {"length": at.length, "default": at.default, "tuned": at.tuned, "difference": vars(at.difference), "cut": at.cut}
            for at in judgement.lengths
        ],
        "regression": vars(judgement.regression), "default_regression": vars(judgement.default_regression),
        "limit": judgement.limit,
        "retrieved": None if judgement.retrieved is None else dict(zip(("default", "tuned"), judgement.retrieved, strict=True)),
    }  # fmt: skip


def tune_page(result: TuneResult, plan: Path, line: str = "") -> Page:
    """Return the page of a tuning. plan: the path of the written plan. line: the command line of the tuning."""
    judgement = result.judgement
    facts = [*_searched(result), ("plan", str(plan)), ("command", line), ("runtime", result.runtime)]
    return Page(
        "tune", f"{result.source}, {result.target_length} tokens", "better" if result.is_better else "no gain",
        GOOD if result.is_better else WARN, result.verdict.partition(": ")[2] or result.verdict,
        f"On {len(result.unseen)} documents that the search did not use, with the arithmetic of this run.", facts,
        [*([] if judgement is None else [_judged(judgement), _bounded(result, judgement)]), _search(result)],
        charts=_charts(result), notes=result.notes, documents=result.unseen, fingerprint=result.text_fingerprint,
    )  # fmt: skip


def _judged(judgement: Judgement) -> Section:
    tones = {"better": GOOD, "worse": BAD}
    rows = tuple(row(*cells[:-1], Cell(cells[-1], tones.get(cells[-1], ""))) for cells in _rows(judgement))
    head = ("", "default", "tuned", "difference", "95 % interval", "verdict")
    stricter = "" if judgement.error == ERROR else f", and {100 * judgement.error:.2g} % for better"
    legend = (
        ("difference", "nats per token; below 0, the tuned table is better"),
        (
            "verdict",
            f"better (by more than {LEAST:g} nats) or worse, by Holm's rule over all parts, with an error of {100 * ERROR:g} %{stricter}",
        ),
    )
    return Section("judgement", "Evaluated once on unseen text", Table(head, rows, words=(0, 5)), legend=legend)


def _bounded(result: TuneResult, judgement: Judgement) -> Section:
    costs = (judgement.default_regression.mean, judgement.regression.mean, judgement.limit)
    rows = [row(f"perplexity within {result.trained_length} tokens", *(f"{ratio(cost):.3f}" for cost in costs))]
    for at_length in judgement.lengths:
        ratios = (f"{ratio(loss - at_length.cut):.3f}" for loss in (at_length.default, at_length.tuned))
        rows.append(row(f"perplexity at {at_length.length} tokens", *ratios, ""))
    if judgement.retrieved is not None:
        rows.append(row("right answers", *(f"{share:.2f}" for share in judgement.retrieved), ""))
    same = "perplexity / perplexity of the source on the same tokens; the source reads at most its trained length"
    legend = (
        ("perplexity", same),
        ("right answers", "share of trials in which the right answer is the likeliest candidate"),
    )
    return Section(
        "bounds", "Bounds", Table(("", "default", "tuned", "allowed"), tuple(rows), words=(0,)), legend=legend
    )


def _search(result: TuneResult) -> Section:
    rows = tuple(row(str(i), str(step.points), f"{step.gain:.4f}") for i, step in enumerate(result.steps, start=1))
    legend = (
        (
            "below the default",
            "difference from the default to the best point so far, nats per token, on all text of the search",
        ),
    )
    return Section("search", "Search", Table(("generation", "points so far", "below the default"), rows), legend=legend)


def _charts(result: TuneResult) -> Iterator[charts.Chart]:
    """Yield the divisors of default and winner, if their tables differ."""
    tables = {}
    for name, plan in ("default", result.default), ("tuned", result.tuned):
        entry = plan.target.entries[names.FULL_ATTENTION] if plan is not None and plan.target is not None else None
        if entry is not None and entry.table is not None:
            tables[name] = entry.table.at(result.target_length).inv_freq
    if len(tables) < 2 or np.allclose(tables["default"], tables["tuned"], rtol=TABLE_TOLERANCE):
        return
    marks = []
    for (name, table), look in zip(tables.items(), (charts.BASELINE, charts.TARGET), strict=True):
        rotating = np.flatnonzero((result.inv_freq > 0) & (table > 0))
        divisors = result.inv_freq[rotating] / table[rotating]
        marks.append(by_pair(name, look, dict(zip(rotating.tolist(), divisors.tolist(), strict=True))))
    panel = charts.Panel(charts.Axis(PAIR), charts.Axis("divided by"), tuple(marks))
    caption = "Divisor of the frequency of each rotary pair. 1 keeps the trained frequency. The extension factor interpolates fully."
    yield charts.Chart("divisors", "search", "Divisors of the pairs, default and best", caption, (panel,))
