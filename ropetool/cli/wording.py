"""Translates errors of planning, which name options of `extend`, for commands with other options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

import click

from ropetool.errors import AmbiguousRope, LossyExport, RopetoolError
from ropetool.escaping import word, words

EXTEND = "ropetool extend "
STARTS = ("--from", "--original-length")  # the options that choose the start of a scaled source


@contextmanager
def in_own_words(lossless: str = "{}", renamed: Mapping[str, str] | None = None) -> Iterator[None]:
    """Rewrite the errors of the body, so that they name options of the present command.

    lossless: the next step if a runtime cannot read the request; {} is a command line of `extend` that works.
    renamed: the options of the present command by the options of `extend`.
    """
    try:
        yield
    except RopetoolError as error:
        error.where = _renamed(error.where, renamed or {})
        error.try_ = _tried(error, lossless) if error.try_.startswith(EXTEND) else _renamed(error.try_, renamed or {})
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
