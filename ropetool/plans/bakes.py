"""Make the plan of a bake, which keeps the context length: the changes in keys and weights, and the reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import provenance
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source
from ropetool.errors import ConfigError, LossyExport, UnknownName, did_you_mean
from ropetool.escaping import command
from ropetool.families.rows import K
from ropetool.plans import notes
from ropetool.plans.basis import CURRENT
from ropetool.plans.formats import Format, HfFormat, adapter_notes
from ropetool.plans.gguf_format import GgufFormat
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.presumed import presumed, remarks, with_rows
from ropetool.plans.targets import tables_of
from ropetool.runtimes import inspection
from ropetool.weights import bakes
from ropetool.weights.bakeable import Bakeable
from ropetool.weights.bakes import Bake
from ropetool.weights.edits import TensorEdit, described
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable
from ropetool.weights.operations import NORM, SIDES
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import marks

DTYPES = {"": "", "f32": "F32", "f64": "F64"}
MODES = ("still", "mute")  # of drop-pairs
FORMATS = {"hf": "Hugging Face checkpoints", "gguf": "GGUF files"}


@dataclass(frozen=True)
class BakeOptions:
    """The options of a bake. Each bake reads only some of them.

    side: the tensors that get a factor: k, q, both, or norm for MLA's query latent. Empty for the bake's default.
    gains: a gain for each rotary pair.
    multiplier: the factor on the whole score.
    to: a channel order or an architecture.
    pairs: the rotary pairs for drop-pairs.
    mode: the way in which drop-pairs drops them.
    layer_type: the layer type for gains and multiplier.
    config_only: move the attention factor into the config key that multiplies the score, if the family has one
      (granite). The weights stay unchanged.
    """

    side: str = ""
    gains: tuple[float, ...] = ()
    multiplier: float | None = None
    to: str = ""
    pairs: tuple[int, ...] = ()
    mode: str = ""
    layer_type: str = names.FULL_ATTENTION
    config_only: bool = False

    def non_defaults(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as plain data."""
        changed = {name: value for name, value in vars(self).items() if value != getattr(BakeOptions, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    def words(self) -> list[str]:
        """Return the words of a command line with these options. Switches are not included."""
        values = {**self.non_defaults(), "pairs": ",".join(map(str, self.pairs))}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        return [word for name, text in texts.items() if text for word in (_option(name), text)]


@dataclass(frozen=True)
class Recipe:
    """A bake as the command line offers it.

    name: its name.
    summary: its effect.
    make: returns the bake.
    options: the options that it reads.
    needed: the options that it requires.
    formats: the checkpoint formats that it works on.
    """

    name: str
    summary: str
    make: Callable[[Bakeable, BakeOptions], Bake]
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    formats: tuple[str, ...] = tuple(FORMATS)


def _rearch(source: Bakeable, options: BakeOptions) -> Bake:
    if options.to != "llama":
        raise ConfigError(f"{options.to!r} is not supported; only llama is", where="--to")
    return bakes.rearch_llama(source)


BAKES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "attention-factor", "the factor on cos and sin, squared into the keys",
            lambda source, o: bakes.attention_factor(source, o.side or K, config_only=o.config_only),
            ("side", "config_only"),
        ),
        Recipe(
            "shift-safe", "the same in a GGUF file, so that llama.cpp's context shift stays exact",
            lambda source, o: bakes.shift_safe(source, o.side or K), ("side",), formats=("gguf",),
        ),
        Recipe(
            "softmax-scale", "MLA's multiplier of the whole score (mscale_all_dim), into the queries",
            lambda source, o: bakes.softmax_scale(source, o.side), ("side",),
        ),
        Recipe(
            "pair-gain", "one gain for each rotary pair, into the keys",
            lambda source, o: bakes.pair_gain(source, {o.layer_type: o.gains}, o.side or K),
            ("side", "gains", "layer_type"), ("gains",),
        ),
        Recipe(
            "score", "a multiplier of the whole score",
            lambda source, o: bakes.score_gain(source, {o.layer_type: _number(o)}, o.side),
            ("side", "multiplier", "layer_type"), ("multiplier",),
        ),
        Recipe(
            "layout", "the order of the rotary channels, half or interleaved",
            lambda source, o: bakes.layout(source, o.to), ("to",), ("to",),
        ),
        Recipe(
            "rearch", "a qwen2 GGUF file rewritten as llama, which supports frequency vectors", _rearch, ("to",), ("to",),
            formats=("gguf",),
        ),
        Recipe(
            "drop-pairs", "rotary pairs that stop rotating or are muted; lossy, without a longer context",
            lambda source, o: bakes.drop_pairs(source, o.pairs, o.mode), ("pairs", "mode"), ("pairs", "mode"),
        ),
    )
}  # fmt: skip


def _number(options: BakeOptions) -> float:
    assert options.multiplier is not None
    return options.multiplier


def make_bake(
    source: str | Path | Checkpoint, what: str, *, bake_dtype: str = "", presume: bool = False, **options: Any
) -> Plan:
    """Return the plan of a bake, for `apply`.

    options: the fields of BakeOptions.
    presume: if there is only a config, describe the changes in the tensors that the config implies. Such a plan has no
      edits of tensors, so it is only for reading.
    Raises: UnknownName for an unknown bake. ConfigError for a wrong option, and if the bake is done already or changes
    nothing. LossyExport if the weights cannot store it exactly. CheckpointError.
    """
    chosen = BakeOptions(**options)
    recipe = check_bake(what, chosen, bake_dtype)
    checkpoint, dtype = open_source(source), DTYPES[bake_dtype]
    path = checkpoint.path
    if checkpoint.format not in recipe.formats:
        formats = " and ".join(FORMATS[name] for name in recipe.formats)
        raise LossyExport(f"{recipe.name} works only on {formats}", where=str(path))
    form: Format = HfFormat.of(checkpoint, None) if isinstance(checkpoint, HfCheckpoint) else GgufFormat(checkpoint)
    _ = checkpoint.name  # raises an error that names a projector or an adapter as such
    bare = not checkpoint.stored and not chosen.config_only
    if bare and not presume:
        line = command("ropetool", "bake", path, recipe.name, *chosen.words(), "--dry-run")
        raise LossyExport(
            "the source has no weights to bake into", where=str(path),
            try_=f"{line}, which shows the changes; --check and --plan-out need the weights",
        )  # fmt: skip
    _check_not_done(checkpoint.path, recipe.name, chosen)
    target = bakeable(checkpoint, dtype)
    if bare:
        target = replace(target, targets=presumed(target.targets))
    _check_layer_type(target.targets, chosen)
    bake = recipe.make(target, chosen)
    if not bake.tensors and not bake.edits:
        raise ConfigError(f"{recipe.name} with these options changes nothing", where=str(path))
    edits = (*bake.edits, *target.other_edits(bake.tensors))
    read = form.read(checkpoint.runtime, edits).understood(checkpoint.where, checkpoint.stated_in)
    plan_notes = (
        *(remarks(target.targets) if bare else form.notes()), *bake.notes, *adapter_notes(path),
        *notes.of_readers_of_bake(form, edits, read),
    )  # fmt: skip
    words, tensors = (with_rows(bake.tensors), ()) if bare else (_words(bake.tensors), bake.tensors)
    softmax = read.entries[names.FULL_ATTENTION].softmax_multiplier if names.FULL_ATTENTION in read.entries else 1.0
    trained = inspection.inspect_checkpoint(checkpoint).trained_length or read.max_position_embeddings
    return Plan(
        checkpoint.format, checkpoint.name, BAKE, 1.0, {"bake": recipe.name, **chosen.non_defaults()}, CURRENT, trained,
        read.max_position_embeddings, (checkpoint.runtime,), form.style, tables_of(read), softmax, edits, (),
        plan_notes, "baked", words, tensors, marks(tensors, weight_files(checkpoint)), dtype, read, checkpoint.identity,
    )  # fmt: skip


def check_bake(what: str, options: BakeOptions, bake_dtype: str = "") -> Recipe:
    """Return the bake of this name, which accepts these options.

    Raises: UnknownName for an unknown bake; ConfigError for an option that it does not accept or that is missing, and
    for a value that no bake accepts.
    """
    recipe = _recipe(what)
    _check_options(recipe, options)
    if bake_dtype not in DTYPES:
        raise ConfigError(f"{bake_dtype!r} is neither f32 nor f64", where="--bake-dtype")
    if options.side not in ("", *SIDES, NORM):
        raise ConfigError(f"{options.side!r} is not one of {', '.join(SIDES)}", where="--side")
    if options.mode not in ("", *MODES):
        raise ConfigError(f"{options.mode!r} must be {' or '.join(MODES)}", where="--mode")
    return recipe


def _words(edits: Sequence[TensorEdit]) -> tuple[str, ...]:
    """Return the reasons in words. If two edits touch queries and keys in the same tensor, the tensor counts once."""
    return described(list({(edit.reason, edit.tensor): edit for edit in edits}.values()))


def _recipe(what: str) -> Recipe:
    if what not in BAKES:
        raise UnknownName(
            f"no bake is called {what!r}{did_you_mean(what, BAKES)}; known: {', '.join(BAKES)}",
            try_="ropetool bake --help",
        )
    return BAKES[what]


def _check_options(recipe: Recipe, options: BakeOptions) -> None:
    passed = options.non_defaults()
    missing = next((name for name in recipe.needed if name not in passed), None)
    if missing is not None:
        raise ConfigError(f"{recipe.name} needs {_option(missing)}", where="ropetool bake", try_="ropetool bake --help")
    foreign = next((name for name in passed if name not in recipe.options), None)
    if foreign is not None:
        known = ", ".join(map(_option, recipe.options))
        raise ConfigError(f"{recipe.name} does not accept this option; it accepts {known}", where=_option(foreign))


def _check_layer_type(targets: FoldTargets, options: BakeOptions) -> None:
    if options.layer_type not in targets.rope.entries and options.layer_type != names.FULL_ATTENTION:
        known = ", ".join(targets.rope.entries)
        raise ConfigError(
            f"{options.layer_type!r} is not a layer type of this model; it has {known}", where="--layer-type"
        )
    if (
        len(options.gains)
        and (entry := targets.rope.entries.get(options.layer_type))
        and 2 * len(options.gains) != entry.rotary_dim
    ):
        raise ConfigError(
            f"lists {len(options.gains)} numbers, but {options.layer_type} has {entry.rotary_dim // 2} rotary pairs",
            where="--gain",
        )


def _option(name: str) -> str:
    return "--gain" if name == "gains" else f"--{name.replace('_', '-')}"


def _check_not_done(path: Path, what: str, options: BakeOptions) -> None:
    """Raise ConfigError if the same bake is among the last bakes of this checkpoint."""
    requested = {"bake": what, **options.non_defaults()}
    for step in provenance.lineage(path):
        if step.plan.get("method") != BAKE:
            return
        if step.plan.get("params") == requested:
            raise ConfigError(
                f"{what} is baked in already: its {names.PROVENANCE_JSON} lists this bake of {step.source}",
                where=str(path), try_=f"{command('ropetool', 'diff', Path(step.source), path)}, which shows the differences",
            )  # fmt: skip
