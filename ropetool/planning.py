"""From a source and a wish to a Plan: derive the target, try encodings, keep the first that every runtime decodes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ropetool import inspection, methods, names, runtimes
from ropetool.encodings import FileEdit
from ropetool.errors import InvalidRope, LossyExport
from ropetool.hosts import Host, open_host
from ropetool.methods import Derived, Goal, Method
from ropetool.plans import Candidate, Plan
from ropetool.readings import CURRENT, ORIGINAL, Start, Wish, find_start
from ropetool.runtimes import llama_cpp_archs as archs
from ropetool.spec import LayerRope, RopeSet

__all__ = ["Candidate", "Plan", "make_plan", "tables_of"]

BY_YARN_KEYS = ("yarn", "ntk-by-parts")  # with their own parameters any GGUF file holds them
PARAMETER_KEYS = {"beta_fast": archs.YARN_BETA_FAST, "beta_slow": archs.YARN_BETA_SLOW}


def make_plan(
    source: str | Path,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    reading: str | None = None,
    params: Mapping[str, Any] | None = None,
    attention_factor: str | float = "auto",
    original_length: int | None = None,
    for_runtimes: Sequence[str] = (),
    config_style: str | None = None,
) -> Plan:
    """Return the plan that extends a checkpoint; nothing is written.

    reading: original or current, required where the source already carries scaling.
    Raises: UnknownFamily, AmbiguousRope, InvalidRope, LossyExport, CheckpointError.
    """
    chosen = methods.get(method)
    Goal.make(1, factor, target_length, attention_factor)  # what is wrong at any length is said before readings are
    file_format = "gguf" if inspection.is_gguf(Path(source)) else "hf"
    wanted = tuple(runtimes.get(name, file_format).name for name in for_runtimes)
    if file_format == "gguf" and config_style is not None:
        raise InvalidRope("GGUF files have no config style", where="--config-style")
    host = open_host(Path(source), config_style)
    wanted = wanted or (host.runtime,)
    decoded = _decode(host, wanted[0])
    entry = decoded.entries[names.FULL_ATTENTION]
    wish = Wish(chosen.name, factor, target_length, reading, original_length)
    start = find_start(host, decoded, wish)
    goal = Goal.make(start.source.length, factor, target_length, attention_factor)
    values = dict(params or {})
    if chosen.name == "longrope" and not values and names.LONG_FACTOR in entry.params and start.reading != CURRENT:
        values = {key: entry.params[key] for key in (names.LONG_FACTOR, names.SHORT_FACTOR)}
    typed = chosen.params(values)
    derived = chosen.derive(start.source, goal, typed)
    target = _target(decoded, entry, derived, start.trained_length)
    tried: list[Candidate] = []
    for name, edits in host.encodings(entry, derived, target, start.trained_length, goal.factor):
        tried.append(Candidate(name, _objection(host, edits, target, wanted)))
        if not tried[-1].rejected:
            break
    else:
        if host.format == "gguf":
            raise _lossy_gguf(host, wish, goal, start, _changed(chosen, typed, values), tried)
        raise _lossy(host, chosen, wanted, tried)
    edits = [*edits, *host.length_edits(derived.max_position_embeddings)]
    notes = (
        *host.notes(), *start.notes, *_length_notes(decoded, target), *derived.notes, *_window_notes(target),
        *_other_readers(host, edits, target, wanted),
    )  # fmt: skip
    return Plan(
        host.format, host.family.model_type, chosen.name, goal.factor, _stated(typed, values, attention_factor),
        start.reading, start.trained_length, derived.max_position_embeddings, wanted, host.style,
        tables_of(target), derived.softmax_multiplier, tuple(edits), tuple(tried), notes,
        _suffix(chosen, goal, target_length, typed),
    )  # fmt: skip


def _decode(host: Host, runtime: str) -> RopeSet:
    """Return what the runtime computes from the source.

    Raises: InvalidRope if it stops with an error, or the model does not rotate.
    """
    found = inspection.understood(host.read(runtime), host.where, "config" if host.format == "hf" else "file")
    entry = found.entries.get(names.FULL_ATTENTION)
    if entry is None or entry.table is None:
        raise InvalidRope("its full-attention layers do not rotate: there is nothing to extend", where=host.where)
    if found.max_position_embeddings < 2:
        raise InvalidRope(
            f"states a context of {found.max_position_embeddings} tokens; it must be at least 2", where=host.where
        )
    return found


def _objection(host: Host, edits: Sequence[FileEdit], target: RopeSet, wanted: Sequence[str]) -> str:
    """Return why this encoding does not serve, or an empty string: read it back as every runtime would."""
    reasons = ((runtime, _difference(host, edits, target, runtime)) for runtime in wanted)
    return next((f"{runtime}: {reason}" for runtime, reason in reasons if reason), "")


def _difference(host: Host, edits: Sequence[FileEdit], target: RopeSet, runtime: str) -> str:
    found = host.read(runtime, edits)
    if found.rope is None:
        return f"refuses with {found.refuses}"
    if found.rope.max_position_embeddings != target.max_position_embeddings:
        return f"context {found.rope.max_position_embeddings} instead of {target.max_position_embeddings}"
    return target.disagreement(found.rope)


def _stated(typed: Any, values: Mapping[str, Any], attention_factor: str | float) -> dict[str, Any]:
    """Return the parameters that were given, as plain data of the method's own types."""
    given = {name: getattr(typed, name) for name in values}
    stated = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return stated if attention_factor == "auto" else {**stated, names.ATTENTION_FACTOR: attention_factor}


def _lossy(host: Host, method: Method, wanted: Sequence[str], tried: Sequence[Candidate]) -> LossyExport:
    reasons = _reasons(tried) or "no rope keys can say it"
    if host.style == names.V5 and "transformers-v4" in wanted:
        would_work = "--config-style both"
    elif method.name == "dynamic":
        would_work = "-p freeze N, a fixed table"
    else:
        would_work = "fewer runtimes with --for, or another method"
    return LossyExport(
        f"{method.name} cannot be written in {host.style} style for {', '.join(wanted)}: {reasons}",
        where=host.where, try_=would_work,
    )  # fmt: skip


def _reasons(tried: Sequence[Candidate]) -> str:
    return "; ".join(f"{c.name}: {c.rejected}" for c in tried)


def _changed(method: Method, typed: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given and differ from the method's own."""
    own = {field.name: field.default for field in fields(method.params_type)}
    return {name: value for name, value in _stated(typed, values, "auto").items() if value != own[name]}


def _lossy_gguf(
    host: Host, wish: Wish, goal: Goal, start: Start, changed: Mapping[str, Any], tried: Sequence[Candidate]
) -> LossyExport:
    """Return the refusal that names what llama.cpp does not read for the architecture, and a command that works."""
    arch = archs.get(host.family.gguf_architecture)
    what = ", ".join(f"{name} {_word(value)}" for name, value in changed.items()) or wish.method
    instead = replace(wish, method=wish.method if wish.method in BY_YARN_KEYS else "yarn")
    more = [] if wish.reading is None else ["--from", wish.reading]
    if wish.method == "dynamic":
        instead = wish
        more += [*_options(changed), "-p", "freeze", str(goal.target_length)]
        what, why = "a table that follows the length", "llama.cpp keeps one table for the whole life of a context"
    elif arch.vectors:
        why = _reasons(tried) or "llama.cpp reads nothing that could say it"
    else:
        why = f"llama.cpp {_unread(arch, changed)} for this architecture"
    if start.reading == CURRENT and wish.method != "dynamic":
        what += " on top of the present table"
        instead, more = replace(instead, factor=None, target_length=goal.target_length), ["--from", ORIGINAL]
    if wish.original_length is not None:
        more += ["--original-length", str(wish.original_length)]
    return LossyExport(
        f"{arch.name} files cannot hold {what}: {why}", where=host.where, try_=instead.command(host.path, *more)
    )


def _unread(arch: archs.Architecture, changed: Mapping[str, Any]) -> str:
    """Return what would have to be read: the keys of these parameters, or a vector of divisors."""
    keys = [key for name, key in PARAMETER_KEYS.items() if name in changed and key not in arch.keys]
    absent = [*(key.rpartition(".")[2] for key in keys), archs.ROPE_FREQS.partition(".")[0]]
    return f"reads neither {' nor '.join(absent)}" if keys else f"has no key for it and reads no {absent[0]}"


def _options(params: Mapping[str, Any]) -> list[str]:
    return [word for name, value in params.items() for word in ("-p", name, _word(value))]


def _word(value: Any) -> str:
    """Return a parameter as the command line takes it; a list by its length."""
    if isinstance(value, list):
        return f"of {len(value)} divisors"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _target(decoded: RopeSet, entry: LayerRope, derived: Derived, trained_length: int) -> RopeSet:
    wanted = replace(entry, table=derived.table, softmax_multiplier=derived.softmax_multiplier)
    with_entry = decoded.with_entry(names.FULL_ATTENTION, wanted)
    return replace(
        with_entry,
        max_position_embeddings=derived.max_position_embeddings,
        original_max_position_embeddings=trained_length,
    )


def tables_of(target: RopeSet) -> dict[str, Any]:
    """Return the target tables as plain data, by layer type; one that follows the length has no regimes to state."""
    return {
        layer_type: [
            {"up_to": r.up_to, "attention_factor": r.attention_factor, "inv_freq": r.inv_freq.tolist()}
            for r in entry.table.regimes
        ]
        for layer_type, entry in target.entries.items()
        if entry.table is not None and entry.table.rule is None
    }


def _length_notes(decoded: RopeSet, target: RopeSet) -> tuple[str, ...]:
    present, new = decoded.max_position_embeddings, target.max_position_embeddings
    return (f"the new context of {new} tokens is below the present one of {present}",) if new < present else ()


def _window_notes(target: RopeSet) -> tuple[str, ...]:
    notes = []
    for entry in target.entries.values():
        window = entry.sliding_window
        if window is not None and len(target.entries) == 1 and window < target.max_position_embeddings:
            notes.append(
                f"a sliding window of {window} tokens is on: a layer looks no further back, whatever the context of "
                f"{target.max_position_embeddings}"
            )
    return tuple(notes)


def _other_readers(host: Host, edits: Sequence[FileEdit], target: RopeSet, wanted: Sequence[str]) -> tuple[str, ...]:
    """Say which runtimes that were not asked for would compute something else from the output."""
    notes = []
    for runtime in (r for r in runtimes.for_format(host.format) if r.name not in wanted):
        reason = _difference(host, edits, target, runtime.name)
        if reason:
            both = "--config-style both " if host.style == names.V5 else ""
            everyone = " ".join(f"--for {name}" for name in (*wanted, runtime.name))
            notes.append(
                f"{runtime.name} ({runtime.versions}) would not agree: {reason}; {both}{everyone} asks for a file that "
                "serves it too"
            )
    return tuple(notes)


def _suffix(method: Method, goal: Goal, target_length: int | None, params: Any) -> str:
    if method.name == "abf":
        return f"abf-{params.rope_theta:g}".replace("e+0", "e").replace("e+", "e")
    if target_length is not None:
        return f"{method.name}-{target_length}"
    return f"{method.name}-{goal.factor:g}x"
