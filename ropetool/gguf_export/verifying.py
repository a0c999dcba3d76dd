"""Verification with exports at hand: a GGUF file is held against what exporting its source writes."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.comparison.exported import Exported
from ropetool.gguf_export.container import numbers
from ropetool.gguf_export.preparing import ExportOptions, plain_layout, prepare
from ropetool.verification import checkpoints
from ropetool.verification.readback.claimed import Exporter
from ropetool.verification.results import VerifyResult


def exported_tensors(source: HfCheckpoint) -> tuple[Exported, ...]:
    """Return what a directory's tensors become in a GGUF file, every number in float32; none is read yet.

    Raises: what export_checkpoint does.
    """
    return tuple(
        Exported(
            placed.info.name, tuple(dict.fromkeys(each.stored.name for each in placed.sources)), placed.dtype,
            placed.info.shape[::-1], partial(numbers, placed), bool(placed.function),
        )
        for placed in plain_layout(source).tensors
    )  # fmt: skip


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


EXPORTER = Exporter(exported_keys, exported_tensors)


def verify_checkpoint(target: str | Path, **options: Any) -> VerifyResult:
    """Return what verification.checkpoints.verify_checkpoint does, exported files held against their source's export."""
    return checkpoints.verify_checkpoint(target, exporter=EXPORTER, **options)
