"""Train and score the models of scripts/lab/train: texts of the package, and the task of even pairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from lab_model import Design, Extension, Model, Sizes, draw_positions
from torch import Tensor
from torch.nn import functional

import ropetool
from ropetool.verification.texts import long_documents

TOKENIZER = Path(ropetool.__file__).parent / "demo" / "model" / "tokenizer.json"
HELD_OUT = 60_000  # characters at the front of each text, which no model is trained on
BOS = 0
FACTOR = 8  # the longer texts are so many times as long as those that are trained on
PASSAGES = 16  # of each text
IGNORED = -100  # no target
Batch = tuple[Tensor, Tensor, Tensor]  # tokens, positions and targets, each (rows, length)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. repeats: the share of rows that say their first few tokens again and again: from these a model that
    sees so few tokens learns to copy, which the texts would teach it later.
    """

    steps: int = 1200
    batch: int = 32
    rate: float = 3e-3
    seed: int = 0
    repeats: float = 0.35
    saved_every: int = 200


PAIRS = Sizes(vocabulary=5, width=64, inner=176, heads=2)
PAIRS_RECIPE = Recipe(steps=400, rate=2e-3)
NO, YES = 3, 4  # after BOS and the symbols 1 and 2


def texts() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the tokens that are trained on and those that are held out, of each text of the package."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    documents = [document.text for document in long_documents()]
    parts = [text[HELD_OUT:] for text in documents], [text[:HELD_OUT] for text in documents]
    train, held_out = (
        [np.array(found.ids) for found in tokenizer.encode_batch(part, add_special_tokens=False)] for part in parts
    )
    return train, held_out


def text_batch(design: Design, sizes: Sizes, recipe: Recipe, documents: Sequence[np.ndarray], step: int) -> Batch:
    """Return the rows of a step: windows of the texts, half of them with BOS in front, and some that repeat their beginning."""
    rng = np.random.default_rng([recipe.seed, step])
    length = sizes.trained
    rows = np.empty((recipe.batch, length), np.int64)
    for row in rows:
        ids = documents[rng.integers(len(documents))]
        start = rng.integers(len(ids) - length)
        row[:] = ids[start : start + length]
        if rng.random() < recipe.repeats:
            row[:] = np.resize(row[: rng.integers(length // 8, length // 2 + 1)], length)
        if rng.random() < 0.5:
            row[1:], row[0] = row[:-1].copy(), BOS
    targets = np.full_like(rows, IGNORED)
    targets[:, :-1] = rows[:, 1:]
    positions = draw_positions(design.positions, len(rows), length, FACTOR * length, rng)
    return torch.from_numpy(rows), positions, torch.from_numpy(targets)


def pairs_batch(kind: str, sizes: Sizes, rows: int, length: int, rng: np.random.Generator) -> Batch:
    """Return rows of the task: BOS, then symbols 1 and 2; at each the target is whether it equals the first one.

    So a row holds the task at every length up to its own, which is learned sooner than from one answer a row.
    """
    tokens = rng.integers(1, 3, size=(rows, length))
    tokens[:, 0] = BOS
    targets = np.where(tokens == tokens[:, 1:2], YES, NO)
    targets[:, :2] = IGNORED
    positions = draw_positions(kind, rows, length, FACTOR * sizes.trained, rng)
    return torch.from_numpy(tokens), positions, torch.from_numpy(targets)


def pairs_step(design: Design, sizes: Sizes, recipe: Recipe, step: int) -> Batch:
    """Return the rows of a step, at the trained length."""
    rng = np.random.default_rng([recipe.seed, step])
    return pairs_batch(design.positions, sizes, recipe.batch, sizes.trained, rng)


def train(
    design: Design,
    sizes: Sizes,
    recipe: Recipe,
    batch: Callable[[int], Batch],
    folder: Path,
    said: Callable[[int, float], None] = lambda step, loss: None,
) -> Model:
    """Return the trained model; what is kept in the folder of an earlier run goes on, to the same weights bit for bit.

    The rows and the rate of a step follow from its number, so the weights, the optimiser's state and that number are all there is.
    """
    made_of = json.dumps([asdict(design), asdict(sizes), asdict(recipe)], sort_keys=True)
    place = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.pt"
    torch.manual_seed(recipe.seed)
    model = Model(design, sizes)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    first = 0
    if place.exists():
        state = torch.load(place)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, recipe.steps):
        for group in optimizer.param_groups:  # up, flat, then down to nothing
            group["lr"] = recipe.rate * min(1.0, (step + 1) / 100, (1 - step / recipe.steps) / 0.6)
        tokens, positions, targets = batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, positions)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % recipe.saved_every == 0 or step + 1 == recipe.steps:
            said(step + 1, loss.item())
            folder.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, place.with_suffix(".part"))
            place.with_suffix(".part").replace(place)
    return model.eval()


def tested(design: Design) -> str:
    """Return what positions a test counts: PoSE's are for training, random ones stay, which at the target are all of them."""
    return "plain" if design.positions == "pose" else design.positions


@torch.no_grad()
def hits(
    model: Model, design: Design, sizes: Sizes, rows: np.ndarray, extension: Extension
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the last tokens, half the trained length of them, are the likeliest ones, and their losses in nats."""
    scored = sizes.trained // 2
    found = []
    for tokens in torch.from_numpy(rows).split(8):
        rng = np.random.default_rng(0)
        positions = draw_positions(tested(design), len(tokens), tokens.shape[1], FACTOR * sizes.trained, rng)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, positions, extension, keep=scored + 1)
        logits, targets = logits[:, :-1].float(), tokens[:, -scored:]
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        found.append(((logits.argmax(dim=-1) == targets).double(), losses.double()))
    right, losses = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    return right, losses


def score(
    model: Model, design: Design, sizes: Sizes, documents: Sequence[np.ndarray], extension: Extension
) -> dict[str, dict[str, list[float]]]:
    """Return accuracy and loss of each text, of the same tokens in three contexts.

    trained: the trained length. longer: 8 times as long, the text before it. repeated: as long, the trained length again and again.
    """
    long = FACTOR * sizes.trained
    rows = np.concatenate([ids[: PASSAGES * long].reshape(PASSAGES, long) for ids in documents])
    short = rows[:, -sizes.trained :]
    found = {}
    for kind, tokens in {"trained": short, "longer": rows, "repeated": np.tile(short, FACTOR)}.items():
        right, losses = hits(model, design, sizes, tokens, extension)
        by_text = (values.reshape(len(documents), -1).mean(axis=1) for values in (right, losses))
        found[kind] = dict(zip(("accuracy", "loss"), (np.round(values, 5).tolist() for values in by_text), strict=True))
    return found


@torch.no_grad()
def score_pairs(model: Model, design: Design, sizes: Sizes, extension: Extension) -> dict[str, float]:
    """Return the share of right answers at the trained length and at 8 times that; guesses are right half the time."""
    found = {}
    for kind, length in {"trained": sizes.trained, "longer": FACTOR * sizes.trained}.items():
        right = []
        for seed in range(16):
            rng = np.random.default_rng([1, seed])
            tokens, positions, targets = pairs_batch(tested(design), sizes, 16, length, rng)
            with torch.autocast("cpu", torch.bfloat16):
                answers = model(tokens, positions, extension, keep=1)[:, 0, NO:].argmax(dim=-1) + NO
            right.append((answers == targets[:, -1]).double().mean().item())
        found[kind] = float(np.mean(right))
    return found
