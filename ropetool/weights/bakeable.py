"""What a bake asks of a checkpoint's format, and the check that its runtime reads the rest from the edited keys."""

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
    """A checkpoint as something to bake into.

    targets: the rows that make its queries and keys, and what its runtime computes. own_factors: the layer types whose
    attention factor has a key of its own; others follow the keys of these. score_follows: whether MLA's multiplier of
    the whole score may change with that key, so that the weights take the rest.
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
        """Return the edits after which keys ask for these attention factors by layer type.

        keep_softmax: MLA's multiplier of the whole score is asked for as before, or no longer.
        Raises: InvalidRope or AmbiguousRope for keys that break a rule; LossyExport where there is no such key.
        """

    def score_edit(self, factors: Mapping[str, float]) -> FileEdit:
        """Return the edit by which the key that multiplies the score holds the factor on cos and sin of all layers.

        Raises: LossyExport or ConfigError where there is none.
        """

    def layout_edit(self, to: str) -> FileEdit:
        """Return the edit after which keys say that channels are in this order, half or interleaved.

        Raises: LossyExport where no key says the order; ConfigError for another one.
        """

    def still(self, pairs: Sequence[int]) -> tuple[list[TensorEdit], list[FileEdit]]:
        """Return the edits after which these pairs of the full-attention layers turn by nothing.

        Raises: LossyExport where neither keys nor tensors can say such a table.
        """

    def placed(self, edits: list[TensorEdit]) -> tuple[TensorEdit, ...]:
        """Return the edits that change something, those of blocks on the scales of the blocks.

        Raises: UnsupportedDtype where the stored type cannot take the factor; ConfigError for another type to store.
        """

    def other_edits(self, tensors: Sequence[TensorEdit]) -> list[FileEdit]:
        """Return the edits of what would be untrue after these of tensors."""


def computed(checkpoint: Checkpoint) -> RopeSet:
    """Return what the runtime of its format computes from a checkpoint.

    Raises: LossyExport if it stops with an error.
    """
    found = decoded(checkpoint.runtime, checkpoint)
    if found.rope is None:
        raise LossyExport(found.problem(checkpoint.stated_in), where=checkpoint.where)
    return found.rope


def check_computed(checkpoint: Checkpoint, edits: Sequence[FileEdit], target: RopeSet) -> None:
    """Return if the runtime of its format reads the edited checkpoint as the target.

    Raises: LossyExport with the difference: the keys can then not say what the weights leave to them.
    """
    objection = decoded(checkpoint.runtime, checkpoint.edited(edits)).objection(target)
    if objection:
        raise LossyExport(
            f"{checkpoint.runtime} would not read the remaining rotation from {checkpoint.keys_in}: {objection}",
            where=checkpoint.where,
        )
