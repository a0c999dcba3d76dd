"""An exported file held against the checkpoint: the same rotary tables, and the same distribution over the next token.

Runs both and judges by the gate of a verification; where the file stands, and what becomes of it, is not its to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import VerificationFailed
from ropetool.gguf_export.container import Progress
from ropetool.verification import floors
from ropetool.verification.kl_gate import KL, kl_checks, with_inexact_tables
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.results import FAIL, INEXACT, NOT_RUN, Check
from ropetool.verification.short_divergence import Lengths, short_divergence


def compare(
    source: Path, file: Path, kinds: Sequence[str], lengths: Lengths, progress: Progress
) -> tuple[Check, ...]:  # fmt: skip
    """Return how the file compares with the checkpoint that it was exported from, or imported to, in tables and in logits.

    kinds: of the numbers between the two, as floors.limit has them.
    Raises: VerificationFailed where it computes something else; CheckpointError where llama.cpp does not load it.
    """
    progress("comparing the tables", 0, 0)
    tables = same_tables(file, source, windows=lengths.window is None)
    _judge([tables], file)
    reference, target = HfCheckpoint.open(source), GgufCheckpoint.open(file)
    found = short_divergence(reference, target, lengths, progress)
    if isinstance(found, str):
        return (tables, Check(KL, None, None, NOT_RUN, found))
    # transformers computes with what stands for the numbers of a quantised checkpoint in a type of its own choice.
    own = ("bfloat16",) if "quantization_config" in reference.config else ()
    checks = kl_checks(found, None, floors.limit((*kinds, *own), floors.layers_of(target.stored)))
    checks = with_inexact_tables(checks) if tables.verdict == INEXACT else checks
    _judge(checks, file)
    return (tables, *checks)


def _judge(checks: Sequence[Check], file: Path) -> None:
    for check in checks:
        if check.verdict == FAIL:
            beyond = check.figure is not None and check.limit is not None and check.figure > check.limit
            figure = f" is {check.figure:.3g}, at most {check.limit:.3g} is allowed" if beyond else " differ"
            raise VerificationFailed(
                f"it does not compute what the checkpoint does, and was not kept: {check.name}{figure} ({check.detail})",
                where=str(file), try_="--no-check, which keeps it, then ropetool verify FILE --against SOURCE",
            )  # fmt: skip
