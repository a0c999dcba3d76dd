"""Comparison of the logits of a target without a record with its implied extension, rebuilt from the baseline.

It runs after readback if the types or the formats differ. Otherwise equal bytes and tables give equal logits, so a run
is not necessary.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ropetool.checkpoint.fingerprints import ALL_BELOW
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import RopetoolError
from ropetool.files.counting import byte_size
from ropetool.plans.applying import apply
from ropetool.plans.claims import Claim, claim_of
from ropetool.verification import floors
from ropetool.verification.kl_gate import kl_checks, passes, with_inexact_tables
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import FAIL, INEXACT, KL, NOT_ASKED, PASS, Check, DivergenceResult, Noise
from ropetool.verification.short_divergence import ModelLengths, Progress, short_divergence


def kl_to_claim(
    target: Checkpoint, source: Checkpoint, terms: Terms, readback: Sequence[Check], kinds: Sequence[str],
    lengths: ModelLengths, progress: Progress,
) -> list[Check]:  # fmt: skip
    """Return the checks of KL between a target and its implied extension of `source`.

    The list is empty if a check of readback failed, the weights were trained, both have the same bytes, or the target
    is a directory and the source a GGUF file. If the extension cannot run, a check has the reason and does not affect
    the verdict.

    readback: the checks of readback.
    kinds: the types whose rounding makes the two differ, by their names in `floors`.
    """
    if isinstance(target, HfCheckpoint) and isinstance(source, GgufCheckpoint):
        return []
    if terms.finetuned or any(check.verdict == FAIL for check in readback) or _same_types(target, source):
        return []
    inexact = any(check.verdict == INEXACT for check in readback)
    words = "the baseline" if inexact else "the extension rebuilt from the baseline"
    allowed = floors.limit(kinds, floors.layers_of(target.stored))
    compared: tuple[DivergenceResult, Noise | None] | str
    try:
        if inexact:  # an export without an extension, with the nearest tables that its format can store
            compared = short_divergence(source, target, lengths, progress, lambda result: passes(result, allowed))
        else:
            claim = claim_of(target, source, stated=terms.stated, trained_length=terms.trained_length)
            words = f"the baseline with {claim.words}"
            with tempfile.TemporaryDirectory(prefix="ropetool-remade-") as folder:
                compared = _compared(target, _extended(claim, source, Path(folder)), lengths, progress, allowed)
    except RopetoolError as error:
        compared = error.without_folders()
    if isinstance(compared, str):
        return [Check(KL, None, None, NOT_ASKED, f"not compared with {words}: {compared}")]
    checks = kl_checks(compared[0], None, allowed, noise=compared[1])
    checks = with_inexact_tables(checks) if inexact else checks
    return [dataclasses.replace(check, detail=f"{check.detail}, against {words}") for check in checks]


def _compared(
    target: Checkpoint,
    extended: Checkpoint | str,
    lengths: ModelLengths,
    progress: Progress,
    allowed: floors.Floor | None,
) -> tuple[DivergenceResult, Noise | None] | str:
    """Return the divergence of the two, or why they cannot be compared. extended: the extension, or why it is missing."""
    if isinstance(extended, str):
        return extended
    tables = same_tables(target, extended)
    if tables.verdict != PASS:
        return f"the tables in {extended.runtime} and {target.runtime} differ: {tables.detail}"
    return short_divergence(extended, target, lengths, progress, lambda result: passes(result, allowed))


def _same_types(target: Checkpoint, source: Checkpoint) -> bool:
    """Return whether equal tensors have equal bytes: both have the same format and the same types of tensors."""
    if target.format != source.format:
        return False
    ours, theirs = target.stored, source.stored
    return all(ours[name].dtype == theirs[name].dtype for name in ours.keys() & theirs.keys())


def _extended(claim: Claim, source: Checkpoint, folder: Path) -> Checkpoint | str:
    """Write the implied extension of the source to a folder and return it, or return the reason for not writing it.

    Its weights are links if folder and source are on the same file system. Raises: RopetoolError if it cannot be
    written.
    """
    if not claim.edits:
        return source
    if claim.plan is None:
        return "only keys of `--stated` were changed"
    size = sum(tensor.nbytes for tensor in source.stored.values())
    links = source.path.is_dir() and os.stat(folder).st_dev == os.stat(source.path).st_dev
    if size > ALL_BELOW and not links:
        return f"this would copy {byte_size(size)} of weights"
    plan = dataclasses.replace(claim.plan, edits=claim.edits)
    place = folder / ("model" if source.path.is_dir() else source.path.name)
    return open_checkpoint(apply(plan, source.path, place, sidecars=False).output)
