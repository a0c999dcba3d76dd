"""GGUF models as the search sees them: ways to write a table, and the other edits that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NoReturn

from ropetool import names
from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint, plain_value
from ropetool.checkpoint.gguf_keys import removal
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.escaping import command
from ropetool.families.family import TrainedLength
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import NotKnown, inspection
from ropetool.runtimes.decoded import Decoded, EncodedTarget, decoded
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import mscale
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.encodings import edits_of, gguf_encodings, gguf_length_encodings
from ropetool.runtimes.llama_cpp.layers import ModelKeys, learned_positions

if TYPE_CHECKING:
    from ropetool.weights.residual import Residual


def described(checkpoint: GgufCheckpoint) -> Architecture:
    """Return llama.cpp's description of an architecture.

    Raises: InvalidRope for learned positions. UnknownFamily for an unknown architecture.
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
class GgufFormat:
    """A GGUF model in one or several files."""

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
        return mscale.mscale_all_dim(ModelKeys.of(self.checkpoint)) or 1.0 if self.arch.mla else None

    def changed_layer_types(self, rope: RopeSet) -> list[str]:
        """Return the full layers, and sliding layers if llama.cpp scales them too and they have the same table."""
        full, rules = rope.entries[names.FULL_ATTENTION], self.arch.sliding
        if rules is None or not rules.scaled or rules.plain or rules.own_base:
            return [names.FULL_ATTENTION]
        assert full.table is not None
        tables = {layer_type: entry.table for layer_type, entry in rope.entries.items() if entry.table is not None}
        return [layer_type for layer_type, table in tables.items() if full.table.agrees(table)]

    def candidates(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[EncodedTarget]:
        assert entry.rope_theta is not None
        encodings_ = gguf_encodings(_with_betas(target, derived), self.arch.name, entry.rope_theta, factor)
        return [
            EncodedTarget(each.name, partial(edits_of, each, self.arch.name, self.checkpoint)) for each in encodings_
        ]

    def length_candidates(self, target: RopeSet) -> list[EncodedTarget]:
        return gguf_length_encodings(self.checkpoint, self.arch.name, target)

    def absent_context(self, length: int) -> list[FileEdit]:
        key = f"{self.arch.name}.{archs.CONTEXT_LENGTH}"
        if key in self.checkpoint.values:
            return []
        return [FileEdit(METADATA, (key,), ABSENT, plain_value(Value.of(ValueType.U32, length)))]

    def bake(self, residuals: Mapping[str, Residual]) -> NoReturn:
        raise LossyExport("extensions of GGUF files do not change the weights", where=self.checkpoint.where)

    def length_edits(self, length: int) -> list[FileEdit]:
        return removal(self.checkpoint)  # every encoding already sets context_length

    def notes(self) -> tuple[str, ...]:
        return ()


def _with_betas(target: RopeSet, derived: Derived) -> RopeSet:
    """Return the target with the method's own beta_fast and beta_slow, for files that have keys for them."""
    native_keys = next(iter(derived.native), {})
    betas = {key: native_keys[key] for key in (names.BETA_FAST, names.BETA_SLOW) if key in native_keys}
    full = target.entries[names.FULL_ATTENTION]
    entries = {**target.entries, names.FULL_ATTENTION: replace(full, params={**full.params, **betas})}
    return replace(target, entries=entries) if betas else target
