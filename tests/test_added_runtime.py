"""A runtime that is one file: what lists, decodes, plans and serves for it, without an edit elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import configs
import pytest
from models import write_model
from running import run

import ropetool
from ropetool import runtimes
from ropetool.errors import UnknownRuntime
from ropetool.plans.flags import flag_lines
from ropetool.plans.serving import commands, serving_lines

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
NAME = "made-up"
MODULE = '''
"""A program that does not exist: it reads the config as transformers does, but ignores every attention factor."""

from dataclasses import replace

from ropetool.runtimes import transformers
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.config_overrides import ConfigOverrides

NAME = "made-up"
FORMATS = ("hf",)
VERSIONS = "1.0"
SUMMARY = "made-up: ignores attention_factor"
SERVING = ConfigOverrides("made-up serve {} --context {}", "--set", merges=(False,), nested_merges=()).serving


def decode(checkpoint):
    rope = transformers.decode(checkpoint)
    if any(entry.table.rule is not None for entry in rope.entries.values()):
        raise Refuses("ValueError: no table follows the length")
    entries = {kind: replace(entry, table=entry.table.with_factor(1.0)) for kind, entry in rope.entries.items()}
    return replace(rope, entries=entries)
'''


@pytest.fixture(autouse=True)
def _added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the module where the package finds its runtimes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "made_up.py").write_text(MODULE)
    monkeypatch.setattr(runtimes, "__path__", [*runtimes.__path__, str(folder)])
    forget()
    yield
    monkeypatch.undo()
    forget()
    sys.modules.pop("ropetool.runtimes.made_up", None)


def forget() -> None:
    runtimes._discovered.cache_clear()
    runtimes._by_name.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", configs.config("llama", "v4"))


def test_it_is_listed() -> None:
    assert NAME in runtimes.names()
    assert runtimes.get(NAME, "hf").versions == "1.0"
    assert "made-up: ignores attention_factor" in run("runtimes").out
    with pytest.raises(UnknownRuntime, match="did you mean made-up"):
        runtimes.get("made-pu")


def test_it_is_decoded(source: Path) -> None:
    reading = ropetool.inspect(source).readings.named(NAME)
    assert reading is not None
    assert reading.rope is not None
    assert reading.rope.max_position_embeddings == 512


def test_a_table_is_written_for_it(source: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(source, "linear", factor=4, for_runtimes=[NAME])
    assert plan.runtimes == (NAME,)
    assert not plan.bakes
    both = ropetool.plan(DEMO, "yarn", factor=4, for_runtimes=["transformers", NAME])
    assert both.bakes  # the weights get the factor that it ignores
    output = ropetool.apply(both, DEMO, tmp_path / "out").output
    readings = ropetool.inspect(output).readings
    ours, theirs = readings.named("transformers"), readings.named(NAME)
    assert ours is not None
    assert theirs is not None
    assert ours.rope is not None
    assert theirs.objection(ours.rope) == ""


def test_a_note_names_it_when_it_is_not_asked_for(source: Path) -> None:
    notes = ropetool.plan(source, "yarn", factor=4).notes
    assert any(NAME in note and "attention factor 1 instead of" in note for note in notes)


def test_it_has_lines_for_outputs_and_for_flags(source: Path, tmp_path: Path) -> None:
    linear = ropetool.plan(source, "linear", factor=4)
    output = ropetool.apply(linear, source, tmp_path / "out").output
    line = "made-up serve out --context 2048"
    lines = serving_lines(ropetool.inspect(output), "out")
    assert f"{NAME}: {line}" in lines
    assert line in commands(lines)
    (flags,) = (line for line in flag_lines(linear, source) if line.startswith(NAME))
    assert flags.startswith(f"{NAME}: made-up serve {source} --context 2048 --set ")
    (refusal,) = (line for line in flag_lines(ropetool.plan(source, "yarn", factor=4), source) if line.startswith(NAME))
    assert refusal.startswith(f"{NAME}: not possible with flags: attention factor 1 instead of")
