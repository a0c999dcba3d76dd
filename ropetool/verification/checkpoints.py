"""Verification of a checkpoint as a user names it: the three questions by default, or whole suites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command as command_line
from ropetool.verification.options import MINUTES, VerifyOptions
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners.llama_cache import check_cache_type
from ropetool.verification.scoring import Progress
from ropetool.verification.session import Session
from ropetool.verification.verdict.checkpoint import answer
from ropetool.verification.verdict.pacing import Clock

if TYPE_CHECKING:
    from ropetool.verification.gate import Limits
    from ropetool.verification.runners.vllm_engine import Engine


def verify_checkpoint(
    target: str | Path,
    *,
    baseline: str | Path | None = None,
    against: str | Path | None = None,
    judge: str | Path | None = None,
    lm_eval: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    lengths: Sequence[int] | None = None,
    suite: str | None = None,
    measures: Sequence[str] = (),
    segments: int | None = None,
    trials: int | None = None,
    limits: Limits | None = None,
    budget: float | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    resume: bool = False,
    certificate_file: str | Path | None = None,
    full_hash: bool = False,
    terms: Terms | None = None,
    command: str = "",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    engine: Engine | None = None,
    cache_type: str | None = None,
    compare_with: str | None = None,
) -> VerifyResult:
    """Return what a verification finds of the target and its baseline, with the verdict of every check.

    By default it answers three questions within `budget` minutes, 10 if None: is the file what it says, what do short texts
    pay, does it work at its length. `VerifyResult.answers` has them. llama.cpp then computes as its own programs do, and in
    float32 if dtype says so.

    A suite, measures, lengths, segments, trials, limits, another file, a judge, logs, an engine or yardsticks ask for whole
    suites: the standard one without a name, for which a budget is how long it may take. Without a baseline, the source that
    the target was made from serves if it is unchanged, otherwise the target's own figures within its trained length. Without
    texts, those of the package serve. lm_eval: a folder with logs of lm-evaluation-harness of both models.
    terms: what is said of a target without a record, and of its trained length. Without a baseline and a
    record, or without lengths beyond the trained one up to the stated context, the verdict is partial at best. A run of
    a whole suite is certified in the target's provenance file, or in `certificate_file`, with the command line that asked
    for it. engine: vLLM runs directories in this process, and is asked for single tokens, which tell a part of the suites.
    cache_type: of keys and values where llama.cpp runs the target, and of the target only; it is the run's and not the file's, so
    only `certificate_file` gets a certificate. compare_with: yardsticks by name with commas between them, which are put on the
    baseline, or on the target where there is none, and measured beside the target; they gate nothing.

    Raises: CheckpointError, ConfigError.
    """
    options = VerifyOptions(
        baseline=baseline,
        against=against,
        judge=judge,
        lm_eval=lm_eval,
        texts=texts,
        lengths=lengths,
        suite=suite,
        measures=measures,
        segments=segments,
        trials=trials,
        limits=limits,
        budget=budget,
        seed=seed,
        device=device,
        dtype=dtype,
        resume=resume,
        certificate_file=certificate_file,
        full_hash=full_hash,
        terms=terms,
        command=command,
        engine=engine,
        cache_type=cache_type,
        compare_with=compare_with,
    )
    return verify_target(target, options, progress=progress, say=say)


def verify_target(
    target: str | Path,
    options: VerifyOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> VerifyResult:
    """Return what `verify_checkpoint` does, by these options. Raises: CheckpointError, ConfigError."""
    clock = Clock(60 * (MINUTES if options.budget is None else options.budget))
    session = Session.open(target, options.baseline, options.terms)
    _check_cache_type(session.target, options.cache_type)
    if not options.of_suites:
        return answer(session, options, clock, progress)
    from ropetool.verification.whole_suites import measure_suites  # which loads every measurement

    return measure_suites(session, options, progress, say)


def _check_cache_type(target: Checkpoint, cache_type: str | None) -> None:
    """Raise ConfigError for a type that is not one of llama.cpp's, or a target that it does not run."""
    check_cache_type(cache_type)
    if cache_type is not None and not isinstance(target, GgufCheckpoint):
        raise ConfigError(
            "the types of llama.cpp's cache are for GGUF files, and this is a directory, which transformers or vLLM runs",
            where="--cache-type",
            try_=command_line("ropetool", "export", target.path, "-o", "FILE.gguf") + ", and verify FILE.gguf",
        )
