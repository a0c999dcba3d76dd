#!/usr/bin/env python3
"""Measure what quantised caches of llama.cpp cost at length: KL from the same file with a float32 cache, by how it was extended.

Nats a token within the trained length and in the last span of positions, printed as a table. Without FILE the demo
checkpoint, plain and extended, with factors and gains in its keys, and with heads of which half rotates: some 20 minutes of one
core, written to tests/verification/cache_types.json, of which scripts/docs.py makes the table of docs/judging.md. With FILE that
GGUF file; with it or another option nothing is written.

    scripts/floors/cache_types.py
    scripts/floors/cache_types.py model-yarn-2x.gguf --trained 2048 --length 4096 --rows 1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from cache_types_page import RESULT, WAYS, cell, head
from kl_floors import Kept
from safetensors.numpy import save_file
from safetensors.torch import load_file  # numpy has no bfloat16

import ropetool
from ropetool.files.hf import read_object
from ropetool.gguf_export import export_checkpoint
from ropetool.verification import texts
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.runners.llama_cache import UNROTATED
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.scoring import Corpus, ignore

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TRAINED, FACTOR = 256, 8
HALF = 32  # channels of a head of 64: as many rotate in the partial model


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what is measured: in words, and the file."""
    gains = np.geomspace(4, 0.25, HALF)  # the slow pairs, by which far tokens are told apart, in the smallest keys

    def longer(source: Path, name: str, **options: object) -> Path:
        plan = ropetool.plan(source, "yarn", factor=FACTOR, **options)
        return ropetool.apply(plan, source, folder / name).output

    def baked(source: Path, name: str, what: str, **options: object) -> Path:
        plan = ropetool.bake(source, what, bake_dtype="f32", **options)
        return ropetool.apply(plan, source, folder / name).output

    def exported(made: Path) -> Path:
        file = made.with_suffix(".gguf")
        return export_checkpoint(made, file, outtype="f32", allow_unverified=True, check=False).output

    yield "the demo, not extended", exported(Path(shutil.copytree(DEMO, folder / "demo")))
    extended = longer(DEMO, "yarn")
    yield "yarn 8x", exported(extended)
    yield "yarn 8x without its factor", exported(longer(DEMO, "plain", attention_factor="none"))
    yield "yarn 8x, the factor in the keys", exported(baked(extended, "keys", "attention-factor", side="k"))
    uneven = baked(extended, "gains", "pair-gain", gains=gains.tolist(), side="k")
    even = baked(uneven, "even", "pair-gain", gains=(1 / gains).tolist(), side="q")
    yield "yarn 8x, pairs of keys times 4 to 1/4, of queries 1/4 to 4", exported(even)
    half = partial(folder / "half")
    yield "half of each head rotates, not extended", exported(half)
    extended = longer(half, "half-yarn")
    yield "half of each head rotates, yarn 8x as lists of longrope", exported(extended)
    yield "the same, the factor in the keys", exported(baked(extended, "half-keys", "attention-factor", side="k"))


def partial(folder: Path) -> Path:
    """Write the demo as a phi3 of whose heads the fast half of the pairs rotates, and return it.

    Pairs i and i + 32 of a head of 64 become i and i + 16 for the fast ones, with the frequencies that they had.
    """
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    config = read_object(DEMO / "config.json")[1]
    size = config["head_dim"]
    changed = {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": HALF / size,
        "rope_theta": config["rope_theta"] ** (HALF / size), "pad_token_id": 0, "sliding_window": None,
        "original_max_position_embeddings": TRAINED, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, **changed}), encoding="utf-8")
    fast, slow = range(HALF // 2), range(HALF // 2, HALF)
    order = [*fast, *(HALF + i for i in fast), *slow, *(HALF + i for i in slow)]
    tensors = {name: tensor.float().numpy() for name, tensor in load_file(DEMO / "model.safetensors").items()}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        projections = {name: tensors.pop(f"{at}self_attn.{name}_proj.weight") for name in "qkv"}
        for name in "qk":
            rows = projections[name].reshape(-1, size, projections[name].shape[-1])
            projections[name] = rows[:, order].reshape(projections[name].shape)
        tensors[f"{at}self_attn.qkv_proj.weight"] = np.concatenate(list(projections.values()))
        pair = [tensors.pop(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
        tensors[f"{at}mlp.gate_up_proj.weight"] = np.concatenate(pair)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@contextmanager
def rotation(on: bool) -> Iterator[None]:
    """Let llama.cpp rotate caches in blocks, or not."""
    os.environ[UNROTATED] = "0" if on else "1"
    yield
    del os.environ[UNROTATED]


def measured(path: Path, trained: int, length: int, count: int) -> Iterator[tuple[float, float]]:
    """Yield what stands in the row of a file, by way: KL within the trained length and in the last span of positions."""
    with closing(LlamaRunner(path)) as reference:
        documents = texts.default_documents(length)
        tokens = tuple(np.array(reference.tokenize(document.text)) for document in documents)
        corpus = Corpus(tuple(d.name for d in documents), tokens, (), reference.prefix)
        rows, chosen = divergence_rows(corpus, length, count, 0)
        kept = Kept(reference)
        for cache_type, rotated in WAYS:
            with rotation(rotated), closing(LlamaRunner(path, cache_type=cache_type)) as target:
                found = diverge(kept, target, rows, trained, chosen, ignore)
            yield _rounded(found.within.mean.mean), _rounded(found.by_position[-1].mean.mean)


def _rounded(kl: float) -> float:
    return float(f"{kl:.2g}")  # the intervals are wider


def table(named: Iterable[tuple[str, Path]], trained: int, length: int, count: int) -> list[dict[str, object]]:
    """Print what is measured, as it comes, and return it."""
    print(head())
    rows: list[dict[str, object]] = []
    for words, path in named:
        print(f"| {words}", end="", flush=True)
        pairs = []
        for pair in measured(path, trained, length, count):
            print(f" | {cell(pair)}", end="", flush=True)
            pairs.append(pair)
        print(" |")
        rows.append({"file": words, "kl": pairs})
    return rows


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    options.add_argument("file", type=Path, nargs="?", metavar="FILE")
    options.add_argument("--trained", type=int, default=TRAINED, metavar="N")
    options.add_argument("--length", type=int, default=TRAINED * FACTOR, metavar="N")
    options.add_argument("--rows", type=int, default=4, metavar="N")
    asked = options.parse_args()
    if asked.file is not None:
        table([(asked.file.name, asked.file)], asked.trained, asked.length, asked.rows)
    else:
        with tempfile.TemporaryDirectory() as place:
            lines = map(json.dumps, table(files(Path(place)), asked.trained, asked.length, asked.rows))
            text = "[\n  " + ",\n  ".join(lines) + "\n]\n"
        if vars(asked) == vars(options.parse_args([])):  # another length or fewer rows are not what the page tells
            RESULT.write_text(text, encoding="utf-8")
