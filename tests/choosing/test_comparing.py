"""Candidates in one loaded model, against `verify` of what their plans write; interruptions; JSON, rows and bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from models import copied
from running import run
from verifying import cut_texts

import ropetool
from ropetool.choosing import candidates as candidate_module
from ropetool.choosing.results import COLUMNS, CandidateResult, Comparison
from ropetool.cli import compare as compare_command
from ropetool.errors import ConfigError, MissingDependency, PlanMismatch, RopetoolError, UnknownMethod
from ropetool.escaping import install_line
from ropetool.lab.tuning import tuning
from ropetool.lab.tuning.material import Amounts
from ropetool.lab.tuning.results import TuneResult
from ropetool.report.compared import compare_page, losses_chart, sections, sentences
from ropetool.report.page import write_page
from ropetool.verification import journal
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners.torch_runner import TorchRunner

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
LENGTHS = [64, 128, 256, 512]
LITTLE: dict[str, Any] = {"measures": ["last-segment"], "segments": 8}
METHODS = ("yarn", "linear")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the demo checkpoint and what two methods write, and short texts for all."""
    made = tmp_path_factory.mktemp("compare")
    shutil.copytree(DEMO, made / "model")
    for method in METHODS:
        ropetool.apply(ropetool.plan(made / "model", method, factor=2), made / "model", made / f"model-{method}")
    (made / "yarn.json").write_text(json.dumps(ropetool.plan(made / "model", "yarn", factor=2).to_json()))
    with pytest.MonkeyPatch.context() as patch:
        cut_texts(patch, tmp_path_factory.mktemp("short") / "texts", 6000)
        patch.setenv("ROPETOOL_CACHE", str(made / "cache"))
        patch.chdir(made)
        yield made


@pytest.fixture(scope="module")
def found(folder: Path) -> Comparison:
    return compared(folder)


def compared(folder: Path, **options: Any) -> Comparison:
    return ropetool.compare(
        folder / "model", **{"methods": METHODS, "factors": [2], "plans": [folder / "yarn.json"], **LITTLE, **options}
    )


@cache
def verified(target: Path) -> VerifyResult:
    return ropetool.verify(target, lengths=LENGTHS, **LITTLE)


def differing(found: Comparison, name: str, expected: VerifyResult) -> float:
    """Return by how much the losses of a candidate and those of a verification differ, which have the same segments."""
    measured = found.candidate(name).measured
    assert measured is not None
    assert (measured.documents, measured.scored) == (expected.documents, expected.scored)
    assert [(e.length, e.segments) for e in measured.lengths] == [(e.length, e.segments) for e in expected.lengths]
    return max(
        abs(ours.target.mean - theirs.target.mean)
        for ours, theirs in zip(measured.lengths, expected.lengths, strict=True)
    )


def test_its_figures_are_those_of_the_written_outputs(found: Comparison, folder: Path) -> None:
    for method in METHODS:
        expected = verified(folder / f"model-{method}")
        assert differing(found, f"{method} x2", expected) < 1e-5
        measured = found.candidate(f"{method} x2").measured
        assert measured is not None
        for ours, theirs in zip(measured.lengths, expected.lengths, strict=True):
            assert ours.ratio == pytest.approx(theirs.ratio, abs=1e-4)
            assert ours.upper == pytest.approx(theirs.upper, abs=1e-4)
            assert ours.verdict == theirs.verdict
        ratio = next(check for check in expected.checks if check.name == "ratio")
        assert next(check for check in measured.checks if check.name == "ratio").verdict == ratio.verdict
    assert differing(found, "yarn.json", verified(folder / "model-yarn")) < 1e-5


def test_a_swapped_table_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = ropetool.plan(folder / "model", "linear", factor=2).target
    own = candidate_module._of_method
    monkeypatch.setattr(candidate_module, "_of_method", lambda *given: replace(own(*given), rope=linear))
    swapped = compared(folder)
    assert differing(swapped, "yarn x2", verified(folder / "model-yarn")) > 1e-3


def test_the_baseline_is_the_source_within_its_trained_length(found: Comparison, folder: Path) -> None:
    expected = verified(folder / "model-yarn")
    assert list(found.baseline) == [64, 128, 256]
    for entry in expected.lengths[:3]:
        assert entry.baseline is not None
        assert found.baseline[entry.length].mean == pytest.approx(entry.baseline.mean, abs=1e-9)
    beyond = compared(folder, baseline_beyond=True, methods=["yarn"], plans=())
    assert list(beyond.baseline) == LENGTHS
    assert beyond.baseline[512].mean > beyond.baseline[256].mean + 1  # which is why it was extended


def test_candidates_are_ranked_where_each_leads(folder: Path) -> None:
    two = compared(folder, methods=["yarn", "ntk"], factors=[2, 3], plans=())
    names = ["yarn x2", "ntk x2", "yarn x3", "ntk x3"]
    assert [each.name for each in two.candidates] == names
    assert two.lengths == (64, 128, 256, 512, 768)
    assert [(ranking.length, sorted(ranking.order)) for ranking in two.rankings] == [
        (512, sorted(names)), (768, ["ntk x3", "yarn x3"]),
    ]  # fmt: skip
    reach = {each.name: [entry.length for entry in each.measured.lengths] for each in two.candidates if each.measured}
    assert (reach["yarn x2"][-1], reach["yarn x3"][-1]) == (512, 768)
    # Segments are chosen for all: a candidate of a shorter context has those of the longer ones.
    counts = {e.segments for each in two.candidates if each.measured for e in each.measured.lengths if e.length == 512}
    assert len(counts) == 1
    asked = compared(folder, methods=["yarn"], factors=[2], lengths=[128, 256, 768], plans=())
    assert [entry.length for entry in asked.candidates[0].measured.lengths] == [128, 256, 768]  # type: ignore[union-attr]
    assert asked.rankings[0].length == 768


def test_no_row_is_computed_twice_and_an_interrupted_run_goes_on(
    folder: Path, found: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STEP_TOKENS", 1024)
    whole = compared(folder, budget=math.inf)
    asked: Counter[tuple[Any, ...]] = Counter()
    own, most = TorchRunner.score, 10**9

    def score(self: TorchRunner, rows: Sequence[Sequence[int]], scored: int, done: Any) -> Any:
        if sum(asked.values()) + len(rows) > most:
            raise KeyboardInterrupt
        model = self.model
        table = (
            model.fixed_table,
            model._model.model.rotary_emb.inv_freq.sum().item(),
            model._model.model.rotary_emb.attention_scaling,
        )
        asked.update((table, scored, *row) for row in rows)
        return own(self, rows, scored, done)

    monkeypatch.setattr(TorchRunner, "score", score)
    most = 50
    with pytest.raises(KeyboardInterrupt) as interrupted:
        compared(folder, budget=math.inf)
    assert 0 < interrupted.value.rows <= 50  # type: ignore[attr-defined]
    most = 10**9
    again = compared(folder, resume=True, budget=math.inf)
    assert max(asked.values()) == 1  # neither the baseline's rows nor those of a table that two candidates have
    assert again.to_json() == {**whole.to_json(), "notes": list(again.notes)}
    assert again.notes[0].endswith("saved rows will be used again")
    for ours, theirs in zip(again.candidates, whole.candidates, strict=True):
        assert ours.measured is not None
        assert theirs.measured is not None
        assert [e.target.mean for e in ours.measured.lengths] == [e.target.mean for e in theirs.measured.lengths]
    assert not list((folder / "cache" / "verify").glob("*.sqlite"))


def test_what_is_refused_stays_with_its_reason(folder: Path) -> None:
    found = compared(folder, methods=["yarn", "longrope"], plans=())
    refused = found.candidate("longrope x2")
    assert refused.measured is None
    assert "divisors" in refused.refusal
    assert [name for ranking in found.rankings for name in ranking.order] == ["yarn x2"]
    with pytest.raises(RopetoolError, match="divisors"):
        compared(folder, methods=["longrope"], plans=())


def test_a_factor_that_goes_into_the_weights_is_measured_in_the_model(folder: Path) -> None:
    for name, runtimes in ("plain", ()), ("baked", ("sglang@0.5.16",)):
        plan = ropetool.plan(folder / "model", "yarn", factor=2, attention_factor=1.5, for_runtimes=runtimes)
        assert bool(plan.bakes) == bool(runtimes)
        (folder / f"{name}.json").write_text(json.dumps(plan.to_json()))
    found = compared(folder, plans=[folder / "plain.json", folder / "baked.json"])
    yarn, plain, baked = (found.candidate(name) for name in ("yarn x2", "plain.json", "baked.json"))
    assert yarn.measured is not None
    assert plain.measured is not None
    assert baked.measured is not None
    assert "weights" in baked.note
    assert baked.measured.lengths == plain.measured.lengths
    assert abs(baked.measured.lengths[-1].target.mean - yarn.measured.lengths[-1].target.mean) > 1e-3
    gains = ropetool.bake(folder / "model", "pair-gain", gains=[0.8] * 32)
    (folder / "gains.json").write_text(json.dumps(gains.to_json()))
    with pytest.raises(ConfigError, match="cannot change the weights of a loaded model"):
        compared(folder, plans=[folder / "gains.json"])


def test_plans_of_one_file_name_are_two_candidates(folder: Path) -> None:
    files = []
    for method in METHODS:
        files.append(folder / method / "plan.json")
        files[-1].parent.mkdir()
        files[-1].write_text(json.dumps(ropetool.plan(folder / "model", method, factor=2).to_json()))
    found = compared(folder, methods=[], factors=[], plans=[*files, files[0]])
    assert [each.name for each in found.candidates] == list(map(str, files))
    for file, method in zip(files, METHODS, strict=True):
        assert differing(found, str(file), verified(folder / f"model-{method}")) < 1e-5
    (folder / "yarn x2").write_text(files[1].read_text())  # called as a method's candidate is
    found = compared(folder, methods=["yarn"], plans=["yarn x2"])
    assert [each.name for each in found.candidates] == ["yarn x2", str(folder / "yarn x2")]


def test_a_plan_whose_table_follows_the_length_is_measured_at_each(folder: Path) -> None:
    plan = ropetool.plan(folder / "model", "dynamic", factor=2)
    (folder / "dynamic.json").write_text(json.dumps(plan.to_json()))
    found = compared(folder, methods=["dynamic"], plans=[folder / "dynamic.json"], lengths=LENGTHS)
    method, saved = (found.candidate(name).measured for name in ("dynamic x2", "dynamic.json"))
    assert method is not None
    assert saved is not None
    assert saved.lengths == method.lengths
    ropetool.apply(plan, folder / "model", folder / "model-dynamic")
    assert differing(found, "dynamic.json", verified(folder / "model-dynamic")) < 1e-5
    other = ropetool.plan(folder / "model", "dynamic", factor=2, original_length=128)
    (folder / "other.json").write_text(json.dumps(other.to_json()))
    with pytest.raises(ConfigError, match="cannot reproduce how its table depends on the text length"):
        compared(folder, plans=[folder / "other.json"])


def test_json_and_rows(found: Comparison) -> None:
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["schema"] == 1
    assert [each["name"] for each in data["candidates"]] == ["yarn x2", "linear x2", "yarn.json"]
    assert data["rankings"][0]["best"] == found.rankings[0].best
    rows = list(found.rows())
    assert all(tuple(row) == COLUMNS for row in rows)
    assert len(rows) == 3 + 3 * 4
    by = {(row["candidate"], row["length"]): row for row in rows}
    assert by["yarn x2", 512]["loss"] == found.candidate("yarn x2").measured.lengths[3].target.mean  # type: ignore[union-attr]
    assert [by["yarn x2", n]["within_trained"] for n in LENGTHS] == [True, True, True, False]


def test_bounds_are_said_to_be_one_sided(found: Comparison) -> None:
    legends = [dict(section.legend) for section in sections(found)]
    assert "one-sided" in legends[0]["ratio"]
    assert "one-sided" in legends[1]["cells"]
    assert "candidates measured at this length" in legends[2]["best"]


def test_csv_is_the_rows(found: Comparison, folder: Path) -> None:
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    rows = list(found.rows())
    assert [each["candidate"] for each in table] == [row["candidate"] for row in rows]
    assert [float(each["loss"]) for each in table] == [row["loss"] for row in rows]  # in full
    assert table[0]["ratio"] == ""
    (folder / "there.csv").write_text("mine\n")
    done = run("compare", "model", "--factors", "2", "--csv", "there.csv")
    assert done.code == 1
    assert "Error: --csv there.csv: exists already" in done.err
    assert (folder / "there.csv").read_text() == "mine\n"


def test_the_report_shows_every_candidate_and_loads_nothing(found: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    refused = CandidateResult("<b>x2", None, None, "it is <no> method")
    files = write_page(compare_page(replace(found, candidates=(*found.candidates, refused))), tmp_path / "report")
    assert sorted(file.name for file in files) == ["costs.png", "index.html", "losses-512.png"]
    page = files[0].read_text()
    for each in found.candidates:
        assert f">{each.name}</td>" in page
    assert "&lt;b&gt;x2" in page
    assert "<b>x2" not in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    again = write_page(compare_page(found), tmp_path / "report", force=True)
    assert again == files


def test_the_plot_goes_on_with_the_source_on_cut_text(found: Comparison) -> None:
    pytest.importorskip("matplotlib")
    from ropetool.report import drawing

    ranking = replace(found.rankings[-1], length=max(found.lengths), order=(found.candidates[0].name,))
    with drawing.style():
        (axes,) = drawing.drawn(losses_chart(found, ranking, "losses")).axes
    lines = {str(line.get_label()): line for line in axes.lines}
    own = lines["the source"].get_xdata()
    assert max(own) == found.trained_length < max(found.lengths)
    cut = lines[f"the source, text cut to {found.trained_length} tokens"]
    assert list(cut.get_xdata()) == [n for n in found.lengths if n >= found.trained_length]
    assert set(cut.get_ydata()) == {found.baseline[found.trained_length].mean}


def test_pandas_is_asked_for_in_a_sentence(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pandas") as refused:
        found.to_pandas()
    assert refused.value.try_ == install_line("pandas")


def test_a_data_frame_has_the_rows(found: Comparison) -> None:
    frame = found.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == len(list(found.rows()))


def test_yardsticks_stand_beside_the_rankings(folder: Path) -> None:
    found = compared(folder, plans=(), compare_with="rerope(256),self-extend(2,32)", baseline_beyond=True)
    assert [name for ranking in found.rankings for name in ranking.order if "rerope" in name] == []
    assert found.beside is not None
    assert (found.beside.length, len(found.beside.order)) == (512, 4)
    yardstick = found.candidate("rerope(256)").measured
    assert yardstick is not None
    for entry in yardstick.lengths[:3]:  # no distance is beyond the window: it is the source
        assert entry.target.mean == pytest.approx(found.baseline[entry.length].mean, abs=1e-5)
    assert yardstick.lengths[3].target.mean < found.baseline[512].mean - 1
    assert "self-extend(2,32)" in "".join(sentences(found)[-1:])
    assert found.to_json()["beside"]["length"] == 512


BAD = [
    ({"methods": ["yarnn"]}, UnknownMethod, "yarnn"),
    ({"factors": [1.0]}, ConfigError, "must be above 1"),
    ({"factors": [0.5]}, ConfigError, "must be above 1"),
    ({"factors": [float("nan")]}, ConfigError, "must be above 1"),
    ({"factors": [], "plans": ()}, ConfigError, "no candidates to compare"),
    ({"methods": [], "plans": ()}, ConfigError, "no candidates to compare"),
    ({"lengths": [512, 256]}, ConfigError, "must increase"),
    ({"segments": 2}, ConfigError, "at least 8"),
    ({"measures": ["losses"]}, ConfigError, "losses"),
    ({"compare_with": "reropes"}, ConfigError, "unknown attention variant"),
    ({"compare_with": "rerope(512)"}, ConfigError, "trained length of 256"),
    ({"plans": ["nowhere.json"]}, RopetoolError, "does not exist"),
]


@pytest.mark.parametrize(("options", "error", "words"), BAD)
def test_bad_input_gets_a_sentence(folder: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compared(folder, **options)


def test_texts_shorter_than_the_target_are_refused(folder: Path) -> None:
    (folder / "short.txt").write_text("A text of some words. " * 60)
    with pytest.raises(ConfigError, match="too short"):
        compared(folder, texts=[folder / "short.txt"])


def test_a_plan_of_another_source_and_a_gguf_file_are_refused(folder: Path, tmp_path: Path) -> None:
    other = copied(DEMO, tmp_path / "other", rms_norm_eps=1e-3)
    with pytest.raises(PlanMismatch, match="rms_norm_eps"):
        ropetool.compare(other, plans=[folder / "yarn.json"], **LITTLE)
    file = ropetool.export(folder / "model-yarn", tmp_path / "m.gguf", allow_unverified=True, check=False).output
    with pytest.raises(ConfigError, match="GGUF") as refused:
        ropetool.compare(file, methods=["yarn"], factors=[2])
    assert "ropetool import" in refused.value.try_


def test_the_command_prints_the_table_or_json(folder: Path) -> None:
    little = ["--measure", "last-segment", "--segments", "8"]
    done = run("compare", "model", "--methods", "yarn, linear,longrope", "--factors", "2x", *little)
    assert done.code == 0, done.err
    assert done.out.startswith("best at 512 tokens: yarn x2; better than linear x2\n")
    assert "longrope x2  longrope needs a list of divisors" in done.out
    done = run("compare", "model", "--methods", "yarn", "--target-length", "512", *little, "--json")
    data = json.loads(done.out)
    assert [each["name"] for each in data["candidates"]] == ["yarn 512"]
    assert run("compare", "model", "--factors", "2", "--target-length", "512").code == 2
    assert run("compare", "model").code == 1


def test_extend_takes_what_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.plans.advice.CLOSED_FORMS", ("linear", "yarn"))
    done = run("extend", "model", "--method", "auto", "--factor", "2", "-o", "auto")
    assert done.code == 0, done.err
    assert re.search(r"yarn x2: the lowest loss at 512 tokens; within 256 .*; above 1.1: linear x2", done.err)
    assert ropetool.diff(folder / "auto", folder / "model-yarn").same
    for wrong in ["--beta-fast", "8"], ["--attention-factor", "1.2"], ["--companion", "model"]:
        assert run("extend", "model", "--method", "auto", "--factor", "2", *wrong).code == 2
    assert run("extend", "model", "--method", "yarn", "--factor", "2", "--tune-minutes", "3").code == 2
    assert run("extend", "model", "--method", "auto").code == 2


def test_a_budget_tunes_what_is_measured_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is a real one of one generation on few rows; what unseen text says of it is set."""
    own, found = tuning.tune, []
    compare, measured = compare_command.compared, []

    def few(*given: Any, **options: Any) -> TuneResult:
        assert options.pop("budget") == 3
        if not found:
            found.append(own(*given, **options, generations=1, amounts=(Amounts(8, 4, 1), Amounts(8, 4, 1))))
        return found[0]

    def once(*given: Any, **options: Any) -> Comparison:
        if not measured:
            measured.append(compare(*given, **options))
        return measured[0]

    monkeypatch.setattr("ropetool.plans.advice.CLOSED_FORMS", ("yarn",))
    monkeypatch.setattr(compare_command, "compared", once)
    monkeypatch.setattr(tuning, "tune", few)
    line = ("extend", "model", "--method", "auto", "--factor", "2", "--tune-minutes", "3")
    for better, output in ((False, "untuned"), (True, "tuned")):
        monkeypatch.setattr(TuneResult, "is_better", better)
        done = run(*line, "-o", output)
        assert done.code == 0, done.err
        assert ropetool.diff(folder / output, folder / "model-yarn").same != better
        said = (
            "significantly better than the default on unseen text"
            if better
            else "nothing significantly better than the default"
        )
        assert said in done.err
    assert (found[0].target_length, found[0].space, found[0].points) == (512, "yarn", 12)
    assert found[0].tuned is not None
    ropetool.apply(found[0].tuned, folder / "model", folder / "winner")
    assert ropetool.diff(folder / "tuned", folder / "winner").same
