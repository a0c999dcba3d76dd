"""Advise a method for a longer context, from the tables and the files. Does not run a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool import names, runtimes
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError, InvalidRope, RopetoolError
from ropetool.escaping import Shown, command, read_length
from ropetool.plans.basis import CURRENT, Request, listed
from ropetool.plans.proposals import LENGTH, Proposal, extent_of, proposals, proposed
from ropetool.plans.refusals import LONGEST
from ropetool.plans.scope import FORCE, NECESSARY, Extent
from ropetool.plans.search import make_plan, runtime_names
from ropetool.rope import arithmetic
from ropetool.rope.methods import Goal
from ropetool.rope.reach import attention_holds, critical_dimension, least_base, reach, reach_of_new_base
from ropetool.rope.tables import Array, LayerRope
from ropetool.runtimes.inspection import Inspection, inspect

# In the order in which they are tried. Methods that need a number from the user are left out, and so is `linear`: at 2x
# it multiplies the perplexity of SmolLM2 135M by 2.2 to 2.5, also in short texts.
CLOSED_FORMS = ("yarn", "llama3", "ntk-by-parts", "mixed-ntk", "ntk")
SEEN_ALL = (
    "every rotating pair turned at least once within the trained length, so only the configured context limits it"
)
BASE = "abf"  # a new base, which also works in files without keys for any other table
LONGEST_BASE = 32768  # tokens; up to here the search for the least base takes seconds, beyond it minutes


@dataclass(frozen=True)
class Way:
    """A method and its reach.

    reach: tokens within which no pair leaves its trained arc, at most the target; None if the method is refused or the
    trained length is unknown.
    """

    method: str
    proposal: Proposal
    reach: int | None

    @property
    def serves(self) -> bool:
        """Return whether there is a command, and its table reaches the target."""
        whole = self.reach in (None, self.proposal.step.reach)
        return bool(self.proposal.line) and not self.proposal.refusal and whole

    @property
    def name(self) -> str:
        """Return the method, with the table that it starts from if there are two."""
        reading = self.proposal.step.reading
        return f"{self.method} --from {reading}" if reading else self.method


@dataclass(frozen=True)
class Advice(Shown):
    """The advised way from a checkpoint to a context length.

    inspection: the inspected checkpoint.
    target_length: the requested context, in tokens.
    ways: every method that was tried.
    chosen: the advised way; None if the file needs no extension, or if no method works.
    why: the reason for the choice, or for its absence.
    readers: the runtimes that decode the chosen output as planned.
    others: the remaining runtimes, which need a different encoding or cannot read any.
    base: rope_theta of the table; None if the table does not follow from a base.
    least_base: the smallest base that holds attention up to the target; None without `base`, or if the search ends
      first.
    holds: the length up to which the present table holds attention, in tokens, at most the target.
    critical: the channels that saw every angle in training, and all rotary channels.
    native_short: the command of the choice that keeps the present table for short texts; empty if no file can store it.
    shorter: if there is no choice, the plan with the longest context that a method reaches, or None.
    """

    inspection: Inspection
    target_length: int
    ways: tuple[Way, ...]
    chosen: Way | None
    why: str
    readers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    base: float | None = None
    least_base: float | None = None
    holds: int | None = None
    critical: tuple[int, int] | None = None
    native_short: str = ""
    shorter: Proposal | None = None

    @property
    def command(self) -> str:
        """Return the advised command line, or an empty string without a choice."""
        return self.chosen.proposal.line if self.chosen else ""

    @property
    def reason(self) -> str:
        """Return the reason for the choice or for its absence, with the longest context that a method reaches."""
        if self.shorter is None:
            return self.why
        return f"{self.why}{LONGEST}{self.shorter.step.reach} tokens"

    @property
    def extent(self) -> Extent | None:
        """Return the ratio of the target to the trained length, with its notes. None without a choice."""
        return extent_of(self.inspection, self.chosen.method, self.target_length) if self.chosen else None


def advise(
    source: str | Path | Inspection, target_length: int | str, for_runtimes: str | Sequence[str] = (),
    reading: str | None = None, force_factor: bool = False, original_length: int | None = None,
) -> Advice:  # fmt: skip
    """Return the best method for a longer context, and the reason. Makes plans, but does not write.

    source: a path, a hub id, or the result of `inspect`.
    target_length: tokens, as a number or as a text like "32k".
    for_runtimes: the runtimes that must read the output; one name, or several.
    reading: `original` or `current`, to allow only one of the two ways from a scaled source.
    force_factor: also advise a method without training beyond 32 times the trained length.
    original_length: the length before any scaling, in tokens. None uses the length in the file.
    Raises: ConfigError if the checkpoint's rotation is unknown, UnknownRuntime for an unknown name.
    """
    target_length = read_length(target_length, "target_length")
    inspected = source if isinstance(source, Inspection) else inspect(source)
    for_runtimes = listed(for_runtimes)
    for name in for_runtimes:
        _ = runtimes.all_of(name) if inspected.checkpoint is None else runtime_names(name, inspected.checkpoint)
    if inspected.rope is None:
        raise _undecoded(inspected)
    entry = inspected.rope.entries.get(names.FULL_ATTENTION)
    context = inspected.rope.max_position_embeddings
    if target_length <= context:
        return Advice(inspected, target_length, (), None, f"its context length is already {context} tokens")
    if inspected.learned_positions:
        return Advice(inspected, target_length, (), None, f"it has learned positions for only {context} tokens")
    if entry is None:
        return Advice(
            inspected, target_length, (), None, "it has no full-attention layers, so there is no table to extend"
        )
    trained_length = original_length or inspected.trained_length
    trained = _trained_table(inspected, trained_length)
    ways = []
    seen_all = _has_seen_all(entry, trained, trained_length)
    for method in (LENGTH,) if seen_all else CLOSED_FORMS:
        allowed = [
            way
            for way in proposals(inspected, target_length, method, for_runtimes, original_length)
            if reading is None or way.step.reading in ("", reading)
        ]
        for way in allowed:
            # To build on the current table means that the model was trained with it, up to its context.
            seen: tuple[Array | None, int | None] = (trained, trained_length)
            if way.step.reading == CURRENT and entry.table is not None:
                seen = entry.table.at(context).inv_freq, context
            ways.append(Way(way.method, way, _reach(way, *seen)))
    ways = list({(way.method, way.proposal.step.reading): way for way in ways}.values())
    chosen = next((way for way in ways if way.serves), None)
    why = SEEN_ALL if chosen and seen_all else _why(chosen, ways)
    advice = Advice(inspected, target_length, tuple(ways), chosen, why)
    if chosen is None:
        return replace(advice, shorter=_shorter(advice, trained, for_runtimes))
    return _in_scope(advice, force_factor)


def _in_scope(advice: Advice, forced: bool) -> Advice:
    """Return the advice without its choice, if the choice needs --force-factor and the user did not pass it."""
    extent = advice.extent
    if extent is None or not extent.refused or forced:
        return advice
    return replace(advice, chosen=None, why=f"{extent.refusal}, or pass {FORCE} to `extend`")


def with_bounds(advice: Advice) -> Advice:
    """Return the advice with its readers and the theoretical bounds on the base. Takes seconds; keeps the choice."""
    inspected = advice.inspection
    trained = _trained_table(inspected, inspected.trained_length) if advice.ways else None
    if trained is None or inspected.rope is None or inspected.trained_length is None:
        return advice
    entry = inspected.rope.entries[names.FULL_ATTENTION]
    if entry.table is None:
        return advice
    readers, others = _readers(inspected, advice.chosen)
    base = entry.rope_theta if entry.unscaled else None
    present = entry.table.at(inspected.rope.max_position_embeddings).inv_freq
    return replace(
        advice, readers=readers, others=others, base=base,
        least_base=None if base is None else _least_base(2 * trained.size, advice.target_length),
        holds=attention_holds(present, advice.target_length),
        critical=(critical_dimension(trained, inspected.trained_length), 2 * trained.size),
        native_short=_with_native_short(inspected, advice.chosen),
    )  # fmt: skip


def advised_method(
    source: str | Path | Checkpoint, factor: float | None, target_length: int | None, reading: str | None = None,
    original_length: int | None = None, as_type: str | None = None, for_runtimes: Sequence[str] = (),
    force_factor: bool = True,
) -> tuple[str, str, str]:  # fmt: skip
    """Return the method for a request to `extend`, its attention factor, and the reason.

    Raises: ConfigError if no method works, TooFar if the factor needs --force-factor, InvalidRope for an invalid
    target, and the errors of `inspect`.
    """
    Goal.make(1, factor, target_length)
    inspected = inspect(source, as_type)
    if inspected.rope is None:
        raise _undecoded(inspected)
    target, context = (
        requested_context(inspected, factor, target_length, reading, original_length),
        inspected.rope.max_position_embeddings,
    )
    if target <= context:  # the plan refuses a target within the file's own length, or handles it
        return CLOSED_FORMS[0], "auto", f"{target} tokens are within its context length of {context}"
    advice = advise(inspected, target, for_runtimes, reading, force_factor=True, original_length=original_length)
    if advice.extent is not None:
        advice.extent.check(force_factor)
    if advice.chosen is None:
        shown = command("ropetool", "advise", inspected.source, "--target-length", str(target))
        raise ConfigError(
            advice.reason, where=str(inspected.source), try_=advice.shorter.line if advice.shorter else shown
        )
    return advice.chosen.method, advice.chosen.proposal.attention_factor, advice.why


def _undecoded(inspected: Inspection) -> ConfigError:
    return ConfigError(
        "its RoPE settings cannot be decoded",
        where=str(inspected.source),
        try_=command("ropetool", "inspect", inspected.source),
    )


def requested_context(
    inspected: Inspection,
    factor: float | None,
    target_length: int | None,
    reading: str | None,
    original_length: int | None,
) -> int:
    """Return the requested context in tokens, from a factor or a target length."""
    assert inspected.rope is not None
    context = inspected.rope.max_position_embeddings
    start = context if reading == CURRENT else original_length or inspected.trained_length or context
    return target_length or round(start * (factor or 1))


def _trained_table(inspected: Inspection, trained_length: int | None) -> Array | None:
    """Return the table from before any scaling, whose angles the model saw in training."""
    assert inspected.rope is not None
    entry = inspected.rope.entries[names.FULL_ATTENTION]
    if entry.table is None or trained_length is None:
        return None
    if entry.rope_theta is None:
        return entry.table.at(trained_length).inv_freq
    return arithmetic.base_inv_freq(entry.rope_theta, entry.rotary_dim)


def _has_seen_all(entry: LayerRope, trained: Array | None, trained_length: int | None) -> bool:
    """Return whether every pair of an unscaled table turned once in training. Longer distances are then not new."""
    if trained is None or trained_length is None or entry.table is None or not entry.unscaled:
        return False
    return math.isinf(reach(trained, entry.table.at(trained_length).inv_freq, trained_length)[0])


def _shorter(advice: Advice, trained: Array | None, for_runtimes: Sequence[str]) -> Proposal | None:
    """Return a plan with a new base, up to its reach, for a file without a table that reaches the target."""
    inspected = advice.inspection
    way = next((way for way in advice.ways if way.proposal.step.reading != CURRENT), None)
    if way is None or trained is None or inspected.rope is None or inspected.trained_length is None:
        return None
    entry, context = inspected.rope.entries[names.FULL_ATTENTION], inspected.rope.max_position_embeddings
    if entry.rope_theta is None or entry.chunked or trained.size < 2:
        return None
    base, reached = reach_of_new_base(trained, entry.rope_theta, inspected.trained_length, advice.target_length)
    if reached <= context:
        return None
    request = Request(BASE, None, reached, way.proposal.step.reading or None, None, inspected.as_type)
    return proposed(inspected, request, {names.ROPE_THETA: base}, for_runtimes)


def _reach(way: Proposal, trained: Array | None, trained_length: int | None) -> int | None:
    if way.plan is None or way.plan.target is None or trained is None or trained_length is None:
        return None
    entry = way.plan.target.entries[names.FULL_ATTENTION]
    table, goal = entry.table, way.step.reach or way.plan.target.max_position_embeddings
    if table is None or (entry.chunked and entry.sliding_window):  # it never rotates by more than a chunk
        return goal
    inv_freq = table.at(goal).inv_freq
    if inv_freq.shape != trained.shape:
        return None
    exact_reach, _ = reach(trained, inv_freq, trained_length)
    return goal if exact_reach >= goal * (1 - 1e-6) else math.floor(exact_reach)


def _why(chosen: Way | None, ways: Sequence[Way]) -> str:
    falling = [way for way in ways if way.reach is not None and not way.serves and not way.proposal.refusal]
    short = ", ".join(f"{way.name} {way.reach}" for way in falling) + (" tokens" if falling else "")
    if chosen is None:
        refused = next((way.proposal.brief or way.proposal.refusal for way in ways if way.proposal.refusal), "")
        reasons = [*([refused] if refused else []), *([f"too short: {short}"] if short else [])]
        return ": ".join(["no method reaches the target in this file", *(["; ".join(reasons)] if reasons else [])])
    if chosen.method == LENGTH:
        return "only the configured context length limits it: its layers never rotate by longer distances"
    if chosen.reach is None:
        return "the first method that this file supports; its reach is unknown"
    less = f"; too short: {short}" if short else ""
    if chosen.method == CLOSED_FORMS[0]:
        return (
            "up to the target, every pair stays within its trained angles, and the fast pairs do not change "
            f"({NECESSARY}){less}"
        )
    unwritten = any(way.method == CLOSED_FORMS[0] and way.proposal.refusal for way in ways)
    reason = (
        f"{CLOSED_FORMS[0]} cannot be written into this file"
        if unwritten
        else "no other method reaches the target in this file"
    )
    return f"{reason}{less}"


def _readers(inspected: Inspection, chosen: Way | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runtimes for which the chosen method works, tried one at a time, and the others."""
    if chosen is None or chosen.proposal.plan is None or inspected.checkpoint is None:
        return (), ()
    every = [runtime.name for runtime in runtimes.for_format(inspected.format)]
    serving = tuple(name for name in every if _works(inspected, chosen, (name,)))
    return serving, tuple(name for name in every if name not in serving)


def _with_native_short(inspected: Inspection, chosen: Way | None) -> str:
    """Return the command of the chosen method that keeps the present table for short texts; empty if it is refused."""
    if chosen is None or chosen.proposal.plan is None:
        return ""
    works = _works(inspected, chosen, chosen.proposal.plan.runtimes, native_short=True)
    return f"{chosen.proposal.line} --native-short" if works else ""


def _works(inspected: Inspection, chosen: Way, for_runtimes: Sequence[str], *, native_short: bool = False) -> bool:
    """Return whether a plan of the chosen method works for these runtimes."""
    assert inspected.checkpoint is not None
    step = chosen.proposal.step
    try:
        make_plan(
            inspected.checkpoint, chosen.method, target_length=step.reach, reading=step.reading or None,
            as_type=inspected.as_type, for_runtimes=for_runtimes, native_short=native_short,
            attention_factor=chosen.proposal.attention_factor,
        )  # fmt: skip
    except RopetoolError:
        return False
    return True


def _least_base(rotary_dim: int, length: int) -> float | None:
    try:
        return least_base(rotary_dim, length) if length <= LONGEST_BASE else None
    except InvalidRope:
        return None
