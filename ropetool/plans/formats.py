"""A checkpoint format as the search sees it: ways to write a table, and the other edits that it needs.

Here is the format of Hugging Face directories. gguf_format.py has the format of GGUF models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import InvalidRope, LossyExport
from ropetool.families.family import TrainedLength
from ropetool.files import parts
from ropetool.files.hf.jsontext import shown
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet, is_number
from ropetool.runtimes import inspection
from ropetool.runtimes.config_encodings import config_edits, encodings, length_encodings
from ropetool.runtimes.decoded import Decoded, EncodedTarget, decoded

if TYPE_CHECKING:
    from ropetool.weights.edits import TensorEdit
    from ropetool.weights.residual import Residual

CONFIG_ONLY = "the source has no weights, so the output has none either"


@dataclass(frozen=True)
class Baking:
    """The changes in weights.

    words: the changes in words.
    tensors: the changes as edits. Empty if the checkpoint has no weights.
    weight_files: the identity of each file that they touch, by name.
    """

    words: tuple[str, ...] = ()
    tensors: tuple[TensorEdit, ...] = ()
    weight_files: Mapping[str, str] = field(default_factory=dict)


class Format(Protocol):
    """A checkpoint that tables are written into.

    checkpoint: the checkpoint.
    style: the style of its rope keys.
    trained_length: shipped context lengths that differ from the trained length.
    builds_on_tables: whether its keys or tensors can store a scaling on top of a scaled table.
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
        """Return how the runtime decodes the checkpoint with these edits."""

    def mscale(self, entry: LayerRope) -> float | None:
        """Return DeepSeek's mscale_all_dim, or 1 if it is not set.

        None without MLA, because the scores then have no scale.
        """

    def changed_layer_types(self, rope: RopeSet) -> list[str]:
        """Return the layer types that get the new table: full attention, and types that share its table by design."""

    def candidates(
        self, entry: LayerRope, derived: Derived, target: RopeSet, trained_length: int, factor: float
    ) -> list[EncodedTarget]:
        """Return the ways to write the target, in order of preference."""

    def length_candidates(self, target: RopeSet) -> list[EncodedTarget]:
        """Return the ways to set the context length and keep the tables, in order of preference."""

    def absent_context(self, length: int) -> list[FileEdit]:
        """Return the edit that sets this context length, if the file does not set one but needs it to load.

        Else nothing.
        """

    def bake(self, residuals: Mapping[str, Residual]) -> Baking:
        """Return the edits of weights for the factors that the keys cannot store.

        Raises: CheckpointError, LossyExport if the weights cannot store them exactly.
        """

    def length_edits(self, length: int) -> list[FileEdit]:
        """Return other edits that a new length needs, and the removal of keys that would be wrong."""

    def notes(self) -> tuple[str, ...]:
        """Return messages about the source."""


def format_of(checkpoint: Checkpoint, config_style: str | None = None) -> Format:
    """Return an open checkpoint as a format. config_style: the style of the output. None keeps the present one.

    Raises: CheckpointError, ConfigError, UnknownFamily.
    """
    if checkpoint.format == "hf":
        return HfFormat.of(checkpoint, config_style)
    from ropetool.plans.gguf_format import GgufFormat  # a directory does not need llama.cpp's rules

    form = GgufFormat(checkpoint)
    _ = form.arch  # raises UnknownFamily for an unknown architecture, before any other error
    return form


def adapter_notes(path: Path) -> tuple[str, ...]:
    """Return a note if there is a LoRA adapter next to the weights. It does not fit the weights after a bake."""
    adapters = sorted(path.rglob("adapter_config.json"))
    if not adapters:
        return ()
    return (
        f"the adapter in {adapters[0].parent} was trained on the old weights and does not fit the output: merge it before you bake",
    )


@dataclass(frozen=True, eq=False)
class HfFormat:
    """A Hugging Face directory.

    checkpoint: the directory.
    style: the config style of the output.
    builds_on_tables: always true, see `Format`.
    """

    checkpoint: HfCheckpoint
    style: str
    builds_on_tables: bool = True

    @classmethod
    def of(cls, checkpoint: HfCheckpoint, config_style: str | None) -> HfFormat:
        files = checkpoint.directory
        if files.pickle_only:
            raise parts.pickled(str(files.path), files.pickles[0].name)
        _ = checkpoint.headers  # raises an error for broken weights, before any other error
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
    ) -> list[EncodedTarget]:
        return [
            EncodedTarget(name, partial(config_edits, self.checkpoint, keys, target, self.style), in_weights)
            for name, keys, in_weights in encodings(entry, derived, trained_length, self.checkpoint.family)
        ]

    def length_candidates(self, target: RopeSet) -> list[EncodedTarget]:
        return length_encodings(self.checkpoint, target, self.style)

    def absent_context(self, length: int) -> list[FileEdit]:
        return []

    def bake(self, residuals: Mapping[str, Residual]) -> Baking:
        # Only an encoding that leaves a factor to the weights needs the code that changes weights.
        from ropetool.weights.opening import bakeable
        from ropetool.weights.residual import residual_edits, residual_words
        from ropetool.weights.weight_files import weight_files
        from ropetool.weights.writing import marks

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
        """Return the edit that raises the tokenizer's limit. A larger or absent limit stays."""
        limit = (self.checkpoint.directory.tokenizer_config or {}).get(names.MODEL_MAX_LENGTH)
        if not is_number(limit) or limit >= length:
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
    """Raise InvalidRope if the file sets partial rotation, but the code of the family always rotates whole heads.

    transformers 5 ignores the key for unscaled tables and stops at the first token for scaled ones.
    """
    part = checkpoint.section
    objects = (part, part.get(names.ROPE_PARAMETERS), part.get(names.ROPE_SCALING))
    for keys in (each for each in objects if isinstance(each, dict)):
        if "proportional" in (keys.get(names.ROPE_TYPE), keys.get(names.LEGACY_TYPE)):
            continue  # the share is a key of this type, which also rotates whole heads
        for key in (names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT):
            if keys.get(key) not in (None, 1):
                raise InvalidRope(
                    f"{shown(keys[key])} sets partial rotation, but {checkpoint.family.model_type} rotates whole heads",
                    where=f"{checkpoint.where}: {key}", try_=f"remove {key} from {names.CONFIG_JSON}",
                )  # fmt: skip
