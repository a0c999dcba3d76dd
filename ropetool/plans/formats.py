"""What a search needs to know of a checkpoint's format: how tables are said in it, and what else must change with them.

What the files state, and what runtimes make of it, is the checkpoint's; which table to write, and from what, is not a
format's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import plain_value
from ropetool.checkpoint.gguf_keys import removal
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.escaping import command
from ropetool.families.family import TrainedLength
from ropetool.files import parts
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet, is_number
from ropetool.runtimes import NotKnown, inspection
from ropetool.runtimes.config_encodings import config_edits, encodings, length_encodings
from ropetool.runtimes.decoded import Decoded, decoded
from ropetool.runtimes.encoding import Candidate
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.encodings import edits_of, gguf_encodings, gguf_length_encodings
from ropetool.runtimes.llama_cpp.layers import Model, learned_positions
from ropetool.weights.edits import TensorEdit
from ropetool.weights.opening import bakeable
from ropetool.weights.residual import Residual, residual_edits, residual_words
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import marks

CONFIG_ONLY = "the source has no weights, so the output has none either"


@dataclass(frozen=True)
class Baking:
    """What goes into weights: in words, as edits, and the identities of the files that they touch.

    There are no edits where the checkpoint has no weights.
    """

    words: tuple[str, ...] = ()
    tensors: tuple[TensorEdit, ...] = ()
    weight_files: Mapping[str, str] = field(default_factory=dict)


class Format(Protocol):
    """A checkpoint as something that tables are written into.

    style: how its rope keys are written. trained_length: the shipped lengths that are not those trained on.
    builds_on_tables: whether its keys or tensors can say a table that comes on top of another.
    """

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def style(self) -> str: ...
    @property
    def trained_length(self) -> tuple[TrainedLength, ...]: ...
    @property
    def builds_on_tables(self) -> bool: ...

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> Decoded:
        """Return what the runtime makes of the checkpoint with these edits."""

    def mscale(self, entry: LayerRope) -> float | None:
        """Return DeepSeek's multiplier, mscale_all_dim, 1 where none is stated; None where scores have no scale (no MLA)."""

    def changed_layer_types(self, rope: RopeSet) -> list[str]:
        """Return the layer types that get the new table: the full ones, and those that share theirs by design."""

    def candidates(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Candidate]:
        """Return the ways to write the target, in order of preference."""

    def length_candidates(self, target: RopeSet) -> list[Candidate]:
        """Return the ways to state the context of the target and leave its tables, in order of preference."""

    def absent_context(self, length: int) -> list[FileEdit]:
        """Return the edit that states this context in a file that states none and is not loaded without; else nothing."""

    def bake(self, residuals: Mapping[str, Residual]) -> Baking:
        """Return the edits of weights that carry what the keys leave to them.

        Raises: CheckpointError or LossyExport where the weights cannot hold it exactly.
        """

    def length_edits(self, length: int) -> list[FileEdit]:
        """Return the edits besides the rope keys: those that let a reader use the new length, and what would be untrue."""

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know of the source."""


def open_format(path: Path, config_style: str | None = None) -> Format:
    """Return the checkpoint at this path as something to write tables into; config_style is that of its output.

    Raises: CheckpointError, ConfigError, UnknownFamily.
    """
    return format_of(open_checkpoint(path), config_style)


def format_of(checkpoint: Checkpoint, config_style: str | None = None) -> Format:
    """Return an opened checkpoint as something to write tables into.

    Raises: as open_format.
    """
    if isinstance(checkpoint, HfCheckpoint):
        return HfFormat.of(checkpoint, config_style)
    form = GgufFormat(checkpoint)
    _ = form.arch  # one that is not described is told before anything else
    return form


def adapter_notes(path: Path) -> tuple[str, ...]:
    """Say that a LoRA adapter beside the weights was made for other weights than those of a bake."""
    found = sorted(path.rglob("adapter_config.json"))
    if not found:
        return ()
    return (
        f"the adapter in {found[0].parent} was trained on the old weights and does not fit the output: merge it before you bake",
    )


def described(checkpoint: GgufCheckpoint) -> Architecture:
    """Return what llama.cpp does with GGUF files of this architecture.

    Raises: InvalidRope for one with learned positions, UnknownFamily for one that is not described.
    """
    arch, where = checkpoint.name, f"{checkpoint.path}: {archs.ARCHITECTURE}"
    if learned_positions(checkpoint):
        raise InvalidRope(
            f"{arch} has no rotary positions, and its learned positions end at its context length", where=where
        )
    try:
        return archs.get(arch)
    except NotKnown as reason:
        raise UnknownFamily(
            f"ropetool cannot extend GGUF files of {shown(arch)}: {reason}", where=where,
            try_=f"{command('ropetool', 'inspect', checkpoint.path)}, which shows their keys as written",
        ) from None  # fmt: skip


@dataclass(frozen=True, eq=False)
class HfFormat:
    """A Hugging Face directory; `style` is the config style that is written."""

    checkpoint: HfCheckpoint
    style: str
    builds_on_tables: bool = True

    @classmethod
    def of(cls, checkpoint: HfCheckpoint, config_style: str | None) -> HfFormat:
        files = checkpoint.directory
        if files.pickle_only:
            raise parts.pickled(str(files.path), files.pickles[0].name)
        _ = checkpoint.headers  # broken weights are told before anything else
        present = style.read(checkpoint.config, checkpoint.family, checkpoint.where).style
        if not checkpoint.family.partial_rotary_key:
            check_whole_heads(checkpoint)
        return cls(checkpoint, config_style or present)

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> Decoded:
        edited = self.checkpoint.edited(edits)
        reason = self.checkpoint.family.scaling_by_release
        if reason and style.scaling_of(edited.section) and not style.scaling_of(self.checkpoint.section):
            return Decoded(runtime, None, reason, known=False)
        return decoded(runtime, edited)

    @property
    def trained_length(self) -> tuple[TrainedLength, ...]:
        return self.checkpoint.family.trained_length

    def mscale(self, entry: LayerRope) -> float | None:
        return float(entry.params.get(names.MSCALE_ALL_DIM) or 1.0) if self.checkpoint.family.mla else None

    def changed_layer_types(self, rope: RopeSet) -> list[str]:
        return [names.FULL_ATTENTION]

    def candidates(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Candidate]:
        return [
            Candidate(name, config_edits(self.checkpoint, keys, target, self.style), in_weights)
            for name, keys, in_weights in encodings(entry, derived, trained_length, self.checkpoint.family)
        ]

    def length_candidates(self, target: RopeSet) -> list[Candidate]:
        return length_encodings(self.checkpoint, target, self.style)

    def absent_context(self, length: int) -> list[FileEdit]:
        return []

    def bake(self, residuals: Mapping[str, Residual]) -> Baking:
        words = residual_words(residuals)
        if self.checkpoint.family.bake is None:
            raise LossyExport(
                f"ropetool does not know how to bake the factor into the weights of {self.checkpoint.name}",
                where=self.checkpoint.where,
            )
        if self.checkpoint.directory.config_only:
            return Baking(words)
        tensors = residual_edits(bakeable(self.checkpoint), residuals)
        return Baking(words, tensors, marks(tensors, weight_files(self.checkpoint)))

    def length_edits(self, length: int) -> list[FileEdit]:
        """Raise the tokenizer's limit; a larger or absent one stays."""
        limit = (self.checkpoint.directory.tokenizer_config or {}).get(names.MODEL_MAX_LENGTH)
        if limit is None or not is_number(limit) or limit >= length:
            return []
        return [FileEdit(names.TOKENIZER_CONFIG_JSON, (names.MODEL_MAX_LENGTH,), limit, length)]

    def notes(self) -> tuple[str, ...]:
        files, notes = self.checkpoint.directory, []
        if files.config_only:
            notes.append(CONFIG_ONLY)
        elif files.pickles:
            left = ", ".join(path.name for path in files.pickles)
            notes.append(f"pickle files are not copied: {left}")
        notes += inspection.read_live(self.checkpoint.family)
        return (*notes, *inspection.remote_code(self.checkpoint.config, self.checkpoint.family))


def check_whole_heads(checkpoint: HfCheckpoint) -> None:
    """Raise InvalidRope if the file asks for partial rotation, which these families' code does not do.

    transformers 5 ignores the key for unscaled tables and stops at the first token for scaled ones.
    """
    part = checkpoint.section
    objects = (part, part.get(names.ROPE_PARAMETERS), part.get(names.ROPE_SCALING))
    for keys in (found for found in objects if isinstance(found, dict)):
        for key in (names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT):
            if keys.get(key) not in (None, 1):
                raise InvalidRope(
                    f"{shown(keys[key])} sets partial rotation, but {checkpoint.family.model_type} rotates whole heads",
                    where=f"{checkpoint.where}: {key}", try_=f"remove {key} from {names.CONFIG_JSON}",
                )  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufFormat:
    """A GGUF model in one file or several, and what llama.cpp does with its architecture."""

    checkpoint: GgufCheckpoint
    style: str = "GGUF"

    @cached_property
    def arch(self) -> Architecture:
        return described(self.checkpoint)

    @property
    def builds_on_tables(self) -> bool:
        return self.arch.vectors

    def read(self, runtime: str, edits: Sequence[FileEdit] = ()) -> Decoded:
        return decoded(runtime, self.checkpoint.edited(edits))

    @property
    def trained_length(self) -> tuple[TrainedLength, ...]:
        return inspection.trained_lengths(self.arch.name)

    def mscale(self, entry: LayerRope) -> float | None:
        return decoding.log_multiplier(Model.of(self.checkpoint)) or 1.0 if self.arch.mla else None

    def changed_layer_types(self, rope: RopeSet) -> list[str]:
        """Return the full layers, and the sliding ones where llama.cpp scales them along and one table served both."""
        full, rules = rope.entries[names.FULL_ATTENTION], self.arch.sliding
        if rules is None or not rules.scaled or rules.plain or rules.own_base:
            return [names.FULL_ATTENTION]
        assert full.table is not None
        tables = {kind: entry.table for kind, entry in rope.entries.items() if entry.table is not None}
        return [kind for kind, table in tables.items() if full.table.agrees(table)]

    def candidates(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[Candidate]:
        assert entry.rope_theta is not None
        found = gguf_encodings(_with_betas(target, derived), self.arch.name, entry.rope_theta, factor)
        return [Candidate(each.name, edits_of(each, self.arch.name, self.checkpoint)) for each in found]

    def length_candidates(self, target: RopeSet) -> list[Candidate]:
        return gguf_length_encodings(self.checkpoint, self.arch.name, target)

    def absent_context(self, length: int) -> list[FileEdit]:
        key = f"{self.arch.name}.{archs.CONTEXT_LENGTH}"
        if key in self.checkpoint.values:
            return []
        return [FileEdit(METADATA, (key,), ABSENT, plain_value(Value.of(ValueType.U32, length)))]

    def bake(self, residuals: Mapping[str, Residual]) -> Baking:
        raise LossyExport("extensions of GGUF files do not change the weights", where=self.checkpoint.where)

    def length_edits(self, length: int) -> list[FileEdit]:
        return removal(self.checkpoint)  # context_length is part of every encoding

    def notes(self) -> tuple[str, ...]:
        return ()


def _with_betas(target: RopeSet, derived: Derived) -> RopeSet:
    """Return the target with the ends of the ramp that the method's own keys state, for files that have keys for them."""
    stated = next(iter(derived.native), {})
    betas = {key: stated[key] for key in (names.BETA_FAST, names.BETA_SLOW) if key in stated}
    full = target.entries[names.FULL_ATTENTION]
    entries = {**target.entries, names.FULL_ATTENTION: replace(full, params={**full.params, **betas})}
    return replace(target, entries=entries) if betas else target
