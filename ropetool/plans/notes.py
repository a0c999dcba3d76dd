"""The notes of a plan: messages for the user about an output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropetool import names, runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.plans.formats import Baking, Format, adapter_notes
from ropetool.rope.tables import RopeSet

STOPS = "stops with "  # the start of an objection of a runtime that does not load the file


def of_shorter_context(decoded: RopeSet, target: RopeSet) -> tuple[str, ...]:
    """Return a note if the new context is below the present one."""
    present, new = decoded.max_position_embeddings, target.max_position_embeddings
    note = f"the new context of {new} tokens is shorter than the present {present}: pass a larger length to extend"
    return (note,) if new < present else ()


def of_kept_tables(decoded: RopeSet, target: RopeSet) -> tuple[str, ...]:
    """Return a note on the effect of changing only the context length."""
    before, after = decoded.max_position_embeddings, target.max_position_embeddings
    full = decoded.entries[names.FULL_ATTENTION]
    if after <= before:
        means = "" if after == before else f"runtimes that enforce the file's limit reject tokens beyond {after}"
    elif full.table is None:
        means = "its full-attention layers do not rotate: check the longer context with `ropetool verify`"
    else:
        means = f"the RoPE tables do not change: check with `ropetool verify` whether the model works beyond {before} tokens"
    return (means,) if means else ()


def of_two_tables(form: Format, edits: Sequence[FileEdit], target: RopeSet, left_out: float) -> tuple[str, ...]:
    """Return notes on how runtimes that read the output choose between its short and its long table.

    left_out: the method's attention factor for the long table, divided by the factor that both tables share.
    """
    table = target.entries[names.FULL_ATTENTION].table
    if table is None or table.is_fixed or table.rule is not None:
        return ()
    length, context = table.regimes[0].up_to, target.max_position_embeddings
    by_context = (
        {"llama.cpp": "-c"} if form.checkpoint.format == "gguf" else {"llama.cpp": "-c", "vllm": "--max-model-len"}
    )
    choosing = {
        program: f"{program} with `{option} {length}` uses the short table, and with `{option} {context}` the long one"
        for program, option in by_context.items()
        if not form.read(runtimes.all_of(program)[-1].name, edits).objection(target)
    }
    notes = [f"{'; '.join(choosing.values())}, for texts of any length"] if choosing else []
    if left_out != 1:
        added = f". `llama-server -c {context} --yarn-attn-factor {left_out:.7g}` adds the missing factor"
        notes.append(
            "both tables have the attention factor of the source, so long texts cost more than without --native-short"
            + (added if "llama.cpp" in choosing else "")
        )
    if form.checkpoint.format == "hf":
        notes.append(
            f"transformers uses the long table in each call that goes beyond {length} tokens, but cached keys keep the table "
            f"of their call: process a text that grows past {length} tokens again from its start"
        )
    return tuple(notes)


def of_windows(target: RopeSet) -> tuple[str, ...]:
    """Return notes on windows and chunks that limit attention, regardless of the context."""
    notes = []
    for entry in target.entries.values():
        window = entry.sliding_window
        if window is not None and len(target.entries) == 1 and window < target.max_position_embeddings:
            notes.append(
                f"the rotating layers attend only within chunks of {window} tokens, so scaling their table has no benefit: "
                "`--method length` raises only the context length"
                if entry.chunked
                else f"each layer attends to at most {window} tokens (sliding window), so a context of "
                f"{target.max_position_embeddings} tokens does not extend its attention"
            )
    return tuple(notes)


def of_baking(form: Format, baking: Baking) -> tuple[str, ...]:
    """Return a note on weights that the plan changes: weights that are missing, or adapters that no longer fit."""
    if not baking.words:
        return ()
    if baking.tensors:
        return adapter_notes(form.checkpoint.path)
    return (
        f"the plan also changes weights ({'; '.join(baking.words)}): run the same command on a source with weights",
    )


def of_other_readers(
    form: Format,
    edits: Sequence[FileEdit],
    target: RopeSet,
    required: Sequence[str],
    serves: Callable[[Sequence[str]], bool],
) -> tuple[str, ...]:
    """Return notes on other runtimes that would decode the output differently, a note for each reason.

    required: the runtimes that the user requires.
    serves: returns whether one file works for these runtimes.
    """
    notes = []
    for reason, others in _dissenters(form, edits, target, required).items():
        both = "--config-style both " if form.style == names.V5 else ""
        all_names = runtimes.collapse_releases([*required, *others])
        other_names = runtimes.collapse_releases(others)
        if reason.startswith(STOPS) and all(form.read(name).rope is None for name in others):
            notes.append(f"{', '.join(other_names)} cannot load the source or the output: {reason.removeprefix(STOPS)}")
            continue
        whom = "them" if len(other_names) > 1 else "it"
        step = f"{both}{' '.join(f'--for {name}' for name in all_names)} writes a file that works for {whom} too"
        does = reason if reason.startswith(STOPS) else f"compute something else: {reason}"
        notes.append(
            f"{', '.join(other_names)} would {does.replace('stops', 'stop', 1)}; "
            + (
                step
                if serves([*required, *others])
                else f"no single file works for {whom} and {', '.join(runtimes.collapse_releases(required))}"
            )
        )
    return tuple(notes)


def of_readers_of_bake(form: Format, edits: Sequence[FileEdit], read: RopeSet) -> tuple[str, ...]:
    """Return notes on runtimes that decode the output of a bake differently, but decoded the source correctly."""
    runtime, notes = form.checkpoint.runtime, []
    for reason, others in _new_dissenters(form, edits, read, runtime).items():
        options = " ".join(f"--for {name}" for name in runtimes.collapse_releases([runtime, *others]))
        notes.append(
            f"{', '.join(runtimes.display_ranges(others))} read the source like {runtime}, but not the output: {reason}. Extend "
            f"the unscaled model with `{options}` instead. ropetool then scales the weights by the missing factor"
        )
    return tuple(notes)


def _dissenters(
    form: Format, edits: Sequence[FileEdit], target: RopeSet, required: Sequence[str]
) -> dict[str, list[str]]:
    """Return the runtimes besides `required` that would decode the output differently, by reason."""
    by_reason: dict[str, list[str]] = {}
    for runtime in (r.name for r in runtimes.for_format(form.checkpoint.format) if r.name not in required):
        decoded = form.read(runtime, edits)
        reason = decoded.objection(target) if decoded.known else ""
        if reason:
            by_reason.setdefault(reason, []).append(runtime)
    return by_reason


def _new_dissenters(form: Format, edits: Sequence[FileEdit], target: RopeSet, runtime: str) -> dict[str, list[str]]:
    """Return the runtimes that differ from one runtime on the output, but not on the source."""
    before = form.read(runtime).rope
    known = _dissenters(form, (), before, (runtime,)).values() if before is not None else ()
    old = {name for those in known for name in those}
    new = {
        reason: [name for name in those if name not in old]
        for reason, those in _dissenters(form, edits, target, (runtime,)).items()
    }
    return {reason: others for reason, others in new.items() if others}
