"""The committed table of planted defects: complete, as docs/judging.md shows it, what it must say, and some of it again.

scripts/defects/defects.py makes it. While the code is that which it was made with, a sample of its rows is computed here, which
another state of the code draws anew; otherwise all rows that need no model are, and more of those that need one. A check
that lets everything pass turns this file red, which is tried for each of them.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loading import script
from safetensors.torch import load_file

from ropetool.checkpoint.tensor_bytes import CountedDifferences
from ropetool.verification import gate, whole_suites
from ropetool.verification.readback import claimed, comparing, keys
from ropetool.verification.results import PASS, Check, VerifyResult

page = script("defects/defects_page.py")
records = script("records.py")
defects = script("defects/defects.py")
KNOWN: dict[str, Any] = page.known()
HF, F16, RECORD, BASELINE, NOTHING = defects.HF, defects.F16, page.RECORD, page.BASELINE, page.NOTHING
# While the rows were made by this code, a sample of them is computed again; otherwise all rows that need no model are.
IS_CURRENT = records.is_current("defects-demo")
SEED = json.dumps(records.BY_NAME["defects-demo"].inputs_now())
MODELS = [defects.DEMO, *([defects.SECOND] if defects.second_place(defects.CACHE).is_dir() else [])]
# What is not found, with the reason. With the record there is nothing of the kind.
ESCAPES: dict[str, dict[str, str]] = {
    RECORD: {},
    BASELINE: {
        "directory: ntk in place of yarn": "it is an honest ntk x4, and the second model loses less by it than the limit",
        "directory: linear in place of yarn": "it is an honest linear x4, and 8 segments of the second model decide nothing",
    },
}
MOST_ESCAPES = 2
# What logits and tables cannot show: ids, templates, what is stated, and what a quantisation hides. Readback finds it.
UNSEEN_BY_LOGITS = {
    "stated context eight times as long", "another id ends a text", "chat template added", "two merges exchanged",
    "a token made one of control", "last norm 2 % larger",
}  # fmt: skip
# What fails without a defect, and should: the method does not hold at four times the length. Defects in its lists are read.
SHORT_OF_IT = {f"{HF}: {page.SOUND}, {defects.defects_hf.LISTS}": "ratio"}
# The verdicts of what does not fail: nothing else, and a pass only where there is a yardstick.
WITHOUT_YARDSTICK = {"nothing: partial", f"nothing: {page.AT_BEST}"}
Cell = tuple[str, str, str, str]  # model, form, defect, mode


def cells(measured: bool) -> list[Cell]:
    """Return the cells that rest on losses, or those that rest on files alone."""
    return [
        (model, form, defect, mode)
        for model in MODELS
        for form, rows in KNOWN["defects"][model].items()
        for defect, said in rows.items()
        for mode, text in said.items()
        if defects.is_measured(mode, text) == measured
    ]


def said_of(cell: Cell) -> str:
    model, form, defect, mode = cell
    return str(KNOWN["defects"][model][form][defect][mode])


def sampled(some: list[Any], count: int) -> list[Any]:
    return random.Random(SEED).sample(some, min(count, len(some)))


def of_each_kind(some: list[Cell], more: int) -> list[Cell]:
    """Return a cell for all that is said in a form and a mode, and some more."""
    mixed = sampled(some, len(some))
    kinds = {(cell[1], cell[3], said_of(cell)): cell for cell in mixed}
    return list(dict.fromkeys([*kinds.values(), *mixed[:more]]))


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Any]]:
    with defects.benches(MODELS) as made:
        yield made


# --- what was committed


def test_the_table_is_complete() -> None:
    for model in defects.MODELS:
        rows = {row: set(defects.modes_of(model, *row)) for row in defects.rows()}
        made = {
            (form, name): set(said) for form, some in KNOWN["defects"][model].items() for name, said in some.items()
        }
        assert made == rows
    cases = {(group, title) for group, title, _ in defects.honest_cases()}
    assert {(group, title) for group, some in KNOWN["honest"][defects.DEMO].items() for title in some} == cases
    assert KNOWN["twins"] == defects.twins()


def test_there_are_enough_of_both_kinds() -> None:
    planted = {defect for form, defect in defects.rows() if not page.is_sound(defect)}
    assert len(planted) >= 90
    assert len({title for _, title, _ in defects.honest_cases()}) >= 30


@pytest.mark.parametrize("mode", ESCAPES)
@pytest.mark.parametrize("model", defects.MODELS)
def test_what_escapes_is_known(model: str, mode: str) -> None:
    assert sorted(set(page.escapes(KNOWN, mode, model)) - ESCAPES[mode].keys()) == []
    assert len(ESCAPES[mode]) <= MOST_ESCAPES


def test_every_known_escape_is_one() -> None:
    missed = {name for model in defects.MODELS for name in page.escapes(KNOWN, BASELINE, model)}
    assert missed == ESCAPES[BASELINE].keys()


def test_two_files_against_each_other_miss_what_no_logit_shows() -> None:
    asked = [form for form, *_ in page.rows_of(KNOWN, defects.DEMO, page.AGAINST)]
    missed = [name.partition(": ")[2] for name in page.escapes(KNOWN, page.AGAINST, defects.DEMO)]
    assert set(asked) == set(defects.PAIRED)
    assert len(missed) <= len(asked) / 4
    assert set(missed) <= UNSEEN_BY_LOGITS


@pytest.mark.parametrize("model", defects.MODELS)
def test_nothing_passes_without_a_yardstick(model: str) -> None:
    said = {
        f"{form}: {defect}": row[NOTHING]
        for form, rows in KNOWN["defects"][model].items()
        for defect, row in rows.items()
        if NOTHING in row
    }
    open_ones = {name: text for name, text in said.items() if not page.names(text)}
    assert len(said) > 2 * len(open_ones) / 3 > 90
    assert {name: text for name, text in open_ones.items() if text not in WITHOUT_YARDSTICK} == {}
    assert not any(page.BROKE in text for text in said.values())


@pytest.mark.parametrize("model", defects.MODELS)
def test_what_has_no_defect_does_not_fail(model: str) -> None:
    sound = {
        (f"{form}: {defect}", mode): text
        for form, rows in KNOWN["defects"][model].items()
        for defect, row in rows.items()
        if page.is_sound(defect)
        for mode, text in row.items()
    }
    failing = {key: text for key, text in sound.items() if not text.startswith(page.CLEAN)}
    assert {key: text for key, text in failing.items() if SHORT_OF_IT.get(key[0]) != text} == {}
    honest = {title: text for some in KNOWN["honest"][model].values() for title, text in some.items()}
    assert {title: text for title, text in honest.items() if not text.startswith(page.CLEAN)} == {}


# --- computed again


READ_NOW = cells(measured=False)


@pytest.mark.parametrize("model", MODELS)
def test_rows_of_readback_are_as_committed(model: str, benches: dict[str, Any]) -> None:
    some = [cell for cell in READ_NOW if cell[0] == model]
    some = of_each_kind(some, 12) if IS_CURRENT else some
    wanted = {cell: said_of(cell) for cell in some}
    assert {cell: defects.cell(benches[model], *cell[1:], measures=False) for cell in some} == wanted


def measured_sample() -> list[Cell]:
    """Return some rows that rest on losses: what was never a pass, what escapes, what logits find."""
    some = cells(measured=True)
    return [
        cell
        for mode in page.MODES
        for cell in sampled([cell for cell in some if cell[3] == mode], 1 if IS_CURRENT else 2)
    ]


@pytest.mark.parametrize("cell", measured_sample(), ids=" ".join)
def test_a_row_of_losses_is_as_committed(cell: Cell, benches: dict[str, Any]) -> None:
    model, form, defect, mode = cell
    assert defects.cell(benches[model], form, defect, mode) == said_of(cell)


def honest_sample() -> list[tuple[Any, ...]]:
    """Return some honest cases; the converter takes ten seconds for each file."""
    known = [
        (model, *case)
        for model in MODELS
        for case in defects.honest_cases()
        if case[1] in KNOWN["honest"][model].get(case[0], {})
    ]
    parts = [[case for case in known if (case[1] == "GGUF") == slow] for slow in (False, True)]
    return sampled(parts[0], 10 if IS_CURRENT else len(parts[0])) + sampled(parts[1], 1 if IS_CURRENT else 4)


@pytest.mark.parametrize(("model", "group", "title", "case"), honest_sample(), ids=lambda value: str(value)[:40])
def test_an_honest_extension_does_not_fail(
    model: str, group: str, title: str, case: Any, benches: dict[str, Any], tmp_path: Path
) -> None:
    if group == "config" and not defects.CONFIGS.is_dir():
        pytest.skip("ROPETOOL_REAL_FILES names no configs")
    if group == "GGUF" and not defects.defects_honest.converter.CONVERTER.is_file():
        pytest.skip("ROPETOOL_LLAMA_CPP names no converter")
    folder = tmp_path / "case"
    folder.mkdir()
    assert defects.honest(benches[model], group, case, folder) == KNOWN["honest"][model][group][title]


# --- a third party's extension names what was changed


# Lists that are no method's any more are longrope's, of which the factor is named that goes with them.
NAMED_OTHERWISE = {"lists: those of factor 2": "longrope", "lists: all ones": "longrope"}
# A later part of the same sentence stands for what it shows: the key under its own name, or the value that it has.
SHOWN_BY: dict[str, Callable[[Any], str]] = {
    "factor": lambda value: f" x{value:g} ",
    "max_position_embeddings": lambda value: f"the context length is {value}",
    "rope_type": lambda value: "the tables equal the baseline",
    "rope_scaling": lambda value: "the tables equal the baseline",
}


def changes(sound: Path, broken: Path) -> set[str]:
    """Return words of which the verdict on a directory has to say one: keys, tensors and files that differ."""
    words = set()
    for name in {path.name for folder in (sound, broken) for path in folder.iterdir()}:
        one, other = sound / name, broken / name
        if one.exists() and other.exists() and one.read_bytes() == other.read_bytes():
            continue
        words.add(name)
        if name == "config.json":
            words.remove(name)
            words |= keys_apart(*(json.loads(path.read_text(encoding="utf-8")) for path in (one, other)))
        elif name == defects.defects_hf.WEIGHTS:
            words |= tensors_apart(one, other)
    return words


def keys_apart(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Return what names the keys that two configs state otherwise, those inside the scaling too."""
    parts = [{**config, **(config.get("rope_scaling") or {})} for config in (one, other)]
    found = {key for key in {**parts[0], **parts[1]} if parts[0].get(key) != parts[1].get(key)} - {"rope_scaling"}
    if "rope_scaling" not in other:
        found = {"rope_scaling"}
    return found | {SHOWN_BY[key](parts[1].get(key)) for key in found if key in SHOWN_BY}


def tensors_apart(one: Path, other: Path) -> set[str]:
    try:
        theirs, ours = load_file(one), load_file(other)
    except Exception:  # noqa: BLE001  cut off: the file itself is named
        return set()
    return {
        name
        for name in {**theirs, **ours}
        if name not in ours or name not in theirs or not bool((ours[name] == theirs[name]).all())
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_change_of_an_extension_made_by_hand_is_named(model: str, benches: dict[str, Any]) -> None:
    """No record, the source as the baseline: the words of the check that fails name a key, a tensor or a file that differs."""
    bench, silent, unnamed = benches[model], set(), {}
    for defect in defects.defects_hf.DEFECTS:
        broken = bench.planted(HF, defect, BASELINE)
        try:
            terms = defects.terms_of(HF, defect)
            told = [check.detail for check in defects.read(broken, bench.source, terms) if check.verdict == "fail"]
            words = changes(bench.sound(HF, defects.method_of(HF, defect), by_hand=True), broken)
        except defects.RopetoolError as error:
            told, words = [str(error)], {"other.safetensors"}
        finally:
            shutil.rmtree(broken)
        words |= {NAMED_OTHERWISE[defect]} if defect in NAMED_OTHERWISE else set()
        if not told:
            silent.add(defect)
        elif not any(word in text for word in words for text in told):
            unnamed[defect] = (words, told)
    assert unnamed == {}
    # Another method, made rightly, is what it says that it is.
    assert silent == {"ntk in place of yarn", "linear in place of yarn"}


# --- the checks themselves broken


def passed(check: Check) -> Check:
    return replace(check, verdict=PASS)


def always(function: Callable[..., Check]) -> Callable[..., Check]:
    return lambda *given, **named: passed(function(*given, **named))


def never(*_: Any, **__: Any) -> Any:
    return 0.0, ""


def same(*_: Any, **__: Any) -> CountedDifferences:
    return CountedDifferences(1, ())


def says_nothing(*_: Any, **__: Any) -> keys.Differing:
    return keys.Differing(1, (), ())


# What is broken, where, by what, and a row that has to become another one.
BROKEN: dict[str, tuple[list[tuple[Any, str, Any]], Cell]] = {
    "tables with the record": ([(comparing, "compare_tables", never)], (defects.DEMO, HF, "beta_fast 4", RECORD)),
    "tables of a claim": ([(claimed, "compare_tables", never)], (defects.DEMO, HF, "beta_fast 4", BASELINE)),
    "weights with the record": ([(comparing, "compare_tensors", same)], (defects.DEMO, HF, "one number of a layer", RECORD)),
    "weights of a claim": ([(claimed, "compare_weights", same)], (defects.DEMO, HF, "one number of a layer", BASELINE)),
    "files with the record": ([(comparing, "compare_files", same)], (defects.DEMO, HF, "gelu for silu", RECORD)),
    "files of a claim": ([(keys, "of_directories", says_nothing)], (defects.DEMO, HF, "gelu for silu", BASELINE)),
    "keys with the record": ([(comparing, "compare_keys", same)], (defects.DEMO, F16, "two merges exchanged", RECORD)),
    "keys of a claim": ([(keys, "of_models", says_nothing)], (defects.DEMO, F16, "two merges exchanged", BASELINE)),
    "dress": ([(keys, "of_directories", says_nothing)], (defects.DEMO, HF, "chat template added", BASELINE)),
    "rotation": ([(defects, "check_rotation", always(defects.check_rotation))],
                 (defects.DEMO, F16, "half of every head rotates", NOTHING)),
    "yardstick": ([(defects, "missing_comparisons", lambda *_: [])], (defects.DEMO, HF, "noise of 5 %", NOTHING)),
    "yardstick, whole run": ([(whole_suites, "missing_comparisons", lambda *_: [])], (defects.DEMO, HF, "two layers exchanged", NOTHING)),
    "verdict": ([(VerifyResult, "verdict", property(lambda _: PASS))], (defects.DEMO, HF, "two layers exchanged", NOTHING)),
    "ratio": ([(gate, "_ratio_check", always(gate._ratio_check))], (defects.DEMO, HF, "linear in place of yarn", BASELINE)),
}  # fmt: skip


@pytest.mark.parametrize("check", BROKEN)
def test_a_check_that_lets_everything_pass_turns_a_row(
    check: str, benches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row reads as committed with the check as it is (above, where the sample holds it), and otherwise without it."""
    patches, cell = BROKEN[check]
    for place, name, instead in patches:
        monkeypatch.setattr(place, name, instead)
    model, form, defect, mode = cell
    said = defects.cell(benches[model], form, defect, mode, measures=defects.is_measured(mode, said_of(cell)))
    assert said != said_of(cell)
    assert not page.names(said) >= page.names(said_of(cell)) or said.endswith(PASS)


def test_the_sample_would_hold_a_row_of_each_check() -> None:
    """What is drawn again holds every kind of finding, so that a check that stopped to fail is seen in the next run."""
    kinds = {said for cell in of_each_kind(READ_NOW, 0) for said in page.names(said_of(cell))}
    assert kinds >= defects.BY_FILES


def test_a_defect_that_is_not_planted_is_not_found(benches: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table can be wrong: a row whose defect does nothing reads as the sound files do."""
    idle = defects.defects_hf.Defect(lambda folder: None)
    monkeypatch.setitem(defects.defects_hf.DEFECTS, "factor halved", idle)
    said = defects.cell(benches[defects.DEMO], HF, "factor halved", BASELINE, measures=False)
    assert said == page.CLEAN
