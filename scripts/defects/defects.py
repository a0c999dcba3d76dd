#!/usr/bin/env python3
"""Plant defects into extensions of two models, verify each in four ways, and write what finds them.

Each defect is planted into a directory or a GGUF file and verified with the record of how it was made, with `--baseline`
alone, with `--against` the unquantised extension, and with nothing. With the record it is planted into our own output,
otherwise into an extension that was made by hand. What counts as found is a check that fails and does not fail on the same
files without the defect, or a refusal. Readback comes first; losses are measured only where it finds nothing. With nothing
at hand some rows are run in whole; of the others the files alone say that the verdict cannot be a pass. Honest extensions of
others' making are verified likewise, and none may fail. scripts/docs.py writes the tables of docs/judging.md from the result.

    scripts/defects/defects.py                      everything: some 25 minutes of a core; writes tests/verification/defects.json
    scripts/defects/defects.py --model demo         one model, keep the rest
    scripts/defects/defects.py --only WORD          rows whose names hold a word, keep the rest; repeat it
    scripts/defects/defects.py --losses             what rests on losses, after a change of the gate or a measure: half of the time
    scripts/defects/defects.py --read               what rests on files alone, after a change of readback: the other half
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "tests", "tests/oracle")] + [str(ROOT)]

import defects_gguf
import defects_hf
import defects_honest
import pytest
from defects_page import (
    AGAINST,
    AT_BEST,
    BROKE,
    CLEAN,
    MODES,
    NOTHING,
    RECORD,
    REFUSED,
    RESULT,
    SOUND,
    is_sound,
    names,
)
from train_demo_model import second_place
from verifying import remember

import ropetool
from ropetool import machine
from ropetool.checkpoint import provenance
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import RopetoolError
from ropetool.verification import preparing
from ropetool.verification import run as verification_run
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.kl_gate import KL
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.readback.comparing import SAME_TABLES, read_back
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import FAIL, NOT_RUN, Check
from ropetool.verification.texts import embedded_documents
from ropetool.verification.whole_suites import missing_comparisons

CONFIGS = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "configs")
HF, F16, Q8_0, Q4_K_M, EXPORTED = FORMS = ("directory", "GGUF f16", "GGUF Q8_0", "GGUF Q4_K_M", "exported GGUF")
PAIRED = (F16, Q8_0, Q4_K_M)  # forms that are held against the directory too
STRICT = f"{SOUND}, --strict"
BY_FILES = {"tables", "weights", "files", "dress", "rotation"}  # checks that compute no losses
CACHE = machine.cache()  # the user's, also where the tests have one of their own
CHARACTERS = 8000  # of each text
SEGMENTS = 8
DIVERGENCE_TOKENS = 2048  # of each model, for --against
Row = tuple[str, str]  # form, defect
Result = dict[str, Any]


# --- models, and what is made of them once


@dataclass
class Bench:
    """A model in a folder of its own, with the extensions that defects are planted into; each is made once."""

    name: str
    source: Path
    texts: Path
    trained_length: int
    limits: Limits
    plants: int = 0
    made: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, folder: Path) -> Bench:
        """Return the bench of a model by name. Raises: FileNotFoundError for a second model that nobody trained."""
        folder = folder / name
        (folder / "texts").mkdir(parents=True)
        if name == DEMO:
            place, texts = ROOT / "ropetool" / "demo" / "model", {d.name: d.text for d in embedded_documents()}
        else:
            second = second_place(CACHE)
            place = second / "model"
            texts = {path.name: path.read_text(encoding="utf-8") for path in (second / "text").iterdir()}
        source = Path(shutil.copytree(place, folder / "model"))
        for number, (title, text) in enumerate(sorted(texts.items())):
            (folder / "texts" / f"{number}-{Path(title).stem}.txt").write_text(text[:CHARACTERS], encoding="utf-8")
        length = json.loads((source / "config.json").read_text())["max_position_embeddings"]
        return cls(name, source, folder / "texts", length, MODELS[name])

    @property
    def folder(self) -> Path:
        """Where everything of the model lies."""
        return self.source.parent

    def sound(self, form: str, of: str = defects_hf.YARN, *, by_hand: bool = False) -> Path:
        """Return the extension of a form without a defect, by ropetool with its record or by hand without one.

        Lists are a method's without a rope type, and an export has to be ropetool's: they are never by hand.
        """
        by_hand = by_hand and of == defects_hf.YARN and form != EXPORTED
        key = f"{form} {of} {by_hand}"
        if key not in self.made:
            self.made[key] = self._by_hand(form) if by_hand else self._make(form, of)
        return self.made[key]

    def _by_hand(self, form: str) -> Path:
        source = self.base(form)
        output = source.with_name(f"{source.stem}-by-hand{source.suffix}")
        if form == HF:
            shutil.copytree(source, output)
            defects_honest.extended()(output)
        else:
            shutil.copyfile(source, output)
            defects_honest.scaled_keys(output)
        return output

    def base(self, form: str) -> Path:
        """Return what an extension of a form was made of."""
        if form in (HF, EXPORTED):
            return self.source
        key = f"{form} base"
        if key not in self.made:
            path = self.folder / f"{form.replace(' ', '-')}.gguf"
            if form == F16:
                ropetool.export(self.source, path, outtype="f16", check=False, sidecars=False)
            else:
                defects_honest.quantised(self.base(F16), path, form.partition(" ")[2])
            self.made[key] = path
        return self.made[key]

    def _make(self, form: str, of: str) -> Path:
        if form == EXPORTED:
            output = self.folder / "exported.gguf"
            ropetool.export(self.sound(HF), output, outtype="f16", check=False, sidecars=False, allow_unverified=True)
            return output
        source = self.base(form)
        plan = ropetool.plan(source, of, factor=defects_hf.FACTOR)
        name = f"{source.stem}-{of}"
        return ropetool.apply(plan, source, source.with_name(name if form == HF else f"{name}.gguf")).output

    def planted(self, form: str, defect: str, mode: str = RECORD) -> Path:
        """Return a copy with a defect, beside what it was made of; with its record where that is the mode."""
        self.plants += 1
        kind = defects_hf.DEFECTS.get(defect) if form == HF else None
        sound = self.sound(form, method_of(form, defect), by_hand=mode != RECORD)
        broken = self.folder / f"planted-{self.plants}{sound.suffix}"
        if form == HF:
            shutil.copytree(sound, broken)
        else:
            shutil.copyfile(sound, broken)
            if provenance.place(sound).exists():
                shutil.copyfile(provenance.place(sound), provenance.place(broken))
        if mode != RECORD:
            provenance.place(broken).unlink(missing_ok=True)
        if not is_sound(defect):
            gguf = defects_gguf.OF_FILE.get(defect) or defects_gguf.OF_QUANTISED.get(defect)
            plant = kind.plant if kind is not None else gguf
            assert plant is not None
            plant(broken)
        return broken


def method_of(form: str, defect: str) -> str:
    """Return the method of the extension that a defect is planted into."""
    kind = defects_hf.DEFECTS.get(defect) if form == HF else None
    lists = defect == f"{SOUND}, {defects_hf.LISTS}" or (kind is not None and kind.of == defects_hf.LISTS)
    return defects_hf.LISTS if lists else defects_hf.YARN


def remove(path: Path) -> None:
    """Remove a target and its record."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
        provenance.place(path).unlink(missing_ok=True)


DEMO, SECOND = "demo", "second"
# The second model loses less to a wrong table than one that was trained for long.
MODELS: dict[str, Limits] = {DEMO: Limits(grade="research"), SECOND: Limits(grade="research")}


def rows() -> Iterator[Row]:
    """Yield every row of the table, those without a defect first."""
    yield HF, SOUND
    yield HF, f"{SOUND}, {defects_hf.LISTS}"
    yield HF, STRICT
    yield from ((HF, name) for name in defects_hf.DEFECTS)
    for form, defects in (
        (F16, defects_gguf.OF_FILE), (Q8_0, defects_gguf.OF_QUANTISED), (Q4_K_M, defects_gguf.OF_QUANTISED),
        (EXPORTED, defects_gguf.OF_FILE),
    ):  # fmt: skip
        yield form, SOUND
        if form in (F16, EXPORTED):
            yield form, STRICT
        yield from ((form, name) for name in defects)


def modes_of(model: str, form: str, defect: str) -> tuple[str, ...]:
    """Return how a row is verified."""
    if form == EXPORTED and (defect in defects_gguf.DRESS or defect == STRICT):
        return (RECORD,)  # of another directory's export the name is dress already
    without = () if model == DEMO and form in PAIRED and defect != STRICT else (AGAINST,)  # logits take their time
    return tuple(mode for mode in MODES if mode not in without)


def is_whole(form: str, defect: str) -> bool:
    """Return whether a row is run in whole with nothing at hand too; files say nothing then, and losses take seconds."""
    some = {HF: defects_hf.SEEN_BY_LOSSES, F16: defects_gguf.SEEN_BY_LOSSES}.get(form, ())
    return defect in some or (bool(some) and defect == SOUND)


def twins() -> dict[str, dict[str, str]]:
    """Return the row without a defect that each is held against, where that is not the plain one."""
    found: dict[str, dict[str, str]] = {}
    for form, defect in rows():
        twin = SOUND
        if method_of(form, defect) == defects_hf.LISTS:
            twin = f"{SOUND}, {defects_hf.LISTS}"
        elif terms_of(form, defect).strict and form in (HF, F16, EXPORTED):
            twin = STRICT
        if twin != SOUND and not is_sound(defect):
            found.setdefault(form, {})[defect] = twin
    return found


def terms_of(form: str, defect: str) -> Terms:
    """Return the terms: dress is judged only where a defect is one."""
    kind = defects_hf.DEFECTS.get(defect) if form == HF else None
    dress = kind.strict if kind is not None else form != HF and defect in defects_gguf.DRESS
    return Terms(strict=dress or defect == STRICT)


# --- verifying


def read(target: Path, baseline: Path | None, terms: Terms) -> list[Check]:
    """Return the checks that come before anything is measured."""
    checkpoint = open_checkpoint(target)
    other = None if baseline is None else open_checkpoint(baseline)
    return [*read_back(checkpoint, other, terms), check_rotation(checkpoint)]


def failing(checks: Iterable[Check]) -> str:
    """Return the names of the checks that fail."""
    return ", ".join(check.name for check in checks if check.verdict == FAIL)


def found(bench: Bench, form: str, defect: str, mode: str, target: Path, measures: bool) -> str:
    """Return what fails, in words: names of checks, a refusal, or "nothing" with the verdict.

    measures: whether losses are computed where the files show nothing.
    """
    baseline = None if mode == NOTHING else bench.base(form)
    terms = terms_of(form, defect)
    lengths = [bench.trained_length, (2 if mode == AGAINST else defects_hf.FACTOR) * bench.trained_length]
    try:
        if mode != AGAINST:
            fails = failing(read(target, baseline, terms))
            if not fails and mode == NOTHING and not is_whole(form, defect):
                open_ones = any(check.verdict == NOT_RUN for check in missing_comparisons(False, lengths, *lengths))
                return f"{CLEAN}: {AT_BEST if open_ones else 'it could pass'}"
            if fails or not measures:
                return fails or CLEAN
        result = verify_checkpoint(
            target, baseline=baseline, against=bench.sound(HF) if mode == AGAINST else None, texts=[bench.texts],
            suite="quick", segments=1 if mode == AGAINST else SEGMENTS, limits=bench.limits, lengths=lengths, terms=terms,
            device="cpu",
        )  # fmt: skip
    except RopetoolError as error:
        return f"{REFUSED}: {type(error).__name__}"
    if mode == AGAINST:
        return of_logits(result.checks)
    return failing(result.checks) or f"{CLEAN}: {result.verdict}"


def of_logits(checks: Iterable[Check]) -> str:
    """Return which checks of two files against each other fail; KL has several limits, which count as one."""
    fails = dict.fromkeys(check.name.partition(" ")[0] if check.name.startswith(KL) else check.name
                          for check in checks if check.verdict == FAIL)  # fmt: skip
    return ", ".join(name for name in fails if name in (SAME_TABLES, KL)) or CLEAN


def cell(bench: Bench, form: str, defect: str, mode: str, measures: bool = True) -> str:
    """Return what one way of verifying one defect finds."""
    target = bench.planted(form, defect, mode)
    try:
        return found(bench, form, defect, mode, target, measures)
    finally:
        remove(target)


def is_measured(mode: str, said: str) -> bool:
    """Return whether a cell rests on losses, so that readback alone found nothing; a refusal may come before them."""
    if mode == AGAINST:
        return True
    return said != f"{CLEAN}: {AT_BEST}" and not (said and names(said) and names(said) <= BY_FILES)


# --- honest extensions


def honest_cases() -> Iterator[tuple[str, str, defects_honest.Case]]:
    """Yield the group and the name of every case."""
    groups = {"directory": defects_honest.DIRECTORIES, "config": defects_honest.PAIRS, "GGUF": defects_honest.FILES}
    yield from ((group, name, case) for group, cases in groups.items() for name, case in cases.items())


def honest(bench: Bench, group: str, case: defects_honest.Case, folder: Path) -> str:
    """Return what fails of an honest case; else "nothing", with the checks of positions, weights and files that could not run."""
    target, baseline = case.make(CONFIGS if group == "config" else bench.source, folder)
    try:
        checks = read(target, baseline, case.terms)
    except RopetoolError as error:
        return f"{REFUSED}: {error.sentence}"
    fails = [f"{check.name} ({check.detail})" for check in checks if check.verdict == FAIL]
    open_ones = [check.name for check in checks if check.verdict == NOT_RUN]
    return "; ".join(fails) or CLEAN + (f", not run: {', '.join(open_ones)}" if open_ones else "")


# --- all of it


@contextmanager
def benches(names: Iterable[str]) -> Iterator[dict[str, Bench]]:
    """Give the benches of these models; the figures of what has no defect are computed once."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        made = {name: Bench.of(name, Path(folder)) for name in names}
        files = [f"{form.replace(' ', '-')}.gguf" for form in (F16, Q8_0, Q4_K_M)]
        patch.setattr(verification_run, "DIVERGENCE_TOKENS", DIVERGENCE_TOKENS)
        patch.setattr(preparing, "MIN_SEGMENTS", 1)  # of --against no losses count
        remember(patch, [bench.folder / name for bench in made.values() for name in ("model", "model-yarn", *files)])
        yield made


@dataclass(frozen=True)
class Wanted:
    """Which cells are computed: of rows whose names hold one of these words, by these ways.

    losses: those alone that rest on losses. read: no losses at all; where files show nothing what losses said is kept.
    """

    words: tuple[str, ...] = ("",)
    modes: tuple[str, ...] = MODES
    losses: bool = False
    read: bool = False

    def row(self, name: str) -> bool:
        """Return whether a row is among them."""
        return any(word in name for word in self.words)


def measured(name: str, wanted: Wanted, known: Result) -> tuple[Result, Result]:
    """Return the cells of a model, defects and honest extensions; those that are not wanted are kept."""
    cells, cases = (known.get(part, {}).get(name, {}) for part in ("defects", "honest"))
    with benches([name]) as made:
        for form, defect in filter(lambda row: wanted.row(f"{row[0]}: {row[1]}"), rows()):
            said = cells.setdefault(form, {}).get(defect, {})
            for mode in modes_of(name, form, defect):
                before = said.get(mode)
                losses = before is not None and is_measured(mode, before)
                if mode not in wanted.modes or (wanted.losses and before is not None and not losses):
                    continue
                if wanted.read and losses and mode == AGAINST:
                    continue
                now = _said(made[name], form, defect, mode, not wanted.read)
                said[mode] = before if wanted.read and losses and now == CLEAN else now
            cells[form][defect] = said
            print(name, form, defect, said, file=sys.stderr, flush=True)
        for group, title, case in honest_cases():
            of_one = name != DEMO and group != "directory"  # one model's files say it, and configs are of no model
            if wanted.losses or of_one or RECORD not in wanted.modes or not wanted.row(f"honest {group}: {title}"):
                continue
            with tempfile.TemporaryDirectory(dir=made[name].folder) as folder:
                cases.setdefault(group, {})[title] = honest(made[name], group, case, Path(folder))
            print(name, group, title, cases[group][title], file=sys.stderr, flush=True)
    order = list(rows())
    cells = {
        form: {d: cells[form][d] for f, d in order if f == form and d in cells[form]} for form in FORMS if form in cells
    }
    return cells, cases


def _said(bench: Bench, form: str, defect: str, mode: str, measures: bool) -> str:
    try:
        return cell(bench, form, defect, mode, measures)
    except Exception:  # noqa: BLE001  a defect that breaks the verification is a row to look at, not the end of the others
        traceback.print_exc()
        return BROKE


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="measure this model; repeat it")
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="measure rows whose names hold a word; repeat it"
    )
    parser.add_argument("--mode", action="append", choices=MODES, help="measure this way; repeat it")
    parser.add_argument("--losses", action="store_true", help="measure again what rests on losses, keep the rest")
    parser.add_argument("--read", action="store_true", help="measure no losses, keep what rests on them")
    parser.add_argument("--result", type=Path, default=RESULT, help="the file of the result")
    options = parser.parse_args()
    result: Result = json.loads(options.result.read_text(encoding="utf-8")) if options.result.exists() else {}
    words, modes = tuple(options.only or [""]), tuple(options.mode or MODES)
    wanted = Wanted(words, modes, options.losses, options.read)
    result["twins"] = twins()
    for name in options.model or MODELS:
        cells, cases = measured(name, wanted, result)
        result.setdefault("defects", {})[name], result.setdefault("honest", {})[name] = cells, cases
        _write(options.result, result)
    return 0


def _write(path: Path, result: Result) -> None:
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
