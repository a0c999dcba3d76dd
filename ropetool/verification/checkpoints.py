"""Verification of a checkpoint by path or Hub id: the three questions by default, or a whole suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command as command_line
from ropetool.plans.basis import Unpack
from ropetool.verification.options import MINUTES, VerifyArguments, VerifyOptions
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners.llama_cache import check_cache_type
from ropetool.verification.scoring import Progress
from ropetool.verification.session import Session
from ropetool.verification.verdict.checkpoint import answer
from ropetool.verification.verdict.pacing import Clock


def verify_checkpoint(
    target: str | Path,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[VerifyArguments],
) -> VerifyResult:
    """Verify an extension within a time limit: read the file back, and measure short texts and the full length.

    The result has the three answers in `answers`. These options select a whole suite instead, by default the standard
    one: suite, measures, lengths, segments, trials, limits, against, judge, lm_eval, engine, compare_with. The result
      is certified in the target's record. Without a baseline and a record, the verdict is partial at best.

    options: the fields of `VerifyOptions`, by name.
    progress: called with a stage, and the finished and total tokens.
    say: called with sentences about the work ahead.

    Raises: CheckpointError, ConfigError.
    """
    return verify_target(target, VerifyOptions(**options), progress=progress, say=say)


def verify_target(
    target: str | Path,
    options: VerifyOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> VerifyResult:
    """Verify a checkpoint as `verify_checkpoint` does, with these options. Raises: CheckpointError, ConfigError."""
    clock = Clock(60 * (MINUTES if options.budget is None else options.budget))
    session = Session.open(target, options.baseline, options.terms)
    _check_cache_type(session.target, options.cache_type)
    if not options.of_suites:
        return answer(session, options, clock, progress)
    from ropetool.verification.whole_suites import measure_suites  # which loads every measurement

    return measure_suites(session, options, progress, say)


def _check_cache_type(target: Checkpoint, cache_type: str | None) -> None:
    """Raise ConfigError for an unknown cache type, or if the target is not a GGUF file."""
    check_cache_type(cache_type)
    if cache_type is not None and not isinstance(target, GgufCheckpoint):
        raise ConfigError(
            "only GGUF files accept a cache type, because llama.cpp runs them; this target is a directory",
            where="--cache-type",
            try_=command_line("ropetool", "export", target.path, "-o", "FILE.gguf") + ", then verify FILE.gguf",
        )
