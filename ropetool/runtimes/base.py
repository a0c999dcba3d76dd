"""The content of a runtime's module, and code that these modules share.

A module sets NAME, FORMATS and SUMMARY, and has either VERSIONS and decode(checkpoint), or RELEASES and
decode(checkpoint, releases) if releases of the program differ. It sets SERVING if the program is a server, and RUN_BY
to the names of other programs that run it, each with the first release that does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ropetool.escaping import word
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import RopeSet, is_number

if TYPE_CHECKING:
    from ropetool.checkpoint.edits import FileEdit
    from ropetool.checkpoint.opening import Checkpoint

NO_FLAG = "not possible with flags"

C = TypeVar("C")
V = TypeVar("V")


@dataclass(frozen=True)
class Releases:
    """A range of releases of a program that compute the same. `first` and `last` are the releases that were checked."""

    first: str
    last: str

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    @cached_property
    def start(self) -> tuple[int, ...]:
        """The numbers of the first release."""
        return numbers(self.first)

    @cached_property
    def end(self) -> tuple[int, ...]:
        """The numbers of the last release."""
        return numbers(self.last)

    def has(self, version: str) -> bool:
        """Return whether a version is in the range. 0.25.1 is in 0.24 to 0.25."""
        release = numbers(version)
        return self.start <= release and release[: len(self.end)] <= self.end


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison, up to the first part that is not a number."""
    return tuple(int(part) for part in re.match(r"(\d+(?:\.\d+)*)?", version)[0].split(".") if part)  # type: ignore[index]


class Refuses(Exception):
    """The runtime stops with an error on this file. The text is the error."""


class NotHeld(Refuses):
    """The runtime does not stop, but no file that it reads can make it compute the table. The text is the reason."""


class NotKnown(Refuses):
    """The runtime may run this file, but ropetool does not know how."""


class NoFlags(Exception):
    """No flags of the program reach a plan's target. The text is the reason."""


Decode: TypeAlias = Callable[[Any], RopeSet]


@dataclass(frozen=True)
class PlannedChange:
    """A plan as a runtime sees it.

    source: the checkpoint, which does not change.
    output: the checkpoint with the plan's edits, in memory.
    target: the tables that the output computes.
    edits: the plan's edits of the source's files.
    factor: the plan's factor.
    trained_length: the length before any scaling, in tokens.
    params: the parameters of the plan's method.
    """

    source: Checkpoint
    output: Checkpoint
    target: RopeSet
    edits: Sequence[FileEdit]
    factor: float
    trained_length: int
    params: Mapping[str, Any]


def no_others(file: str, context: int, modelfile: Path | None) -> Sequence[str]:
    """Return no lines: no other program runs files by this one."""
    return ()


@dataclass(frozen=True)
class Serving:
    """How a program serves files. The module of a runtime sets SERVING if the program is a server.

    command: the command line for a file that is served unchanged, with places for its path and its context in tokens.
    flags: returns the lines that serve the source of a change as its target, for the decoder of some releases; None if
      the program has no such flags. The first line is the program's own command. Each other line begins with the name
      of its program. There are no lines if ropetool does not know how the program gets the source. Raises: NoFlags.
    others: returns a line for each program that runs files by this one, with its name. It accepts a path, a context in
      tokens, and the place of a Modelfile or None.
    takes_exports: True if `flags` also accepts a directory, for a file that it was exported to.
    listening: the options for a port and for the name that clients use, with places for both.
    """

    command: str
    flags: Callable[[PlannedChange, Decode], Sequence[str]] | None = None
    others: Callable[[str, int, Path | None], Sequence[str]] = no_others
    takes_exports: bool = False
    listening: str = "--port {} --served-model-name {}"

    def line(self, file: str, context: int) -> str:
        """Return the command line for a file with this context in tokens."""
        return self.command.format(word(Path(file)), context)

    def named_line(self, file: str, context: int, port: str, name: str) -> str:
        """Return the command line for a file, with the port and with the name that clients use."""
        return f"{self.line(file, context)} {self.listening.format(port, word(name))}"


def once_each(read: Callable[[C], V]) -> Callable[[C], V]:
    """Return a function that computes its value once for each checkpoint.

    A checkpoint never changes: an edit returns a new one.
    """
    values: WeakKeyDictionary[C, V] = WeakKeyDictionary()

    @wraps(read)
    def remembered(checkpoint: C) -> V:
        if checkpoint not in values:
            values[checkpoint] = read(checkpoint)
        return values[checkpoint]

    return remembered


def no_data(program: str, family: str, reason: str = "") -> NotKnown:
    """Return the refusal for a family that ropetool does not decode for a program. reason: may be empty."""
    return NotKnown(f"no data on {family} in {program}{': ' if reason else ''}{reason}")


def added_within(architecture: str, program: str, since: str, releases: Releases) -> NotKnown:
    """Return the refusal for an architecture that only the later of these releases have."""
    return NotKnown(f"{program} has {architecture} from {since} on, so not in all releases from {releases}")


def checked_base(theta: object) -> float:
    """Return the base of a table. Raises: Refuses if it is not a number."""
    if not is_number(theta):
        raise Refuses(f"TypeError: rope_theta is {shown(theta)}; it must be a number")
    return float(theta)
