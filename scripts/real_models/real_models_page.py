"""What docs/measurements.md says, from the record of scripts/real_models/measure."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

RESULT = ROOT / "tests" / "verification" / "real_models.json"
PAGE = ROOT / "docs" / "measurements.md"
MARKS = "<!-- real-models -->", "<!-- /real-models -->"
# Of what verify and compare print: long, and not shown.
DROPPED = ("texts", "documents", "bands", "long_pass", "certificate", "protocols", "kinds")
MEASURES = ("verify-", "compare-")
"""How the names of steps begin that measure extensions."""
LOOKS = {"yarn": ("#0072b2", "o"), "llama3": ("#d55e00", "s"), "ntk": ("#009e73", "D"), "linear": ("#cc79a7", "^")}
"""How a method is drawn, in colours of Okabe and Ito."""
Record = dict[str, dict[str, Any]]
Steps = Mapping[str, Sequence[Any]]
"""The steps of each model, by its title."""


def known() -> Record:
    """Return the committed record, a step under its name; empty where there is none."""
    found: Record = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return found


def keep(key: str, found: dict[str, Any]) -> None:
    """Put what a step printed into the record."""
    found["printed"] = _short(found["printed"])
    RESULT.write_text(json.dumps({**known(), key: found}, indent=1) + "\n", encoding="utf-8")


def plot_of(steps: Sequence[Any]) -> Path:
    """Return where the plot of a model is."""
    return PAGE.with_name(f"real-models-{steps[0].model}.svg")


def write(steps: Steps) -> None:
    """Put what was measured between the marks of the page, and draw the plots."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text(steps)}\n{MARKS[1]}{after}", encoding="utf-8")
    for every in steps.values():
        if any(_done(every)):
            plot_of(every).write_bytes(plot(every))


def text(steps: Steps) -> str:
    """Return the part of the page that is measured."""
    return "\n".join(line for title, every in steps.items() for line in _of_model(title, every))


def _done(steps: Sequence[Any]) -> list[Any]:
    """Return the steps that measured extensions and were run."""
    record = known()
    return [step for step in steps if step.name.startswith(MEASURES) and step.key in record]


def measured(step: Any, found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the lengths of each extension that a step measured: one alone by verify, or all of them side by side by compare."""
    printed = found["printed"]
    if "candidates" not in printed:
        return {f"{_words(step)}, verified": printed["lengths"]}
    return {f"{each['method']} {each['factor']:g}x": each["lengths"] for each in printed["candidates"]}


def _short(printed: Any) -> Any:
    """Return what a step printed without what the page does not need, at any depth."""
    if isinstance(printed, dict):
        return {name: _short(value) for name, value in printed.items() if name not in DROPPED}
    return [_short(value) for value in printed] if isinstance(printed, list) else printed


def _words(step: Any) -> str:
    """Return what the table calls what a step measures: methods and the factor."""
    methods, factor = step.asked("--methods"), step.asked("--factors")
    return f"{methods} {factor}x" if methods else str(step.name.split("-", 1)[1].replace("-", " "))


def _of_model(title: str, steps: Sequence[Any]) -> Iterator[str]:
    record = known()
    yield f"### {title}\n"
    yield from ("```console", *(f"$ {step.command_line}" for step in steps if step.key in record), "```", "")
    yield "| step | seconds | result |\n| --- | --- | --- |"
    for step in steps:
        if not step.name.startswith((*MEASURES, "extend-")):  # of an extension the next table has what came of it
            found = record.get(step.key)
            yield f"| {step.name} | {'' if found is None else found['seconds']} | {_said(step.name, found)} |"
    yield "\n| extension | tokens | perplexity | import | import, cut to its length | ratio | 95 % bounds | verdict |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for step in steps:
        if step.name.startswith(MEASURES):
            yield from _lengths(step, record.get(step.key))
    done = _done(steps)
    for step in done:
        for ranking in record[step.key]["printed"].get("rankings", ()):
            if ranking["pairs"]:
                yield f"\n{_ranked(ranking)}"
    if done:
        yield f"\n![Perplexity ratio of each method by length]({plot_of(steps).name})"
        spent = ", ".join(f"{step.name} {record[step.key]['seconds'] / 3600:.1f}" for step in done)
        runtimes = dict.fromkeys(record[step.key]["printed"]["runtime"] for step in done)
        yield f"\nHours of two cores, most with other work beside: {spent}. {'; '.join(runtimes)}."
    yield ""


def _lengths(step: Any, found: dict[str, Any] | None) -> Iterator[str]:
    if found is None:
        yield f"| {_words(step)} | {step.asked('--lengths')} | not run | | | | | |".replace(",", ", ")
        return
    for name, entries in measured(step, found).items():
        for entry in entries:
            bounds = "" if entry["lower"] is None else f"{entry['lower']:.3f} to {entry['upper']:.3f}"
            cut = "" if entry["ratio"] is None else f"{math.exp(entry['target']['mean']) / entry['ratio']:.2f}"
            whole = "" if entry["baseline"] is None else f"{math.exp(entry['baseline']['mean']):,.2f}"
            ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.3f}"
            yield (
                f"| {name} | {entry['length']:,} | {math.exp(entry['target']['mean']):.2f} | {whole} | {cut} | {ratio} | {bounds} "
                f"| {_verdict(entry['verdict'], found['printed'])} |"
            )


def _verdict(verdict: str, printed: Mapping[str, Any]) -> str:
    """Return the words of a verdict: beside a ratio above 1, "no worse" would read as a contradiction."""
    judged = printed.get("candidates", [printed])
    limit = next(check["limit"] for each in judged for check in each["checks"] if check["name"] == "ratio")
    return f"within {limit:g}" if verdict == "no worse" else verdict


def _ranked(ranking: dict[str, Any]) -> str:
    """Return in one line which method is surely better than which at the longest length."""
    surely = [
        f"{pair['first']} than {pair['second']} by {-pair['difference']['mean']:.3f} nats"
        if pair["difference"]["mean"] < 0
        else f"{pair['second']} than {pair['first']} by {pair['difference']['mean']:.3f} nats"
        for pair in ranking["pairs"]
        if pair["better"]
    ]
    found = ", ".join(surely) or "none"
    return f"Surely better at {ranking['length']:,} tokens, by Holm's rule over all pairs: {found}."


def _said(name: str, found: dict[str, Any] | None) -> str:
    """Return in one line what a step came to."""
    if found is None:
        return "not run"
    printed = found["printed"]
    if isinstance(printed, str) and printed.startswith("| "):  # a table of one row
        names, _, figures = ([cell.strip() for cell in line.split("|")[2:-1]] for line in printed.splitlines())
        said = "; ".join(f"{way}: {' and '.join(kl.split(', '))}" for way, kl in zip(names, figures, strict=True))
        return f"KL from a float32 cache, nats, within its length and at the end of a row beyond it: {said}"
    if isinstance(printed, str):
        return printed.splitlines()[0]
    if "versions" in printed:
        spans = ", ".join(
            f"{name} its length {printed[name]['mean']:.1e} and {printed[name]['largest']:.1e}"
            for name in ("within", "beyond") if name in printed
        )  # fmt: skip
        rows = f"log probabilities of {printed['tokens']:,} tokens beside transformers', nats, mean and largest"
        return f"vLLM {printed['versions']['vllm']} in float32, {rows}: {spans}"
    checks = [
        f"ratio at most {check['figure']:.3f}, allowed {check['limit']:g}"
        if check["name"] == "ratio" and check["figure"] is not None
        else f"{check['name']} {check['figure']:.2g} of {check['limit']:.2g}"
        if check["figure"] is not None and check["limit"] is not None
        else f"{check['name']}: {check['detail'] or check['verdict']}"
        for check in printed.get("checks") or ()
    ]
    exit_code = f"exit {found['exit']}; " if found["exit"] else ""
    size = f"{printed['nbytes'] / 1e6:.0f} MB; " if "nbytes" in printed else ""
    return exit_code + size + ("; ".join(checks) or "written")


def plot(steps: Sequence[Any]) -> bytes:
    """Return a drawing of the perplexity ratio of every method by length, with its bounds."""
    from ropetool import charts
    from ropetool.report import drawing

    record = known()
    shown = {name: entries for step in _done(steps) for name, entries in measured(step, record[step.key]).items()}
    marks: list[charts.Series | charts.Guide] = []
    for name, entries in shown.items():
        colour, mark = LOOKS[name.split()[0]]
        dash = "--" if name.endswith("4x") else ":" if name.endswith("verified") else "-"
        sure = [entry for entry in entries if entry["lower"] is not None]
        figures = (tuple(entry[key] for entry in sure) for key in ("length", "ratio", "lower", "upper"))
        marks.append(charts.Series(name, charts.Look(colour, mark, dash), *figures, form=charts.BARS))
    lengths = tuple(entry["length"] for entries in shown.values() for entry in entries)
    panel = charts.Panel(
        charts.Axis("context", charts.TOKENS, tokens=lengths), charts.Axis("perplexity ratio", charts.LOGARITHMIC),
        (*marks, charts.Guide("", charts.THIN, 1, level=True)),
    )  # fmt: skip
    return drawing.images(charts.Chart("ratios", "", "", "", (panel,)), "svg")[0]


def on_page() -> str:
    """Return what the page has between its marks."""
    found = re.search(
        f"{re.escape(MARKS[0])}\n\n(.*)\n{re.escape(MARKS[1])}", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return found[1] if found else ""
