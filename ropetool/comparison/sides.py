"""One of two checkpoints to compare, opened: what it says, what runtimes make of it, where its tensors are.

Reads headers alone; knows both formats, and nothing of the other checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint import style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import RopetoolError
from ropetool.files.gguf import Value
from ropetool.runtimes import inspection
from ropetool.runtimes.decoded import Decoded
from ropetool.runtimes.inspection import Inspection
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint with what runtimes make of it. targets: where its queries and keys are made, if that is known.

    why_no_tensors: why only its config can be compared, or empty.
    """

    checkpoint: Checkpoint
    found: Inspection
    config_style: str
    targets: FoldTargets | None
    why_no_tensors: str

    @property
    def is_gguf(self) -> bool:
        return isinstance(self.checkpoint, GgufCheckpoint)

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {} if self.why_no_tensors else self.checkpoint.stored

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the config of a directory, empty for a GGUF model."""
        return self.checkpoint.config if isinstance(self.checkpoint, HfCheckpoint) else {}

    @property
    def values(self) -> Mapping[str, Value]:
        """Return the keys of a GGUF model, empty for a directory."""
        return self.checkpoint.values if isinstance(self.checkpoint, GgufCheckpoint) else {}

    def reading(self, runtime: str) -> Decoded | None:
        """Return what a runtime makes of it, None for one that reads another format."""
        return self.found.readings.named(runtime)


def opened(path: Path) -> Opened:
    """Return a checkpoint opened for a comparison.

    Raises: CheckpointError for what is none and for broken files, ConfigError for broken values of a known family.
    """
    checkpoint = open_checkpoint(path)
    found = inspection.inspect_checkpoint(checkpoint)
    if isinstance(checkpoint, GgufCheckpoint):
        why = "" if checkpoint.tensors else "contains no tensors"
        return Opened(checkpoint, found, "GGUF", _known(checkpoint), why)
    files = checkpoint.directory
    why = "contains a config but no weights" if files.config_only else ""
    if files.pickle_only:
        why = "stores its weights as pickles, which ropetool never loads"
    if found.family is None:
        return Opened(checkpoint, found, "", None, why)
    known = style.read(checkpoint.config, found.family, checkpoint.where).style
    targets = _known(checkpoint) if files.weights else None
    return Opened(checkpoint, found, known, targets, why)


def _known(checkpoint: Checkpoint) -> FoldTargets | None:
    """Return where queries and keys are made, if that is known; without it, orders of rows are found by the rows alone."""
    try:
        targets = bakeable(checkpoint).targets
        return targets if targets.steps else None
    except RopetoolError:
        return None
