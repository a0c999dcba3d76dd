"""What the committed table of planted defects says: which are found, which escape, and the tables of docs/judging.md.

Reads tests/verification/defects.json, which scripts/defects/defects.py measures, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "tests" / "verification" / "defects.json"
VERDICTS = ROOT / "tests" / "verification" / "default_verdicts.json"
RECORD, BASELINE, AGAINST, NOTHING = MODES = ("record", "baseline", "against", "nothing")
HEADS = {
    RECORD: "with the record", BASELINE: "with `--baseline` alone", AGAINST: "by `--against`", NOTHING: "with nothing",
}  # fmt: skip
SOUND = "none"  # rows of files without a defect begin so
CLEAN, BROKE, REFUSED = "nothing", "broke", "refused"
AT_BEST = "partial at best"  # the verdict without a yardstick, from the files alone
Result = Mapping[str, Any]
Cells = Mapping[str, Mapping[str, str]]


def known() -> dict[str, Any]:
    """Return the committed table; empty where there is none."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return found


def is_sound(defect: str) -> bool:
    """Return whether a row has no defect."""
    return defect.partition(",")[0] == SOUND


def names(said: str) -> set[str]:
    """Return the checks that fail, or the refusal."""
    return set() if said.startswith(CLEAN) else set(said.split(", "))


def is_found(said: str, sound: str) -> bool:
    """Return whether a check fails that does not fail on the same files without the defect."""
    return bool(names(said) - names(sound) - {BROKE})


def twin(result: Result, form: str, defect: str) -> str:
    """Return the row without a defect that one is held against."""
    return str(result["twins"].get(form, {}).get(defect, SOUND))


def rows_of(result: Result, model: str, mode: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield form, defect, what one way of verifying says of it, and what it says of the same files without it."""
    for form, cells in result["defects"][model].items():
        for defect, said in cells.items():
            if mode in said and not is_sound(defect):
                yield form, defect, said[mode], cells[twin(result, form, defect)].get(mode, CLEAN)


def escapes(result: Result, mode: str, model: str) -> list[str]:
    """Return the defects that a way of verifying does not find, with their form."""
    return [
        f"{form}: {defect}" for form, defect, said, sound in rows_of(result, model, mode) if not is_found(said, sound)
    ]


# --- tables


def tables() -> dict[str, str]:
    """Return the tables of docs/judging.md by the name of their place."""
    result = known()
    return {
        "defects-summary": summary(result), "defects-escapes": escaping(result), "defects": details(result),
        "honest": honest(result),
    }  # fmt: skip


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def summary(result: Result) -> str:
    """Return how many defects each way of verifying finds, of those that it was asked about, and of how many nothing passes."""
    lines = [["model", "files", "planted", *(HEADS[mode] for mode in MODES[:-1]), "with nothing, passed"]]
    for model, forms in result["defects"].items():
        totals: dict[str, list[int]] = {mode: [0, 0] for mode in MODES}
        planted = 0
        for form, cells in forms.items():
            count = sum(not is_sound(defect) for defect in cells)
            planted += count
            found = {mode: _counts(result, model, form, mode) for mode in MODES}
            for mode in MODES:
                totals[mode] = [one + more for one, more in zip(totals[mode], found[mode], strict=True)]
            lines.append([model, form, str(count), *(_of(*found[mode]) for mode in MODES)])
        lines.append([model, "all", str(planted), *(_of(*totals[mode]) for mode in MODES)])
    return _table(lines)


def _counts(result: Result, model: str, form: str, mode: str) -> tuple[int, int]:
    """Return how many are found, with nothing how many pass, and how many were asked."""
    asked = [(said, sound) for at, _, said, sound in rows_of(result, model, mode) if at == form]
    hits = (
        sum(said.endswith("pass") for said, _ in asked) if mode == NOTHING else sum(is_found(*each) for each in asked)
    )
    return hits, len(asked)


def _of(count: int, asked: int) -> str:
    return f"{count} of {asked}" if asked else ""


def escaping(result: Result) -> str:
    """Return a row for each defect that is not found with the record or a baseline, with the verdict that it gets."""
    lines = [["files", "planted", "model", "verified", "verdict"]]
    for mode in (RECORD, BASELINE):
        for model in result["defects"]:
            lines += [
                [form, defect, model, HEADS[mode], _plain(said)]
                for form, defect, said, sound in rows_of(result, model, mode)
                if not is_found(said, sound)
            ]
    return _table(lines)


def details(result: Result) -> str:
    """Return a row for each defect: what finds it; GGUF forms that say the same share it, and where models differ, each is named."""
    models = result["defects"]
    said: dict[tuple[str, ...], list[str]] = {}
    for form, cells in next(iter(models.values())).items():
        for defect in cells:
            row = [
                _of_models({model: forms[form][defect].get(mode, "") for model, forms in models.items()})
                for mode in MODES
            ]
            said.setdefault((str("GGUF" in form), defect, *row), []).append(form)
    lines = [[", ".join(forms), *key[1:]] for key, forms in said.items()]
    return _table([["files", "planted", *(HEADS[mode] for mode in MODES)], *lines])


def _of_models(said: dict[str, str]) -> str:
    plain = {model: _plain(text) for model, text in said.items() if text}
    texts = set(plain.values())
    return "".join(texts) if len(texts) < 2 else "; ".join(f"{model}: {text}" for model, text in plain.items())


def _plain(said: str) -> str:
    """Return a cell in the page's words."""
    if not said.startswith(CLEAN):
        return said.partition(":")[0]
    verdict = said.removeprefix(CLEAN).lstrip(": ")
    return {"pass": "passes", AT_BEST: "partial"}.get(verdict, verdict or CLEAN)


def honest(result: Result) -> str:
    """Return a row for each honest extension: what fails of it, which is nothing."""
    said: dict[tuple[str, str], dict[str, str]] = {}
    for model, groups in result["honest"].items():
        for group, some in groups.items():
            for title, text in some.items():
                said.setdefault((group, title), {})[model] = text
    return _table([["files", "extension", "fails"], *([*key, _of_models(texts)] for key, texts in said.items())])
