"""The interface of a bake to a checkpoint of either format, and the check that its runtime reads the edited keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import LossyExport
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.decoded import decoded
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets


class Bakeable(Protocol):
    """A checkpoint to bake into.

    checkpoint: the checkpoint.
    targets: the rows of its queries and keys, and the tables of its runtime.
    own_factors: the layer types with a separate key for the attention factor. Other layer types use the keys of these.
    score_follows: whether MLA's multiplier of the whole score may change with the key of the attention factor. The
      weights then get the difference.
    """

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def targets(self) -> FoldTargets: ...
    @property
    def own_factors(self) -> tuple[str, ...]: ...
    @property
    def score_follows(self) -> bool: ...

    def factor_edits(self, factors: Mapping[str, float], *, keep_softmax: bool) -> list[FileEdit]:
        """Return the edits that set the keys to these attention factors, by layer type.

        keep_softmax: whether the keys keep MLA's multiplier of the whole score.
        Raises: InvalidRope or AmbiguousRope for keys that break a rule; LossyExport if there is no such key.
        """

    def score_edit(self, factors: Mapping[str, float]) -> FileEdit:
        """Return the edit that puts the factor of cos and sin of all layers into the key that multiplies the score.

        Raises: LossyExport or ConfigError if there is no such key.
        """

    def layout_edit(self, to: str) -> FileEdit:
        """Return the edit that sets the channel order in the keys, half or interleaved.

        Raises: LossyExport if no key sets the order; ConfigError for an invalid order.
        """

    def still(self, pairs: Sequence[int]) -> tuple[list[TensorEdit], list[FileEdit]]:
        """Return the edits that stop the rotation of these pairs in the full-attention layers.

        Raises: LossyExport if neither keys nor tensors can store such a table.
        """

    def placed(self, edits: list[TensorEdit]) -> tuple[TensorEdit, ...]:
        """Return the edits that have an effect. Edits of quantised blocks change the scales of the blocks.

        Raises: UnsupportedDtype if the stored type cannot be multiplied; ConfigError for an invalid type to store.
        """

    def other_edits(self, tensors: Sequence[TensorEdit]) -> list[FileEdit]:
        """Return the edits of keys that these edits of tensors would make wrong."""


def computed(checkpoint: Checkpoint) -> RopeSet:
    """Return the tables that the runtime of the format computes from a checkpoint.

    Raises: LossyExport if the runtime refuses the checkpoint.
    """
    reading = decoded(checkpoint.runtime, checkpoint)
    if reading.rope is None:
        raise LossyExport(reading.problem(checkpoint.stated_in), where=checkpoint.where)
    return reading.rope


def check_computed(checkpoint: Checkpoint, edits: Sequence[FileEdit], target: RopeSet) -> None:
    """Return if the runtime of the format decodes the edited checkpoint to the target.

    Raises: LossyExport with the difference, if the keys cannot store the part that the weights do not get.
    """
    objection = decoded(checkpoint.runtime, checkpoint.edited(edits)).objection(target)
    if objection:
        raise LossyExport(
            f"{checkpoint.runtime} would not read the remaining rotation from {checkpoint.keys_in}: {objection}",
            where=checkpoint.where,
        )
