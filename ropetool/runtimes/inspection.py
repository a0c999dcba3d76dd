"""What a checkpoint says and what each runtime makes of it: the data behind `ropetool inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropetool import families, names, runtimes
from ropetool.checkpoint import provenance, style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint, known_family
from ropetool.checkpoint.likeness import untyped
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint, opened_as
from ropetool.errors import InvalidRope, RopetoolError, UnknownFamily
from ropetool.escaping import Tabular, command
from ropetool.families import records
from ropetool.families.family import Family, TrainedLength
from ropetool.families.wrappers import ALIASES, ON_HUB, WRAPPERS
from ropetool.files import parts
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import shown
from ropetool.files.hub import HubId, hub_id, origin, peek_checkpoint, peek_gguf
from ropetool.rope.arithmetic import wavelengths
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import hf_formulas, kv_cache
from ropetool.runtimes.decoded import Readings
from ropetool.runtimes.kv_cache import KvCache
from ropetool.runtimes.llama_cpp.architectures import WITHOUT_ROTATION
from ropetool.runtimes.llama_cpp.layers import learned_positions

AS_WRITTEN = "the keys are shown as written"
MAX_SHOWN_BYTES = 2**14  # a list with a number for each of 512 layers fits


@dataclass(frozen=True)
class Inspection(Tabular):
    """A checkpoint with its decoded settings.

    source: the path of the checkpoint.
    family, rope: None if the model_type is unknown.
    trained_length: the length before any scaling, in tokens; None if it is unknown.
    stated: the rope keys as written in the file.
    readings: how each runtime decodes them, on first access.
    kv_bytes: the cache by layer type.
    made: ropetool's record; None if ropetool did not write the checkpoint.
    as_type: the built-in model_type that the user chose with --as.
    learned_positions: the model has a vector for each position of its context.
    checkpoint: the open checkpoint, before `as_type` changes it; None on the hub, where ropetool read only the config
      and headers.
    """

    source: Path
    format: str
    model_type: str
    family: Family | None
    rope: RopeSet | None
    trained_length: int | None
    stated: Mapping[str, Any]
    readings: Readings
    kv_bytes: Mapping[str, KvCache]
    notes: tuple[str, ...]
    made: provenance.Provenance | None = None
    as_type: str | None = None
    learned_positions: bool = False
    checkpoint: Checkpoint | None = field(default=None, repr=False, compare=False)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each layer type and rotary pair, of the table at the last regime.

        Units: inv_freq in radians per token, wavelength in tokens.
        """
        for layer_type, entry in self.rope.entries.items() if self.rope is not None else ():
            inv_freq = () if entry.table is None else entry.table.regimes[-1].inv_freq
            for pair, value in enumerate(inv_freq):
                wavelength = float(wavelengths(value))
                yield {"layer_type": layer_type, "pair": pair, "inv_freq": float(value), "wavelength": wavelength}

    def cache_bytes(self, length: int) -> int:
        """Return the size of a KV cache of this many tokens, for one sequence."""
        return sum(kind.bytes_at(length) for kind in self.kv_bytes.values())


def inspect(source: str | Path | Checkpoint, as_type: str | None = None) -> Inspection:
    """Return what the checkpoint says and what each runtime makes of it; reads no weights, and of the hub no more.

    as_type: the built-in model_type that it is read as, where only remote code knows its own.
    Raises: CheckpointError for broken files, ConfigError for broken values of a known family; HubError.
    """
    return inspect_opened(source, as_type)[0]


def inspect_opened(source: str | Path | Checkpoint, as_type: str | None = None) -> tuple[Inspection, Checkpoint]:
    """Return what `inspect` does, and the checkpoint; of one on the hub no weights are there. Raises: as `inspect`."""
    if not isinstance(source, (str, Path)):
        return _inspect_as(source, as_type)
    asked = hub_id(source)
    if asked is not None:
        return _inspect_hub(asked, as_type)
    return _inspect_as(open_checkpoint(Path(source)), as_type)


def _inspect_as(opened: Checkpoint, as_type: str | None) -> tuple[Inspection, Checkpoint]:
    checkpoint, _, said = opened_as(opened, as_type)
    found = inspect_checkpoint(checkpoint)
    return replace(found, notes=(*said, *found.notes), as_type=as_type, checkpoint=opened), checkpoint


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Return what an opened checkpoint says and what each runtime makes of it."""
    found = _of_hf(checkpoint) if isinstance(checkpoint, HfCheckpoint) else _of_gguf(checkpoint, checkpoint.path)
    return replace(found, checkpoint=checkpoint)


def _inspect_hub(asked: HubId, as_type: str | None) -> tuple[Inspection, Checkpoint]:
    checkpoint: Checkpoint
    if asked.file:
        peeked = peek_gguf(asked)
        checkpoint = replace(GgufCheckpoint.of(peeked.headers), vector=peeked.vector)
        opened_as(checkpoint, as_type)
        found, notes = _of_gguf(checkpoint, peeked.path), peeked.notes
    else:
        files, notes = peek_checkpoint(asked)
        found, checkpoint = _inspect_as(HfCheckpoint.of(files), as_type)
    return replace(found, source=Path(str(asked)), notes=(*notes, *found.notes), checkpoint=None), checkpoint


def _of_gguf(view: GgufCheckpoint, path: Path) -> Inspection:
    arch = view.name
    described = families.of_gguf(arch)
    alone = described and (len(described) == 1 or described[0].model_type == arch)
    family = described[0] if alone else None  # of two families under one name a file does not say which it is
    readings = Readings([runtime.name for runtime in runtimes.for_format("gguf")], view)
    rope = next((r.rope for r in readings if r.rope is not None), None)
    made = provenance.record(path)
    other = provenance.of_another(path, made)
    made = None if other else made
    trained = _trained_of(made, trained_lengths(arch), rope)
    kv = kv_cache.of_gguf(view, rope) if rope else {}
    notes = _gguf_notes(view, arch, rope)
    if other:
        notes = (f"{provenance.place(path).name} {other}: ropetool ignores it. Move it away", *notes)
    return Inspection(
        path, "gguf", arch, family, rope, trained, _stated_metadata(view), readings, kv, notes, made,
        learned_positions=learned_positions(view),
    )  # fmt: skip


def _gguf_notes(view: GgufCheckpoint, arch: str, decoded: RopeSet | None) -> tuple[str, ...]:
    """Say what such a file lacks, and what to do instead."""
    notes = []
    if not view.tensors:
        notes.append(
            "the file has a vocabulary but no tensors: the values shown come from its keys. Inspect the model's own GGUF file"
        )
    if learned_positions(view):
        notes.append(without_positions(arch))
    elif decoded is not None and all(entry.table is None for entry in decoded.entries.values()):
        what = arch if arch in WITHOUT_ROTATION else f"this {arch} file"
        notes.append(f"{what} has no rotary positions: its configured context length is its only limit")
    elif view.tensors and decoded is not None and not any("rope" in name for name in (*view.values, *view.tensors)):
        notes.append(
            "the file sets no rope keys: llama.cpp uses its defaults, shown here. `ropetool extend` adds the keys it needs"
        )
    return tuple(notes)


def without_positions(model: str) -> str:
    """Return what to say of a model that rotates nothing."""
    return (
        f"{model} has no rotary positions: there is nothing to extend; `ropetool families` lists models that have them"
    )


def _stated_metadata(view: GgufCheckpoint) -> dict[str, Any]:
    """Return every key about positions, and which frequency vectors there are."""
    wanted = ("rope.", "context_length", "sliding_window", "attention.temperature")
    found: dict[str, Any] = {}
    for key, value in view.values.items():
        if any(word in key for word in wanted):
            found[key] = _shown_value(value)
    vectors = {name: tensor for name, tensor in view.tensors.items() if name.startswith("rope_f")}
    return found | {name: f"{tensor.type_name} {list(tensor.shape)}" for name, tensor in vectors.items()}


def _shown_value(value: Value) -> Any:
    """Return a value as plain data; a long one by its type and size, for a hostile file may have millions."""
    if len(value.raw) > MAX_SHOWN_BYTES:
        return f"{value.label} of {len(value.raw)} bytes"
    plain: Any = value.decode()
    return plain.tolist() if hasattr(plain, "tolist") else plain


def _of_hf(checkpoint: HfCheckpoint) -> Inspection:
    config, where, files = checkpoint.config, checkpoint.where, checkpoint.directory
    stated_type = config.get(names.MODEL_TYPE)
    model_type = stated_type if isinstance(stated_type, str) else ""
    family, refusal = _family_of(config, where)
    notes = ["the folder has only config.json: commands that need weights will not work"] if files.config_only else []
    if files.pickle_only:
        base = origin(files.path)
        line = parts.conversion(base.repo if base else str(files.path))
        notes.append(f"the weights are pickle files, which ropetool never loads. Convert them to safetensors: `{line}`")
    stated = stated_rope_keys(config)
    if family is None:
        return Inspection(
            files.path, "hf", model_type, None, None, None, stated, Readings((), checkpoint), {},
            (*notes, _why_as_written(config, model_type, refusal), *_as_built_in(checkpoint)),
        )  # fmt: skip
    notes += [*read_live(family), *remote_code(config, family)]
    style.read(config, family, where)
    readings = Readings(_hf_runtimes(family), checkpoint)
    rope = next((r.rope for r in readings if r.rope is not None), None)
    if rope is not None:
        notes += _windows(config, family, rope, where)
    made = checkpoint.record
    if family.off_key and style.section(config, family, where).get(family.off_key):
        notes.append(without_positions(f"this {model_type}, with {family.off_key} on,"))
    return Inspection(
        files.path, "hf", model_type, family, rope, _trained_of(made, family.trained_length, rope), stated, readings,
        kv_cache.of_config(config, family, rope) if rope else {}, tuple(notes), made,
    )  # fmt: skip


def _family_of(config: Mapping[str, Any], where: str) -> tuple[Family | None, RopetoolError | None]:
    """Return the family whose reading is shown, or None and the refusal of a command that needs one."""
    try:
        return families.of_config(config), None
    except UnknownFamily:
        pass
    try:
        return known_family(config, where), None
    except (UnknownFamily, InvalidRope) as refusal:
        return None, refusal


def read_live(family: Family) -> tuple[str, ...]:
    """Return a note if the facts about a family or its wrapper come from a probed model, not from ropetool's data."""
    names_read = [family.config_type] if families.is_live(family.config_type) else []
    names_read += [family.model_type] if family.live else []
    return tuple(
        f"ropetool has no data on {name}: it read the settings from a tiny model in the installed transformers"
        for name in names_read
    )


def remote_code(config: Mapping[str, Any], family: Family) -> tuple[str, ...]:
    """Say of a model that names code of its own for which class the readings hold; nothing of any other."""
    wrapper = WRAPPERS.get(family.config_type)
    if family.wrapped and family.config_type and families.wrapper_of(family.config_type) is None:
        return (
            f"ropetool does not know the code of {family.config_type}: it reads {'.'.join(family.text_path)} as {family.model_type} "
            f"does. Check that the code of {family.config_type} does not change these keys",
        )
    if family.remote:
        return (
            f"{_no_class(family.name)} ropetool reads the config as {family.source}",
            *_beyond(config, family),
        )
    if family.config_type in ALIASES or (wrapper and wrapper.source.startswith(ON_HUB.partition("{}")[0])):
        return (
            f"{_no_class(family.config_type)} ropetool reads the config as the built-in class of {family.model_type} does",
        )
    if "auto_map" in config:
        return (
            "auto_map names remote code, which ropetool never runs. It reads the config as the built-in model class does",
        )
    return ()


def _beyond(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    context = config.get(family.context_key, family.default_max_position_embeddings)
    for key, does in family.beyond.items():
        if config.get(key):
            yield f"{key} is on: beyond {context} tokens its code {does}"


def _no_class(name: str) -> str:
    return f"transformers has no class for {name}, only the remote code of its repository, which ropetool never runs."


def _as_built_in(checkpoint: HfCheckpoint) -> tuple[str, ...]:
    """Say which built-in class would serve a type that only remote code knows, where that is told."""
    why, built_in = checkpoint.likeness
    line = command("ropetool", "inspect", checkpoint.path, "--as", built_in)
    return (f"{why}: `{line}` reads it as that class",) if why else ()


def _why_as_written(config: Mapping[str, Any], model_type: str, refusal: RopetoolError | None) -> str:
    """Return why the keys of a config are shown as written, and the next step.

    refusal: the error of a command that needs the family.
    """
    inner = families.text_type(config)
    if inner in records.unrotated():
        return without_positions(inner if inner == model_type else f"the {inner} inside this {model_type}")
    if particular := records.reason(inner):
        return f"{families.not_supported(shown(inner), particular)}; {AS_WRITTEN}"
    within = f" (of the text model of {shown(model_type)})" if inner != model_type else ""
    if not model_type:
        return f"config.json does not set model_type, so its keys cannot be decoded: {AS_WRITTEN}{untyped(config)}"
    if reason := families.unread(inner):
        return f"{families.not_supported(f'the family {shown(inner)}{within}', reason)}; {AS_WRITTEN}"
    if refusal is not None and refusal.try_.startswith("pip "):
        return f"{refusal.message}; {AS_WRITTEN}; {refusal.try_}"
    if isinstance(refusal, UnknownFamily) and families.NOT_SUPPORTED in refusal.message:
        return f"{refusal.message}; {AS_WRITTEN}"
    return (
        f"the family {shown(inner)}{within} is unknown{families.nearest(inner)}: {AS_WRITTEN}, not as runtimes read them. "
        "`ropetool families` lists the known families"
    )


def _windows(config: Mapping[str, Any], family: Family, rope: RopeSet, where: str) -> tuple[str, ...]:
    """Say which layers look back through a window, where those of one table differ in that."""
    if family.nested or family.sliding_window != "alternate" or any(e.sliding_window for e in rope.entries.values()):
        return ()
    part = style.section(config, family, where)
    window, count = part.get(family.window_key, family.default_sliding_window), part.get(names.NUM_HIDDEN_LAYERS) or 0
    sliding = [i for i, kind in enumerate(hf_formulas.kinds(part, family, count)) if kind == names.SLIDING_ATTENTION]
    if not sliding or window is None:
        return ()
    some = ", ".join(map(str, sliding[:4])) + (", ..." if len(sliding) > 4 else "")
    return (
        f"{len(sliding)} of the {count} layers ({some}) look back at most {window} tokens; they use the same table",
    )


def _hf_runtimes(family: Family) -> list[str]:
    """Return what reads such a checkpoint; llama.cpp, where it is exported."""
    return [
        *(runtime.name for runtime in runtimes.for_format("hf")),
        *([GgufCheckpoint.runtime] if family.gguf_architecture else []),
    ]


def stated_rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every key about positions as written, those of a text model inside under their dotted name."""
    wanted = ("rope", "rotary", "max_position", "sliding_window", "max_seq", "seq_length", "alibi")
    found = {}
    inner = [(f"{key}.", config[key]) for key in names.TEXT_CONFIGS if isinstance(config.get(key), Mapping)]
    for prefix, part in (("", config), *inner):
        found.update({prefix + k: v for k, v in part.items() if any(word in k for word in wanted)})
    return found


def trained_lengths(architecture: str) -> tuple[TrainedLength, ...]:
    """Return the shipped lengths that are not those trained on, of any family that has GGUF files of this architecture."""
    return tuple(length for family in families.of_gguf(architecture) for length in family.trained_length)


def _trained_of(
    known: provenance.Provenance | None, lengths: tuple[TrainedLength, ...], decoded: RopeSet | None
) -> int | None:
    if known is not None and known.trained_length is not None:
        return known.trained_length
    if decoded is None:
        return None
    length = decoded.original_max_position_embeddings
    if any(not entry.unscaled for entry in decoded.entries.values()):
        return length
    shipped = {t.max_position_embeddings: t.trained for t in lengths}
    return shipped.get(length, length) if length is not None else None
