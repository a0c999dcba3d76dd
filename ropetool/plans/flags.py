"""Command lines for a source that a server runs as a plan's target, without a new file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ropetool import names, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.plans.plan import Plan
from ropetool.runtimes import Runtime
from ropetool.runtimes.base import NO_FLAG, NoFlags, PlannedChange
from ropetool.runtimes.decoded import decoded

BAKED = "the plan also changes the weights"


def flag_lines(plan: Plan, source: str | Path | Checkpoint) -> list[str]:
    """Return a line for each program, or range of its releases: the command that serves the source as the target.

    The source does not change. If no flag reaches the target, the line has the reason.
    """
    checkpoint = open_checkpoint(Path(source) if isinstance(source, str) else source)
    programs = runtimes.flagged(checkpoint.format)
    output = checkpoint.edited(plan.edits)
    target = decoded(plan.runtimes[0], output).rope
    reason = _obstacle(plan, checkpoint, output)
    if reason or target is None:
        return [f"{', '.join(programs)}: {NO_FLAG}: {reason or BAKED}"]
    change = PlannedChange(checkpoint, output, target, plan.edits, plan.factor, plan.trained_length, plan.params)
    return [line for program in programs for line in _program_lines(program, change)]


def _obstacle(plan: Plan, source: Checkpoint, output: Checkpoint) -> str:
    """Return why no program can serve the source as the target; empty if one may."""
    if isinstance(source, HfCheckpoint) and output.name != source.config.get(names.MODEL_TYPE):
        return "the source needs remote code; serve the output instead"
    return BAKED if plan.bakes else ""


def _program_lines(program: str, change: PlannedChange) -> Iterator[str]:
    """Yield the lines of a program. Releases with the same lines share them."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for runtime in runtimes.all_of(program):
        alike.setdefault(tuple(_lines(runtime, change)), []).append(runtime.name)
    for lines, those in alike.items():
        yield from (f"{', '.join(runtimes.display_ranges(those))}: {own}" for own in lines[:1])
        yield from lines[1:]


def _lines(runtime: Runtime, change: PlannedChange) -> Sequence[str]:
    assert runtime.serving is not None
    assert runtime.serving.flags is not None
    try:
        return runtime.serving.flags(change, runtime.decode)
    except NoFlags as reason:
        return [f"{NO_FLAG}: {reason}"]
