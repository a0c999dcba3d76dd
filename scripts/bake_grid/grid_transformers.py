"""The cells of the bake grid that transformers runs: every family, before and after every bake.

float64 decides whether a bake is an identity, float32 is what people run, bfloat16 is what the rounding costs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bake_models as models
import bake_references as references
import configs
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from ropetool import errors
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.weights import bakes
from ropetool.weights.bakeable import Bakeable
from ropetool.weights.bakes import Bake
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import write_weights

BY = "transformers"
LONG, SHORT = (
    configs.LENGTH,
    640,
)  # tokens: four times the trained length for one bake a model, beyond it for the others
FORMATS = ("float64", "float32", "bfloat16")
EXACT = {"float64": 1e-10, "float32": 1e-4}
SEEN = 20 * EXACT["float32"]  # what a cell must lose without its bake, to prove anything
Cell = dict[str, Any]


# --- the models


def _models() -> dict[str, dict[str, Any]]:
    """Return the configs by name: those of the tests, and two that only the grid has."""
    gemma3 = {key: value for key, value in configs.BAKED["gemma3_text"].items() if key != "model_type"}
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    more = {
        "gemma3": {"model_type": "gemma3", "text_config": gemma3, "vision_config": vision, "mm_tokens_per_image": 4},
        "olmo-clipped": {**configs.BAKED["olmo"], "clip_qkv": 0.5},
    }
    return dict(sorted({**configs.BAKED, **more}.items()))


MODELS = _models()


def family_of(name: str) -> str:
    """Return the family of a model."""
    return str(MODELS[name]["model_type"])


def as_given(config: dict[str, Any]) -> dict[str, Any]:
    return config


def with_factor(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config without MLA's multipliers: what is left is a factor on cos and sin."""
    return _with_keys(config, lambda keys: {k: v for k, v in keys.items() if not k.startswith("mscale")})


def unscaled(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the base table."""
    kept = ["rope_theta", "partial_rotary_factor", "llama_4_scaling_beta", "max_position_embeddings"]
    if config["model_type"] == "ministral3":  # whose class asks for it by that beta
        kept.append("original_max_position_embeddings")
    return _with_keys(config, lambda keys: {"rope_type": "default", **{k: keys[k] for k in kept if k in keys}})


def _with_keys(config: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    found = copy.deepcopy(config)
    section = found.get("text_config", found)
    keys = section["rope_parameters"]
    if "full_attention" in keys:
        keys["full_attention"] = change(keys["full_attention"])
    else:
        section["rope_parameters"] = change(keys)
    return found


# --- the bakes


@dataclass(frozen=True)
class Recipe:
    """A column: the config that it starts from, the bake, and what transformers must then compute.

    reference: the change of the loaded source; none where its own config asks for what is baked. order: the source is
    run as it is, the baked one by a rotation of the other order.
    """

    make: Callable[[Bakeable], Bake]
    source: Callable[[dict[str, Any]], dict[str, Any]] = as_given
    reference: Callable[[FoldTargets], references.Change] | None = None
    other_order: bool = False


def pairs_of(view: FoldTargets) -> int:
    return view.rope.entries[references.FULL].rotary_dim // 2


def gains(view: FoldTargets) -> list[float]:
    """Return a gain for each pair, from 0.5 to 1.5."""
    return [float(gain) for gain in np.linspace(0.5, 1.5, pairs_of(view))]


def muted(view: FoldTargets) -> list[int]:
    return [0, pairs_of(view) // 2, pairs_of(view) - 1]


def slowest(view: FoldTargets) -> list[int]:
    """Return the slower half of the pairs: fewer turn so little in these lengths that their rest changes nothing."""
    return list(range(pairs_of(view) // 2, pairs_of(view)))


def without_pairs(view: FoldTargets) -> references.Change:
    gone = muted(view)
    return references.with_gains([0.0 if pair in gone else 1.0 for pair in range(pairs_of(view))])


def other_order(view: FoldTargets) -> str:
    return "half" if view.rope.entries[references.FULL].layout == "interleaved" else "interleaved"


def score(view: FoldTargets) -> references.Change:
    return references.with_score(1.3, view.rope.entries[references.FULL].layers, pairs_of(view))


def _factor(side: str, **options: Any) -> Recipe:
    return Recipe(lambda model: bakes.attention_factor(model, side, **options), with_factor)


def _softmax(side: str) -> Recipe:
    return Recipe(lambda model: bakes.softmax_scale(model, side))


def _still(source: Callable[[dict[str, Any]], dict[str, Any]]) -> Recipe:
    return Recipe(
        lambda model: bakes.drop_pairs(model, slowest(model.targets), "still"), source,
        lambda view: references.with_still_pairs(slowest(view)),
    )  # fmt: skip


RECIPES = {
    "attention-factor k": _factor("k"),
    "attention-factor q": _factor("q"),
    "attention-factor both": _factor("both"),
    "softmax-scale norm": _softmax("norm"),
    "softmax-scale q": _softmax("q"),
    "softmax-scale k": _softmax("k"),
    "pair-gain k": Recipe(
        lambda model: bakes.pair_gain(model, {references.FULL: gains(model.targets)}),
        reference=lambda view: references.with_gains(gains(view)),
    ),
    "score k": Recipe(lambda model: bakes.score_gain(model, {references.FULL: 1.3}), reference=score),
    "layout": Recipe(
        lambda model: models.reordered(model, other_order(model.targets)), other_order=True,
    ),
    "drop-pairs mute": Recipe(
        lambda model: bakes.drop_pairs(model, muted(model.targets), "mute"), reference=without_pairs,
    ),
    "drop-pairs still": _still(unscaled),
    "drop-pairs still, scaled": _still(as_given),
}  # fmt: skip
PROVED_LONG = "attention-factor k"


# --- one cell


def versions() -> dict[str, str]:
    """Return what the cells are measured with."""
    return {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}


def measure(config: dict[str, Any], bake: str, folder: Path) -> Cell:
    """Return what a bake does to a model, or why it is refused.

    float64, float32: the largest difference of any logit. bfloat16: the highest and the mean relative rounding error
    of the numbers that were multiplied. without: the float64 difference that the weights or keys of the bake make up for.
    """
    recipe, source = RECIPES[bake], folder / "source"
    models.write(source, recipe.source(config))
    try:
        model = models.opened(source)
        view = model.targets
        made = recipe.make(model)
    except errors.RopetoolError as error:
        return {"refused": error.message}
    models.carry_out(made, source, folder / "baked")
    unbaked = _config_alone(made, source, folder)
    length = LONG if bake == PROVED_LONG else SHORT
    change = recipe.reference(view) if recipe.reference else None
    cell: Cell = {}
    for name in EXACT:
        expected = models.logits(source, length, exact=name == "float64", change=change)
        with _order(recipe, made, view):
            found = models.logits(folder / "baked", length, exact=name == "float64")
            if name == "float64":
                without = models.logits(unbaked, length, exact=True)
                cell["without"] = _rounded(np.abs(expected - without).max())
        cell[name] = _rounded(np.abs(expected - found).max())
    cell["bfloat16"] = rounding(made, source, folder)
    return cell


def _config_alone(made: Bake, source: Path, folder: Path) -> Path:
    """Return a copy with the config of the bake and the weights of the source; where no weight changes, the source."""
    if not made.tensors:
        return source
    models.carry_out(Bake((), made.edits), source, folder / "unbaked")
    return folder / "unbaked"


def _order(recipe: Recipe, made: Bake, view: FoldTargets) -> Any:
    """Return what makes transformers read the other order, where no key of the config does."""
    if recipe.other_order and not made.edits:
        return references.rotated(view.family.model_type, other_order(view))
    return contextlib.nullcontext()


def rounding(made: Bake, source: Path, folder: Path) -> list[float]:
    """Return the highest and the mean relative error of the scaled numbers in a checkpoint of bfloat16."""
    half = folder / "bfloat16"
    half.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            save_file({n: t.to(torch.bfloat16) for n, t in load_file(path).items()}, half / path.name, {"format": "pt"})
        else:
            (half / path.name).write_bytes(path.read_bytes())
    (folder / "rounded").mkdir()
    checkpoint = HfCheckpoint.open(half)
    files = weight_files(checkpoint)
    shapes = {name: stored.shape for name, stored in checkpoint.stored.items()}
    targets = [folder / "rounded" / file.path.name for file in files]
    done = write_weights(made.tensors, files, targets).tensors
    sizes = [one.rows * max(1, int(np.prod(shapes[one.tensor][1:]))) for one in done if one.mean_error]
    means = [one.mean_error for one in done if one.mean_error]
    mean = float(np.average(means, weights=sizes)) if means else 0.0
    return [_rounded(max((one.max_error for one in done), default=0.0)), _rounded(mean)]


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
