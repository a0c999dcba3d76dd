"""The scores of a bake's layers before and after, on random activations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool import families
from ropetool.baking import LayerCheck, check_scores, reader, view_of
from ropetool.formats.hf import headers, open_checkpoint
from ropetool.plans import Plan
from ropetool.report.layout import columns


def checks_of(plan: Plan, source: Path, output: Path) -> list[LayerCheck]:
    """Return how the scores of every touched layer compare, on random activations.

    Raises: UnsupportedDtype, LossyExport, CheckpointError.
    """
    before, after = (open_checkpoint(path) for path in (source, output))
    family = families.get(plan.family)
    return check_scores(
        plan.tensors, view_of(before, family), reader(headers(before)), view_of(after, family), reader(headers(after))
    )


def checks_text(checks: Sequence[LayerCheck]) -> str:
    """Return what `ropetool bake --check` prints below the rest."""
    rows = [("layer", "kind", "largest score", "difference", "without the bake")]
    rows += [
        (str(c.layer), c.layer_type, f"{c.largest:.4g}", f"{c.difference:.2g}", f"{c.unbaked:.2g}") for c in checks
    ]
    return f"scores on random activations, before and after\n{columns(rows)}"
