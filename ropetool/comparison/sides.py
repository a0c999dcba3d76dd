"""One of two checkpoints to compare, opened: what it says, what runtimes make of it, where its tensors are.

Reads headers alone; knows both formats, and nothing of the other checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.opening import is_gguf
from ropetool.checkpoint.tensor_bytes import Stored, stored_tensors
from ropetool.checkpoint.views import GgufView
from ropetool.errors import RopetoolError
from ropetool.files.gguf import Value, read_shards
from ropetool.files.hf import Checkpoint, open_checkpoint
from ropetool.runtimes import inspection
from ropetool.runtimes.inspection import Inspection, RuntimeReading
from ropetool.weights.bakes import view_of
from ropetool.weights.fold_targets import View
from ropetool.weights.gguf_fold_targets import gguf_view

HF, GGUF = "hf", "gguf"


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint. values: the metadata of a GGUF file. view: where its queries and keys are made, if that is known.

    why_no_tensors: why only its config can be compared, or empty.
    """

    path: Path
    found: Inspection
    tensors: Mapping[str, Stored]
    config: Mapping[str, Any]
    values: Mapping[str, Value]
    config_style: str
    view: View | None
    why_no_tensors: str

    @property
    def format(self) -> str:
        return self.found.format

    @property
    def is_gguf(self) -> bool:
        return self.format == GGUF

    def reading(self, runtime: str) -> RuntimeReading | None:
        """Return what a runtime makes of it, None for one that reads another format."""
        return next((reading for reading in self.found.readings if reading.name == runtime), None)


def opened(path: Path) -> Opened:
    """Return a checkpoint opened for a comparison.

    Raises: CheckpointError for what is none and for broken files, ConfigError for broken values of a known family.
    """
    return _opened_gguf(path) if is_gguf(path) else _opened_directory(path)


def _opened_gguf(path: Path) -> Opened:
    model = GgufView.of(read_shards(path))
    tensors = stored_tensors(path)
    why = "" if tensors else "holds no tensors"
    return Opened(
        path, inspection.inspect(path), tensors, {}, model.values, "GGUF", _known(lambda: gguf_view(model)), why
    )


def _opened_directory(path: Path) -> Opened:
    checkpoint = open_checkpoint(path)
    found = inspection.inspect_checkpoint(checkpoint)
    why = "holds a config and no weights" if checkpoint.config_only else ""
    if checkpoint.pickle_only:
        why = "holds its weights as pickles, which are never loaded"
    where = str(path / names.CONFIG_JSON)
    known = style.read(checkpoint.config, found.family, where).style if found.family else ""
    tensors = {} if why else stored_tensors(path)
    return Opened(path, found, tensors, checkpoint.config, {}, known, _view(checkpoint, found), why)


def _view(checkpoint: Checkpoint, found: Inspection) -> View | None:
    family = found.family
    return _known(lambda: view_of(checkpoint, family)) if family is not None and checkpoint.weights else None


def _known(make: Callable[[], View]) -> View | None:
    """Return where queries and keys are made, if that is known; without it, orders of rows are found by the rows alone."""
    try:
        view = make()
        return view if view.bake else None
    except RopetoolError:
        return None
