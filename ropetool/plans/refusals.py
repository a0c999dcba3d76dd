"""Explain why no encoding works, and find a command that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import names, runtimes
from ropetool.errors import LossyExport
from ropetool.plans.basis import CURRENT, ORIGINAL, Request, whole_command, worded
from ropetool.plans.formats import Format
from ropetool.plans.plan import Tried, reasons
from ropetool.rope.methods import Goal
from ropetool.runtimes.llama_cpp import architectures as archs

BY_YARN_KEYS = ("yarn", "ntk-by-parts")  # nearly every GGUF file can store them with default parameters
LONGEST = "; the longest context that works is "
PARAMETER_KEYS = {"beta_fast": archs.YARN_BETA_FAST, "beta_slow": archs.YARN_BETA_SLOW}


@dataclass(frozen=True)
class Outset:
    """The start of a request.

    goal: the requested length.
    reading: `original` or `current`.
    new_base: a base and the tokens that it reaches; None if it does not extend the context.
    ignored: a sentence on the key of the first encoding that a runtime ignores; empty if it reads all keys.
    """

    goal: Goal
    reading: str
    new_base: tuple[int, int] | None = None
    ignored: str = ""


def lossy(
    form: Format,
    request: Request,
    outset: Outset,
    rope_type: str,
    tried: Sequence[Tried],
    conflict: Sequence[str],
    rest: Sequence[str],
    serves: Callable[[Request], bool],
) -> LossyExport:
    """Return the refusal of a Hugging Face checkpoint, with a command that works or none.

    request: the request, with all its runtimes.
    conflict: the runtime that no file works for, or the two that need different files.
    rest: the requested runtimes that can share one file.
    rope_type: the type of the present table.
    serves: returns whether an alternative works.
    """
    required = tuple(request.for_runtimes)
    start = f" from a table of rope type {rope_type}" if rope_type != "default" else ""
    unsaid = f"no combination of RoPE keys produces this table{start}"
    why = reasons(tried) or unsaid
    if conflict:
        who = (
            f"no file works for {conflict[0]}"
            if len(conflict) == 1
            else f"no single file works for {' and '.join(conflict)}"
        )
        why = f"{who}: {why}"
    others = (
        [replace(request, config_style=names.BOTH)] if form.style == names.V5 and "transformers-v4" in required else []
    )
    if request.method == "dynamic":
        others.append(replace(request, params={**(request.params or {}), "freeze": outset.goal.target_length}))
    if rest:
        others.append(replace(request, for_runtimes=tuple(rest)))
    others += [replace(other, for_runtimes=required) for other in _alternatives(request, outset, request.params or {})]
    chosen = next(filter(serves, others), None)
    if chosen is not None and tuple(chosen.for_runtimes) == (form.checkpoint.runtime,):  # this is the default
        chosen = replace(chosen, for_runtimes=())
    short = " with --native-short" if request.native_short else ""
    what = f"{request.method}{short} cannot be written in {form.style} style for {', '.join(runtimes.collapse_releases(required))}"
    error = LossyExport(
        f"{what}: {why}", where=form.checkpoint.where,
        try_="" if chosen is None else whole_command(form.checkpoint.path, chosen),
    )  # fmt: skip
    if tried:
        reason = outset.ignored or tried[0].rejected.removeprefix(f"{required[0]}: " if len(required) == 1 else "")
        reached = None if chosen is None else chosen.target_length
        shorter = reached is not None and reached < outset.goal.target_length
        error.brief = f"{what}: {reason}" + (f"{LONGEST}{reached} tokens" if shorter else "")
    return error


def lossy_gguf(
    form: Format,
    request: Request,
    outset: Outset,
    changed: Mapping[str, Any],
    tried: Sequence[Tried],
    serves: Callable[[Request], bool],
) -> LossyExport:
    """Return the refusal with llama.cpp's limit, and a command that works.

    changed: the parameters that differ from the method's defaults.
    serves: returns whether an alternative works.
    """
    arch = archs.get(form.checkpoint.name)
    what = ", ".join(f"{name} {worded(value)}" for name, value in changed.items()) or request.method
    if request.method == "dynamic":
        what, why = "a table that depends on the text length", "llama.cpp uses one table for the whole context"
    elif arch.fixed_base:
        why = arch.limit
    elif request.native_short and archs.ROPE_FACTORS_LONG not in arch.loads("longrope"):
        what = f"{what} with --native-short"
        why = f"llama.cpp does not read {archs.ROPE_FACTORS_SHORT} and {archs.ROPE_FACTORS_LONG} for this architecture"
    elif tried or arch.vectors:
        why = "; ".join(
            filter(None, [reasons(tried) or "llama.cpp does not read a key that could store it", arch.limit])
        )
    else:
        why = f"llama.cpp {_unread(arch, changed)} for this architecture"
    if outset.reading == CURRENT and request.method != "dynamic":
        what += " on top of the present table"
    others = list(_alternatives(request, outset, changed))
    chosen = next(filter(serves, others), None)
    return LossyExport(
        f"{arch.name} files cannot store {what}: {why}", where=form.checkpoint.where,
        try_="" if chosen is None else whole_command(form.checkpoint.path, chosen),
    )  # fmt: skip


def _alternatives(request: Request, outset: Outset, changed: Mapping[str, Any]) -> Iterator[Request]:
    """Yield alternatives, the most similar first. `linear` is never one, because it costs more than it extends.

    The requests have the default attention factor, and no runtimes.
    """
    goal = outset.goal
    request = replace(
        request, params={}, attention_factor="auto", temperature_scope=None, for_runtimes=(), config_style=None
    )
    if request.method == "dynamic":
        yield replace(request, params={**changed, "freeze": goal.target_length})
    elif outset.reading == CURRENT:
        request = replace(request, factor=None, target_length=goal.target_length, reading=ORIGINAL)
    first = request.method if request.method in BY_YARN_KEYS else "yarn"
    yield replace(request, method=first)
    yield replace(request, method="yarn", attention_factor="none")
    if outset.new_base is not None:
        base, reached = outset.new_base
        yield replace(request, method="abf", factor=None, target_length=reached, params={names.ROPE_THETA: base})
    if request.native_short:
        yield from _alternatives(replace(request, native_short=False), outset, changed)
    yield replace(request, method="length", native_short=False, reading=None, original_length=None)


def _unread(arch: archs.Architecture, changed: Mapping[str, Any]) -> str:
    """Return the missing feature in words: keys for these parameters, or a vector of frequency factors."""
    keys = [key for name, key in PARAMETER_KEYS.items() if name in changed and key not in arch.keys]
    absent = [*(key.rpartition(".")[2] for key in keys), archs.ROPE_FREQS.partition(".")[0]]
    return f"reads neither {' nor '.join(absent)}" if keys else f"has no key for it and does not read {absent[0]}"
