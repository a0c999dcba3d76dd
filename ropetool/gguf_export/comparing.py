"""Compare an exported file with the checkpoint: the RoPE tables, the hidden tensors and next-token predictions.

It runs both models and applies the limits of `verify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import VerificationFailed
from ropetool.gguf_export.container import Progress
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.verification import floors
from ropetool.verification.kl_gate import kl_checks, passes, with_inexact_tables
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.readback.terms import WEIGHTS
from ropetool.verification.readback.weights import compare_weights
from ropetool.verification.results import FAIL, INEXACT, KL, NOT_RUN, PASS, Check
from ropetool.verification.short_divergence import ModelLengths, short_divergence

QUERY_NORM = "attn_q_norm."  # in the names of GGUF's tensors


def compare(
    source: Path, file: Path, noises: Sequence[str], lengths: ModelLengths, progress: Progress, *, weights: bool = False
) -> tuple[Check, ...]:
    """Compare a GGUF file with the checkpoint of an export or import: tables, then logits.

    noises: the number formats that differ between the two, by their names in `floors`.
    weights: whether to compare also the tensors that norms hide from the logits, with the tensors of an export.
    Raises: VerificationFailed if the results differ; CheckpointError if llama.cpp does not load the file.
    """
    progress("comparing the tables", 0, 0)
    tables = same_tables(file, source, windows=lengths.window is None)
    _judge([tables], file)
    reference, target = HfCheckpoint.open(source), GgufCheckpoint.open(file)
    exact = [tables, *(_hidden_weights(reference, target, noises) if weights else ())]
    _judge(exact, file)
    # transformers chooses the type that it computes with for a quantised checkpoint.
    own = ("bfloat16",) if QUANTIZATION_CONFIG in reference.config else ()
    allowed = floors.limit((*noises, *own), floors.layers_of(target.stored))
    compared = short_divergence(reference, target, lengths, progress, lambda divergence: passes(divergence, allowed))
    if isinstance(compared, str):
        return (*exact, Check(KL, None, None, NOT_RUN, compared))
    divergence, noise = compared
    checks = kl_checks(divergence, None, allowed, noise=noise)
    checks = with_inexact_tables(checks) if tables.verdict == INEXACT else checks
    _judge(checks, file)
    return (*exact, *checks)


def _hidden_weights(reference: HfCheckpoint, target: GgufCheckpoint, noises: Sequence[str]) -> list[Check]:
    """Return the check of tensors that norms hide from the logits, or no check for a model without norms of queries.

    Such a norm cancels a factor on q_proj, so the tensor differs, but the logits do not.
    """
    if not set(noises) <= {"f32", "f16", "bf16"} or reference.family.export is None:
        return []
    if not any(QUERY_NORM in name for name in target.stored):
        return []
    comparison = compare_weights(target, reference, None)
    verdict = FAIL if comparison.differences else PASS
    return [
        Check(
            WEIGHTS,
            float(len(comparison.differences)),
            0.0,
            verdict,
            comparison.sentence("tensors match the checkpoint"),
        )
    ]


def _judge(checks: Sequence[Check], file: Path) -> None:
    for check in checks:
        if check.verdict == FAIL:
            beyond = check.figure is not None and check.limit is not None and check.figure > check.limit
            figure = f" is {check.figure:.3g}, at most {check.limit:.3g} is allowed" if beyond else " differ"
            raise VerificationFailed(
                f"the file does not compute the same as the checkpoint and was deleted: {check.name}{figure} ({check.detail})",
                where=str(file), try_="--no-check, which keeps the file, then ropetool verify FILE --against SOURCE",
            )  # fmt: skip
