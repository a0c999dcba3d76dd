"""Verification with exports at hand: a GGUF file is held against what exporting its source writes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.gguf_export.preparing import ExportOptions, prepare
from ropetool.verification import checkpoints
from ropetool.verification.results import VerifyResult


def exported_keys(source: Path) -> GgufCheckpoint:
    """Return the keys that a directory is exported with, and no tensors; nothing is written.

    Raises: what export_checkpoint does.
    """
    with tempfile.TemporaryDirectory() as folder:  # which a file is never written to
        ready = prepare(
            source, Path(folder) / "keys.gguf", ExportOptions(check=False, sidecars=False, allow_inexact=True)
        )
    return GgufCheckpoint(ready.values, {}, _no_vector, where=str(source))


def _no_vector(name: str) -> Any:
    raise KeyError(name)


def verify_checkpoint(target: str | Path, **options: Any) -> VerifyResult:
    """Return what verification.checkpoints.verify_checkpoint does, exported files held against their source's export."""
    return checkpoints.verify_checkpoint(target, exported_keys=exported_keys, **options)
