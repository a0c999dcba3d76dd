"""A whole tuning of a tiny model: what it reads where, what it refuses, and that it goes on where it was stopped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import model
from running import refusal
from verification.conftest import make_text, write_model, write_tokenizer

import ropetool
from ropetool.errors import ConfigError, RopetoolError
from ropetool.lab.tuning import material, tuning
from ropetool.lab.tuning.figures import PointLosses
from ropetool.lab.tuning.material import Amounts, split
from ropetool.lab.tuning.planning import identity
from ropetool.lab.tuning.results import TuneResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Corpus, Scores

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
FEW = (Amounts(8, 4, 1), Amounts(8, 4, 1))
Rows = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "model"
    folder.mkdir()
    write_model(folder)
    write_tokenizer(folder)
    for number in range(8):
        (folder.parent / f"text-{number}.txt").write_text(make_text(100 + number, 700))
    return folder


def texts(source: Path) -> list[Path]:
    return sorted(source.parent.glob("text-*.txt"))


def tuned(source: Path, **options: Any) -> TuneResult:
    given = {"texts": texts(source), "generations": 1, "amounts": FEW, **options}
    return tuning.tune(source, 128, **given)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Give every row that the model is asked for."""
    rows: Rows = []
    score, predict = TorchRunner.score, TorchRunner.predict

    def scored(self: TorchRunner, batch: Sequence[Sequence[int]], *args: Any) -> Scores:
        rows.extend(map(tuple, batch))
        return score(self, batch, *args)

    def predicted(self: TorchRunner, batch: Sequence[Sequence[int]], *args: Any) -> Any:
        rows.extend(map(tuple, batch))
        return predict(self, batch, *args)

    monkeypatch.setattr(TorchRunner, "score", scored)
    monkeypatch.setattr(TorchRunner, "predict", predicted)
    return rows


def test_the_judgement_reads_no_text_of_the_search(source: Path, asked: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document has words of its own, so that a row tells which documents it was made of."""
    parts: dict[str, Rows] = {}
    judged = tuning._Run.judged

    def judging(self: Any, *args: Any) -> Any:
        parts["search"] = list(asked)
        asked.clear()
        return judged(self, *args)

    monkeypatch.setattr(tuning._Run, "judged", judging)
    found = tuned(source, generations=2)
    assert found.judgement is not None
    parts["judgement"] = list(asked)
    runner = TorchRunner(source)
    owners = {path.name: runner.tokenize(path.read_text()) for path in texts(source)}
    assert not {*found.searched} & {*found.unseen}
    assert len(found.searched) + len(found.unseen) == 8
    for part, others in ("search", found.unseen), ("judgement", found.searched):
        assert len(parts[part]) > 8
        for row in parts[part]:
            assert not any(_within(row[1:33], owners[name]) for name in others)
            own = found.searched if part == "search" else found.unseen
            assert any(_within(row[at : at + 12], owners[name]) for name in own for at in (1, 13, 60))


def _within(piece: Sequence[int], text: Sequence[int]) -> bool:
    joined = " ".join(map(str, text))
    return f" {' '.join(map(str, piece))} " in f" {joined} "


def test_the_judgement_asks_other_keys_than_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the demo, whose vocabulary has the words that keys are made of."""
    made: list[material.TuningRows] = []

    def kept(*args: Any) -> material.TuningRows:
        made.append(material.prepare(*args))
        return made[-1]

    monkeypatch.setattr(tuning, "prepare", kept)
    monkeypatch.setattr(tuning._Run, "search", _stopped)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(DEMO, 512, generations=1)
    contexts = [part.contexts for part in made]
    assert [len(part) for part in contexts] == [20, 40]
    values = [{context.candidates for context in part} for part in contexts]
    assert not values[0] & values[1]
    pairs = [{(context.row[-1], context.candidates[context.answer]) for context in part} for part in contexts]
    for part in made:
        assert len({*part.documents.answers}) == len(part.corpus.tokens)
        for context, document in zip(part.contexts, part.documents.answers, strict=True):
            shares = [_share(context.row, tokens.tolist()) for tokens in part.corpus.tokens]
            assert shares[document] == max(shares) > 0.8  # the rest are keys, and what they cut
    assert len(pairs[0] & pairs[1]) <= 2  # a key with its value: of the 1,332 that 37 words make, by chance


def _share(row: Sequence[int], text: Sequence[int]) -> float:
    """Return how much of a row, in three tokens each, occurs in a text."""
    known = {*zip(text, text[1:], text[2:], strict=False)}
    return float(np.mean([three in known for three in zip(row, row[1:], row[2:], strict=False)]))


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt


def test_documents_are_shared_out_whole_and_by_kind() -> None:
    sizes = [300, 90, 300, 300, 300, 300, 300, 300, 300]
    tokens = tuple(np.full(size, index) for index, size in enumerate(sizes))
    kinds = ("prose",) * 5 + ("code",) * 4
    corpus = Corpus(tuple(map(str, range(9))), tokens, tokens, (0,), kinds)
    for seed in range(20):
        first, second = split(corpus, 201, seed)
        assert {*first.names} | {*second.names} == {"0", "2", "3", "4", "5", "6", "7", "8"}  # one is too short
        assert not {*first.names} & {*second.names}
        assert len(second.names) == 4
        assert sorted(first.kinds) == ["code", "code", "prose", "prose"]
        for part in (first, second):
            assert all((text == int(name)).all() for name, text in zip(part.names, part.tokens, strict=True))
    assert len({split(corpus, 201, seed)[0].names for seed in range(20)}) > 5
    with pytest.raises(ConfigError, match=r"tune needs 6 texts of at least 200 tokens, .* but finds 5"):
        split(material._only(corpus, range(1, 7)), 201, 0)


def test_an_interrupted_search_goes_on_and_finds_the_same(
    source: Path, asked: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuned(source, generations=2)
    every = len(asked)
    assert len({*asked}) < every  # of several points
    asked.clear()
    judged = tuning._Run.judged

    def interrupted(self: Any, *args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Run, "judged", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        tuned(source, generations=2)
    assert stopped.value.rows > 100  # type: ignore[attr-defined]
    before = len(asked)
    monkeypatch.setattr(tuning._Run, "judged", judged)
    again = tuned(source, generations=2, resume=True)
    assert len(asked) == every  # no row was asked for twice
    assert before > every / 2
    assert again.notes[0].endswith("saved rows will be used again")
    assert (again.winner, again.steps, again.judgement) == (whole.winner, whole.steps, whole.judgement)


def test_a_changed_model_or_version_starts_the_search_anew(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(source)

    def begun() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tuning._Run, "judged", _stopped)
            with pytest.raises(KeyboardInterrupt):
                tuned(source)

    weights, anew = (
        source / "model.safetensors",
        "the run starts from the beginning, because these changed: ",
    )
    begun()
    os.utime(weights, ns=(1, 1))
    again = tuned(source, resume=True)
    assert again.notes[0] == f"{anew}size, date or inode of model.safetensors of the source"
    assert (again.winner, again.steps, again.judgement) == (whole.winner, whole.steps, whole.judgement)
    begun()
    own = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "transformers" else own(name))
    note = tuned(source, resume=True).notes[0]
    assert note == f"{anew}transformers ({own('transformers')} before, 0.1 now)"


def test_what_is_recommended_follows_from_the_judgement(source: Path) -> None:
    found = tuned(source)
    assert found.points == 12
    if found.judgement is None:
        assert found.plan is found.default
    else:
        assert (found.plan is found.tuned) == (found.judgement.verdict == "better")
    assert identity(found.default) == identity(ropetool.plan(source, "yarn", target_length=128))


def test_the_best_of_a_search_is_no_worse_than_the_default_on_its_text(source: Path) -> None:
    steps = tuned(source, generations=2).steps
    assert [step.gain for step in steps] == sorted(step.gain for step in steps)
    assert steps[0].gain >= 0


def test_figures_are_of_the_rows_that_they_say(source: Path) -> None:
    """The objective is the mean over lengths, and a part of the rest, computed here from raw losses."""
    rng = np.random.default_rng(0)
    text = {128: rng.random((4, 3)), 256: rng.random((6, 3))}
    copies, answers = rng.random((5, 2)), rng.random(7)
    found = PointLosses(rng.random((6, 3)), text, copies, answers, answers > 0.5)
    first = np.concatenate([text[128], text[256][:4]])
    assert found.objective == pytest.approx(first.mean() + 0.1 * copies.mean() + 0.03 * answers.mean())
    assert found.retrieved == pytest.approx(sum(value > 0.5 for value in answers) / 7)


REFUSED = [
    ({"target_length": 64}, "--target-length: 64 does not exceed 64 tokens"),
    ({"target_length": 4096}, "--text: tune needs 6 texts of at least 4095 tokens"),
    (
        {"budget": 1e-4},
        r"--budget: 0.0001 minutes are too short for one generation of 12 points and the evaluation, which need about",
    ),
    ({"budget": -1}, "--budget: the time must be a number of minutes above 0, not -1"),
    ({"max_regression": 0.9}, "--max-regression: the ratio of perplexities must be at least 1, not 0.9"),
    ({"space": "pairz"}, r"unknown search space 'pairz' \(did you mean pairs\?\)"),
    ({"texts": "few"}, "--text: tune needs 6 texts of at least 127 tokens"),
]


@pytest.mark.parametrize(
    ("options", "words"), REFUSED, ids=[next(iter(options)) + str(i) for i, (options, _) in enumerate(REFUSED)]
)
def test_what_cannot_be_tuned_is_refused_in_a_sentence(options: dict[str, Any], words: str, source: Path) -> None:
    given = {"texts": texts(source), "amounts": FEW, **options}
    given["texts"] = texts(source)[:3] if given["texts"] == "few" else given["texts"]
    length = given.pop("target_length", 128)
    with refusal(RopetoolError, words) as found:
        tuning.tune(source, length, **given)
    assert "\n" not in found.value.sentence


class Reached(Exception):
    """The search began."""


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.3])
def test_a_budget_that_is_suggested_is_taken(seconds: float, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the machine turns out to be slower, by nearly half, when it is probed again."""

    def begun(*_: Any) -> None:
        raise Reached

    monkeypatch.setattr(tuning._Run, "search", begun)
    for token, budget in ((seconds, 1e-4), (1.9 * seconds, None)):
        monkeypatch.setattr(
            tuning.estimate, "pace", lambda *_, token=token: lambda rows: token * sum(n * rows[n] for n in rows)
        )
        if budget is not None:
            with pytest.raises(ConfigError, match="are too short for one generation") as refused:
                tuned(source, generations=None, budget=budget)
    with pytest.raises(Reached):
        tuned(source, generations=None, budget=float(refused.value.try_.removeprefix("--budget ")))


def test_what_is_too_short_for_an_extended_source_is_said_by_what_it_is_extended_to(tmp_path: Path) -> None:
    ropetool.apply(ropetool.plan(DEMO, "yarn", target_length=1024), DEMO, tmp_path / "extended")
    with pytest.raises(ConfigError, match="512 does not exceed 1024 tokens, the context length of the source") as found:
        tuning.tune(tmp_path / "extended", 512, reading="current")
    assert found.value.try_ == "a target length beyond 1024"


def test_a_gguf_file_is_to_be_imported(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="is a GGUF file") as found:
        tuning.tune(path, 4096)
    assert found.value.try_.startswith("ropetool import ")
