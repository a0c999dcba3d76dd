"""The logits of a target without a record against those of the extension that it says it is, made of the baseline again.

It comes after readback and confirms in the runtimes what that read in files: other types, and another format. Where both
hold the same bytes in one format, and the tables agree, the logits do too, and nothing is run.
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
from ropetool.verification.kl_gate import KL, kl_checks, passes, with_inexact_tables
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import FAIL, INEXACT, NOT_ASKED, PASS, Check, DivergenceResult, Noise
from ropetool.verification.short_divergence import ModelLengths, Progress, short_divergence


def kl_to_claim(
    target: Checkpoint, source: Checkpoint, terms: Terms, readback: Sequence[Check], kinds: Sequence[str],
    lengths: ModelLengths, progress: Progress,
) -> list[Check]:  # fmt: skip
    """Return the checks of KL between a target and the extension of `source` that it claims to be.

    readback: its checks; where one failed, where the weights were trained, or where both hold the same bytes, nothing is
    to be found by running. kinds: the types that tell the two apart, as `floors` names them. What keeps the extension
    from being run is said, and gates nothing. A directory is not made of a GGUF file.
    """
    if isinstance(target, HfCheckpoint) and isinstance(source, GgufCheckpoint):
        return []
    if terms.finetuned or any(check.verdict == FAIL for check in readback) or _same_types(target, source):
        return []
    inexact = any(check.verdict == INEXACT for check in readback)
    words = "the baseline" if inexact else "the extension rebuilt from the baseline"
    allowed = floors.limit(kinds, floors.layers_of(target.stored))
    found: tuple[DivergenceResult, Noise | None] | str
    try:
        if inexact:  # an export without an extension, whose tables are the nearest that its format holds
            found = short_divergence(source, target, lengths, progress, lambda found: passes(found, allowed))
        else:
            claim = claim_of(target, source, stated=terms.stated, trained_length=terms.trained_length)
            words = f"the baseline with {claim.words}"
            with tempfile.TemporaryDirectory(prefix="ropetool-remade-") as folder:
                found = _compared(target, _made(claim, source, Path(folder)), lengths, progress, allowed)
    except RopetoolError as error:
        found = error.without_folders()
    if isinstance(found, str):
        return [Check(KL, None, None, NOT_ASKED, f"not compared with {words}: {found}")]
    checks = kl_checks(found[0], None, allowed, noise=found[1])
    checks = with_inexact_tables(checks) if inexact else checks
    return [dataclasses.replace(check, detail=f"{check.detail}, against {words}") for check in checks]


def _compared(
    target: Checkpoint, made: Checkpoint | str, lengths: ModelLengths, progress: Progress, allowed: floors.Floor | None
) -> tuple[DivergenceResult, Noise | None] | str:
    """Return how far apart the two are; a sentence where that would say nothing, or was not to be had."""
    if isinstance(made, str):
        return made
    tables = same_tables(target, made)
    if tables.verdict != PASS:
        return f"the tables in {made.runtime} and {target.runtime} differ: {tables.detail}"
    return short_divergence(made, target, lengths, progress, lambda found: passes(found, allowed))


def _same_types(target: Checkpoint, source: Checkpoint) -> bool:
    """Return whether equal tensors are equal bytes: one format, and no tensor is of another type."""
    if target.format != source.format:
        return False
    ours, theirs = target.stored, source.stored
    return all(ours[name].dtype == theirs[name].dtype for name in ours.keys() & theirs.keys())


def _made(claim: Claim, source: Checkpoint, folder: Path) -> Checkpoint | str:
    """Return the claimed extension of the source, with its weights linked where the file system allows, or why not.

    Raises: RopetoolError where it cannot be written.
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
