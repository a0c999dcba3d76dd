"""The scores of each layer before and after a bake, compared on random activations."""

from __future__ import annotations

from pathlib import Path

from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.plans.plan import Plan
from ropetool.runtimes.llama_cpp import folding
from ropetool.weights.checking import LayerCheck, Reader, check_scores, reader
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable

KEEPS_SCORES = ("attention-factor", "softmax-scale", "layout", "shift-safe", "rearch")
WITHOUT = "without --check"


def check_possible(plan: Plan, source: Checkpoint) -> None:
    """Return if the scores can be compared and stay the same. Call this before the bake is written.

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
    """Return the differences of the scores in each changed layer, on random activations.

    Raises: UnsupportedDtype, LossyExport, CheckpointError.
    """
    (before, read_before), (after, read_after) = (_read(side) for side in (source, open_checkpoint(output)))
    return check_scores(plan.tensors, before, read_before, after, read_after)


def _read(checkpoint: Checkpoint) -> tuple[FoldTargets, Reader]:
    return bakeable(checkpoint).targets, reader(checkpoint.stored)
