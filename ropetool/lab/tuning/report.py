"""A tuning as text for a terminal, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.escaping import command, escaped
from ropetool.lab.tuning import spaces
from ropetool.lab.tuning.figures import ratio
from ropetool.lab.tuning.judging import ERROR, LEAST, Judgement
from ropetool.lab.tuning.results import TuneResult
from ropetool.report import drawing
from ropetool.report.charts import Chart
from ropetool.report.layout import columns, counted, wrapped
from ropetool.report.page import Page, rendered, write_page
from ropetool.rope.tables import TABLE_TOLERANCE
from ropetool.sections import BAD, GOOD, WARN, Cell, Section, Table, row
from ropetool.verification.results import Estimate

SCHEMA = 1


def tune_text(found: TuneResult, source: str, plan: Path, width: int | None = None) -> str:
    """Return what `ropetool tune` prints. plan: where the recommended one was written."""
    text = f"{escaped(found.source)}: {found.target_length} tokens, {_times(found)} times the trained {found.trained_length}\n"
    text += columns(_searched(found), width=width)
    if found.judgement is not None:
        unseen, segments = len(found.unseen), found.segments[1]
        text += f"\nevaluated once, on {segments} segments of {unseen} documents that the search did not use\n"
        head = ("nats per token", "default", "tuned", "difference", "95 % interval", "")
        lines = [head, *_rows(found.judgement)]
        text += columns([_aligned(lines, line) for line in lines])
        text += columns(_bounds(found, found.judgement), width=width)
    text += f"\n{found.verdict}\n" if width is None else "\n" + wrapped(found.verdict, width, indent=0)
    return text + columns([(command("ropetool", "apply", source, plan),)])


def _times(found: TuneResult) -> str:
    return f"{found.target_length / found.trained_length:g}"


def _searched(found: TuneResult) -> list[tuple[str, str]]:
    gain = found.steps[-1].gain if found.steps else 0.0
    lengths = ", ".join(map(str, found.lengths))
    best = (
        f"{found.winner}; {gain:.4f} nats below the default in the search"
        if found.winner
        else "none better than the default"
    )
    return [
        ("space", f"{found.space}: {spaces.get(found.space).summary}"),
        (
            "searched",
            f"{found.points} points in {counted(len(found.steps), 'generation')}, on {found.segments[0]} segments of "
            f"{len(found.searched)} documents, at {lengths} tokens",
        ),
        ("best", best),
    ]


def _rows(judgement: Judgement) -> list[tuple[str, str, str, str, str, str]]:
    """Return a line for each part that is judged, those of single lengths below text."""
    found = []
    for part in judgement.parts:
        said = "better" if part.better else "worse" if part.worse else "not significant"
        found.append((part.name, *_figures(part.default, part.tuned, part.difference), said))
        if part.name == "text" and len(judgement.lengths) > 1:
            found += [
                (f"  at {each.length}", *_figures(each.default, each.tuned, each.difference), "")
                for each in judgement.lengths
            ]
    return found


def _figures(default: float, tuned: float, difference: Estimate) -> tuple[str, str, str, str]:
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return f"{default:.4f}", f"{tuned:.4f}", f"{difference.mean:+.4f}", interval


def _aligned(lines: Sequence[Sequence[str]], line: Sequence[str]) -> tuple[str, ...]:
    """Return the line with its figures to the right of their columns."""
    widths = [max(len(each[i]) for each in lines) for i in range(len(line))]
    return (line[0], *(cell.rjust(widths[i]) for i, cell in enumerate(line[1:4], start=1)), *line[4:])


def _bounds(found: TuneResult, judgement: Judgement) -> list[tuple[str, str]]:
    low, high = ratio(judgement.regression.low), ratio(judgement.regression.high)
    lines = [
        (
            f"within {found.trained_length} tokens",
            f"{ratio(judgement.regression.mean):.3f} times the source's perplexity ({low:.3f} to {high:.3f}); the default has "
            f"{ratio(judgement.default_regression.mean):.3f}, the limit is {ratio(judgement.limit):.3f}",
        )
    ]
    if judgement.retrieved is not None:
        default, tuned = judgement.retrieved
        lines.append(("retrieval", f"{tuned:.2f} of the answers are right; with the default {default:.2f}"))
    return lines


def tune_json(found: TuneResult, plan: Path) -> dict[str, Any]:
    """Return the result as `tune --json` prints it."""
    judgement = found.judgement
    return {
        "schema": SCHEMA, "source": found.source, "space": found.space, "trained_length": found.trained_length,
        "target_length": found.target_length, "lengths": list(found.lengths), "runtimes": list(found.runtimes),
        "seed": found.seed, "minutes": found.minutes, "points": found.points,
        "generations": [{"points": step.points, "gain": step.gain} for step in found.steps],
        "searched": list(found.searched), "unseen": list(found.unseen),
        "segments": {"searched": found.segments[0], "unseen": found.segments[1]}, "winner": found.winner or None,
        "max_regression": found.max_regression, "judgement": None if judgement is None else _judgement_json(judgement),
        "recommended": "tuned" if found.is_better else "default", "plan": str(plan), "text_fingerprint": found.text_fingerprint,
        "runtime": found.runtime,
        "notes": list(found.notes),
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


def write_report(found: TuneResult, folder: Path, plan: Path, *, force: bool = False, command: str = "") -> list[Path]:
    """Write the page into a new folder, whole or not at all. Raises: MissingDependency, OutputError."""
    return write_page(rendered(_page(found, plan, command)), folder, force=force)


def _page(found: TuneResult, plan: Path, line: str) -> Page:
    judgement = found.judgement
    facts = [*_searched(found), ("plan", str(plan)), ("command", line), ("runtime", found.runtime)]
    return Page(
        "tune", f"{found.source}, {found.target_length} tokens", "better" if found.is_better else "no gain",
        GOOD if found.is_better else WARN, found.verdict.partition(": ")[2] or found.verdict,
        f"On {len(found.unseen)} documents that the search did not use, with the arithmetic of this run.", facts,
        [*([] if judgement is None else [_judged(judgement), _bounded(found, judgement)]), _search(found)],
        charts=_charts(found), notes=found.notes, documents=found.unseen, fingerprint=found.text_fingerprint,
    )  # fmt: skip


def _judged(judgement: Judgement) -> Section:
    tones = {"better": GOOD, "worse": BAD}
    rows = tuple(row(*cells[:-1], Cell(cells[-1], tones.get(cells[-1], ""))) for cells in _rows(judgement))
    head = ("", "default", "tuned", "difference", "95 % interval", "verdict")
    counted = "" if judgement.error == ERROR else f", and {100 * judgement.error:.2g} % for better"
    legend = (
        ("difference", "nats per token; below 0, the tuned table is better"),
        (
            "verdict",
            f"better (by more than {LEAST:g} nats) or worse, by Holm's rule over all parts, with an error of {100 * ERROR:g} %{counted}",
        ),
    )
    return Section("judgement", "Evaluated once on unseen text", Table(head, rows, words=(0, 5)), legend=legend)


def _bounded(found: TuneResult, judgement: Judgement) -> Section:
    costs = (judgement.default_regression.mean, judgement.regression.mean, judgement.limit)
    rows = [row(f"perplexity within {found.trained_length} tokens", *(f"{ratio(cost):.3f}" for cost in costs))]
    for at in judgement.lengths:
        ratios = (f"{ratio(loss - at.cut):.3f}" for loss in (at.default, at.tuned))
        rows.append(row(f"perplexity at {at.length} tokens", *ratios, ""))
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


def _search(found: TuneResult) -> Section:
    rows = tuple(row(str(i), str(step.points), f"{step.gain:.4f}") for i, step in enumerate(found.steps, start=1))
    legend = (
        (
            "below the default",
            "difference from the default to the best point so far, nats per token, on all text of the search",
        ),
    )
    return Section("search", "Search", Table(("generation", "points so far", "below the default"), rows), legend=legend)


def _charts(found: TuneResult) -> Iterator[Chart]:
    """Yield the divisors of default and winner, where their tables differ. To be used within `drawing.style()`."""
    tables = {}
    for name, plan in ("default", found.default), ("tuned", found.tuned):
        entry = plan.target.entries[names.FULL_ATTENTION] if plan is not None and plan.target is not None else None
        if entry is not None and entry.table is not None:
            tables[name] = entry.table.at(found.target_length).inv_freq
    if len(tables) < 2 or np.allclose(tables["default"], tables["tuned"], rtol=TABLE_TOLERANCE):
        return
    figure = drawing.figure()
    axes = figure.subplots()
    for (name, table), look in zip(tables.items(), (drawing.BASELINE, drawing.TARGET), strict=True):
        turning = np.flatnonzero((found.inv_freq > 0) & (table > 0))
        axes.plot(turning, found.inv_freq[turning] / table[turning], **{**look, "label": name, "markersize": 4})
    axes.set_xlabel("rotary pair, fastest first")
    axes.set_ylabel("divided by")
    drawing.key(figure)
    caption = "Divisor of the frequency of each rotary pair. 1 keeps the trained frequency. The extension factor interpolates fully."
    yield Chart("divisors", "search", "Divisors of the pairs, default and best", caption, figure)
