#!/usr/bin/env python3
"""Measure how far sound exports are from their checkpoint: ropetool/verification/kl_floors.json, by type, on two models.

Due when the models, their texts, or how rows are chosen and compared changes, which a mark of each model says, or when the sample
of types that the tests measure comes out otherwise: about 10 minutes of one core. The models are the demo checkpoint and the tests'
second one, each extended eight times; the rows reach their whole context.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import train_demo_model
from code_meaning import meant

import ropetool
from ropetool import machine
from ropetool.gguf_export import export_checkpoint
from ropetool.gguf_export.outtypes import NAMES, OUTTYPES
from ropetool.verification import floors, texts
from ropetool.verification.measures import divergence
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.results import DivergenceResult, DivergenceSpan
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Corpus, Logits, Runner, ignore

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
FACTOR = 8
TOKENS = 8192  # of text
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
    """Return what the figures of a model depend on: itself, its texts, how rows are chosen from them and compared."""
    digest = hashlib.sha256(meant(Path(divergence.__file__)))
    digest.update((model.source / "model.safetensors").read_bytes())
    digest.update(texts.fingerprint(model.documents).encode())
    digest.update(repr((FACTOR, TOKENS, SEED, model.trained)).encode())
    return {
        "layers": model.layers, "trained": model.trained, "recipe": model.recipe, "fingerprint": digest.hexdigest(),
    }  # fmt: skip


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


def written(found: dict[str, object]) -> str:
    """Return the table as the file has it, a line a type."""
    parts = []
    for key, entries in found.items():
        assert isinstance(entries, dict)
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        parts.append(f'  "{key}": {{\n{lines}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    if len(models(machine.cache())) < 2:
        sys.exit("the second model is not there: python scripts/train_demo_model.py --second")
    floors.TABLE.write_text(written(measured(lambda line: print(line, flush=True))), encoding="utf-8")
