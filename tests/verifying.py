"""What makes verify cheap: short texts, few rows, and figures and token ids that are computed once."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool.rope.tables import RopeSet
from ropetool.runtimes import inspection
from ropetool.verification import run, suites, texts
from ropetool.verification.options import VerifyOptions
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import Done, Predictions, Scores, ignore

LONG = 2000  # characters of a text that is worth it


def verify(target: Path, **arguments: Any) -> VerifyResult:
    """Return what a suite measures; each argument goes to the first object that has a field of its name."""
    models, workload, options = (
        {field.name: arguments.pop(field.name) for field in fields(each) if field.name in arguments}
        for each in (run.Models, run.Workload, VerifyOptions)
    )
    objects = run.Models(target, **models), run.Workload(**workload), VerifyOptions(**options)
    return run.verify(*objects, **arguments)


def rope_of(path: Path) -> RopeSet:
    """Return the tables of a checkpoint."""
    rope = inspection.inspect(path).rope
    assert rope is not None
    return rope


def cut_texts(patch: pytest.MonkeyPatch, folder: Path, characters: int) -> None:
    """Let the documents of the package end after so many characters; the demo's tokens have less than five each.

    Every run reads all documents three times, which costs more than the rows of a short length.
    """
    write_cut(folder, characters)
    patch.setattr(texts, "EMBEDDED", folder)


def write_cut(folder: Path, characters: int) -> None:
    """Write the first characters of each document of the package into a new folder."""
    folder.mkdir()
    for document in texts.embedded_documents():
        (folder / document.name).write_text(document.text[:characters], encoding="utf-8")


def with_these_texts(program: str) -> str:
    """Return a program that has the same documents of the package as this process, for a fork."""
    changed = f"from ropetool.verification import texts\ntexts.EMBEDDED = type(texts.EMBEDDED)({str(texts.EMBEDDED)!r})"
    return f"{changed}\n{program}"


def shrink_suites(patch: pytest.MonkeyPatch) -> None:
    """Let the longer suites have few rows, for a test that asks what is said of them: their texts take half a minute."""
    for name in ("standard", "full"):
        patch.setitem(suites.SUITES, name, replace(suites.SUITES[name], passages=2, trials=2))


def answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let models of torch answer by chance, for a test that asks which runs begin and end, and for no figure."""
    rng = np.random.default_rng(0)

    def score(self: Any, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        done(sum(map(len, rows)))
        return Scores(rng.uniform(1, 3, (len(rows), scored)), np.zeros((len(rows), scored), dtype=np.bool_))

    def predict(
        self: Any, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        done(sum(map(len, rows)))
        return Predictions(rng.uniform(-3, -1, np.shape(candidates)), np.array([each[0] for each in candidates]))

    patch.setattr(TorchRunner, "score", score)
    patch.setattr(TorchRunner, "predict", predict)


def remember(patch: pytest.MonkeyPatch, unchanged: Collection[Path]) -> None:
    """Compute each figure of these checkpoints once; a test that changes one works on a copy under another name."""
    for runner in (TorchRunner, LlamaRunner):
        _remember(patch, runner, {str(path) for path in unchanged})


def _remember(patch: pytest.MonkeyPatch, runner: type[Any], unchanged: set[str]) -> None:
    scores: dict[tuple[Any, ...], Scores] = {}
    predictions: dict[tuple[Any, ...], Predictions] = {}
    pieces: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
    compute_scores, compute_predictions, compute_logits = runner.score, runner.predict, runner.logits

    def score(self: Any, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        if str(self.path) not in unchanged:
            return compute_scores(self, rows, scored, done)  # type: ignore[no-any-return]
        key = (self.description, str(self.path), scored, *map(tuple, rows))
        if key not in scores:
            scores[key] = compute_scores(self, rows, scored)
        done(sum(map(len, rows)))
        return scores[key]

    def predict(
        self: Any, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        if str(self.path) not in unchanged:
            return compute_predictions(self, rows, candidates, done)  # type: ignore[no-any-return]
        key = (self.description, str(self.path), *map(tuple, rows), *map(tuple, candidates))
        if key not in predictions:
            predictions[key] = compute_predictions(self, rows, candidates)
        done(sum(map(len, rows)))
        return predictions[key]

    def logits(self: Any, ids: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if str(self.path) not in unchanged:
            return compute_logits(self, ids)  # type: ignore[no-any-return]
        key = (self.description, str(self.path), *ids)
        if key not in pieces:
            pieces[key] = [(start, piece.copy()) for start, piece in compute_logits(self, ids)]
        return iter(pieces[key])

    patch.setattr(runner, "score", score)
    patch.setattr(runner, "predict", predict)
    patch.setattr(runner, "logits", logits)


def remember_ids(patch: pytest.MonkeyPatch) -> None:
    """Compute the ids and byte lengths of a long text once for all tokenizers that are the same."""
    for name in ("tokenize", "byte_lengths"):
        patch.setattr(TorchTokenizer, name, _remembered_ids(getattr(TorchTokenizer, name)))


def _remembered_ids(compute: Callable[[Any, str], list[int]]) -> Callable[[Any, str], list[int]]:
    known: dict[tuple[bytes, bytes], array[int]] = {}

    def remembered(self: Any, text: str) -> list[int]:
        if len(text) < LONG or not getattr(self._tokenizer, "is_fast", False):
            return compute(self, text)
        key = _identity(self), hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if key not in known:
            known[key] = array("l", compute(self, text))
        return known[key].tolist()

    return remembered


def _identity(reader: Any) -> bytes:
    """Return a hash of the loaded tokenizer, all of it."""
    if not hasattr(reader, "identity"):
        tokenizer = reader._tokenizer
        state = f"{type(tokenizer)} {tokenizer.split_special_tokens} {tokenizer.backend_tokenizer.to_str()}"
        reader.identity = hashlib.sha256(state.encode()).digest()
    identity: bytes = reader.identity
    return identity
