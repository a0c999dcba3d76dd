"""Checkpoints as a user names them: which runtime opens which, their lengths, and the baseline found without asking."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import models
import numpy as np
import pytest
from gguf_files import TRAINED, model
from running import run

import ropetool
from ropetool.checkpoint import edit_log, provenance
from ropetool.checkpoint.certificate import state
from ropetool.errors import ConfigError, MissingDependency, RopetoolError
from ropetool.escaping import install_line
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.report.verdict import summary
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.readback.terms import Terms
from ropetool.verification.runners import llama_runner, torch_runner
from ropetool.verification.scoring import Scores
from ropetool.verification.session import Session

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


class Fake:
    """A runner that remembers what it was opened with; every token costs one nat."""

    prefix = ()
    opened: list[tuple[str, Path]] = []  # noqa: RUF012  # emptied by the fixture
    caches: list[tuple[Path, object]] = []  # noqa: RUF012  # so is this one

    def __init__(self, path: Path, **options: object) -> None:
        self.opened.append((type(self).__name__, path))
        self.caches.append((path, options.get("cache_type")))
        self.description = type(self).__name__

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def byte_lengths(self, text: str) -> list[int]:
        return [1] * len(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Scores:
        return Scores(np.ones((len(rows), scored)), np.ones((len(rows), scored), dtype=np.bool_))

    def close(self) -> None:
        pass


class Torch(Fake):
    pass


class Llama(Fake):
    pass


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Path]]:
    monkeypatch.setattr(torch_runner, "TorchRunner", Torch)
    monkeypatch.setattr(llama_runner, "LlamaRunner", Llama)
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    Fake.opened.clear()
    Fake.caches.clear()
    return Fake.opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


@pytest.fixture
def exported(source: Path) -> Path:
    return models.export(source).output


def test_each_path_gets_its_runtime_and_a_mix_is_told(opened: list, source: Path, exported: Path) -> None:
    found = verify_checkpoint(exported, baseline=source, suite="quick", segments=8)
    assert opened == [("Llama", exported), ("Torch", source)]
    assert [entry.length for entry in found.lengths] == [64, 128, 256]  # from the file's own keys
    assert "llama.cpp runs the target and transformers the baseline, so their differences count too" in found.notes
    opened.clear()
    found = verify_checkpoint(source, baseline=exported, suite="quick", segments=8)
    assert opened == [("Torch", source), ("Llama", exported)]
    opened.clear()
    provenance.place(exported).unlink()
    assert verify_checkpoint(exported, suite="quick", segments=8).notes == ()
    assert opened == [("Llama", exported)]


def test_a_gguf_is_known_by_its_first_letters_too(opened: list, exported: Path) -> None:
    renamed = exported.rename(exported.with_name("blob"))
    verify_checkpoint(renamed, suite="quick", segments=8)
    assert opened == [("Llama", renamed)]


def made_from(exported: Path, source: Path, trained: int) -> Path:
    """Return an output with a provenance file that names this source."""
    output = exported.with_name("output.gguf")
    shutil.copyfile(exported, output)
    made = provenance.Provenance(str(source), provenance.fingerprint(source), trained, {})
    output.with_name("output.gguf.ropetool.json").write_text(json.dumps(made.to_json()))
    return output


def test_an_unchanged_source_is_the_baseline(opened: list, exported: Path) -> None:
    found = verify_checkpoint(made_from(exported, exported, 128), suite="quick", segments=8)
    assert (found.baseline, found.trained_length) == (exported.name, 128)
    assert [entry.length for entry in found.lengths] == [32, 64, 128, 256]


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_source_that_is_not_the_same_is_no_baseline(opened: list, exported: Path, change: str) -> None:
    output = made_from(exported, exported, 128)
    if change == "gone":
        exported.unlink()
    else:
        os.utime(exported, (1, 1))
    found = verify_checkpoint(output, suite="quick", segments=8)
    assert found.baseline is None
    assert f"the source {exported} {'no longer exists' if change == 'gone' else 'has changed'}" in found.notes[0]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name in ("config.json", "x.gguf"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(RopetoolError, match=name):
            verify_checkpoint(tmp_path / name)
    with pytest.raises(RopetoolError, match="nowhere"):
        verify_checkpoint(tmp_path / "nowhere.gguf")


def test_an_unknown_architecture_without_a_length_is_refused(opened: list, exported: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.gguf"
    write_patched(read_header(exported), Patch(set={"general.architecture": Value.of(ValueType.STR, "new")}), changed)
    with pytest.raises(ConfigError, match=r"new\.context_length is missing") as refused:
        verify_checkpoint(changed)
    assert refused.value.where == str(changed)


def test_without_llama_cpp_the_way_to_it_is_named(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependency) as refused:
        verify_checkpoint(exported)
    assert refused.value.try_ == install_line("llama")


# --- the type of llama.cpp's cache


def test_a_cache_type_is_the_targets_and_of_the_run(opened: list, exported: Path, tmp_path: Path) -> None:
    output = made_from(exported, exported, 128)
    before = output.with_name("output.gguf.ropetool.json").read_bytes()
    found = verify_checkpoint(output, suite="quick", segments=8, cache_type="q8_0")
    assert Fake.caches == [(output, "q8_0"), (exported, None)]
    assert found.to_json()["cache_type"] == "q8_0"
    assert "measured up to 256 tokens with a q8_0 cache against" in summary(found)
    assert output.with_name("output.gguf.ropetool.json").read_bytes() == before  # which export asks for
    note = "the record gets no certificate, because --cache-type applies only to this run; pass --certificate FILE to write one"
    assert note in found.notes
    place = tmp_path / "certificate.json"
    verify_checkpoint(output, suite="quick", segments=8, cache_type="q8_0", certificate_file=place)
    held = state(output, place)
    assert held.certificate is not None
    assert held.certificate.cache_type == "q8_0"
    assert "up to 256 tokens at grade usable with a q8_0 cache" in held.why
    assert verify_checkpoint(output, suite="quick", segments=8).cache_type is None
    made = provenance.record(output)
    assert made is not None
    assert made.certificate is not None
    assert made.certificate["cache_type"] is None


def test_a_cache_type_is_for_what_llama_cpp_runs(opened: list, source: Path) -> None:
    with pytest.raises(ConfigError, match="only GGUF files accept a cache type") as refused:
        verify_checkpoint(source, suite="quick", cache_type="q8_0")
    assert refused.value.where == "--cache-type"
    assert refused.value.try_ == f"ropetool export {source} -o FILE.gguf, then verify FILE.gguf"
    assert opened == []


def test_figures_of_another_cache_type_do_not_serve_a_resumed_run(
    opened: list, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    calls = []

    def interrupted(self: Fake, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Scores:
        calls.append(len(rows[0]))
        if len(calls) > 1:
            raise KeyboardInterrupt
        return Fake.score(self, rows, scored, done)

    monkeypatch.setattr(Llama, "score", interrupted)
    ask = partial(verify_checkpoint, exported, suite="quick", segments=8, baseline=exported)
    with pytest.raises(KeyboardInterrupt):
        ask(cache_type="q8_0")
    monkeypatch.setattr(Llama, "score", Fake.score)
    anew = "the run starts from the beginning: it has no saved results"
    assert anew in ask(cache_type="q4_0", resume=True).notes
    assert anew in ask(resume=True).notes
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert anew in ask(cache_type="q8_0", resume=True).notes
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE")
    assert "8 saved rows will be used again" in ask(cache_type="q8_0", resume=True).notes


@pytest.mark.parametrize("edits", [["16384"], ["1024", "16384"]])
def test_the_log_of_edits_tells_the_trained_length(edits: list[str], tmp_path: Path) -> None:
    """A context length that was only set by hand is no extension: the model is judged from where it was."""
    file = model(tmp_path / "model.gguf")
    for length in edits:
        assert run("gguf", "set", file, "llama.context_length", length, "--in-place", "--copy-if-needed").code == 0
    session = Session.open(file, None, None)
    assert (session.trained, session.context) == (TRAINED, 16384)
    assert [note for note in session.notes if f"context length of {TRAINED} before" in note]
    assert Session.open(file, None, Terms(trained_length=2048)).trained == 2048
    assert Session.open(file, model(tmp_path / "baseline.gguf"), None).notes == []


def test_a_log_without_the_context_length_changes_nothing(tmp_path: Path) -> None:
    file = model(tmp_path / "model.gguf")
    for key, value in (("llama.rope.freq_base", "20000"), ("llama.context_length", "256")):
        assert run("gguf", "set", file, key, value, "--in-place", "--copy-if-needed").code == 0
    assert Session.open(file, None, None).trained == 256
    assert edit_log.first_value(file, "llama.context_length").decode() == TRAINED
    assert edit_log.first_value(file, "llama.block_count") is None
