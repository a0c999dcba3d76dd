"""What docs/measurements.md says, from the records of scripts/lab/train: measured beside published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lab_designs import DESIGNS, plain
from lab_records import Record, known
from lab_training import FACTOR, LABS, Lab

from ropetool.sections import half_width
from ropetool.verification.statistics import clustered

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "measurements.md"
POSITIONS = {
    "pose": "In training, a row has two pieces, and the second skips positions, but stays below 8 times the length: arXiv:2309.10400.",
    "randomized": "The tokens get random positions below 8 times the length, in order, also at the test: arXiv:2305.16843.",
}

# Token accuracy in percent of a model of 100M parameters trained at 512: at 512, at 4096 repeated, at 4096 not repeated. By the
# number of the article on kexue.fm.
PUBLISHED = {
    ("plain", "none"): (49.41, 24.17, 23.16, 9731),
    ("plain", "linear"): (49.41, 15.04, 13.54, 9675),
    ("plain", "ntk"): (49.41, 51.28, 39.27, 9675),
    ("plain", "ntk, log-n"): (49.41, 55.94, 41.11, 9706),
    ("plain", "mixed-ntk"): (49.41, 53.09, 40.12, 9706),
    ("plain", "yarn"): (49.41, 80.10, 47.45, 9859),
    ("plain", "rerope"): (49.41, 77.90, 48.48, 9708),
    ("plain", "rerope, log-n"): (49.41, 82.40, 48.85, 9708),
    ("log-n", "none"): (49.40, 24.60, 24.02, 9731),
    ("log-n", "linear"): (49.40, 14.99, 16.51, 9675),
    ("log-n", "ntk"): (49.40, 61.71, 43.75, 9675),
    ("log-n", "mixed-ntk"): (49.40, 68.91, 45.41, 9706),
    ("log-n", "leaky-rerope"): (49.40, 83.59, 48.87, 9708),
    ("log-n", "yarn"): (49.40, 82.57, 46.52, 9859),
    ("log-n", "rerope"): (49.40, 85.12, 49.07, 9708),
    ("hwfa", "none"): (48.70, 80.84, 48.15, 9603),
    ("key-norm", "none"): (49.60, 61.08, 47.69, 9859),
    ("key-norm", "ntk"): (49.60, 64.44, 43.02, 9859),
    ("key-norm", "yarn"): (49.60, 84.19, 47.44, 9859),
    ("key-norm", "rerope"): (49.60, 77.76, 47.73, 9859),
    ("hwfa2", "rerope"): (49.32, 82.41, 49.37, 9731),
    ("inverse-leaky-rerope", "none"): (49.38, 82.25, 48.32, 9728),
}


def parts() -> dict[str, str]:
    """Return what stands between the marks of the page, by their names."""
    return {"lab": text({lab.name: known(lab.name) for lab in LABS}), "lab-designs": "\n".join(_designs())}


def on_page(name: str) -> str:
    """Return what stands between two marks of the page."""
    return PAGE.read_text(encoding="utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def write() -> None:
    """Put what was measured between the marks of the page."""
    for name, part in parts().items():
        before, rest = PAGE.read_text(encoding="utf-8").split(f"<!-- {name} -->")
        after = rest.split(f"<!-- /{name} -->")[1]
        PAGE.write_text(f"{before}<!-- {name} -->\n\n{part}\n\n<!-- /{name} -->{after}", encoding="utf-8")


def _designs() -> Iterator[str]:
    """Yield a line for each design: the first sentence of its function, and what differs besides."""
    for name, design in DESIGNS.items():
        if not design.post_norm:
            more = [
                POSITIONS.get(design.positions, ""),
                f"Base {design.base:,.0f}." * (design.base != 1e4),
                "One head." * (design.heads == 1),
            ]
            sentence = (design.scores.__doc__ or "").strip().partition("\n")[0]
            if design.scores is plain and name != "plain":
                sentence = "RoPE."
            yield _linked(f"- **{name}**: {' '.join([sentence, *filter(None, more)])}")
    yield _linked(
        "- **post-norm-...-one-head**: the design with one head and RMSNorm after each sum, as in DeepNorm: arXiv:2203.00555."
    )


def _linked(line: str) -> str:
    line = re.sub(r"kexue (\d+)", r"[kexue \1](https://kexue.fm/archives/\1)", line)
    return re.sub(r"arXiv:([\d.]+\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", line)


def text(records: Mapping[str, Record]) -> str:
    """Return the tables: of each laboratory a row for each design and each method that fits it, where it was run."""
    tables = []
    for lab in LABS:
        rows = list(_rows(lab, records[lab.name]))
        every = sum(len(DESIGNS[name].extensions) for name in lab.designs)
        note = [f"{every - len(rows)} of {every} rows are not measured yet."] if len(rows) < every else []
        table = [f"{_head(lab)}\n{chr(10).join(rows)}"] if rows else []
        tables += [f"**{_title(lab)}**", *table, *note]
    return "\n\n".join(tables)


def _title(lab: Lab) -> str:
    sizes = lab.sizes
    seeds = "1 seed" if lab.seeds == 1 else f"{lab.seeds} seeds"
    return f"{lab.name.capitalize()}: trained at {sizes.trained} tokens, heads of {sizes.head} channels, {seeds}"


def _head(lab: Lab) -> str:
    short, long = lab.sizes.trained, FACTOR * lab.sizes.trained
    names = ["design", "at test", *(column(context, short, long) for context in lab.contexts)]
    names += ["repeated - not", f"{long:,} - {short}", *(["even pairs"] if lab.pairs else []), "published"]
    return f"| {' | '.join(names)} |\n{'| --- ' * 2}{'| --: ' * (len(names) - 3)}| --- |"


def column(context: str, short: int, long: int) -> str:
    """Return how the tables name a context, by the tokens trained at and 8 times as many."""
    return {
        "trained": f"{short}",
        "double": f"{2 * short:,}",
        "half": f"{long // 2:,}",
        "repeated": f"{long:,} repeated",
        "longer": f"{long:,}",
    }[context]


def _rows(lab: Lab, record: Record) -> Iterator[str]:
    for name in lab.designs:
        runs = [record.get(run) for run, design, _ in lab.runs() if design is DESIGNS[name]]
        for method in DESIGNS[name].extensions:
            done = [run for run in runs if run is not None and method in run["scores"]]
            if len(done) == lab.seeds:
                cells = " | ".join(_measured(lab, done, method))
                yield f"| {name} | {method} | {cells} | {_published(name, method)} |"


def _measured(lab: Lab, runs: Sequence[dict[str, Any]], method: str) -> list[str]:
    """Return the cells of a row: the means, and differences with their intervals over the texts, or over the seeds."""
    scores = {
        context: 100 * np.array([run["scores"][method][context]["accuracy"] for run in runs])
        for context in lab.contexts
    }
    if lab.seeds == 1:
        cells = [f"{values.mean():.1f}" for values in scores.values()]
    else:
        cells = [_interval(values, "") for values in scores.values()]
    cells += [
        _interval(scores[more] - scores[less], "+") for more, less in (("repeated", "longer"), ("longer", "trained"))
    ]
    if lab.pairs:
        pairs = runs[0]["pairs"]
        cells.append(f"{100 * pairs[method]['longer']:.0f}" if method in pairs else "")
    return cells


def _interval(values: np.ndarray, sign: str) -> str:
    """Return mean and half width of values, (seeds, texts): the spread between seeds, or of one seed that between texts."""
    spread = values[0] if len(values) == 1 else values.mean(axis=1)
    mean = clustered(spread, range(len(spread)))
    return f"{mean.mean:{sign}.1f} ± {half_width(mean):.1f}"


def _published(name: str, method: str) -> str:
    if (name, method) not in PUBLISHED:
        return ""
    *figures, article = PUBLISHED[name, method]
    return " / ".join(f"{figure:.2f}" for figure in figures) + f" [{article}](https://kexue.fm/archives/{article})"
