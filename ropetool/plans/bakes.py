"""From a checkpoint and a bake's name to a Plan that leaves the context as it is: what goes into weights, and why.

Chooses nothing by itself: where a change belongs in the weights is for baking to know, writing for applying.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import provenance
from ropetool.checkpoint.edits import FileEdit, config_file_edits
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_keys import removal
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import ConfigError, LossyExport, UnknownName, did_you_mean
from ropetool.escaping import command
from ropetool.families.rows import K
from ropetool.files import hub
from ropetool.files.hf import Header, read_optional_object
from ropetool.plans.basis import CURRENT
from ropetool.plans.formats import HfFormat, adapter_notes
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.presumed import presumed, remarks, with_rows
from ropetool.plans.search import dissenters
from ropetool.plans.targets import tables_of
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import collapse_releases, display_ranges, inspection
from ropetool.runtimes.decoded import decoded
from ropetool.weights import Bake, FoldTargets, TensorEdit, described, drop_pairs, growth, marks, view_of
from ropetool.weights import bakes as hf
from ropetool.weights import gguf_bakes as gguf
from ropetool.weights.gguf_bakes import GgufBake
from ropetool.weights.gguf_fold_targets import gguf_view
from ropetool.weights.gguf_writing import gguf_marks

DTYPES = {"": "", "f32": "F32", "f64": "F64"}
LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class BakeOptions:
    """What a bake is asked for; each reads what concerns it.

    side: where a factor goes (k, q, both; norm for MLA's query latent), empty for the bake's own choice. gains: one for
    each rotary pair. multiplier: of the whole score. to: a channel order. pairs, mode: what drop-pairs drops, and how.
    layer_type: the kind of layer that gains and multiplier concern.
    """

    side: str = ""
    gains: tuple[float, ...] = ()
    multiplier: float | None = None
    to: str = ""
    pairs: tuple[int, ...] = ()
    mode: str = ""
    layer_type: str = names.FULL_ATTENTION
    config_only: bool = False

    def stated(self) -> dict[str, Any]:
        """Return what differs from the defaults, as plain data."""
        changed = {name: value for name, value in vars(self).items() if value != getattr(BakeOptions, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    def words(self) -> list[str]:
        """Return the words of a command line that states the same, but for switches."""
        values = {**self.stated(), "pairs": ",".join(map(str, self.pairs))}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        return [word for name, text in texts.items() if text for word in (_option(name), text)]


@dataclass(frozen=True)
class Kind:
    """A bake as the command line offers it: what it does, the options that it reads, and those it cannot do without."""

    name: str
    summary: str
    make: Callable[[FoldTargets, HfCheckpoint, BakeOptions], Bake] | None
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    make_gguf: Callable[[FoldTargets, GgufCheckpoint, BakeOptions, str], GgufBake] | None = None


def _layout(targets: FoldTargets, checkpoint: HfCheckpoint, options: BakeOptions) -> Bake:
    if not targets.family.interleave_key:
        raise LossyExport(
            f"no key of a {targets.family.model_type}'s config says in which order its channels are, so every runtime would "
            "rotate the wrong ones", where=targets.where,
        )  # fmt: skip
    if options.to not in LAYOUTS:
        raise ConfigError(f"{options.to!r} is neither {' nor '.join(LAYOUTS)}", where="--to")
    return hf.layout(targets, checkpoint, options.to)


def _rearch(targets: FoldTargets, model: GgufCheckpoint, options: BakeOptions, bake_dtype: str) -> GgufBake:
    if options.to != "llama":
        raise ConfigError(f"{options.to!r} is not an architecture to turn a file into; there is llama", where="--to")
    return gguf.rearch_llama(model)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "attention-factor", "the factor on cos and sin, squared into the keys",
            lambda targets, checkpoint, w: hf.attention_factor(targets, checkpoint, w.side or K, config_only=w.config_only),
            ("side", "config_only"), (), lambda targets, model, w, d: gguf.attention_factor(targets, model, w.side or K, bake_dtype=d),
        ),
        Kind(
            "shift-safe", "the same in a GGUF file, so that llama.cpp's context shift stays exact", None, ("side",), (),
            lambda targets, model, w, d: gguf.shift_safe(targets, model, w.side or K, bake_dtype=d),
        ),
        Kind(
            "softmax-scale", "MLA's multiplier of the whole score (mscale_all_dim), into the queries",
            lambda targets, checkpoint, w: hf.softmax_scale(targets, checkpoint, w.side), ("side",), (),
            lambda targets, model, w, d: gguf.softmax_scale(targets, model, w.side, bake_dtype=d),
        ),
        Kind(
            "pair-gain", "one gain for each rotary pair, into the keys",
            lambda targets, checkpoint, w: hf.pair_gain(targets, {w.layer_type: w.gains}, w.side or K),
            ("side", "gains", "layer_type"), ("gains",),
            lambda targets, model, w, d: gguf.pair_gain(targets, {w.layer_type: w.gains}, w.side or K, bake_dtype=d),
        ),
        Kind(
            "score", "a multiplier of the whole score",
            lambda targets, checkpoint, w: hf.score_gain(targets, {w.layer_type: _number(w)}, w.side or K),
            ("side", "multiplier", "layer_type"), ("multiplier",),
            lambda targets, model, w, d: gguf.score_gain(targets, {w.layer_type: _number(w)}, w.side, bake_dtype=d),
        ),
        Kind(
            "layout", "the order of the rotary channels, half or interleaved",
            _layout, ("to",), ("to",),
            lambda targets, model, w, d: gguf.layout(targets, w.to),
        ),
        Kind(
            "rearch", "a qwen2 GGUF file as one of llama, which takes frequency vectors", None, ("to",), ("to",), _rearch,
        ),
        Kind(
            "drop-pairs", "pairs that stand still or are muted; lossy, and extends no context",
            lambda targets, checkpoint, w: drop_pairs(targets, checkpoint, w.pairs, w.mode), ("pairs", "mode"),
            ("pairs", "mode"),
            lambda targets, model, w, d: gguf.drop_pairs(targets, model, w.pairs, w.mode, bake_dtype=d),
        ),
    )
}  # fmt: skip


def _number(options: BakeOptions) -> float:
    assert options.multiplier is not None
    return options.multiplier


def make_bake(source: str | Path, what: str, *, bake_dtype: str = "", presume: bool = False, **options: Any) -> Plan:
    """Return the plan of a bake; `apply` carries it out.

    options: the fields of BakeOptions. presume: of a config without weights, say in words what would change in the
    tensors that it asks for; such a plan names no edits of tensors, and is only to be read.
    Raises: UnknownName for another bake; ConfigError for a wrong option, a bake that is done already, or nothing to
    bake; LossyExport where the weights cannot hold it exactly; CheckpointError.
    """
    kind, chosen = _kind(what), BakeOptions(**options)
    _check_options(kind, chosen)
    if bake_dtype not in DTYPES:
        raise ConfigError(f"{bake_dtype!r} is neither f32 nor f64", where="--bake-dtype")
    path, dtype = hub.local(source), DTYPES[bake_dtype]
    checkpoint = open_checkpoint(path)
    if isinstance(checkpoint, GgufCheckpoint):
        changed = _of_gguf(kind, checkpoint, path, chosen, dtype)
        style = "GGUF"
    else:
        form = HfFormat.of(checkpoint, None)
        changed, style = _of_directory(kind, form, path, chosen, dtype, presume=presume), form.style
    read = changed.read
    softmax = read.entries[names.FULL_ATTENTION].softmax_multiplier if names.FULL_ATTENTION in read.entries else 1.0
    trained = inspection.inspect_checkpoint(checkpoint).trained_length or read.max_position_embeddings
    return Plan(
        checkpoint.format, checkpoint.name, BAKE, 1.0, {"bake": kind.name, **chosen.stated()}, CURRENT, trained,
        read.max_position_embeddings, (checkpoint.runtime,), style, tables_of(read), softmax, changed.edits, (),
        changed.notes, "baked", changed.words, changed.tensors, changed.weight_files, dtype, read, checkpoint.identity(),
    )  # fmt: skip


def _of_directory(
    kind: Kind, form: HfFormat, path: Path, options: BakeOptions, bake_dtype: str, *, presume: bool
) -> _Changed:
    checkpoint = form.checkpoint
    if kind.make is None:
        raise LossyExport(f"{kind.name} is a bake of GGUF files only", where=str(path))
    bare = checkpoint.directory.config_only and not options.config_only
    if bare and not presume:
        line = command("ropetool", "bake", path, kind.name, *options.words(), "--dry-run")
        raise LossyExport(
            "there are no weights to bake into", where=str(path),
            try_=f"{line}, which shows what would change; --check and --plan-out need the weights",
        )  # fmt: skip
    _check_not_done(path, kind.name, options)
    targets = view_of(checkpoint)
    if bare:
        targets = presumed(targets)
    _check_layer_type(targets, options)
    made = kind.make(targets, checkpoint, options)
    _check_changes(kind, path, made.tensors or made.config)
    edits = config_file_edits(made.config)
    weights = checkpoint.headers
    edits += [] if bare else index_edits(path, weights, made.tensors, bake_dtype)
    read = form.read(checkpoint.runtime, edits).understood(checkpoint.where)
    notes = (
        *(remarks(targets) if bare else form.notes()), *_still_notes(options), *made.notes, *adapter_notes(path),
        *_other_readers(form, edits, read),
    )  # fmt: skip
    if bare:
        return _Changed((), tuple(edits), {}, notes, with_rows(made.tensors), read)
    return _Changed(made.tensors, tuple(edits), marks(made.tensors, weights), notes, _words(made.tensors), read)


def _of_gguf(kind: Kind, model: GgufCheckpoint, path: Path, options: BakeOptions, bake_dtype: str) -> _Changed:
    if options.config_only:
        raise ConfigError("a GGUF file has no key that multiplies the score", where="--config-only")
    if kind.make_gguf is None:
        raise LossyExport(f"{kind.name} is a bake of Hugging Face checkpoints only", where=str(path))
    _ = model.name  # what is not a model is told as what it is
    _check_not_done(model.path, kind.name, options)
    targets = gguf_view(model)
    _check_layer_type(targets, options)
    baked = kind.make_gguf(targets, model, options, bake_dtype)
    edits = (*model.edits_of(baked.patch), *removal(model))
    _check_changes(kind, path, baked.tensors or baked.patch.set or baked.patch.remove or baked.patch.tensors)
    read = decoded(model.runtime, model.after(baked.patch)).understood(str(path), "file")
    return _Changed(
        baked.tensors, edits, gguf_marks(baked.tensors, model.files), (*_still_notes(options), *baked.notes),
        _words(baked.tensors), read,
    )  # fmt: skip


@dataclass(frozen=True)
class _Changed:
    """What a bake changes, whatever the format. words: the same of tensors, to be read. read: what is then computed."""

    tensors: tuple[TensorEdit, ...]
    edits: tuple[FileEdit, ...]
    weight_files: Mapping[str, str]
    notes: tuple[str, ...]
    words: tuple[str, ...]
    read: RopeSet


def _words(edits: Sequence[TensorEdit]) -> tuple[str, ...]:
    """Return the reasons in words; a tensor that holds queries and keys, which an edit each touches, counts once."""
    return described(list({(edit.reason, edit.tensor): edit for edit in edits}.values()))


def _kind(what: str) -> Kind:
    if what not in KINDS:
        raise UnknownName(
            f"no bake is called {what!r}{did_you_mean(what, KINDS)}; known: {', '.join(KINDS)}",
            try_="ropetool bake --help",
        )
    return KINDS[what]


def _check_options(kind: Kind, options: BakeOptions) -> None:
    stated = options.stated()
    missing = next((name for name in kind.needed if name not in stated), None)
    if missing is not None:
        raise ConfigError(f"{kind.name} needs {_option(missing)}", where="ropetool bake", try_="ropetool bake --help")
    foreign = next((name for name in stated if name not in kind.options), None)
    if foreign is not None:
        known = ", ".join(map(_option, kind.options))
        raise ConfigError(f"{kind.name} has no use for it; its options: {known}", where=_option(foreign))


def _check_layer_type(targets: FoldTargets, options: BakeOptions) -> None:
    if options.layer_type not in targets.rope.entries and options.layer_type != names.FULL_ATTENTION:
        known = ", ".join(targets.rope.entries)
        raise ConfigError(
            f"{options.layer_type!r} is not a kind of layer of this model; it has {known}", where="--layer-type"
        )
    if (
        len(options.gains)
        and (entry := targets.rope.entries.get(options.layer_type))
        and 2 * len(options.gains) != entry.rotary_dim
    ):
        raise ConfigError(
            f"{len(options.gains)} numbers for {entry.rotary_dim // 2} rotary pairs of {options.layer_type}",
            where="--gain",
        )


def _check_changes(kind: Kind, path: Path, changes: object) -> None:
    if not changes:
        raise ConfigError(f"{kind.name} with these options changes nothing", where=str(path))


def _option(name: str) -> str:
    return "--gain" if name == "gains" else f"--{name.replace('_', '-')}"


def _check_not_done(path: Path, what: str, options: BakeOptions) -> None:
    """Raise ConfigError if the same bake is among the last ones that this checkpoint has had."""
    wanted = {"bake": what, **options.stated()}
    for made in provenance.lineage(path):
        if made.plan.get("method") != BAKE:
            return
        if made.plan.get("params") == wanted:
            raise ConfigError(
                f"its {names.PROVENANCE_JSON} says that {what} is baked in already, from {made.source}",
                where=str(path), try_=f"{command('ropetool', 'diff', Path(made.source), path)}, which shows what it holds",
            )  # fmt: skip


def index_edits(
    folder: Path, weights: Sequence[Header], edits: Sequence[TensorEdit], bake_dtype: str
) -> list[FileEdit]:
    """Return the edit of the shard index, which states how many bytes the weights have."""
    more = growth(edits, weights, bake_dtype)
    index = read_optional_object(folder / names.SAFETENSORS_INDEX_JSON)
    stated = (index[1].get("metadata") or {}).get("total_size") if index else None
    if not more or not isinstance(stated, int):
        return []
    return [FileEdit(names.SAFETENSORS_INDEX_JSON, ("metadata", "total_size"), stated, stated + more)]


def _other_readers(form: HfFormat, edits: Sequence[FileEdit], read: RopeSet) -> list[str]:
    """Say which runtimes would ask for a factor that they did not disagree on before, a note for each reason."""
    runtime = form.checkpoint.runtime
    before = form.read(runtime).rope
    known = {name for those in dissenters(form, (), before, (runtime,)).values() for name in those} if before else ()
    found = {
        reason: [name for name in those if name not in known]
        for reason, those in dissenters(form, edits, read, (runtime,)).items()
    }
    return [
        f"{', '.join(display_ranges(others))} would read the output otherwise than {runtime}, though not the source: {reason}. "
        f"Extend the unscaled model with `{' '.join(f'--for {name}' for name in collapse_releases([runtime, *others]))}` instead: "
        "then the weights take what their keys cannot say"
        for reason, others in found.items() if others
    ]  # fmt: skip


def _still_notes(options: BakeOptions) -> tuple[str, ...]:
    return (f"pairs {', '.join(map(str, options.pairs))} stand still",) if options.mode == "still" else ()
