"""The scores of a bake's layers before and after, on random activations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.plans.plan import Plan
from ropetool.report.layout import columns
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.weights import FoldTargets, LayerCheck, bakeable, check_scores, reader
from ropetool.weights.checking import Reader
from ropetool.weights.gguf_writing import gguf_reader

KEEPS_SCORES = ("attention-factor", "softmax-scale", "layout", "shift-safe", "rearch")


def check_possible(plan: Plan, where: Path) -> None:
    """Raise where the scores cannot be compared, or are meant to change; before anything is written.

    Raises: ConfigError, LossyExport, UnsupportedDtype.
    """
    what = plan.params.get("bake")
    if what not in KEEPS_SCORES or not plan.tensors:
        raise ConfigError(
            f"it compares scores that stay the same, and {what} " + ("changes them" if plan.tensors else "touches no weight"),
            where="--check", try_="leave out --check",
        )  # fmt: skip
    if plan.format == "gguf" and archs.get(plan.family).mla:
        raise LossyExport(
            "the scores of MLA are not computed from a GGUF file, whose keys lie transposed", where=str(where),
            try_="leave out --check",
        )  # fmt: skip
    targets, read = _read_gguf(where) if plan.format == "gguf" else _read(where, plan)
    try:
        check_scores(plan.tensors, targets, read, targets, read)
    except UnsupportedDtype as error:
        raise UnsupportedDtype(
            f"--check cannot read the weights: {error.message}",
            where=error.where or str(where),
            try_="leave out --check",
        ) from None


def checks_of(plan: Plan, source: Path, output: Path) -> list[LayerCheck]:
    """Return how the scores of every touched layer compare, on random activations.

    Raises: UnsupportedDtype, LossyExport, CheckpointError.
    """
    sides = [_read_gguf(path) if plan.format == "gguf" else _read(path, plan) for path in (source, output)]
    (before, read_before), (after, read_after) = sides
    return check_scores(plan.tensors, before, read_before, after, read_after)


def _read(path: Path, plan: Plan) -> tuple[FoldTargets, Reader]:
    checkpoint = HfCheckpoint.open(path)
    return bakeable(checkpoint).targets, reader(checkpoint.headers)


def _read_gguf(path: Path) -> tuple[FoldTargets, Reader]:
    model = GgufCheckpoint.open(path)
    return bakeable(model).targets, gguf_reader(model.files)


def checks_text(checks: Sequence[LayerCheck]) -> str:
    """Return what `ropetool bake --check` prints below the rest."""
    rows = [("layer", "kind", "largest score", "difference", "without the bake")]
    rows += [
        (str(c.layer), c.layer_type, f"{c.largest:.4g}", f"{c.difference:.2g}", f"{c.unbaked:.2g}") for c in checks
    ]
    return f"scores on random activations, before and after\n{columns(rows)}"
