#!/usr/bin/env python3
"""Measure how far sound exports are from their checkpoint: ropetool/verification/kl_floors.json, by type, on two models.

About 10 minutes of one core. The models are the demo checkpoint and the tests' second one, each extended eight times; the rows
reach their whole context. The tests measure a sample of the types again.

    scripts/floors/kl_floors.py             measure, write the table
    scripts/floors/kl_floors.py --seeds 20  judge sound and damaged files on the rows of so many seeds, print how many fail
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import train_demo_model

import ropetool
from ropetool import machine
from ropetool.files.gguf import GgufHeader, Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_export import export_checkpoint
from ropetool.gguf_model.outtypes import NAMES, OUTTYPES
from ropetool.verification import floors, texts
from ropetool.verification.kl_gate import kl_checks
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.results import FAIL, DivergenceResult, DivergenceSpan
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Corpus, Logits, Runner, ignore

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
FACTOR = 8
TOKENS = 8192  # of text
SHORT = 2  # times the trained length: rows that seeds are judged on, of a quarter of the floors' tokens
SOUND = ("f16", "bf16", "q8_0", "q4_k_m", "q4_0")
RUNS = ("bfloat16", "float16")  # what torch computes in on a GPU
SEED = 0


@dataclass(frozen=True)
class Model:
    """A source, the texts that it has not seen, its trained length and layers. recipe: what it was made by."""

    source: Path
    documents: Sequence[texts.Document]
    trained: int
    layers: int
    recipe: str


def models(cache: Path) -> dict[str, Model]:
    """Return the models by name; the second one only where it was made in this cache."""
    second = train_demo_model.second_place(cache)
    found = {"demo": Model(DEMO, texts.embedded_documents(), 256, 4, "bundled")}
    if second.is_dir():
        found["second"] = Model(second / "model", texts.read_documents([second / "text"]), 128, 4, second.name)
    return found


class Kept:
    """A runner whose logits of a row are kept, for it stands beside many others."""

    def __init__(self, runner: Runner) -> None:
        self.prefix, self.tokenize, self.description = runner.prefix, runner.tokenize, runner.description
        self._runner, self._kept = runner, dict[tuple[int, ...], list[tuple[int, Logits]]]()

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row."""
        if tuple(ids) not in self._kept:
            self._kept[tuple(ids)] = [(start, piece.copy()) for start, piece in self._runner.logits(ids)]
        yield from self._kept[tuple(ids)]

    def forget(self) -> None:
        """Keep no row any longer."""
        self._kept.clear()


class Pool:
    """One model made longer, with its reference: what is measured of any type."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.folder = model, folder
        plan = ropetool.plan(model.source, "yarn", factor=FACTOR)
        self.extended = ropetool.apply(plan, model.source, folder / "model-yarn-8x").output
        self._torch = TorchRunner(self.extended, device="cpu", dtype="float32")
        self.reference = Kept(self._torch)
        tokens = tuple(np.array(self._torch.tokenize(document.text)) for document in model.documents)
        self.corpus = Corpus(tuple(d.name for d in model.documents), tokens, (), self._torch.prefix)

    def export(self, outtype: str) -> Path:
        """Return the file of this type."""
        place = self.folder / f"{outtype}.gguf"
        if place.is_file():
            return place
        return export_checkpoint(self.extended, place, outtype=outtype, allow_unverified=True, check=False).output

    def rows(self, seed: int = SEED, length: int = 0) -> tuple[list[list[int]], list[int]]:
        """Return the rows of text, of the whole context where no length is given, and the document of each."""
        length = length or FACTOR * self.model.trained
        return divergence_rows(self.corpus, length, TOKENS // (FACTOR * self.model.trained), seed)

    def against(self, target: Runner, seed: int = SEED, length: int = 0) -> DivergenceResult:
        """Return how far a runner is from the checkpoint."""
        rows, documents = self.rows(seed, length)
        return diverge(self.reference, target, rows, self.model.trained, documents, ignore, seed)

    def of_type(self, outtype: str, seed: int = SEED, length: int = 0) -> DivergenceResult:
        """Return how far the export of a type is from the checkpoint."""
        with closing(LlamaRunner(self.export(outtype), device="cpu", dtype="float32")) as target:
            return self.against(target, seed, length)

    def of_run(self, dtype: str) -> DivergenceResult:
        """Return how far the checkpoint computed in a narrower type is from itself."""
        with closing(TorchRunner(self.extended, device="cpu", dtype=dtype)) as target:
            return self.against(target)


def figures(found: DivergenceResult) -> dict[str, list[float]]:
    """Return the largest of each figure within and beyond the trained length, and those of the rare tokens."""
    assert found.beyond is not None
    assert found.rare is not None

    def of(*spans: DivergenceSpan) -> list[float]:
        values = ([span.mean.mean, span.p99, span.window] for span in spans)
        return [float(f"{max(each):.3g}") for each in zip(*values, strict=True)]

    return {"text": of(found.within, found.beyond), "rare": of(found.rare)}


def about(model: Model) -> dict[str, object]:
    """Return what a model is made by, and its sizes."""
    return {"layers": model.layers, "trained": model.trained, "recipe": model.recipe}


def measured(say: Callable[[str], None]) -> dict[str, object]:
    """Return the table."""
    found = models(machine.cache())
    table: dict[str, dict[str, object]] = {}
    for name, model in found.items():
        with tempfile.TemporaryDirectory() as folder:
            pool = Pool(model, Path(folder))
            for outtype in (name for name in NAMES if name in OUTTYPES and name not in floors.PUBLISHED):
                entry = table.setdefault(outtype, {"dtype": OUTTYPES[outtype].dtype})
                entry[name] = figures(pool.of_type(outtype))
                pool.export(outtype).unlink()
                say(f"{name} {outtype} {entry[name]}")
            for dtype in RUNS:
                entry = table.setdefault(dtype, {"dtype": ""})
                entry[name] = figures(pool.of_run(dtype))
                say(f"{name} {dtype} {entry[name]}")
    return {"models": {name: about(model) for name, model in found.items()}, "floors": table}


# --- sound and damaged files, judged


def scaled(name: str, factor: float) -> Callable[[GgufHeader, Pool], None]:
    """Return what multiplies a tensor of an f16 file."""

    def damage(header: GgufHeader, pool: Pool) -> None:
        numbers = _numbers(header, name)
        numbers[:] = numbers * np.float16(factor)
        numbers.flush()

    return damage


def stated(key: str, factor: float) -> Callable[[GgufHeader, Pool], None]:
    """Return what multiplies a number of the architecture's keys."""

    def damage(header: GgufHeader, pool: Pool) -> None:
        name = f"{header.values['general.architecture'].decode()}.{key}"
        value = Value.of(ValueType.F32, factor * float(header.values[name].decode()))
        changed = header.path.with_suffix(".changed")
        write_patched(header, Patch(set={name: value}), changed)
        changed.replace(header.path)

    return damage


def exchanged(header: GgufHeader, pool: Pool) -> None:
    """Give ten tokens that no text shows each other's rows of the embedding."""
    numbers = _numbers(header, "token_embd.weight")
    rows = numbers.reshape(-1, header.tensor("token_embd.weight").shape[-1])
    unseen = np.setdiff1d(np.arange(len(rows)), np.concatenate(pool.corpus.tokens))[:10]
    rows[unseen] = rows[np.roll(unseen, 1)]
    numbers.flush()


def _numbers(header: GgufHeader, name: str) -> np.memmap[Any, Any]:
    tensor = header.tensor(name)
    size = tensor.nbytes // 2
    return np.memmap(header.path, np.float16, "r+", header.data_start + tensor.offset, (size,))


DAMAGE: dict[str, Callable[[GgufHeader, Pool], None]] = {
    "values of a layer 2 % larger": scaled("blk.1.attn_v.weight", 1.02),
    "a feed-forward matrix 1 % larger": scaled("blk.2.ffn_down.weight", 1.01),
    "base 1 % larger": stated("rope.freq_base", 1.01),
    "factor 5 % larger": stated("rope.scaling.factor", 1.05),
    "ten unseen tokens exchanged": exchanged,
}


class Judged:
    """The sound and the damaged files of one model, each with its runner, and what failed of them."""

    def __init__(self, model: Model, folder: Path, stack: ExitStack) -> None:
        self.pool = Pool(model, folder)
        self.files = {f"{outtype}, sound": (outtype, self.pool.export(outtype)) for outtype in SOUND}
        for number, (words, damage) in enumerate(DAMAGE.items()):
            path = Path(shutil.copyfile(self.pool.export("f16"), folder / f"{number}.gguf"))
            damage(read_header(path), self.pool)
            self.files[f"f16, {words}"] = "f16", path
        self.runners = {
            words: stack.enter_context(closing(LlamaRunner(path, device="cpu", dtype="float32")))
            for words, (_, path) in self.files.items()
        }
        self.failed: dict[str, list[list[str]]] = {words: [] for words in self.files}

    def judge(self, seed: int) -> list[str]:
        """Judge every file on the rows of a seed; return the names of those that fail."""
        model = self.pool.model
        for words, runner in self.runners.items():
            found = self.pool.against(runner, seed, SHORT * model.trained)
            checks = kl_checks(found, None, floors.limit([self.files[words][0]], model.layers))
            self.failed[words].append([check.name for check in checks if check.verdict == FAIL])
        self.pool.reference.forget()
        return [words for words, failed in self.failed.items() if failed[-1]]


def judged(seeds: int, say: Callable[[str], None]) -> None:
    """Say how many of so many draws of rows fail, for sound files of each type and for damaged ones in f16."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        every = {}
        for name, model in models(machine.cache()).items():
            (Path(folder) / name).mkdir()
            every[name] = Judged(model, Path(folder) / name, stack)
        for seed in range(1, seeds + 1):
            for name, each in every.items():
                say(f"{name}, seed {seed}: {each.judge(seed)}")
        for name, each in every.items():
            for words, failed in each.failed.items():
                by = sorted({check for found in failed for check in found})
                say(f"| {name} | {words} | {sum(map(bool, failed))} of {seeds} | {', '.join(by)} |")


def written(found: dict[str, object]) -> str:
    """Return the table as the file has it, a line a type."""
    parts = []
    for key, entries in found.items():
        assert isinstance(entries, dict)
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        parts.append(f'  "{key}": {{\n{lines}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    if len(models(machine.cache())) < 2:
        sys.exit("the second model is not there: python scripts/train_demo_model.py --second")
    if options.seeds:
        judged(options.seeds, lambda line: print(line, flush=True))
    else:
        floors.TABLE.write_text(written(measured(lambda line: print(line, flush=True))), encoding="utf-8")
