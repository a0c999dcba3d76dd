"""The settings of a checkpoint, and how each runtime reads them: the data of `ropetool inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool import families, names, runtimes
from ropetool.checkpoint import provenance, style
from ropetool.checkpoint.hf import HfCheckpoint, known_family
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint, opened_as
from ropetool.errors import InvalidRope, RopetoolError, UnknownFamily
from ropetool.escaping import Tabular, command
from ropetool.families import records
from ropetool.families.family import Family, TrainedLength
from ropetool.families.wrappers import ALIASES, ON_HUB, WRAPPERS
from ropetool.files import parts
from ropetool.files.hf.jsontext import shown
from ropetool.files.hub import HubId, hub_id, origin
from ropetool.rope.arithmetic import wavelengths
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import hf_formulas, kv_cache
from ropetool.runtimes.decoded import Readings
from ropetool.runtimes.kv_cache import KvCache

if TYPE_CHECKING:
    from ropetool.checkpoint.gguf import GgufCheckpoint
    from ropetool.files.gguf import Value

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

    @property
    def origin(self) -> provenance.Provenance | None:
        """The record, or what the keys of a GGUF file repeat of it; None if ropetool did not scale the positions."""
        from ropetool.checkpoint.gguf import GgufCheckpoint

        return self.made or (self.checkpoint.own_record if isinstance(self.checkpoint, GgufCheckpoint) else None)

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
    """Return the settings of a checkpoint, and how each runtime reads them. Does not read or download weights.

    as_type: the built-in model_type to read it as, if only remote code supports its model_type.
    Raises: CheckpointError for broken files, ConfigError for broken values of a known family; HubError.
    """
    return inspect_opened(source, as_type)[0]


def inspect_opened(source: str | Path | Checkpoint, as_type: str | None = None) -> tuple[Inspection, Checkpoint]:
    """Return the result of `inspect`, and the checkpoint, which has no weights if it is on the hub.

    Raises: as `inspect`.
    """
    if not isinstance(source, (str, Path)):
        return _inspect_as(source, as_type)
    asked = hub_id(source)
    if asked is not None:
        return _inspect_hub(asked, as_type)
    return _inspect_as(open_checkpoint(Path(source)), as_type)


def _inspect_as(opened: Checkpoint, as_type: str | None) -> tuple[Inspection, Checkpoint]:
    checkpoint, _, as_notes = opened_as(opened, as_type)
    inspection = inspect_checkpoint(checkpoint)
    return replace(inspection, notes=(*as_notes, *inspection.notes), as_type=as_type, checkpoint=opened), checkpoint


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Return the settings of an open checkpoint, and how each runtime reads them. Raises: as `inspect`."""
    inspection = _of_hf(checkpoint) if checkpoint.format == "hf" else _of_gguf(checkpoint, checkpoint.path)
    return replace(inspection, checkpoint=checkpoint)


def _inspect_hub(asked: HubId, as_type: str | None) -> tuple[Inspection, Checkpoint]:
    from ropetool.checkpoint.gguf import GgufCheckpoint
    from ropetool.files.hub.peeking import peek_checkpoint, peek_gguf

    checkpoint: Checkpoint
    if asked.file:
        peeked = peek_gguf(asked)
        checkpoint = replace(GgufCheckpoint.of(peeked.headers), vector=peeked.vector)
        opened_as(checkpoint, as_type)
        inspection, notes = _of_gguf(checkpoint, peeked.path), peeked.notes
    else:
        files, notes = peek_checkpoint(asked)
        inspection, checkpoint = _inspect_as(HfCheckpoint.of(files), as_type)
    return replace(inspection, source=Path(str(asked)), notes=(*notes, *inspection.notes), checkpoint=None), checkpoint


def _of_gguf(view: GgufCheckpoint, path: Path) -> Inspection:
    from ropetool.runtimes.llama_cpp import architectures, kv_cache, layers  # a directory needs none of them

    arch = view.name
    described = families.of_gguf(arch)
    alone = described and (len(described) == 1 or described[0].model_type == arch)
    family = described[0] if alone else None  # if two families share a name, the file does not show which one it is
    readings = Readings([runtime.name for runtime in runtimes.for_format("gguf")], view)
    rope = next((r.rope for r in readings if r.rope is not None), None)
    record = provenance.record(path)
    other = provenance.of_another(path, record)
    record = None if other else record
    trained = _trained_of(record or view.own_record, trained_lengths(arch), rope)
    kv = kv_cache.of_gguf(view, rope) if rope else {}
    learned = layers.learned_positions(view)
    notes = _gguf_notes(view, rope, learned=learned, unrotated=arch in architectures.WITHOUT_ROTATION)
    if other:
        notes = (f"{provenance.place(path).name} {other}: ropetool ignores it. Move it away", *notes)
    return Inspection(
        path, "gguf", arch, family, rope, trained, _stated_metadata(view), readings, kv, notes, record,
        learned_positions=learned,
    )  # fmt: skip


def _gguf_notes(view: GgufCheckpoint, decoded: RopeSet | None, *, learned: bool, unrotated: bool) -> tuple[str, ...]:
    """Return notes on what a GGUF file lacks, with the next step.

    learned: the model has learned positions.
    unrotated: no model of its architecture rotates.
    """
    notes = []
    if not view.tensors:
        notes.append(
            "the file has a vocabulary but no tensors: the values shown come from its keys. Inspect the model's own GGUF file"
        )
    if learned:
        notes.append(without_positions(view.name))
    elif decoded is not None and all(entry.table is None for entry in decoded.entries.values()):
        what = view.name if unrotated else f"this {view.name} file"
        notes.append(f"{what} has no rotary positions: its configured context length is its only limit")
    elif view.tensors and decoded is not None and not any("rope" in name for name in (*view.values, *view.tensors)):
        notes.append(
            "the file sets no rope keys: llama.cpp uses its defaults, shown here. `ropetool extend` adds the keys it needs"
        )
    return tuple(notes)


def without_positions(model: str) -> str:
    """Return the note for a model without rotary positions."""
    return (
        f"{model} has no rotary positions: there is nothing to extend; `ropetool families` lists models that have them"
    )


def _stated_metadata(view: GgufCheckpoint) -> dict[str, Any]:
    """Return every key about positions, and the type and shape of each frequency vector."""
    topics = ("rope.", "context_length", "sliding_window", "attention.temperature")
    metadata: dict[str, Any] = {}
    for key, value in view.values.items():
        if any(word in key for word in topics):
            metadata[key] = _shown_value(value)
    vectors = {name: tensor for name, tensor in view.tensors.items() if name.startswith("rope_f")}
    return metadata | {name: f"{tensor.type_name} {list(tensor.shape)}" for name, tensor in vectors.items()}


def _shown_value(value: Value) -> Any:
    """Return a value as plain data.

    A long value is shown by its type and size, because a hostile file may have millions.
    """
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
    rope_keys = stated_rope_keys(config)
    if family is None:
        return Inspection(
            files.path, "hf", model_type, None, None, None, rope_keys, Readings((), checkpoint), {},
            (*notes, _why_as_written(config, model_type, refusal), *_as_built_in(checkpoint)),
        )  # fmt: skip
    notes += [*read_live(family), *remote_code(config, family)]
    style.read(config, family, where)
    readings = Readings(_hf_runtimes(family), checkpoint)
    rope = next((r.rope for r in readings if r.rope is not None), None)
    if rope is not None:
        notes += _windows(config, family, rope, where)
    record = checkpoint.record
    if family.off_key and style.section(config, family, where).get(family.off_key):
        notes.append(without_positions(f"this {model_type}, with {family.off_key} on,"))
    return Inspection(
        files.path, "hf", model_type, family, rope, _trained_of(record, family.trained_length, rope), rope_keys, readings,
        kv_cache.of_config(config, family, rope) if rope else {}, tuple(notes), record,
    )  # fmt: skip


def _family_of(config: Mapping[str, Any], where: str) -> tuple[Family | None, RopetoolError | None]:
    """Return the family of a config, or None and the error of a command that needs the family."""
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
    """Return a note for a model with remote code: the class whose rules ropetool applies. Other models have no note."""
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
    """Return a note with the built-in class for a type that only remote code supports, if there is such a class."""
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
        from ropetool.checkpoint.likeness import untyped

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
    """Return a note with the sliding layers, if layers with the same table differ in their window."""
    if family.nested or family.sliding_window != "alternate" or any(e.sliding_window for e in rope.entries.values()):
        return ()
    part = style.section(config, family, where)
    window, count = part.get(family.window_key, family.default_sliding_window), part.get(names.NUM_HIDDEN_LAYERS) or 0
    sliding = [
        i
        for i, layer_type in enumerate(hf_formulas.layer_types(part, family, count))
        if layer_type == names.SLIDING_ATTENTION
    ]
    if not sliding or window is None:
        return ()
    some = ", ".join(map(str, sliding[:4])) + (", ..." if len(sliding) > 4 else "")
    return (
        f"{len(sliding)} of the {count} layers ({some}) look back at most {window} tokens; they use the same table",
    )


def _hf_runtimes(family: Family) -> list[str]:
    """Return the runtimes for a checkpoint of this family. llama.cpp reads its export, if there is one."""
    return [
        *(runtime.name for runtime in runtimes.for_format("hf")),
        *([runtimes.LLAMA_CPP] if family.gguf_architecture else []),
    ]


def stated_rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every key about positions, as written. Keys of an inner text model have dotted names."""
    topics = ("rope", "rotary", "max_position", "sliding_window", "max_seq", "seq_length", "alibi")
    keys = {}
    inner = [(f"{key}.", config[key]) for key in names.TEXT_CONFIGS if isinstance(config.get(key), Mapping)]
    for prefix, part in (("", config), *inner):
        keys.update({prefix + k: v for k, v in part.items() if any(word in k for word in topics)})
    return keys


def trained_lengths(architecture: str) -> tuple[TrainedLength, ...]:
    """Return the published context lengths that differ from the trained length, for this architecture's families."""
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
