"""Tiny checkpoints of weights of deviation 0.12, on which the gate of an export is tried, and what is planted in them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import configs
import gguf
import models
import numpy as np
import tokenizer_making
import torch
from safetensors.torch import load_file

import ropetool
from ropetool import families
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import VerificationFailed
from ropetool.gguf_export.comparing import compare
from ropetool.rope.tables import Regime
from ropetool.runtimes import inspection
from ropetool.verification import short_divergence
from ropetool.verification.measures.divergence import divergence_rows
from ropetool.verification.results import PASS, Check
from ropetool.verification.runners.rotated import tables_at
from ropetool.verification.runners.torch_rotation import set_tables
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.short_divergence import ModelLengths

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "phi3", "gemma2", "olmo2", "starcoder2", "granite",
    "smollm3", "stablelm", "glm4", "cohere", "deepseek_v2", "deepseek_v3", "exaone4", "gpt_neox", "gemma", "gemma3_text", "phi",
)  # fmt: skip
GELU = ("gemma2", "starcoder2", "gpt_neox", "gemma", "gemma3_text", "phi")
PLAIN, YARN, FACTOR_1 = "plain", "yarn x4", "yarn x4, factor 1"
CELLS = (PLAIN, YARN, FACTOR_1)
DEVIATION = 0.12
TRAINED = configs.TRAINED
OUTPUTS = ("attn_q.weight", "attn_q_b.weight", "attn_qkv.weight")  # of the first layer, whichever is there


def write(folder: Path, family: str, cell: str, seed: int) -> Path:
    """Write the checkpoint of a cell."""
    source = folder / f"model-{seed}"  # no family in a name: llama.cpp expects tokens of what calls itself phi3
    if not source.exists():
        models.write(source, family, seed=seed, drawn=drawn)
        models.save(source / "tokenizer_config.json", {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"})
    if cell == PLAIN:
        return source
    output = folder / f"model-{seed}-{CELLS.index(cell)}"
    alone = cell == FACTOR_1 or families.get(family).norm_after  # norms take any other factor away
    options: dict[str, Any] = {"attention_factor": 1.0} if alone else {}
    if (family, cell) == (
        "gemma3_text",
        FACTOR_1,
    ):  # the keys of a GGUF file hold one factor for all layers; weights hold it
        options["for_runtimes"] = ("transformers", "llama.cpp")
    return ropetool.apply(ropetool.plan(source, "yarn", factor=4, **options), source, output).output


def drawn(name: str, weight: Any, family: str, generator: Any) -> Any:
    """Return the numbers of a tensor: norms of 1, all others at random."""
    if "norm" in name:
        one = name.endswith("weight") and family not in models.ADDED_ONE
        return torch.ones(weight.shape) if one else torch.zeros(weight.shape)
    return DEVIATION * torch.randn(weight.shape, generator=generator)


def export(source: Path) -> Path:
    """Write the checkpoint as a float32 file, unless it is there."""
    file = Path(f"{source}.gguf")
    return file if file.exists() else models.export(source, file, outtype="f32", allow_unverified=True).output


def checks(source: Path, file: Path) -> dict[str, Check]:
    """Return how the file compares with the checkpoint. Raises: VerificationFailed."""
    context = HfCheckpoint.open(source).config["max_position_embeddings"]
    found = compare(source, file, ("f32",), ModelLengths(TRAINED, context), lambda *step: None, weights=True)
    return {check.name: check for check in found}


def judged(source: Path, file: Path) -> tuple[float, float, bool]:
    """Return the KL of a file, its limit, and whether the file passes all checks."""
    try:
        found = checks(source, file)
    except VerificationFailed:
        return math.nan, math.nan, False
    kl = found["KL"]
    assert kl.figure is not None
    assert kl.limit is not None
    return kl.figure, kl.limit, {check.verdict for check in found.values()} == {PASS}


def kl(source: Path, file: Path) -> float:
    """Return the KL of a file, whatever it is, the larger of within and beyond the trained length."""
    reference, target = HfCheckpoint.open(source), GgufCheckpoint.open(file)
    lengths = ModelLengths(TRAINED, reference.config["max_position_embeddings"])
    found = short_divergence.short_divergence(reference, target, lengths, lambda *step: None, lambda found: True)
    assert not isinstance(found, str), found
    return max(span.mean.mean for span in (found[0].within, found[0].beyond) if span is not None)


def with_larger_queries(file: Path, source: Path) -> Path:
    """Write the file with the queries of its first layer 1 % larger."""
    changed = Path(shutil.copyfile(file, file.with_suffix(".queries.gguf")))
    reader = gguf.GGUFReader(changed, "r+")
    tensor = next(each for each in reader.tensors if each.name in {f"blk.0.{name}" for name in OUTPUTS})
    rows = tensor.data.reshape(tensor.shape[::-1])
    rows[: _queries(source) if "qkv" in tensor.name else len(rows)] *= np.float32(1.01)
    reader.data.flush()
    return changed


def _queries(source: Path) -> int:
    config = HfCheckpoint.open(source).config
    return int(config["hidden_size"])  # of those with one matrix for queries, keys and values


def with_a_faster_pair(source: Path) -> Callable[..., TorchRunner]:
    """Return what runs the checkpoint with one pair of each table 1 % faster, a quarter of the pairs from the fastest."""
    rope = inspection.inspect(source).rope
    assert rope is not None
    family = HfCheckpoint.open(source).family

    class Planted(TorchRunner):
        def _load(self) -> Any:
            model = super()._load()
            tables = {kind: _faster(regime) for kind, regime in tables_at(rope, 10**6).items()}
            assert set_tables(model, tables, family.nested)
            return model

    return Planted


def _faster(regime: Regime) -> Regime:
    inv_freq = np.array(regime.inv_freq)
    inv_freq[len(inv_freq) // 4] *= 1.01
    return replace(regime, inv_freq=inv_freq)


def tie_experts(source: Path, count: int) -> int:
    """Change the last router so that two experts have equal scores at so many tokens of the first row; return how many.

    The experts are those between which the choice ends most often. The smallest change of one's row does it.
    """
    states, router, name = _router(source)
    scores = states @ router.T
    order = np.argsort(-scores, axis=1)[:, 1:3]  # two experts a token: the last that is chosen, and the next
    pairs, times = np.unique(order, axis=0, return_counts=True)
    last, following = pairs[times.argmax()]
    # A score near zero has finer steps than the row that is stored, which would leave a gap between the two.
    far = np.abs(scores[:, last]) > 0.05
    places = np.flatnonzero((order == (last, following)).all(axis=1) & far)
    gaps = scores[places, last] - scores[places, following]
    nearest = np.argsort(gaps)[:count]
    moved = np.linalg.lstsq(states[places[nearest]], gaps[nearest], rcond=None)[0]
    router[following] += moved
    _store(source, name, router)
    return len(nearest)


def tie_all(source: Path) -> None:
    """Give all experts of the last router the scores of the first, but for the last digit."""
    _, router, name = _router(source)
    rng = np.random.default_rng(1)
    _store(source, name, router[:1] * (1 + 1e-7 * rng.standard_normal(router.shape)))


def _router(source: Path) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the inputs of the last router in the first row that is compared, its weights, and their name as stored."""
    runner = TorchRunner(source, device="cpu", dtype="float32")
    corpus = short_divergence._corpus(runner)
    context = HfCheckpoint.open(source).config["max_position_embeddings"]
    length, count = short_divergence.rows_of(short_divergence.MOST, ModelLengths(TRAINED, context))
    longest = sorted(map(len, corpus.tokens))[-count] + len(corpus.prefix)
    rows, _ = divergence_rows(corpus, min(length, longest), count, short_divergence.SEED)
    gate = [module for name, module in runner.model._model.named_modules() if name.endswith(".gate")][-1]
    seen: list[np.ndarray] = []
    gate.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].flatten(0, -2).double().numpy()))
    runner.hidden(rows[0])
    stored = load_file(source / "model.safetensors")
    name = max(name for name in stored if name.endswith(".gate.weight"))
    return seen[0], stored[name].double().numpy(), name


def _store(source: Path, name: str, router: np.ndarray) -> None:
    models.set_tensors(source, lambda tensors: {**tensors, name: torch.from_numpy(router).float()})
