"""Open a checkpoint for a comparison: its settings, the decoded tables, and the places of its tensors.

Reads only headers.
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
    """A checkpoint with its decoded tables.

    checkpoint: the checkpoint.
    inspection: the result of `inspect`.
    config_style: the style of its rope keys. "GGUF" for a GGUF file, and empty if the family is unknown.
    targets: the tensors that produce queries and keys. None if they are unknown.
    why_no_tensors: why only its config can be compared. Empty if its tensors can be, too.
    """

    checkpoint: Checkpoint
    inspection: Inspection
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
        """Return the config of a directory. Empty for a GGUF file."""
        return self.checkpoint.config if isinstance(self.checkpoint, HfCheckpoint) else {}

    @property
    def values(self) -> Mapping[str, Value]:
        """Return the keys of a GGUF file. Empty for a directory."""
        return self.checkpoint.values if isinstance(self.checkpoint, GgufCheckpoint) else {}

    def reading(self, runtime: str) -> Decoded | None:
        """Return the table that a runtime decodes, or None if the runtime reads a different format."""
        return self.inspection.readings.named(runtime)


def opened(path: Path) -> Opened:
    """Open a checkpoint for a comparison.

    Raises: CheckpointError if it is not a checkpoint or a file is broken. ConfigError for invalid values of a known
      family.
    """
    checkpoint = open_checkpoint(path)
    inspected = inspection.inspect_checkpoint(checkpoint)
    if isinstance(checkpoint, GgufCheckpoint):
        why = "" if checkpoint.tensors else "contains no tensors"
        return Opened(checkpoint, inspected, "GGUF", _known(checkpoint), why)
    files = checkpoint.directory
    why = "contains a config but no weights" if files.config_only else ""
    if files.pickle_only:
        why = "stores its weights as pickles, which ropetool never loads"
    if inspected.family is None:
        return Opened(checkpoint, inspected, "", None, why)
    config_style = style.read(checkpoint.config, inspected.family, checkpoint.where).style
    targets = _known(checkpoint) if files.weights else None
    return Opened(checkpoint, inspected, config_style, targets, why)


def _known(checkpoint: Checkpoint) -> FoldTargets | None:
    """Return the tensors that produce queries and keys, or None. Without them, only the rows show a permutation."""
    try:
        targets = bakeable(checkpoint).targets
        return targets if targets.steps else None
    except RopetoolError:
        return None
