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
from ropetool.checkpoint import identity, provenance
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf_edits import edits_of_patch
from ropetool.checkpoint.gguf_keys import removal
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.opening import is_gguf
from ropetool.checkpoint.views import GgufView
from ropetool.errors import ConfigError, LossyExport, UnknownName, did_you_mean
from ropetool.escaping import command
from ropetool.families.rows import K
from ropetool.files import hub
from ropetool.files.gguf import read_shards
from ropetool.files.hf import Checkpoint, Header, headers, read_optional_object
from ropetool.plans.basis import CURRENT
from ropetool.plans.hosts import HfHost, adapter_notes
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.presumed import presumed, remarks, with_rows
from ropetool.plans.search import dissenters
from ropetool.plans.targets import tables_of
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import folded, inspection
from ropetool.runtimes.llama_cpp.exported import RUNTIME as LLAMA_CPP
from ropetool.weights import Bake, TensorEdit, View, described, drop_pairs, growth, marks, view_of
from ropetool.weights import bakes as hf
from ropetool.weights import gguf_bakes as gguf
from ropetool.weights.gguf_bakes import GgufBake
from ropetool.weights.gguf_fold_targets import gguf_view
from ropetool.weights.gguf_writing import gguf_marks

DTYPES = {"": "", "f32": "F32", "f64": "F64"}
LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class Wish:
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
        changed = {name: value for name, value in vars(self).items() if value != getattr(Wish, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    def options(self) -> list[str]:
        """Return the words of a command line that states the same, but for switches."""
        values = {**self.stated(), "pairs": ",".join(map(str, self.pairs))}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        return [word for name, text in texts.items() if text for word in (_option(name), text)]


@dataclass(frozen=True)
class Kind:
    """A bake as the command line offers it: what it does, the options that it reads, and those it cannot do without."""

    name: str
    summary: str
    make: Callable[[View, Checkpoint, Wish], Bake] | None
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    make_gguf: Callable[[View, GgufView, Wish, str], GgufBake] | None = None


def _layout(view: View, checkpoint: Checkpoint, wish: Wish) -> Bake:
    if not view.family.interleave_key:
        raise LossyExport(
            f"no key of a {view.family.model_type}'s config says in which order its channels are, so every runtime would "
            "rotate the wrong ones", where=view.where,
        )  # fmt: skip
    if wish.to not in LAYOUTS:
        raise ConfigError(f"{wish.to!r} is neither {' nor '.join(LAYOUTS)}", where="--to")
    return hf.layout(view, checkpoint, wish.to)


def _rearch(view: View, model: GgufView, wish: Wish, bake_dtype: str) -> GgufBake:
    if wish.to != "llama":
        raise ConfigError(f"{wish.to!r} is no architecture to turn a file into; there is llama", where="--to")
    return gguf.rearch_llama(model)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "attention-factor", "the factor on cos and sin, squared into the keys",
            lambda view, checkpoint, w: hf.attention_factor(view, checkpoint, w.side or K, config_only=w.config_only),
            ("side", "config_only"), (), lambda view, model, w, d: gguf.attention_factor(view, model, w.side or K, bake_dtype=d),
        ),
        Kind(
            "shift-safe", "the same in a GGUF file, so that llama.cpp's context shift stays exact", None, ("side",), (),
            lambda view, model, w, d: gguf.shift_safe(view, model, w.side or K, bake_dtype=d),
        ),
        Kind(
            "softmax-scale", "MLA's multiplier of the whole score (mscale_all_dim), into the queries",
            lambda view, checkpoint, w: hf.softmax_scale(view, checkpoint, w.side), ("side",), (),
            lambda view, model, w, d: gguf.softmax_scale(view, model, w.side, bake_dtype=d),
        ),
        Kind(
            "pair-gain", "one gain for each rotary pair, into the keys",
            lambda view, checkpoint, w: hf.pair_gain(view, {w.layer_type: w.gains}, w.side or K),
            ("side", "gains", "layer_type"), ("gains",),
            lambda view, model, w, d: gguf.pair_gain(view, {w.layer_type: w.gains}, w.side or K, bake_dtype=d),
        ),
        Kind(
            "score", "a multiplier of the whole score",
            lambda view, checkpoint, w: hf.score_gain(view, {w.layer_type: _number(w)}, w.side or K),
            ("side", "multiplier", "layer_type"), ("multiplier",),
            lambda view, model, w, d: gguf.score_gain(view, {w.layer_type: _number(w)}, w.side, bake_dtype=d),
        ),
        Kind(
            "layout", "the order of the rotary channels, half or interleaved",
            _layout, ("to",), ("to",),
            lambda view, model, w, d: gguf.layout(view, w.to),
        ),
        Kind(
            "rearch", "a qwen2 GGUF file as one of llama, which takes frequency vectors", None, ("to",), ("to",), _rearch,
        ),
        Kind(
            "drop-pairs", "pairs that stand still or are muted; lossy, and extends no context",
            lambda view, checkpoint, w: drop_pairs(view, checkpoint, w.pairs, w.mode), ("pairs", "mode"),
            ("pairs", "mode"),
            lambda view, model, w, d: gguf.drop_pairs(view, model, w.pairs, w.mode, bake_dtype=d),
        ),
    )
}  # fmt: skip


def _number(wish: Wish) -> float:
    assert wish.multiplier is not None
    return wish.multiplier


def make_bake(source: str | Path, what: str, *, bake_dtype: str = "", presume: bool = False, **options: Any) -> Plan:
    """Return the plan of a bake; `apply` carries it out.

    options: the fields of Wish. presume: of a config without weights, say in words what would change in the tensors that
    it asks for; such a plan names no edits of tensors, and is only to be read.
    Raises: UnknownName for another bake; ConfigError for a wrong option, a bake that is done already, or nothing to
    bake; LossyExport where the weights cannot hold it exactly; CheckpointError.
    """
    kind, wish = _kind(what), Wish(**options)
    _check_options(kind, wish)
    if bake_dtype not in DTYPES:
        raise ConfigError(f"{bake_dtype!r} is neither f32 nor f64", where="--bake-dtype")
    path, dtype = hub.local(source), DTYPES[bake_dtype]
    if is_gguf(path):
        return _of_gguf(kind, path, wish, dtype)
    host = HfHost.open(path, None)
    if kind.make is None:
        raise LossyExport(f"{what} is a bake of GGUF files only", where=str(path))
    bare = host.checkpoint.config_only and not wish.config_only
    if bare and not presume:
        line = command("ropetool", "bake", path, what, *wish.options(), "--dry-run")
        raise LossyExport(
            "there are no weights to bake into", where=str(path),
            try_=f"{line}, which shows what would change; --check and --plan-out need the weights",
        )  # fmt: skip
    _check_not_done(path, what, wish)
    view = view_of(host.checkpoint, host.family)
    if bare:
        view = presumed(view)
    _check_layer_type(view, wish)
    made = kind.make(view, host.checkpoint, wish)
    _check_changes(kind, path, made.tensors or made.config)
    edits = [FileEdit(names.CONFIG_JSON, edit.path, edit.old, edit.new) for edit in made.config]
    weights = headers(host.checkpoint)
    edits += [] if bare else index_edits(host.checkpoint, weights, made.tensors, dtype)
    read = inspection.understood(host.read(host.runtime, edits), host.where)
    notes = (
        *(remarks(view) if bare else host.notes()), *_still_notes(wish), *made.notes, *adapter_notes(path),
        *_other_readers(host, edits, read),
    )  # fmt: skip
    if bare:
        changed = _Changed((), tuple(edits), {}, notes, dtype, with_rows(made.tensors))
    else:
        changed = _Changed(made.tensors, tuple(edits), marks(made.tensors, weights), notes, dtype, _words(made.tensors))
    now = host.identity()
    return _plan(host.format, host.runtime, host.style, host.name, path, kind, wish, read, changed, now)


def _of_gguf(kind: Kind, path: Path, wish: Wish, bake_dtype: str) -> Plan:
    if wish.config_only:
        raise ConfigError("a GGUF file has no key that multiplies the score", where="--config-only")
    if kind.make_gguf is None:
        raise LossyExport(f"{kind.name} is a bake of Hugging Face checkpoints only", where=str(path))
    files = read_shards(path)
    model = GgufView.of(files)
    arch = inspection.architecture(model)
    _check_not_done(files[0].path, kind.name, wish)
    view = gguf_view(model)
    _check_layer_type(view, wish)
    baked = kind.make_gguf(view, model, wish, bake_dtype)
    edits = (*edits_of_patch(baked.patch, model), *removal(model))
    _check_changes(kind, path, baked.tensors or baked.patch.set or baked.patch.remove or baked.patch.tensors)
    read = inspection.understood(inspection.read_view(LLAMA_CPP, model.after(baked.patch)), str(path), "file")
    changed = _Changed(
        baked.tensors, edits, gguf_marks(baked.tensors, files), (*_still_notes(wish), *baked.notes), bake_dtype,
        _words(baked.tensors),
    )  # fmt: skip
    now = identity.of_gguf(files, model.values, arch)
    return _plan("gguf", LLAMA_CPP, "GGUF", arch, path, kind, wish, read, changed, now)


@dataclass(frozen=True)
class _Changed:
    """What a bake changes, whatever the format; words: the same of tensors, to be read."""

    tensors: tuple[TensorEdit, ...]
    edits: tuple[FileEdit, ...]
    weight_files: Mapping[str, str]
    notes: tuple[str, ...]
    bake_dtype: str
    words: tuple[str, ...]


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


def _check_options(kind: Kind, wish: Wish) -> None:
    stated = wish.stated()
    missing = next((name for name in kind.needed if name not in stated), None)
    if missing is not None:
        raise ConfigError(f"{kind.name} needs {_option(missing)}", where="ropetool bake", try_="ropetool bake --help")
    foreign = next((name for name in stated if name not in kind.options), None)
    if foreign is not None:
        known = ", ".join(map(_option, kind.options))
        raise ConfigError(f"{kind.name} has no use for it; its options: {known}", where=_option(foreign))


def _check_layer_type(view: View, wish: Wish) -> None:
    if wish.layer_type not in view.rope.entries and wish.layer_type != names.FULL_ATTENTION:
        known = ", ".join(view.rope.entries)
        raise ConfigError(
            f"{wish.layer_type!r} is no kind of layer of this model; it has {known}", where="--layer-type"
        )
    if (
        len(wish.gains)
        and (entry := view.rope.entries.get(wish.layer_type))
        and 2 * len(wish.gains) != entry.rotary_dim
    ):
        raise ConfigError(
            f"{len(wish.gains)} numbers for {entry.rotary_dim // 2} rotary pairs of {wish.layer_type}", where="--gain"
        )


def _check_changes(kind: Kind, path: Path, changes: object) -> None:
    if not changes:
        raise ConfigError(f"{kind.name} with these options changes nothing", where=str(path))


def _option(name: str) -> str:
    return "--gain" if name == "gains" else f"--{name.replace('_', '-')}"


def _check_not_done(path: Path, what: str, wish: Wish) -> None:
    """Raise ConfigError if the same bake is among the last ones that this checkpoint has had."""
    wanted = {"bake": what, **wish.stated()}
    for made in provenance.lineage(path):
        if made.plan.get("method") != BAKE:
            return
        if made.plan.get("params") == wanted:
            raise ConfigError(
                f"its {names.PROVENANCE_JSON} says that {what} is baked in already, from {made.source}",
                where=str(path), try_=f"{command('ropetool', 'diff', Path(made.source), path)}, which shows what it holds",
            )  # fmt: skip


def index_edits(
    checkpoint: Checkpoint, weights: Sequence[Header], edits: Sequence[TensorEdit], bake_dtype: str
) -> list[FileEdit]:
    """Return the edit of the shard index, which states how many bytes the weights have."""
    more = growth(edits, weights, bake_dtype)
    index = read_optional_object(checkpoint.path / names.SAFETENSORS_INDEX_JSON)
    stated = (index[1].get("metadata") or {}).get("total_size") if index else None
    if not more or not isinstance(stated, int):
        return []
    return [FileEdit(names.SAFETENSORS_INDEX_JSON, ("metadata", "total_size"), stated, stated + more)]


def _plan(
    file_format: str, runtime: str, style: str, family: str, path: Path, kind: Kind, wish: Wish, read: RopeSet,
    changed: _Changed, now: Identity,
) -> Plan:  # fmt: skip
    softmax = read.entries[names.FULL_ATTENTION].softmax_multiplier if names.FULL_ATTENTION in read.entries else 1.0
    trained = inspection.inspect(path).trained_length or read.max_position_embeddings
    return Plan(
        file_format, family, BAKE, 1.0, {"bake": kind.name, **wish.stated()}, CURRENT, trained,
        read.max_position_embeddings, (runtime,), style, tables_of(read), softmax, changed.edits, (), changed.notes,
        "baked", changed.words, changed.tensors, changed.weight_files, changed.bake_dtype,
        read, now,
    )  # fmt: skip


def _other_readers(host: HfHost, edits: Sequence[FileEdit], read: RopeSet) -> list[str]:
    """Say which runtimes would ask for a factor that they did not disagree on before, a note for each reason."""
    before = host.read(host.runtime).rope
    known = (
        {name for those in dissenters(host, (), before, (host.runtime,)).values() for name in those} if before else ()
    )
    found = {
        reason: [name for name in those if name not in known]
        for reason, those in dissenters(host, edits, read, (host.runtime,)).items()
    }
    return [
        f"{', '.join(folded(others))} agreed with {host.runtime} on the source and would not on the output ({reason}). "
        f"Extend the unscaled model with `{' '.join(f'--for {name}' for name in folded([host.runtime, *others]))}` instead: "
        "what their keys cannot say then goes into the weights"
        for reason, others in found.items() if others
    ]  # fmt: skip


def _still_notes(wish: Wish) -> tuple[str, ...]:
    return (f"pairs {', '.join(map(str, wish.pairs))} stand still",) if wish.mode == "still" else ()
