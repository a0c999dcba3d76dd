"""The gate for the export of a checkpoint from ropetool: a certificate, or a measurement of two minutes.

The checkpoint is always compared with its record. If it is not measured, a note has the reason, and the export goes on.
"""

from __future__ import annotations

import math

from ropetool.checkpoint import certificate
from ropetool.checkpoint.certificate import FAILED, GRADES, rank
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CheckpointError, RopetoolError
from ropetool.escaping import command
from ropetool.gguf_export.container import Progress
from ropetool.verification.checkpoints import verify_target
from ropetool.verification.options import VerifyOptions
from ropetool.verification.results import FAIL
from ropetool.verification.session import Session
from ropetool.verification.verdict.checkpoint import read_alone
from ropetool.verification.verdict.reading import Shape

MINUTES = 2.0  # the longest measurement of an export
SPEED = 5e10  # multiplications and additions per second, which every current machine reaches
TEXTS = 3  # the fewest texts for a verdict


def vouched(source: HfCheckpoint, context_length: int, required: str, tell: Progress) -> tuple[str, ...]:
    """Return notes on the verification of a checkpoint from ropetool.

    required: the grade that its certificate must have; empty for none.
    Raises: CheckpointError if it failed a verification, differs from its record, or lacks the grade.
    """
    path = source.path
    _refuse_failed(source)
    lacking = certificate.shortfall(path, context_length)
    if required:
        _refuse_below(source, required, lacking)
    if lacking:
        session = Session.open(path, None, None)
        if seconds(session) < 60 * MINUTES:
            lacking = _measured(source, tell) or certificate.shortfall(path, context_length)
            _refuse_failed(source)
    if not lacking:
        return (f"certificate of the checkpoint: {certificate.state(path).why}",)
    _refuse_changed(session)
    return (f"not measured: {lacking}; `{command('ropetool', 'verify', path)}` measures it",)


def seconds(session: Session) -> float:
    """Return an estimate of the time of a verdict: three texts, and two operations for each weight and token."""
    shape = Shape.of(session.trained, max(session.trained, session.context), False)
    weights = sum(math.prod(tensor.shape) for tensor in session.target.stored.values())
    return TEXTS * 2 * weights * (shape.target + shape.trained + shape.short) / SPEED


def _measured(source: HfCheckpoint, tell: Progress) -> str:
    """Verify a checkpoint for at most two minutes. Return the error that prevented it, or an empty text."""
    try:
        verify_target(
            source.path, VerifyOptions(budget=MINUTES, far_text=False), progress=lambda stage, *_: tell(stage, 0, 0)
        )
    except RopetoolError as error:
        return error.message
    return ""


def _refuse_below(source: HfCheckpoint, required: str, lacking: str) -> None:
    """Raise CheckpointError if the certificate is missing or has a lower grade.

    lacking: why it is missing, or empty.
    """
    state = certificate.state(source.path)
    if lacking or state.certificate is None or rank(GRADES, state.certificate.grade) < rank(GRADES, required):
        raise CheckpointError(
            f"--require needs grade {required}, but {lacking or state.why}", where=str(source.path),
            try_=command("ropetool", "verify", source.path, "--suite", "standard", "--grade", required),
        )  # fmt: skip


def _refuse_failed(source: HfCheckpoint) -> None:
    state = certificate.state(source.path)
    if state.name == FAILED:
        raise CheckpointError(
            f"is an output of ropetool, and {state.why}", where=str(source.path), try_=certificate.remedy(source.path)
        )


def _refuse_changed(session: Session) -> None:
    """Raise CheckpointError for a checkpoint that differs from its record."""
    failed = [check for check in read_alone(session) if check.verdict == FAIL]
    if failed:
        raise CheckpointError(
            f"differs from its record: {failed[0].name}: {failed[0].detail}", where=str(session.target.path),
            try_="extend its source again, or pass --allow-unverified",
        )  # fmt: skip
