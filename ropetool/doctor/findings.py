"""Rules and findings of `ropetool doctor` as plain data."""

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
    """A defect of a checkpoint, or a difference in one or more runtimes.

    rule: the name of the rule.
    severity: "error", "warning" or "note".
    sentence: the problem, without a full stop.
    fix: a command that works, or a step in words. Empty if no edit of the file removes the problem.
    key: the key of the file that has the problem. Empty if there is no such key.
    runtimes: the full names of the runtimes with the problem. Empty if the file itself has it.
    line: the line of config.json in which the key occurs first, counted from 1. 0 without such a line.
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
        """Return whether the fix is a command line. ropetool has planned each such command."""
        return self.fix.startswith("ropetool ")


def misspelt(place: str, known_key: str, key: str) -> Finding:
    """Return the finding for a key that no runtime reads and that resembles a known key.

    place: the key with its path.
    known_key: the known key.
    key: the key without its path.
    """
    return Finding("unread-key", WARNING, f"no known runtime reads {place}", f"did you mean {known_key}?", key)


@dataclass(frozen=True)
class Rule:
    """A rule of `doctor`.

    name: the name that `--only` accepts.
    severity: the worst severity of its findings without `--for`.
    summary: the problem, as a noun phrase.
    why: the effect on a user, for the documentation.
    formats: the checkpoint formats that it applies to: "hf", "gguf" or both.
    find: the function that yields the findings in a case.
    """

    name: str
    severity: str
    summary: str
    why: str
    formats: tuple[str, ...]
    find: Callable[[Case], Iterator[Finding]]
