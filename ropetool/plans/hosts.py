"""A checkpoint as planning sees it, whatever its format: read as a runtime would, with edits or without them.

A host knows its files and the encodings that they can hold; which table to write, and from what, is not its to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ropetool import families, names
from ropetool.checkpoint import identity, provenance, style
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf_edits import patch_of
from ropetool.checkpoint.gguf_keys import removal
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.opening import is_gguf
from ropetool.checkpoint.provenance import Provenance
from ropetool.checkpoint.views import GgufView
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.escaping import command
from ropetool.families import Family, TrainedLength
from ropetool.files import parts
from ropetool.files.gguf import GgufHeader, read_shards
from ropetool.files.hf import Checkpoint, Edit, apply_edits, headers, open_checkpoint, parse_object
from ropetool.files.hf.jsontext import shown
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet, is_number
from ropetool.runtimes import NotKnown, inspection
from ropetool.runtimes.config_encodings import Way, config_edits, encodings
from ropetool.runtimes.inspection import RuntimeReading
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.encodings import edits_of, gguf_encodings
from ropetool.runtimes.llama_cpp.layers import Model
from ropetool.weights import Rest, TensorEdit, marks, rest_edits, rest_words, view_of

CONFIG_ONLY = "only config.json is here: the output has no weights either"


@dataclass(frozen=True)
class Baking:
    """What goes into weights: in words, as edits, and the marks of the files that they touch.

    There are no edits where the checkpoint has no weights.
    """

    words: tuple[str, ...] = ()
    tensors: tuple[TensorEdit, ...] = ()
    weight_files: Mapping[str, str] = field(default_factory=dict)


class Host(Protocol):
    """What planning asks of a format.

    where: the file that holds the rope keys. style: how they are written. name: what the model is called in it, a
    model_type or an architecture. by_hand: how to state another context where nothing else is to change.
    trained_length: the shipped lengths that are not those trained on. builds_on_tables: whether its keys or tensors can
    say a table that comes on top of another.
    """

    @property
    def format(self) -> str: ...
    @property
    def runtime(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def where(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def by_hand(self) -> str: ...
    @property
    def trained_length(self) -> tuple[TrainedLength, ...]: ...
    @property
    def made(self) -> Provenance | None: ...
    @property
    def style(self) -> str: ...
    @property
    def builds_on_tables(self) -> bool: ...

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> RuntimeReading:
        """Return what the runtime makes of the checkpoint with these edits."""

    def mscale(self, entry: LayerRope) -> float | None:
        """Return DeepSeek's multiplier, mscale_all_dim, 1 where none is stated; None where scores have no scale (no MLA)."""

    def changed_kinds(self, decoded: RopeSet) -> list[str]:
        """Return the kinds of layer that get the new table: the full ones, and those that share theirs by design."""

    def encodings(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Way]:
        """Return the ways to write the target, in order of preference."""

    def identity(self) -> Identity:
        """Return what tells whether the source is still this one."""

    def bake(self, rests: Mapping[str, Rest]) -> Baking:
        """Return the edits of weights that carry what the keys leave to them.

        Raises: CheckpointError or LossyExport where the weights cannot hold it exactly.
        """

    def length_edits(self, length: int) -> list[FileEdit]:
        """Return the edits besides the rope keys: those that let a reader use the new length, and what would be untrue."""

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know of the source."""


def open_host(path: Path, config_style: str | None) -> Host:
    """Return the checkpoint at this path: a GGUF file, or a Hugging Face directory.

    Raises: CheckpointError, ConfigError, UnknownFamily.
    """
    return GgufHost.open(path) if is_gguf(path) else HfHost.open(path, config_style)


def adapter_notes(path: Path) -> tuple[str, ...]:
    """Say that a LoRA adapter beside the weights was made for other weights than those of a bake."""
    found = sorted(path.rglob("adapter_config.json"))
    if not found:
        return ()
    return (f"the adapter in {found[0].parent} was trained on the weights before the bake: it no longer fits",)


def read_with(path: Path, runtime: str, edits: Sequence[FileEdit]) -> RuntimeReading:
    """Return what the runtime makes of the checkpoint with these edits; of a GGUF file whatever its architecture.

    Raises: CheckpointError, ConfigError, UnknownFamily.
    """
    if is_gguf(path):
        return inspection.read_view(runtime, GgufView.of(read_shards(path)).after(patch_of(edits)))
    return HfHost.open(path, None).read(runtime, edits)


def known_family(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of this config.json.

    Raises: InvalidRope for a model without rotary positions, UnknownFamily for any other unknown one.
    """
    model_type = config.get(names.MODEL_TYPE)
    if not isinstance(model_type, str) or not model_type:
        raise InvalidRope("model_type is missing, so the family is unknown", where=where, try_="ropetool families")
    if model_type in names.NO_ROTATION:
        raise InvalidRope(f"{model_type} has no rotary positions: there is nothing to extend", where=where)
    return families.of_config(config, where)


def described(arch: str, path: Path) -> Architecture:
    """Return what llama.cpp does with GGUF files of this architecture.

    Raises: InvalidRope for an architecture without rotary positions, UnknownFamily for one that is not described.
    """
    where = f"{path}: {archs.ARCHITECTURE}"
    if arch in archs.WITHOUT_ROTATION:
        raise InvalidRope(f"{arch} has no rotary positions: there is nothing to extend", where=where)
    try:
        return archs.get(arch)
    except NotKnown as reason:
        raise UnknownFamily(
            f"GGUF files of {shown(arch)} are not extended: {reason}", where=where,
            try_=f"{command('ropetool', 'inspect', path)}, which shows their keys as written",
        ) from None  # fmt: skip


@dataclass(frozen=True, eq=False)
class HfHost:
    """A Hugging Face directory; `style` is the config style that is written."""

    checkpoint: Checkpoint
    family: Family
    where: str
    style: str
    made: Provenance | None
    format: str = "hf"
    runtime: str = "transformers"
    builds_on_tables: bool = True
    _edited: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, config_style: str | None) -> HfHost:
        checkpoint = open_checkpoint(path)
        if checkpoint.pickle_only:
            raise parts.pickled(str(path), checkpoint.pickles[0].name)
        headers(checkpoint)
        where = str(checkpoint.path / names.CONFIG_JSON)
        family = known_family(checkpoint.config, where)
        found_style = style.read(checkpoint.config, family, where).style
        if not family.partial_rotary_key:
            check_whole_heads(checkpoint, family, where)
        return cls(checkpoint, family, where, config_style or found_style, provenance.read(checkpoint.path))

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def by_hand(self) -> str:
        return f"another {names.MAX_POSITION_EMBEDDINGS} in a copy of {names.CONFIG_JSON}"

    @property
    def trained_length(self) -> tuple[TrainedLength, ...]:
        return self.family.trained_length

    def mscale(self, entry: LayerRope) -> float | None:
        return float(entry.params.get(names.MSCALE_ALL_DIM) or 1.0) if self.family.mla else None

    def changed_kinds(self, decoded: RopeSet) -> list[str]:
        return [names.FULL_ATTENTION]

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> RuntimeReading:
        changes = [Edit(e.path, e.old, e.new) for e in edits if e.file == names.CONFIG_JSON]
        config = self._config_with(changes) if changes else self.checkpoint.config
        return inspection.read_as(runtime, config, self.family, self.where)

    def _config_with(self, changes: list[Edit]) -> Mapping[str, Any]:
        """Return the config after these edits, made once for all the runtimes that are asked; told apart as 1 and 1.0 are."""
        key = repr(changes)
        if key not in self._edited:
            config = parse_object(apply_edits(self.checkpoint.config_text, changes, self.where), self.where)
            families.of_config(config, self.where)  # a wrapper may need what they remove
            self._edited[key] = config
        return self._edited[key]

    def encodings(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Way]:
        return [
            Way(name, config_edits(self.checkpoint, self.family, keys, target, self.style, self.where), baked)
            for name, keys, baked in encodings(entry, derived, trained_length, self.family)
        ]

    def identity(self) -> Identity:
        return identity.of_checkpoint(self.checkpoint)

    def bake(self, rests: Mapping[str, Rest]) -> Baking:
        words = rest_words(rests)
        if self.checkpoint.config_only:
            return Baking(words)
        tensors = rest_edits(view_of(self.checkpoint, self.family), rests)
        return Baking(words, tensors, marks(tensors, headers(self.checkpoint)))

    def length_edits(self, length: int) -> list[FileEdit]:
        """Raise the tokenizer's limit; a larger or absent one stays."""
        limit = (self.checkpoint.tokenizer_config or {}).get(names.MODEL_MAX_LENGTH)
        if limit is None or not is_number(limit) or limit >= length:
            return []
        return [FileEdit(names.TOKENIZER_CONFIG_JSON, (names.MODEL_MAX_LENGTH,), limit, length)]

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self.checkpoint.config_only:
            notes.append(CONFIG_ONLY)
        elif self.checkpoint.pickles:
            left = ", ".join(path.name for path in self.checkpoint.pickles)
            notes.append(f"pickles are left behind: {left}")
        return (*notes, *inspection.remote_code(self.checkpoint.config, self.family))


def check_whole_heads(checkpoint: Checkpoint, family: Family, where: str) -> None:
    """Raise InvalidRope if the file asks for partial rotation, which these families' code does not do.

    transformers 5 ignores the key for unscaled tables and stops at the first token for scaled ones.
    """
    part = style.section(checkpoint.config, family, where)
    objects = (part, part.get(names.ROPE_PARAMETERS), part.get(names.ROPE_SCALING))
    for keys in (found for found in objects if isinstance(found, dict)):
        for key in (names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT):
            if keys.get(key) not in (None, 1):
                raise InvalidRope(
                    f"{shown(keys[key])} asks for partial rotation, and {family.model_type} rotates whole heads",
                    where=f"{where}: {key}", try_=f"remove {key} from {names.CONFIG_JSON}",
                )  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufHost:
    """A GGUF model in one file or several; the keys of all its layers stand in the first."""

    headers: tuple[GgufHeader, ...]
    view: GgufView
    arch: Architecture
    made: Provenance | None
    format: str = "gguf"
    runtime: str = "llama.cpp"
    style: str = "GGUF"

    @property
    def builds_on_tables(self) -> bool:
        return self.arch.vectors

    @classmethod
    def open(cls, path: Path) -> GgufHost:
        headers = read_shards(path)
        view = GgufView.of(headers)
        arch = described(inspection.architecture(view), headers[0].path)
        return cls(headers, view, arch, provenance.read(headers[0].path))

    @property
    def path(self) -> Path:
        return self.headers[0].path

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.arch.name

    @property
    def by_hand(self) -> str:
        return f"gguf-set-metadata COPY {self.name}.{archs.CONTEXT_LENGTH} TOKENS, on a copy of the file"

    @property
    def trained_length(self) -> tuple[TrainedLength, ...]:
        return inspection.trained_lengths(self.arch.name)

    def mscale(self, entry: LayerRope) -> float | None:
        return decoding.log_multiplier(Model.of(self.view)) or 1.0 if self.arch.mla else None

    def changed_kinds(self, decoded: RopeSet) -> list[str]:
        """Return the full layers, and the sliding ones where llama.cpp scales them along and one table served both."""
        full, rules = decoded.entries[names.FULL_ATTENTION], self.arch.sliding
        if rules is None or not rules.scaled or rules.plain or rules.own_base:
            return [names.FULL_ATTENTION]
        assert full.table is not None
        tables = {kind: entry.table for kind, entry in decoded.entries.items() if entry.table is not None}
        return [kind for kind, table in tables.items() if full.table.agrees(table)]

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> RuntimeReading:
        return inspection.read_view(runtime, self.view.after(patch_of(edits)) if edits else self.view)

    def encodings(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Way]:
        assert entry.rope_theta is not None
        found = gguf_encodings(_with_betas(target, derived), self.name, entry.rope_theta, factor)
        return [Way(encoding.name, edits_of(encoding, self.name, self.view)) for encoding in found]

    def identity(self) -> Identity:
        return identity.of_gguf(self.headers, self.view.values, self.name)

    def bake(self, rests: Mapping[str, Rest]) -> Baking:
        raise LossyExport("no encoding of a GGUF file leaves anything to the weights", where=self.where)

    def length_edits(self, length: int) -> list[FileEdit]:
        return removal(self.view)  # context_length is part of every encoding

    def notes(self) -> tuple[str, ...]:
        return ()


def _with_betas(target: RopeSet, derived: Derived) -> RopeSet:
    """Return the target with the ends of the ramp that the method's own keys state, for files that have keys for them."""
    stated = next(iter(derived.native), {})
    betas = {key: stated[key] for key in (names.BETA_FAST, names.BETA_SLOW) if key in stated}
    full = target.entries[names.FULL_ATTENTION]
    entries = {**target.entries, names.FULL_ATTENTION: replace(full, params={**full.params, **betas})}
    return replace(target, entries=entries) if betas else target
