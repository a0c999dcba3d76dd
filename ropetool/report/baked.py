"""The scores of a bake's layers before and after, on random activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.plans.plan import Plan
from ropetool.runtimes.llama_cpp import folding
from ropetool.sections import Part, listing
from ropetool.weights.checking import LayerCheck, Reader, check_scores, reader
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable

KEEPS_SCORES = ("attention-factor", "softmax-scale", "layout", "shift-safe", "rearch")


WITHOUT = "without --check"


def check_possible(plan: Plan, source: Checkpoint) -> None:
    """Raise where the scores cannot be compared, or are meant to change; before anything is written.

    Raises: ConfigError, LossyExport, UnsupportedDtype.
    """
    what = plan.params.get("bake")
    if what not in KEEPS_SCORES or not plan.tensors:
        raise ConfigError(
            f"the check needs scores that stay the same, but {what} " + ("changes them" if plan.tensors else "does not change weights"),
            where="--check", try_=WITHOUT,
        )  # fmt: skip
    if plan.format == "gguf" and plan.family in folding.LATENT:
        raise LossyExport(
            "ropetool cannot compute MLA scores from a GGUF file, because its keys are transposed", where=str(source.path),
            try_=WITHOUT,
        )  # fmt: skip
    targets, read = _read(source)
    try:
        check_scores(plan.tensors, targets, read, targets, read)
    except UnsupportedDtype as error:
        raise UnsupportedDtype(
            f"--check cannot read the weights: {error.message}",
            where=error.where or str(source.path),
            try_=WITHOUT,
        ) from None


def checks_of(plan: Plan, source: Checkpoint, output: Path) -> list[LayerCheck]:
    """Return how the scores of every touched layer compare, on random activations.

    Raises: UnsupportedDtype, LossyExport, CheckpointError.
    """
    (before, read_before), (after, read_after) = (_read(side) for side in (source, open_checkpoint(output)))
    return check_scores(plan.tensors, before, read_before, after, read_after)


def _read(checkpoint: Checkpoint) -> tuple[FoldTargets, Reader]:
    return bakeable(checkpoint).targets, reader(checkpoint.stored)


def checks_parts(checks: Sequence[LayerCheck]) -> Iterator[Part]:
    """Yield what `ropetool bake --check` prints below the rest."""
    rows = [
        (str(check.layer), check.layer_type, f"{check.largest:.4g}", f"{check.difference:.2g}", f"{check.unbaked:.2g}")
        for check in checks
    ]
    head = ("layer", "kind", "largest score", "difference", "without bake")
    yield listing("scores on random activations, before and after", rows, head=head, whole=True)
