#!/usr/bin/env python3
"""Plant the same defects, and let a default verification judge them by `--baseline` alone.

Each defect is planted into an extension that was made by hand. A row tells whether the files give it away. Then the texts are
read in spite of that, so that the row tells what they find alone, and how much the defect changes the perplexity. The same
texts are read with the extension that has no defect.

    scripts/defects/default_verdicts.py                 both models, some 40 minutes of a core
    scripts/defects/default_verdicts.py --model demo    one model, keep the other
    scripts/defects/default_verdicts.py --only WORD     rows whose names hold a word, keep the rest
    scripts/defects/default_verdicts.py --missing       go on where a run was stopped
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from defects import CACHE, DEMO, F16, HF, MODELS, Bench, benches, method_of, modes_of, read, remove, rows
from defects_page import BASELINE, BROKE, REFUSED, VERDICTS, is_sound
from train_demo_model import second_place

from ropetool.errors import RopetoolError
from ropetool.verification.checkpoints import verify_target
from ropetool.verification.options import VerifyOptions
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import FAIL
from ropetool.verification.verdict import checkpoint as default_verification
from ropetool.verification.verdict.answers import Answers

FORMS = (HF, F16)
Row = dict[str, Any]


@contextmanager
def planted(bench: Bench, form: str, defect: str) -> Iterator[Path]:
    """Give a target with a defect, which goes again."""
    target = bench.planted(form, defect, BASELINE)
    try:
        yield target
    finally:
        remove(target)


def by_texts(bench: Bench, form: str, target: Path) -> Answers:
    """Return what the texts say of a target. Raises: RopetoolError where it cannot be run."""
    texts = [] if bench.name == DEMO else [second_place(CACHE) / "text"]  # of the demo they are in the package
    result = verify_target(target, VerifyOptions(baseline=bench.base(form), texts=texts, device="cpu", far_text=False))
    assert result.answers is not None
    return result.answers


def change(answers: Answers, sound: Answers) -> float:
    """Return how many times its perplexity is that without the defect, for the question that the defect changes most."""
    pairs = list(zip(answers.texts, sound.texts, strict=False))
    changes = [
        sum(getattr(one, name) - getattr(other, name) for one, other in pairs) / len(pairs)
        for name in ("short", "long")
        if pairs and all(getattr(each, name) is not None for pair in pairs for each in pair)
    ]
    return math.exp(max(changes, default=0.0))


def measured(bench: Bench, form: str, defect: str, sound: Answers) -> Row:
    """Return a row."""
    with planted(bench, form, defect) as target:
        try:
            is_told = any(check.verdict == FAIL for check in read(target, bench.base(form), Terms()))
            answers = by_texts(bench, form, target)
        except RopetoolError as error:
            return {"file": True, "verdict": f"{REFUSED}: {type(error).__name__}"}
        except Exception as error:  # noqa: BLE001  a defect that breaks the verification is a row to look at
            return {"file": False, "verdict": f"{BROKE}: {type(error).__name__}: {error}"}
    ratios = {name: question and round(question.ratio, 4) for name, question in _questions(answers)}
    found = {"file": is_told, "verdict": answers.verdict, "texts": len(answers.texts), **ratios}
    return {**found, "change": round(change(answers, sound), 4)}


def _questions(answers: Answers) -> tuple[tuple[str, Any], ...]:
    return ("short", answers.short), ("long", answers.long)


def add_rows(bench: Bench, words: list[str] | None, rows_of_model: dict[str, dict[str, Row]]) -> Iterator[None]:
    """Add the rows of a model by form and defect, one after the other.

    words: rows whose names hold one of them are measured again; None for all.
    """
    sound: dict[tuple[str, str], Answers] = {}
    for form, defect in rows():
        if form not in FORMS or BASELINE not in modes_of(bench.name, form, defect):
            continue
        rows_of_form = rows_of_model.setdefault(form, {})
        if defect in rows_of_form and words is not None and not any(word in f"{form}: {defect}" for word in words):
            continue
        method = method_of(form, defect)
        if (form, method) not in sound:
            twin = next(
                name for at, name in rows() if at == form and is_sound(name) and method_of(form, name) == method
            )
            with planted(bench, form, twin) as target:
                sound[form, method] = by_texts(bench, form, target)
        rows_of_form[defect] = measured(bench, form, defect, sound[form, method])
        print(bench.name, form, defect, rows_of_form[defect], file=sys.stderr, flush=True)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="measure this model; repeat it")
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="measure rows whose names hold a word; repeat it"
    )
    parser.add_argument("--result", type=Path, default=VERDICTS, help="the file of the result")
    parser.add_argument("--missing", action="store_true", help="measure only rows that the file lacks")
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8")) if options.result.exists() else {}
    default_verification.read_alone = lambda session: []  # a row has it beside what the texts find
    for name in options.model or MODELS:
        with benches([name]) as made:
            for _ in add_rows(made[name], [] if options.missing else options.only, result.setdefault(name, {})):
                options.result.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
