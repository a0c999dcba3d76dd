"""A rule of `ropetool doctor` and what it finds, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropetool.doctor.cases import Case

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # the worst first


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a checkpoint, or that a runtime makes of it.

    sentence: what it is, without a full stop. fix: a command that works, or a step in words; empty where no edit of the
    file mends it. key: the key of the file that is concerned. runtimes: those that it is about, by their full names; empty
    where it is about the file. line: that of config.json where the key first stands, 0 for none.
    """

    rule: str
    severity: str
    sentence: str
    fix: str = ""
    key: str = ""
    runtimes: tuple[str, ...] = ()
    line: int = 0

    @property
    def is_command(self) -> bool:
        """Whether the fix is a command line, which was planned before it was named."""
        return self.fix.startswith("ropetool ")


def misspelt(place: str, meant: str, key: str) -> Finding:
    """Return the finding about a key that no runtime reads and that resembles a known one.

    place: the key with its path. meant: the known key.
    """
    return Finding("unread-key", WARNING, f"no known runtime reads {place}", f"did you mean {meant}?", key)


@dataclass(frozen=True)
class Rule:
    """What is looked for. severity: the worst that it finds where --for names no runtime. formats: of which checkpoints.

    why: what happens to somebody who does not see it, for the documentation.
    """

    name: str
    severity: str
    summary: str
    why: str
    formats: tuple[str, ...]
    find: Callable[[Case], Iterator[Finding]]
