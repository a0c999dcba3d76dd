"""The cells of scripts/corpus.py that measure: verify, compare and the checks of export, with a runner that computes nothing.

Its figures follow from the ids of a row by integer arithmetic, from the file's name and from the table that a loaded model is
turned by. Everything else is real: files, tokenizers, readback, rotation, selection of rows, statistics, verdicts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from corpus_cells import Act, exported, extended, of_gguf
from corpus_commands import Cells, Write, inside, printed
from model_server import Served, serving
from verifying import write_cut

import ropetool
from ropetool.files.gguf import read_header
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import (
    PIECE_TOKENS,
    Done,
    Generated,
    Logits,
    Piece,
    Predictions,
    Scores,
    TokenFilter,
    ignore,
)

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TRAINED, WORSE = 256, 0.02  # tokens; nats that a token beyond them costs more
CHARACTERS = 12_000  # of each text
SUITES = ("quick", "standard", "full")
LENGTHS = "256,1024"


# --- figures that follow from ids


def mixed(ids: Any) -> Any:
    """Return numbers from 0 to 1 that follow from integers, the same on every machine."""
    values = (np.asarray(ids, np.uint64) + np.uint64(0x9E3779B9)) * np.uint64(0x85EBCA6B) & np.uint64(0xFFFFFFFF)
    values = (values ^ (values >> np.uint64(15))) * np.uint64(0xC2B2AE35) & np.uint64(0xFFFFFFFF)
    return (values >> np.uint64(8)).astype(np.float64) / 2**24


def own(runner: Any) -> float:
    """Return what a runner's file and table add to each figure, at most 0.01."""
    loaded = getattr(runner, "_loaded", None)
    tables = () if loaded is None else (float(t.sum()) for n, t in loaded._model.named_buffers() if "inv_freq" in n)
    text = f"{runner.path.name} {' '.join(f'{table:.5g}' for table in tables)}"
    return 0.01 * (zlib.crc32(text.encode()) % 1000) / 1000


def score(self: Any, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
    """Stand in for the method of a runner: what the last tokens of every row cost."""
    ids = np.array(rows, np.int64)
    at = np.arange(ids.shape[1] - scored, ids.shape[1])
    share = mixed(1000 * ids[:, at] + ids[:, at - 1])
    done(ids.size)
    return Scores(2 + share + 2 * own(self) * mixed(ids[:, at] + 3 * at) + WORSE * (at >= TRAINED), share < 0.4)


def predict(
    self: Any, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
) -> Predictions:
    """Stand in for the method of a runner: what comes after every row. The first candidate is mostly the likeliest."""
    ids, asked = np.array(rows, np.int64), np.array(candidates, np.int64)
    costs = 1 + mixed(asked + 7 * ids[:, -1:]) + own(self) + np.arange(asked.shape[1]) * 0.3
    done(ids.size)
    return Predictions(-costs, asked[np.arange(len(asked)), costs.argmin(axis=1)])


def vocabulary(path: Path) -> int:
    """Return how many rows the embedding of a checkpoint has."""
    if path.is_dir():
        return int(json.loads((path / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    return int(next(info for info in read_header(path).tensors if info.name == "token_embd.weight").shape[-1])


def _logits(runner: Any, ids: Sequence[int]) -> Any:
    row = np.array(ids, np.int64)[:, None]
    words = np.arange(vocabulary(runner.path))[None, :]
    return (4 * mixed(5000 * row + words) + own(runner) * mixed(words + row)).astype(np.float32)


def logits(self: Any, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
    """Stand in for the method of a runner: the logits of a row."""
    found = _logits(self, ids)
    for start in range(0, len(ids), PIECE_TOKENS):
        yield start, found[start : start + PIECE_TOKENS]


def read(self: Any, ids: Sequence[int], wanted: TokenFilter) -> Iterator[Piece]:
    """Stand in for the method of a runner: what the wanted tokens of a row cost, a piece after the other."""
    for start in range(0, len(ids), PIECE_TOKENS):
        tokens = np.arange(start + 1, min(start + PIECE_TOKENS, len(ids) - 1) + 1)
        at = tokens[wanted(tokens)]
        costs = score(self, [ids], len(ids) - 1).losses[0][at - 1]
        yield Piece(min(start + PIECE_TOKENS, len(ids)), at, costs)


def generated(self: Any, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
    """Stand in for the method of a runner: the logits of generation and of whole passes, which agree."""
    found = _logits(self, ids)[-count - 1 : -1]
    done(len(ids))
    return Generated(found, found, "float32", moving=False)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Let both runners answer with these figures."""
    with contextlib.ExitStack() as stack:
        for runner, method in itertools.product((TorchRunner, LlamaRunner), (score, predict, logits, generated, read)):
            stack.enter_context(mock.patch.object(runner, method.__name__, method))
        yield


# --- what is measured


def demo(folder: Path) -> Path:
    """Return a copy of the demo checkpoint with texts beside it."""
    place = folder / "demo"
    if not place.exists():
        shutil.copytree(DEMO, place / "model")
        write_cut(place / "texts", CHARACTERS)
    return place / "model"


def demo_file(folder: Path) -> Path:
    """Return the demo checkpoint as a GGUF file."""
    source = demo(folder)
    return exported(source, source.with_name("model.gguf"), outtype="f16")


def longer(source: Path) -> Path:
    """Return the extension of a directory or a file, with its record."""
    return extended(source) if source.is_dir() else extended(source, "longer.gguf")


FORMS: dict[str, Write] = {"directory": demo, "GGUF": demo_file}
# By name: more options of verify; the baseline is the source.
RUNS: dict[str, tuple[str, ...]] = {
    **{suite: ("--suite", suite) for suite in SUITES},
    "quick, usable": ("--suite", "quick", "--grade", "usable"),
    "quick, publishable, other places": (
        "--suite",
        "quick",
        "--grade",
        "publishable",
        "--seed",
        "1",
        "--segments",
        "8",
    ),
}


def verified() -> Cells:
    """Yield every suite for a directory, a file and a server, and some other runs."""
    for (form, write), (name, options) in itertools.product(FORMS.items(), RUNS.items()):
        yield f"{form}/{name}", write, _verify(options)
        if name in SUITES:
            yield f"{form}/{name}, without a baseline", write, _verify(options, baseline=False)
    for form, write in FORMS.items():
        yield f"{form}/default", write, _default()
        yield f"{form}/default, without a baseline", write, _default(baseline=False)
    yield "GGUF/against the source", demo_file, _verify(("--suite", "quick", "--against", "../../demo/model.gguf"))
    for name in ("vllm", "llama-server"):
        for suite in SUITES[:2]:
            yield f"{name}/{suite}", demo, _served(name, ("--suite", suite))


def _verify(options: Sequence[str], baseline: bool = True) -> Act:
    def act(source: Path, folder: Path) -> Any:
        target = longer(source)
        held = ("--baseline", "SOURCE") if baseline else ()
        with inside(folder), recorded():
            return _printed("verify", str(target), *held, *options, source=source)

    return act


def _default(baseline: bool = True) -> Act:
    """Return a verification without a suite, which reads texts until it is decided."""

    def act(source: Path, folder: Path) -> Any:
        target = longer(source)
        held = ("--baseline", "SOURCE") if baseline else ()
        with inside(folder), recorded():
            texts = ("--text", str(source.parent / "texts"), "--budget", "none")
            return printed("verify", str(target), *held, *texts, source=source)

    return act


def _printed(*arguments: str, source: Path) -> Any:
    more = (
        "--text",
        str(source.parent / "texts"),
        "--lengths",
        LENGTHS,
        *(() if "--budget" in arguments else ("--budget", "none")),
    )
    return printed(*arguments, *more, source=source)


def _served(program: str, options: Sequence[str]) -> Act:
    """Return a verification of a server of the extended checkpoint, whose probabilities follow from the last ids alone."""

    def act(source: Path, folder: Path) -> Any:
        target = longer(source)
        tokenizer = TorchTokenizer(target)
        words = json.loads((target / "config.json").read_text(encoding="utf-8"))["vocab_size"]

        def model(ids: Sequence[int]) -> Any:
            values = 4 * mixed(5000 * ids[-1] + np.arange(words))
            return values - np.log(np.exp(values).sum())

        made = Served(program, model, tokenizer.tokenize, lambda token: f"<{token}>", context=2048)
        with inside(folder), serving(made) as url:
            made.name = "model"
            smaller = ("--segments", "2", "--trials", "2")
            result = _printed("verify", str(target), "--server", url, *smaller, *options, source=source)
            return json.loads(json.dumps(result).replace(url, "SERVER"))

    return act


def chosen() -> Cells:
    """Yield comparisons of methods in one loaded model."""
    for name, options in {
        "three methods": ("--methods", "yarn,llama3,ntk", "--factors", "4"),
        "two factors": ("--methods", "yarn,linear", "--factors", "2,4"),
        "standard": ("--methods", "yarn,llama3", "--factors", "4", "--suite", "standard"),
    }.items():
        yield name, demo, _compare(options)


def _compare(options: Sequence[str]) -> Act:
    def act(source: Path, folder: Path) -> Any:
        with inside(folder), recorded():
            return _printed("compare", "SOURCE", *options, source=source)

    return act


def judged() -> Cells:
    """Yield exports of the demo checkpoint and its extension with their checks."""
    for outtype, name in itertools.product(("f32", "f16", "q8_0", "q4_k_m"), ("model", "extended")):
        yield f"{name}/{outtype}", demo, _export(outtype, name == "extended")


def _export(outtype: str, is_longer: bool) -> Act:
    def act(source: Path, folder: Path) -> Any:
        taken = longer(source) if is_longer else source
        with inside(folder) as here, recorded():
            told = printed("export", str(taken), "--outtype", outtype, "-o", "out.gguf", source=source)
            return {**told, "written": bool(of_gguf(sorted(here.glob("*.gguf"))))}

    return act
