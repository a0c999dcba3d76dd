"""What an export wrote, as text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ropetool.report.layout import columns

SCHEMA = 1


class Exported(Protocol):
    """What was written. The exporting layer lies above this one, so its type is known by shape."""

    @property
    def output(self) -> Path: ...
    @property
    def arch(self) -> str: ...
    @property
    def outtype(self) -> str: ...
    @property
    def tensors(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def encoding(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    def to_json(self) -> dict[str, Any]: ...


def exported_text(written: Exported) -> str:
    """Return what `ropetool export` prints."""
    rows = [
        ("architecture", written.arch),
        ("context", f"{written.context_length} tokens, {written.encoding}"),
        ("tensors", f"{written.tensors}, matrices in {written.outtype}, {written.nbytes / 1e6:.1f} MB"),
    ]
    return f"{written.output}\n{columns(rows)}"


def exported_json(written: Exported) -> dict[str, Any]:
    """Return what `ropetool export --json` prints."""
    return {"schema": SCHEMA, **written.to_json()}
