"""verify --compare-with as a user types it: yardsticks beside the target, put on its baseline, and one sentence for bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from running import Done, run

import ropetool
from ropetool.files.hf import read_object
from ropetool.sections import half_width
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners.torch_runner import TorchRunner

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
OPTIONS = ["--measure", "last-segment", "--segments", "8", "--grade", "research", "--lengths", "256,512"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo checkpoint, and that extended twice."""
    made = tmp_path_factory.mktemp("beside")
    shutil.copytree(DEMO, made / "model")
    ropetool.apply(ropetool.plan(made / "model", "yarn", factor=2), made / "model", made / "extended")
    return made


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch, short_texts: None) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROPETOOL_CACHE", str(folder / "cache"))


@pytest.fixture(scope="module")
def measured(folder: Path) -> VerifyResult:
    """The extended demo beside a yardstick that leaves the trained length alone, and one that sees no more of the text."""
    texts = sorted((Path(ropetool.__file__).parent / "demo" / "text").iterdir())[:4]
    return ropetool.verify(
        folder / "extended", measures=["last-segment", "retrieval"], segments=8, trials=2, lengths=[256, 512], texts=texts,
        compare_with="rerope(256),sliding-window(256),dynamic-yarn",
    )  # fmt: skip


def test_yardsticks_are_put_on_the_baseline_and_read_the_same_tokens(measured: VerifyResult) -> None:
    capped, windowed, _ = measured.yardsticks
    assert [found.name for found in measured.yardsticks] == ["rerope(256)", "sliding-window(256)", "dynamic-yarn"]
    assert {found.on for found in measured.yardsticks} == {"model"} == {measured.baseline}
    baseline = measured.lengths[0].baseline
    assert baseline is not None
    # Within the trained length the baseline itself, and not the target.
    for found in measured.yardsticks:
        assert found.lengths[0].target.mean == pytest.approx(baseline.mean, abs=1e-4)
        assert found.lengths[0].ratio == pytest.approx(1.0, abs=1e-4)
    assert abs(measured.lengths[0].target.mean - baseline.mean) > 1e-3
    # Beyond it the baseline breaks, and they do not.
    broken = measured.lengths[1].baseline
    assert broken is not None
    assert max(capped.lengths[1].target.mean, windowed.lengths[1].target.mean) < broken.mean - 0.5


def test_the_target_is_held_against_each_of_them(measured: VerifyResult) -> None:
    for found in measured.yardsticks:
        for entry, own, difference in zip(measured.lengths, found.lengths, found.differences, strict=True):
            assert difference.mean == pytest.approx(entry.target.mean - own.target.mean, abs=1e-9)
            assert half_width(difference) < half_width(entry.target)  # paired: what makes a token hard drops out
            assert (own.segments, own.target.tokens) == (entry.segments, entry.target.tokens)
        cells = found.measures["retrieval"][0].cells
        assert [(cell.length, cell.depth, cell.trials) for cell in cells] == [
            (cell.length, cell.depth, cell.trials) for cell in measured.measures["retrieval"][0].cells
        ]


def test_nothing_that_is_judged_changes(folder: Path) -> None:
    alone = run("verify", "extended", *OPTIONS, "--json").json
    found = run("verify", "extended", *OPTIONS, "--compare-with", "rerope(64)", "--json").json
    assert (found["checks"], found["verdict"], found["lengths"]) == (
        alone["checks"],
        alone["verdict"],
        alone["lengths"],
    )
    assert alone["yardsticks"] == []
    assert found["yardsticks"][0]["name"] == "rerope(64)"
    assert read_object(folder / "extended" / "ropetool.json")[1].get("certificate") is None


def test_text_and_page_show_them_beside_the_target(measured: VerifyResult) -> None:
    from ropetool.report.page import rendered
    from ropetool.report.verified import verify_page, verify_text

    text = verify_text(measured, width=100, explained=True)
    assert "Reference attention variants: no file can store them" in text
    assert text.count("rerope(256)") == 3  # two lengths, and retrieval
    assert "applied to model; they do not affect the verdict" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    files = rendered(verify_page(measured))
    assert "yardsticks.png" in files
    assert b"sliding-window(256)" in files["index.html"]


def test_without_a_baseline_it_is_said_what_they_are_put_on() -> None:
    found = run("verify", "model", *OPTIONS, "--lengths", "64,256", "--compare-with", "rerope(32)")
    assert "without a baseline, the reference attention variants use model and its own table" in found.err


def test_a_run_that_goes_on_keeps_what_yardsticks_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("verify", "extended", *OPTIONS, "--compare-with", "rerope(64)", "--json")
    first = run(*line).json
    own = TorchRunner.score
    calls = []

    def interrupted(self: TorchRunner, rows: object, scored: int, done: object = lambda _: None) -> object:
        calls.append(len(rows))  # type: ignore[arg-type]
        if len(calls) > 5:
            raise KeyboardInterrupt
        return own(self, rows, scored, done)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchRunner, "score", interrupted)
    assert run(*line).code == 130
    monkeypatch.setattr(TorchRunner, "score", own)
    again = run(*line, "--resume")
    assert "saved rows" in again.err
    for one, other in zip(
        first["yardsticks"][0]["differences"], again.json["yardsticks"][0]["differences"], strict=True
    ):
        assert np.isclose(one["mean"], other["mean"], atol=1e-9)


def test_rows_of_another_trained_length_do_not_serve_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first two count from the trained length, which their names do not state; the run is cut at the third.
    # Of 64 tokens as many are scored with either trained length.
    beside = ("--lengths", "64,320", "--compare-with", "rerope(32)+log-n,dynamic-ntk,rerope(64)")
    line = ("verify", "extended", *OPTIONS, *beside, "--json")
    fresh = {length: run(*line, "--trained-length", length).json for length in ("256", "192")}
    own = TorchRunner.score
    losses: list[float] = []
    last = fresh["256"]["yardsticks"][1]["lengths"][1]["target"]["mean"]

    def interrupted(self: TorchRunner, rows: object, scored: int, done: object = lambda _: None) -> object:
        if losses and np.isclose(losses[-1], last):
            raise KeyboardInterrupt
        found = own(self, rows, scored, done)  # type: ignore[arg-type]
        losses.append(float(found.losses.mean()))
        return found

    monkeypatch.setattr(TorchRunner, "score", interrupted)
    assert run(*line, "--trained-length", "256").code == 130
    monkeypatch.setattr(TorchRunner, "score", own)
    again = run(*line, "--trained-length", "192", "--resume")
    assert "saved rows" in again.err
    for index, name in enumerate(("rerope(32)+log-n", "dynamic-ntk")):
        other, right, found = (
            each["yardsticks"][index]["lengths"][1]["target"]["mean"] for each in (*fresh.values(), again.json)
        )
        assert abs(other - right) > 1e-3, name
        assert found == pytest.approx(right, abs=1e-9), name


def sentence(found: Done) -> str:
    assert found.code in (1, 2)
    assert found.out == ""
    assert "Traceback" not in found.err
    return found.err


def test_bad_input_gets_a_sentence(folder: Path) -> None:
    said = sentence(run("verify", "extended", *OPTIONS, "--compare-with", "rerop"))
    assert "--compare-with: unknown attention variant 'rerop' (did you mean rerope" in said
    assert "Try: --compare-with rerope" in said
    said = sentence(run("verify", "extended", *OPTIONS, "--compare-with", "rerope(512)"))
    assert "the window of 512 tokens must not exceed the trained length of 256" in said
    said = sentence(run("verify", "extended", "--server", "http://localhost:1", "--compare-with", "rerope"))
    assert (
        "--compare-with does not apply to a served model: reference attention variants need a model that ropetool loads from "
        "files" in said
    )
    said = sentence(run("verify", "extended", "--runner", "vllm", "--compare-with", "rerope"))
    assert "--runner vllm does not accept --compare-with" in said


def test_a_gguf_file_is_refused_and_what_serves_is_named(folder: Path) -> None:
    if not (folder / "model.gguf").exists():
        ropetool.export(folder / "model", folder / "model.gguf", outtype="f32", check=False)
    said = sentence(run("verify", "model.gguf", *OPTIONS, "--compare-with", "rerope", "--baseline", "model.gguf"))
    assert "reference attention variants work only with transformers, and model.gguf is a GGUF file" in said
    assert "Try: ropetool import model.gguf -o DIR" in said
