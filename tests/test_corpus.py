"""The corpus: what ropetool plans, writes and prints has the hashes of tests/corpus.json, so that a move of code changes no output.

A change on purpose: look at what changes with `scripts/corpus.py --show KEY` before and after, run `scripts/corpus.py`
again, and give the changed keys and the reason in the commit and in docs/changelog.md.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import script
from running import Done

import ropetool
from ropetool import families
from ropetool.errors import InvalidRope
from ropetool.families.wrappers import ALIASES, WRAPPERS
from ropetool.plans.bakes import BAKES
from ropetool.rope import methods
from ropetool.rope.tables import RopeTable

corpus = script("corpus.py")
commands = corpus.commands
GROUPS = tuple(corpus.GROUPS)
WRITTEN = ("plan/hf", "output/hf", "bake/hf", "export", "plan/gguf", "output/gguf", "bake/gguf")
OF_REAL_FILES = (
    "inspect",
    "advise",
    "doctor",
)  # groups with cells of published configs, which are not at hand everywhere


def changed(*keys: str) -> list[str]:
    """Return which of these cells are not what the file says."""
    groups = list(dict.fromkeys(map(corpus.group_of, keys)))
    cells = corpus.cells(groups)
    known = {key: value for key, value in corpus.known(groups).items() if key in keys}
    found: list[str] = corpus.differences(known, corpus.values({key: cells[key] for key in keys}))
    return found


# --- all cells


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """A folder whose sources all groups start from, as they do where the file is written."""
    with sys.modules["corpus_cells"].temporary_folder() as folder:
        yield Path(folder)


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_planned_written_and_printed_is_as_it_was(group: str, sources: Path) -> None:
    known, cells = corpus.known([group]), corpus.cells([group])
    if group in OF_REAL_FILES and not commands.REAL.is_dir():
        known = {key: value for key, value in known.items() if key in cells}
    keys = corpus.differences(known, corpus.values(cells, sources=sources))
    assert not keys, (
        f"{len(keys)} cells of {group} differ, first {'; '.join(keys[:5])}. Compare with the code as it was before: "
        f"scripts/corpus.py --show '{keys[0]}'. If the change is meant: scripts/corpus.py, and an entry in docs/changelog.md"
    )


def test_every_family_is_in_every_group_that_concerns_it() -> None:
    names = {group: {key.removeprefix(f"{group}/").split("/")[0] for key in corpus.known([group])} for group in WRITTEN}
    plans = {name.partition(",")[0] for name in names["plan/hf"]}
    assert plans >= {*families.baked(), *WRAPPERS, *ALIASES}
    assert names["export"] == {*families.exported()}
    for group in ("output/hf", "bake/hf"):
        found = {name.partition("-")[0] for name in names[group]}
        assert found == {*families.baked()}


def test_every_method_and_every_bake_has_cells() -> None:
    assert {name for name, _ in corpus.VARIANTS.values()} == set(methods.names())
    assert {row[0] for rows in (corpus.HF_BAKES, corpus.GGUF_BAKES) for row in rows.values()} == set(BAKES)


def test_most_cells_are_no_refusals() -> None:
    for group in WRITTEN:
        values = list(corpus.known([group]).values())
        refused = [value for value in values if value.startswith("refused: ")]
        assert len(refused) < 0.6 * len(values), group
        assert len({*values} - {*refused}) > 0.4 * (len(values) - len(refused)), group


# --- what the hashes see


def a_table_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    module = methods.get("linear").module
    derive = module.derive

    def off(*given: Any) -> Any:
        derived = derive(*given)
        inv_freq = derived.table.regimes[0].inv_freq * np.float64(1 + 1e-10)
        return replace(derived, table=RopeTable.fixed(inv_freq))

    monkeypatch.setattr(module, "derive", off)


def written_and_then(change: Callable[[Path], None], function: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = getattr(ropetool, function)

        def spoiled(*given: Any, **options: Any) -> Any:
            done = whole(*given, **options)
            change(done.output)
            return done

        monkeypatch.setattr(ropetool, function, spoiled)

    return plant


def last_bit(path: Path) -> None:
    path = path if path.is_file() else max(path.glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.unlink()  # it may be a link to the source
    path.write_bytes(raw)


def context_length(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    key = b".context_length"
    raw[raw.index(key) + len(key) + 4] ^= 1  # behind its type
    path.write_bytes(raw)


def rounded_key(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    config["max_position_embeddings"] += 1
    (path / "config.json").write_text(json.dumps(config, indent=4) + "\n")


def run_and_then(change: Callable[[Any, Sequence[Any]], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what changes the end of a command: the change takes what it left and its arguments."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = commands.run
        monkeypatch.setattr(commands, "run", lambda *arguments: change(whole(*arguments), arguments))

    return plant


def printed_with(change: Callable[[Any], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what changes the JSON that a command prints."""

    def changed_json(done: Any, _: Sequence[Any]) -> Any:
        printed = json.loads(done.out)
        change(printed)
        return replace(done, out=json.dumps(printed))

    return run_and_then(changed_json)


def written_after(change: Callable[[Path], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what changes the output of a command."""

    def changed_output(done: Any, arguments: Sequence[Any]) -> Any:
        change(Path(arguments[arguments.index("-o") + 1]))
        return done

    return run_and_then(changed_output)


def slightly_larger(printed: Any) -> None:
    printed["rope"]["full_attention"]["inv_freq"][-1] *= 1 + 1e-4


def one_reader_less(printed: Any) -> None:
    printed["readers"].pop()


def milder(printed: Any) -> None:
    printed["checkpoints"][0]["findings"][0]["severity"] = "note"


def one_more_identical(printed: Any) -> None:
    printed["tensors"]["counts"]["identical"] += 1


def of_another_type(printed: Any) -> None:
    printed["keys"][0]["type"] = "i64"


def without_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.disk.Disk, "can_insert", False)


def larger_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corpus.verdicts.score

    def score(self: Any, rows: Any, scored: int, *more: Any) -> Any:
        found = whole(self, rows, scored, *more)
        return replace(found, losses=found.losses * (1 + 1e-4))

    monkeypatch.setattr(corpus.verdicts, "score", score)


def a_wider_limit(printed: Any) -> None:
    next(check for check in printed["checks"] if check["limit"])["limit"] *= 1 + 1e-4


PLANTED: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a table": ("plan/hf/llama/v5/linear/default", a_table_that_is_off),
    "a table of GGUF": ("plan/gguf/llama/linear", a_table_that_is_off),
    "weights": ("output/hf/qwen3/v5/yarn", written_and_then(last_bit, "apply")),
    "baked weights": ("bake/hf/llama/score", written_and_then(last_bit, "apply")),
    "a key": ("output/hf/qwen3/v4/linear", written_and_then(rounded_key, "apply")),
    "a key of GGUF": ("output/gguf/qwen2/yarn", written_and_then(context_length, "apply")),
    "baked rows of GGUF": ("bake/gguf/qwen2/attention-factor k", written_and_then(last_bit, "apply")),
    "exported weights": ("export/qwen2/q8_0", written_and_then(last_bit, "export")),
    "an exported key": ("export/qwen2/bf16", written_and_then(context_length, "export")),
    "a printed table": ("inspect/llama", printed_with(slightly_larger)),
    "a runtime that reads it": ("advise/llama, for vllm", printed_with(one_reader_less)),
    "a finding": ("doctor/cohere", printed_with(milder)),
    "a count of tensors": ("diff/qwen2, extended", printed_with(one_more_identical)),
    "an imported weight": ("import/qwen2", written_after(last_bit)),
    "the type of a key": ("gguf/llama/list", printed_with(of_another_type)),
    "a key that is set": ("gguf/llama/set a number", written_after(context_length)),
    "the way of an edit": ("in place/llama/ranges are inserted/a long text", without_insertion),
    "a loss": ("verify/directory/quick", larger_losses),
    "a loss of a method": ("compare/three methods", larger_losses),
    "a limit of an export": ("export checks/model/q8_0", printed_with(a_wider_limit)),
}


def test_a_new_key_is_listed_and_makes_no_cell_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "inspect/llama"
    printed_with(lambda printed: printed["rope"].update(colour="red"))(monkeypatch)
    keys = commands.Keys(corpus.known_keys())
    assert corpus.values({key: corpus.cells(["inspect"])[key]}, keys) == {key: corpus.known(["inspect"])[key]}
    assert keys.new() == ["inspect: /rope/colour"]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, plant = PLANTED[name]
    assert changed(key) == []
    plant(monkeypatch)
    assert changed(key) == [key]


def test_another_refusal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidRope("no")

    monkeypatch.setattr(ropetool, "plan", refuse)
    keys = ["plan/hf/llama/v4/yarn/default", "plan/gguf/gemma3/ntk-by-parts"]
    assert corpus.known(GROUPS)[keys[1]] == "refused: LossyExport"
    assert changed(*keys) == sorted(keys)


def test_prose_and_versions_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ropetool.plan
    monkeypatch.setattr(ropetool, "plan", lambda *given, **options: replace(whole(*given, **options), notes=("other",)))
    monkeypatch.setattr(ropetool, "__version__", "99.0")
    monkeypatch.setattr("ropetool.checkpoint.gguf_keys.__version__", "99.0")
    keys = (
        "plan/hf/llama/v4/yarn/default",
        "output/hf/qwen3/v5/yarn",
        "output/gguf/llama/yarn",
        "export/llama/f32, yarn",
    )
    assert changed(*keys) == []


def test_floats_count_to_twelve_digits() -> None:
    numbers = [1 / 3, np.float64(2 / 3), 1e300, 7]
    assert corpus.canonical({"a": numbers}) == {"a": ["0.333333333333", "0.666666666667", "1e+300", 7]}
    assert corpus.canonical(0.1 + 0.2) == corpus.canonical(0.3) != corpus.canonical(0.3 + 1e-11)


# --- the command


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the corpus be two groups of a cell each."""
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.setattr(corpus, "RESULT", tmp_path / "corpus.json")
    monkeypatch.setattr(corpus, "KEYS", tmp_path / "corpus_keys.json")
    for name in GROUPS:
        monkeypatch.delitem(corpus.GROUPS, name)
    for name in ("one", "two"):
        cells = [("cell", lambda folder: folder, lambda source, _: {"x": 0.5, "here": source.is_dir()})]
        monkeypatch.setitem(corpus.GROUPS, name, lambda cells=cells: iter(cells))
    return tmp_path / "corpus.json"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["corpus.py", *arguments])
    code: int = corpus.main()
    return code


def test_the_command_writes_compares_and_shows(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    written = json.loads(small.read_text())
    assert list(written) == ["one/cell", "two/cell"]
    assert (run(monkeypatch, "--check"), capsys.readouterr().out) == (0, "")
    small.write_text(json.dumps({"one/cell": "0", "two/gone": "1", "two/cell": written["two/cell"]}))
    assert (run(monkeypatch, "--check"), capsys.readouterr().out) == (1, "one/cell\ntwo/gone\n")
    assert (run(monkeypatch, "--check", "--only", "two"), capsys.readouterr().out) == (1, "two/gone\n")
    assert run(monkeypatch, "--only", "two") == 0
    assert json.loads(small.read_text()) == {"one/cell": "0", "two/cell": written["two/cell"]}
    assert run(monkeypatch, "--show", "one/cell") == 0
    assert json.loads(capsys.readouterr().out) == {"x": "0.5", "here": True}


def test_a_signal_during_a_command_writes_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes the signal as its own end, and its cell must not be recorded."""
    ended = Done(128 + signal.SIGTERM, "", "Ended by SIGTERM.")
    commands = sys.modules["corpus_commands"]
    monkeypatch.setattr(commands, "run", lambda *_: ended)
    cells = [("cell", lambda folder: folder, lambda source, _: commands.printed("inspect", source=source))]
    monkeypatch.setitem(corpus.GROUPS, "two", lambda: iter(cells))
    with pytest.raises(SystemExit):
        run(monkeypatch)
    assert not small.exists()


def test_the_shown_refusal_has_its_words(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise InvalidRope("because")

    monkeypatch.setitem(corpus.GROUPS, "one", lambda: iter([("cell", lambda folder: folder, refuse)]))
    assert run(monkeypatch, "--show", "one/cell") == 0
    assert json.loads(capsys.readouterr().out) == "refused: InvalidRope: because"
    with pytest.raises(SystemExit):
        run(monkeypatch, "--show", "three/cell")
