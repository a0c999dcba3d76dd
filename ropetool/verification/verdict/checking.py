"""The first question of a verification: does the checkpoint equal its record or its implied extension?

This does not read texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint import certificate
from ropetool.checkpoint.certificate import State
from ropetool.files import hub
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import FALSE, NOT_KNOWN, TRUE, Check, is_true
from ropetool.verification.session import Session
from ropetool.verification.verdict.checkpoint import read_alone

SCHEMA = 1


@dataclass(frozen=True)
class Checked:
    """The settings of a checkpoint, and the checks of them.

    target: the name of the checkpoint.
    source: the name of the checkpoint that it was compared with, or None.
    trained_length, context_length: tokens.
    extension: method, factor and parameters of the extension, or None.
    checks: the checks of tables, weights, files and rotation.
    measured: the state of its certificate.
    notes: sentences for the reader.
    """

    target: str
    source: str | None
    trained_length: int
    context_length: int
    extension: Mapping[str, Any] | None
    checks: tuple[Check, ...]
    measured: State
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`false` if a check failed, `not known` if one could not run or none passed, else `true`."""
        return is_true(self.checks)

    @property
    def exit_code(self) -> int:
        """0 for true, 3 for false, 1 for not known."""
        return {TRUE: 0, FALSE: 3, NOT_KNOWN: 1}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file."""
        fields = {name: value for name, value in vars(self).items() if name not in ("checks", "measured", "notes")}
        return {
            "schema": SCHEMA, "verdict": self.verdict, **fields, "checks": [vars(check) for check in self.checks],
            "certificate": {"state": self.measured.name, "why": self.measured.why}, "notes": list(self.notes),
        }  # fmt: skip


def check(target: str | Path, baseline: str | Path | None = None, terms: Terms | None = None) -> Checked:
    """Compare a checkpoint with its record, or with a baseline. Raises: CheckpointError, ConfigError."""
    session = Session.open(target, baseline, terms)
    path = session.target.path
    return Checked(
        hub.name_of(path),
        None if session.source is None else hub.name_of(session.source.path),
        session.trained,
        session.context,
        session.extension,
        tuple(read_alone(session)),
        certificate.state(path),
        tuple(session.notes),
    )
