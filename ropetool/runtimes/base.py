"""What a runtime is: a decoder from what a file says to what that program really computes.

Shared by all files of this folder. A runtime module holds NAME, FORMATS, SUMMARY, and either VERSIONS and
decode(view), or RELEASES and decode(view, first) where releases of the program differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import is_number


@dataclass(frozen=True)
class Releases:
    """A stretch of releases of a program that read alike, from `first` to `last`: the ends that were checked."""

    first: str
    last: str

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    def has(self, version: str) -> bool:
        """Return whether a version lies within; 0.25.1 is within 0.24 to 0.25."""
        asked, last = numbers(version), numbers(self.last)
        return numbers(self.first) <= asked and asked[: len(last)] <= last


def stretch_of(releases: Sequence[Releases], first: str) -> Releases:
    """Return the stretch that begins with `first`."""
    return next(stretch for stretch in releases if stretch.first == first)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison; what follows the first part without one is left out."""
    return tuple(int(part) for part in re.match(r"(\d+(?:\.\d+)*)?", version)[0].split(".") if part)  # type: ignore[index]


class Refuses(Exception):
    """The runtime stops with an error on this file; the text says which."""


class NotHeld(Refuses):
    """No file that the runtime reads holds what is asked: it would compute something else; the text says what."""


class NotKnown(Refuses):
    """The runtime may run this file, but ropetool does not know how."""


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
