"""The next step of an error: the `Try:` line in the words of the present command, planned before it is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from ropetool.cli import typed_words
from ropetool.cli.options import instance, is_typed
from ropetool.errors import AmbiguousRope, LossyExport, RopetoolError
from ropetool.escaping import command, number, with_flag, with_options, word, words

EXTEND = ["ropetool", "extend"]
STARTS = ("--from", "--original-length")  # the options that choose the start of a scaled source
OPENED = "ropetool.opened"  # key in the context's meta: a function that opens each source once
# Options that another method may not accept.
METHOD_SPECIFIC = (
    "params", "attention_factor", "temperature_scope", "beta_fast", "beta_slow", "rope_theta", "native_short",
)  # fmt: skip
# The options that a try sets, and an option that only explains.
DECIDED = (
    "source",
    "method",
    "factor",
    "target_length",
    "variants",
    "reading",
    "original_length",
    "tune_minutes",
    "explain",
)


# --- the options of `extend`


@contextmanager
def completed_tries() -> Iterator[None]:
    """Add the user's options to the next step of an error, or repeat the user's command with --force-factor.

    Works only in a click command, whose options it reads.
    """
    try:
        yield
    except RopetoolError as error:
        from ropetool.plans.scope import FORCE, TooFar

        context = click.get_current_context()
        if isinstance(error, TooFar):
            error.try_ = command("ropetool", *with_flag(typed_words(), FORCE))
        error.try_ = completed(error.try_, context)
        raise


def completed(line: str, context: click.Context) -> str:
    """Return a command line of `extend` with the missing options of this call, if a plan supports them.

    Returns an empty string if no plan works, and any other text unchanged.
    """
    from ropetool.cli.extension import AUTO
    from ropetool.plans.scope import FORCE, TooFar

    try:
        proposed = words(line)
        values = _parsed(proposed, context)
    except (ValueError, click.ClickException, click.exceptions.Exit):
        return line
    if values is None or values["method"] in (None, AUTO):  # the user's own line, with one option more
        return line
    for left_out in (
        (),
        METHOD_SPECIFIC,
        (*METHOD_SPECIFIC, "for_runtimes"),
        (*METHOD_SPECIFIC, "for_runtimes", "config_style"),
    ):
        tried = [*proposed, *_missing(context, values, left_out)]
        problem = _problem(tried, context)
        if isinstance(problem, TooFar):  # the original table is not as far, and only without it a line has to be forced
            original = with_options(tried, {"--from": "original"})
            tried = original if _problem(original, context) is None else with_flag(tried, FORCE)
            problem = _problem(tried, context)
        if problem is None:
            return command(*_of_all_lengths(tried, values, context))
    return ""


def _parsed(line: Sequence[str], context: click.Context) -> dict[str, Any] | None:
    """Return the values of a command line of `extend`, or None for other commands."""
    if list(line[:2]) != EXTEND or context.command.name != EXTEND[1]:
        return None
    return context.command.make_context(EXTEND[1], list(line[2:])).params


def _missing(context: click.Context, values: dict[str, Any], left_out: Sequence[str]) -> list[str]:
    """Return the options of this call that a try does not have, in words."""
    missing = []
    for option in context.command.params:
        name = option.name or ""
        absent = values.get(name) in (None, ()) or values.get(name) == option.get_default(context)
        if not is_typed(name, context) or not absent or name in DECIDED or name in left_out:
            continue
        value = context.params[name]
        for each in value if option.multiple else [value]:
            missing += [option.opts[0], *_as_words(option, each)]
    return missing


def _as_words(option: click.Parameter, value: Any) -> list[str]:
    if getattr(option, "is_flag", False):
        return []
    return [number(part) if isinstance(part, float) else str(part) for part in (value if option.nargs > 1 else [value])]


def _problem(line: Sequence[str], context: click.Context) -> RopetoolError | None:
    """Return why no plan can be made of a command line of `extend`, None if one can. Does not write."""
    from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
    from ropetool.cli.extension import ExtensionOptions
    from ropetool.plans.search import plan_for

    values = _parsed(line, context)
    assert values is not None  # the words in front are those of `extend`
    opened: Callable[[Path], Checkpoint] = context.meta.get(OPENED, open_checkpoint)
    try:
        for length in _lengths(values, context):
            options = replace(instance(ExtensionOptions, values), target_length=length)
            plan_for(opened(Path(values["source"])), options.request())
    except RopetoolError as error:
        return error
    return None


def _lengths(values: dict[str, Any], context: click.Context) -> list[int | None]:
    """Return the lengths that a try replaces: all of --variants if it names one of them, else its own."""
    own, variants = values["target_length"], context.params.get("variants") or []
    return variants if own in variants else [own]


def _of_all_lengths(line: Sequence[str], values: dict[str, Any], context: click.Context) -> list[str]:
    """Return a try in the words of --variants if that is the present command."""
    lengths = _lengths(values, context)
    if lengths != context.params.get("variants"):
        return list(line)
    return with_options(line, {"--target-length": None, "--variants": ",".join(map(str, lengths))})


# --- other commands


@contextmanager
def in_own_words(lossless: str = "{}", renamed: Mapping[str, str] | None = None) -> Iterator[None]:
    """Rewrite the errors of the body, so that they name options of the present command. Works only in a click command.

    lossless: the next step if a runtime cannot read the request; {} is a command line of `extend` that works.
    renamed: the options of the present command by the options of `extend`.
    """
    try:
        yield
    except RopetoolError as error:
        error.where = _renamed(error.where, renamed or {})
        of_extend = error.try_.startswith(f"{' '.join(EXTEND)} ")
        error.try_ = _tried(error, lossless) if of_extend else _renamed(error.try_, renamed or {})
        raise


def _renamed(text: str, renamed: Mapping[str, str]) -> str:
    first, space, rest = text.partition(" ")
    return f"{renamed.get(first, first)}{space}{rest}"


def _tried(error: RopetoolError, lossless: str) -> str:
    """Return the next step in place of a command line of `extend`, because that line would write an output."""
    if isinstance(error, LossyExport):
        return lossless.format(error.try_)
    line = words(error.try_)
    starts = {option: value for option, value in pairwise(line) if option in STARTS}
    if starts:
        own = {name for each in click.get_current_context().command.params for name in each.opts}
        return (
            " ".join(f"{name} {value}" for name, value in starts.items()) if own >= starts.keys() else "--from current"
        )
    return f"the same of {word(line[2])}" if isinstance(error, AmbiguousRope) else error.try_
