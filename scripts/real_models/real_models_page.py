"""The published models, and what docs and README show of the record of scripts/real_models/measure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "verification" / "real_models.json"
PICTURE = ROOT / "docs" / "real-models.svg"
SERVED = RECORD.with_name("real_models_served.json")
COMPARED = RECORD.with_name("real_models_compared.json")
ALT = "Perplexity ratio beyond the trained length, by method"
COMPARED_WORDS = "Longer runs, on eight passages: perplexity ratios to the unextended model, with one-sided 95 % bounds on each side:"
SERVED_WORDS = (
    "Exports and servers of yarn 2x, on texts of at most 2,048 tokens. An export has its size, and its divergence from the "
    "checkpoint. A q8_0 cache has its divergence from a float16 cache. Of a server, `ropetool identify` says whether its RoPE "
    "table is as meant, how many others it does not tell apart from it, and how much worse the next one fits. In Gemma 3, "
    "three layers of 18 differ:"
)
IMPORT, EXTENDED = "import", "yarn-2x"
NOT_MEASURED, AS_MEANT = "not measured", "as meant"


@dataclass(frozen=True)
class Row:
    """An extension to measure."""

    method: str
    factor: int
    native_short: bool = False

    @property
    def title(self) -> str:
        return f"{self.method} {self.factor}x{' native-short' if self.native_short else ''}"

    @property
    def output(self) -> str:
        """The directory of the extension, which is also the name of the row."""
        return f"{self.method}{'-native-short' if self.native_short else ''}-{self.factor}x"

    @property
    def extend(self) -> str:
        short = " --native-short" if self.native_short else ""
        return f"ropetool extend {IMPORT} --method {self.method} --factor {self.factor}{short} -o {self.output}"

    @property
    def verify(self) -> str:
        return f"ropetool verify {self.output}"


ROWS = tuple(
    row
    for factor in (2, 4)
    for row in (Row("yarn", factor), Row("yarn", factor, native_short=True), Row("llama3", factor), Row("ntk", factor))
)
WITHOUT_NATIVE_SHORT = tuple(row for row in ROWS if not row.native_short)


@dataclass(frozen=True)
class Model:
    """A published model, in a GGUF file.

    variable: the environment variable with the path of the file. sha256: of the file.
    trained: the trained length in tokens.
    mark: how the picture shows the model: a colour of Okabe and Ito, and a mark.
    """

    name: str
    title: str
    variable: str
    sha256: str
    trained: int
    mark: tuple[str, str]
    rows: tuple[Row, ...] = ROWS


MODELS = (
    Model(
        "smollm2", "SmolLM2 135M Instruct, Q4_1", "ROPETOOL_SMOLLM2",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 8192, ("#0072b2", "o"),
    ),
    Model(
        "gemma3", "Gemma 3 270M, Q4_K_M", "ROPETOOL_GEMMA3",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 32768, ("#d55e00", "s"),
        WITHOUT_NATIVE_SHORT,
    ),
    Model(
        "qwen25", "Qwen2.5 Coder 0.5B Instruct, Q4_K_M", "ROPETOOL_QWEN25",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 32768, ("#009e73", "D"),
        WITHOUT_NATIVE_SHORT,
    ),
)  # fmt: skip
TITLES = {model.name: model.title.partition(",")[0] for model in MODELS}


def record() -> dict[str, Any]:
    """Return the committed rows by name."""
    return _read(RECORD)


def write(rows: Mapping[str, Any]) -> None:
    """Write the record."""
    _write(RECORD, rows)


def served() -> dict[str, Any]:
    """Return the steps of scripts/real_models/serve, by model and name."""
    return _read(SERVED)


def write_served(steps: Mapping[str, Any]) -> None:
    """Write the steps."""
    _write(SERVED, steps)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def section() -> str:
    """Return the tables of docs/measurements.md, one for each model, with the picture and what earlier runs compared."""
    known = record()
    tables = ["\n".join(_table(model)) for model in MODELS if any(name_of(model, row) in known for row in model.rows)]
    image = [f"![{ALT}]({PICTURE.name})"] if known else []
    every = [name_of(model, row) for model in MODELS for row in model.rows]
    missing = len([name for name in every if name not in known])
    note = [f"{missing} of {len(every)} rows are not measured yet."] if missing else []
    servers = [SERVED_WORDS, "\n".join(_served())] if served() else []
    return "\n\n".join([*tables, *image, *note, *servers, COMPARED_WORDS, "\n".join(_compared())])


def name_of(model: Model, row: Row) -> str:
    """Return the name of a row in the record."""
    return f"{model.name}/{row.output}"


def _table(model: Model) -> Iterator[str]:
    known = record()
    yield f"**{model.title}**, trained length {model.trained:,} tokens:\n"
    yield "| method | verdict | cost on short texts | cost at length | minutes |"
    yield "| --- | --- | --- | --- | --: |"
    for row in model.rows:
        answers = known.get(name_of(model, row))
        if answers is not None:
            costs = " | ".join(
                _cost(answers[question], model.trained * (question == "long")) for question in ("short", "long")
            )
            yield f"| {row.title} | {answers['verdict']} | {costs} | {answers['minutes']:.0f} |"


def _served() -> Iterator[str]:
    """Yield a row for each model: its exports, its cache, and the table that each server uses."""
    yield "| model | q8_0 | q4_k_m | q8_0 cache | llama-server | vLLM |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for model in MODELS:
        steps = served().get(model.name, {})
        if steps:
            cells = [_step(name, steps.get(name)) for name in ("q8_0", "q4_k_m", "cache", "llama-server", "vLLM")]
            yield f"| {TITLES[model.name]} | {' | '.join(cells)} |"


def _step(name: str, answers: Mapping[str, Any] | None) -> str:
    if answers is None:
        return NOT_MEASURED
    if "tables" in answers:
        others = len(answers["tables"]) - 1
        meant = AS_MEANT if AS_MEANT in answers["tables"] else "something else"
        alike = f" or {others} other{'s' * (others > 1)}" if others > 0 else ""
        return f"{meant}{alike}, by {answers['margin']:g} nats"
    figure = f"{answers['kl']:.2g} nats" if answers["kl"] is not None else NOT_MEASURED
    size = f"{answers['bytes'] / 1e6:.0f} MB, " if "bytes" in answers else ""
    return f"{size}{figure}{''.join(f', not passed: {check}' for check in answers['not passed'])}"


def compared() -> Iterator[tuple[str, str, list[str]]]:
    """Yield model, extension and the ratios by length of longer runs, on eight passages at each length."""
    for name, step in json.loads(COMPARED.read_text(encoding="utf-8")).items():
        by_extension: dict[str, list[str]] = {}
        for row in step.get("rows", ()):
            ratio = f"{row['ratio']:.3f} ({row['lower']:.3f} to {row['upper']:.3f}) at {row['length']:,}"
            by_extension.setdefault(row["extension"], []).append(ratio)
        for extension, ratios in by_extension.items():
            yield TITLES[name.partition("/")[0]], extension, ratios


def _compared() -> Iterator[str]:
    """Yield the table of longer runs."""
    yield "| model | extension | short texts | at length |"
    yield "| --- | --- | --- | --- |"
    for title, extension, (*shorter, longest) in compared():
        yield f"| {title} | {extension} | {shorter[0] if shorter else ''} | {longest} |"


def _cost(question: Mapping[str, Any] | None, trained: int) -> str:
    """Return a cost in words: the change of perplexity, its bounds, the length and the number of texts.

    trained: a length up to which the cost is not that of the extended length.
    """
    from ropetool.report.answered import share

    if question is None:
        return NOT_MEASURED
    bounds = "" if question["lower"] is None else f" ({share(question['lower'])} to {share(question['upper'])})"
    texts = f"{question['texts']} text{'s' * (question['texts'] != 1)}"
    within = "within: " * (question["length"] <= trained)
    return f"{within}{share(question['ratio'])}{bounds}, {question['length']:,} tokens, {texts}"


def front() -> str:
    """Return the table of the README. `verify` without a suite does not measure the perplexity of the whole text."""
    known = json.loads(COMPARED.read_text(encoding="utf-8"))["smollm2/verify-yarn-2x"]["perplexities"]
    rows = {
        f"text of {known['length']:,} tokens": "perplexity (lower is better)",
        "---": "--:",
        "unchanged model, whole text": f"{known['unchanged']:,.0f}",
        "extended model, whole text": f"{known['extended']:.1f}",
        f"unchanged model, only the last {MODELS[0].trained:,} tokens": f"{known['unchanged, cut']:.1f}",
    }
    return "\n".join(f"| {words} | {figure} |" for words, figure in rows.items())


def picture() -> bytes:
    """Return a drawing of the perplexity ratio at length of each row, with its bounds."""
    from ropetool import charts
    from ropetool.report import drawing

    known, marks = record(), []
    for shift, model in enumerate(MODELS, start=-1):
        answers = [known.get(name_of(model, row), {}).get("long") for row in ROWS]
        beyond = [
            (place, long) for place, long in enumerate(answers) if long is not None and long["length"] > model.trained
        ]
        points = [(place + shift / 5, question) for place, question in beyond]
        values = tuple(question["ratio"] for _, question in points)
        ends = (tuple(float("inf") if q[end] is None else q[end] for _, q in points) for end in ("lower", "upper"))
        look = charts.Look(*model.mark, dashes="")
        places = tuple(place for place, _ in points)
        marks.append(charts.Series(model.title.partition(",")[0], look, places, values, *ends, form=charts.BARS))
    names = charts.Axis("", charts.NAMES, names=tuple(row.title for row in ROWS))
    ratios = charts.Axis("perplexity ratio at length", charts.RATIOS)
    panel = charts.Panel(names, ratios, (*marks, charts.Guide("", charts.THIN, 1, level=True)), sideways=True)
    return drawing.images(charts.Chart("real-models", "", "", "", (panel,), 3.2), "svg")[0]
