"""What a runtime is: a decoder from what a file says to what that program really computes.

Shared by all files of this folder. A runtime module holds NAME, FORMATS, SUMMARY, and either VERSIONS and
decode(view), or RELEASES and decode(view, releases) where releases of the program differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import is_number

C = TypeVar("C")
V = TypeVar("V")


@dataclass(frozen=True)
class Releases:
    """A stretch of releases of a program that read alike, from `first` to `last`: the ends that were checked."""

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
    """Return the numbers of a version, for comparison; what follows the first part without one is left out."""
    return tuple(int(part) for part in re.match(r"(\d+(?:\.\d+)*)?", version)[0].split(".") if part)  # type: ignore[index]


class Refuses(Exception):
    """The runtime stops with an error on this file; the text says which."""


class NotHeld(Refuses):
    """No file that the runtime reads holds what is asked: it would compute something else; the text says what."""


class NotKnown(Refuses):
    """The runtime may run this file, but ropetool does not know how."""


def once_each(read: Callable[[C], V]) -> Callable[[C], V]:
    """Return a function that computes its value once for each checkpoint. A checkpoint never changes: an edit makes another."""
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
