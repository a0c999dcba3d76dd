"""Train and score the models of scripts/lab/train: texts of the package, and the task of even pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab_designs import DESIGNS, Design
from lab_model import Model
from lab_records import digest
from lab_rotation import Extension, Sizes, draw_positions
from torch import Tensor, nn
from torch.nn import functional

import ropetool
from ropetool.verification.texts import long_documents

TOKENIZER = Path(ropetool.__file__).parent / "demo" / "model" / "tokenizer.json"
HELD_OUT = 60_000  # characters at the front of each text, which no model is trained on
BOS = 0
FACTOR = 8  # the longer texts are so many times as long as those that are trained on
IGNORED = -100  # no target
Batch = tuple[Tensor, Tensor, Tensor]  # tokens, positions and targets, each (rows, length)
Report = Callable[[int, float], None]  # called with the steps that are done, and the loss


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    repeats: the share of rows that say their first few tokens again and again: from these a model that sees so few tokens learns
      to copy, which the texts would teach it later.
    first: tokens of the rows in the first half of the steps; 0 for the trained length. Copying is learned sooner in short rows.
    """

    steps: int = 1200
    batch: int = 32
    rate: float = 3e-3
    seed: int = 0
    repeats: float = 0.35
    first: int = 0
    saved_every: int = 200


def recipe_of(design: Design, recipe: Recipe) -> Recipe:
    """Return the recipe for a design: with norms after the sums, training stands still at a higher rate."""
    return replace(recipe, rate=min(recipe.rate, 1e-3)) if design.post_norm else recipe


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
        [np.array(encoded.ids) for encoded in tokenizer.encode_batch(part, add_special_tokens=False)] for part in parts
    )
    return train, held_out


def text_batch(design: Design, sizes: Sizes, recipe: Recipe, documents: Sequence[np.ndarray], step: int) -> Batch:
    """Return the rows of a step: windows of the texts, half of them with BOS in front, and some that repeat their beginning."""
    rng = np.random.default_rng([recipe.seed, step])
    length = recipe.first if recipe.first and step < recipe.steps // 2 else sizes.trained
    rows = np.empty((recipe.batch * sizes.trained // length, length), np.int64)
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


def described(design: Design) -> dict[str, Any]:
    """Return what the weights of a design follow from, besides code."""
    fields = {name: value for name, value in asdict(design).items() if name != "extensions"}
    return {**fields, "scores": design.scores.__name__}


def train(
    design: Design,
    sizes: Sizes,
    recipe: Recipe,
    batch: Callable[[int], Batch],
    folder: Path,
    report: Report = lambda step, loss: None,
) -> Model:
    """Return the trained model; what is kept in the folder of an earlier run goes on, to the same weights bit for bit."""
    torch.manual_seed(recipe.seed)
    model = Model(design, sizes)
    fit(model, recipe, batch, weights(design, sizes, recipe, folder), report)
    return model


def weights(design: Design, sizes: Sizes, recipe: Recipe, folder: Path) -> Path:
    """Return the file that keeps the weights of a training."""
    return folder / f"{digest([described(design), asdict(sizes), asdict(recipe)])}.pt"


def fit(model: nn.Module, recipe: Recipe, batch: Callable[[int], Batch], place: Path, report: Report) -> None:
    """Train a model in its place, or go on with what is kept there.

    The rows and the rate of a step follow from its number, so the weights, the optimiser's state and that number are all there is.
    """
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
    model.train()
    for step in range(first, recipe.steps):
        for group in optimizer.param_groups:  # up, flat, then down to nothing
            group["lr"] = recipe.rate * min(1.0, (step + 1) / 100, (1 - step / recipe.steps) / 0.6)
        tokens, positions, targets = batch(step)
        logits = model(tokens, positions)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % recipe.saved_every == 0 or step + 1 == recipe.steps:
            report(step + 1, loss.item())
            place.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, place.with_suffix(".part"))
            place.with_suffix(".part").replace(place)
    model.eval()


def tested(design: Design) -> str:
    """Return what positions a test counts: PoSE's are for training, random ones stay, which at the target are all of them."""
    return "plain" if design.positions == "pose" else design.positions


@torch.no_grad()
def hits(
    model: nn.Module, design: Design, sizes: Sizes, rows: np.ndarray, extension: Extension
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the last tokens, half the trained length of them, are the likeliest ones, and their losses in nats."""
    scored = sizes.trained // 2
    parts = []
    for tokens in torch.from_numpy(rows).split(max(1, min(8, 4096 // rows.shape[1]))):
        rng = np.random.default_rng(0)
        positions = draw_positions(tested(design), len(tokens), tokens.shape[1], FACTOR * sizes.trained, rng)
        logits = model(tokens, positions, extension, keep=scored + 1)
        logits, targets = logits[:, :-1].float(), tokens[:, -scored:]
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        parts.append(((logits.argmax(dim=-1) == targets).double(), losses.double()))
    right, losses = (torch.cat(values).numpy() for values in zip(*parts, strict=True))
    return right, losses


def contexts(sizes: Sizes, documents: Sequence[np.ndarray], passages: int, middle: bool) -> dict[str, np.ndarray]:
    """Return the rows that are scored, of each text so many: the same last tokens in several contexts.

    trained: the trained length. longer: 8 times as long, the text before it. repeated: as long, the trained length again and again.
    middle: also `double` and `half`, the text twice and four times as long as trained: half of what 8 times reaches.
    """
    long = FACTOR * sizes.trained
    rows = np.concatenate([ids[: passages * long].reshape(passages, long) for ids in documents])
    short = rows[:, -sizes.trained :]
    between = {"double": 2, "half": FACTOR // 2} if middle else {}
    cut = {name: rows[:, -times * sizes.trained :] for name, times in between.items()}
    return {"trained": short, "longer": rows, "repeated": np.tile(short, FACTOR), **cut}


def score(
    model: nn.Module, design: Design, sizes: Sizes, rows: Mapping[str, np.ndarray], extension: Extension, texts: int
) -> dict[str, dict[str, list[float]]]:
    """Return accuracy and loss of each text in each context. rows: as `contexts` returns them, of so many texts."""
    scores = {}
    for context, tokens in rows.items():
        right, losses = hits(model, design, sizes, tokens, extension)
        by_text = (values.reshape(texts, -1).mean(axis=1) for values in (right, losses))
        scores[context] = dict(
            zip(("accuracy", "loss"), (np.round(values, 5).tolist() for values in by_text), strict=True)
        )
    return scores


@torch.no_grad()
def score_pairs(model: Model, design: Design, sizes: Sizes, extension: Extension) -> dict[str, float]:
    """Return the share of right answers at the trained length and at 8 times that; guesses are right half the time."""
    scores = {}
    for context, length in {"trained": sizes.trained, "longer": FACTOR * sizes.trained}.items():
        right = []
        for seed in range(16):
            rng = np.random.default_rng([1, seed])
            tokens, positions, targets = pairs_batch(tested(design), sizes, 16, length, rng)
            answers = model(tokens, positions, extension, keep=1)[:, 0, NO:].argmax(dim=-1) + NO
            right.append((answers == targets[:, -1]).double().mean().item())
        scores[context] = float(np.mean(right))
    return scores


@dataclass(frozen=True)
class Lab:
    """A size at which designs are trained. passages: of each text that are scored. pairs: whether the task of even pairs is run."""

    name: str
    sizes: Sizes
    recipe: Recipe
    designs: tuple[str, ...]
    passages: int
    seeds: int = 1
    pairs: bool = False

    @property
    def contexts(self) -> tuple[str, ...]:
        """The contexts that are scored, see `contexts`."""
        return ("trained", *(() if self.pairs else ("double", "half")), "repeated", "longer")

    def runs(self) -> Iterator[tuple[str, Design, Recipe]]:
        """Yield the name, design and recipe of each run: every design with the first seed, then with the next."""
        for seed in range(self.seeds):
            for name in self.designs:
                run = name if self.seeds == 1 else f"{name}/{seed}"
                yield run, DESIGNS[name], replace(recipe_of(DESIGNS[name], self.recipe), seed=seed)

    def made(self, design: Design, recipe: Recipe) -> dict[str, Any]:
        """Return all that the figures of a run follow from, besides texts and code."""
        pairs = {"pairs": [asdict(PAIRS), asdict(recipe_of(design, PAIRS_RECIPE))]} if self.pairs else {}
        return {"design": described(design), "sizes": asdict(self.sizes), "recipe": asdict(recipe), **pairs}


LABS = (
    Lab("small", Sizes(), Recipe(), tuple(DESIGNS), passages=16, pairs=True),
    Lab(
        "large", Sizes(heads=2, trained=512, bfloat16=False), Recipe(steps=1000, batch=8, first=64),
        ("plain", "log-n", "hwfa", "key-norm", "hwfa2"), passages=2, seeds=3,
    ),
)  # fmt: skip
