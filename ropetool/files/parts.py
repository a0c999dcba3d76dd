"""Directories that are not a checkpoint but belong to one, such as adapters and pickles, and the command to use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropetool.errors import CheckpointError, NotACheckpoint
from ropetool.escaping import command, escaped

ADAPTER_CONFIG = "adapter_config.json"  # PEFT's name
ADAPTER_WEIGHTS = {"adapter_model.safetensors", "adapter_model.bin"}
ADAPTER_BYTES = 1 << 20  # size limit of its config, which has a short list of modules
NAME = 100  # the longest name of a base model to show, in characters
# transformers reads these weights with torch.load(weights_only=True), which does not run code in a pickle.
_CONVERT = (
    "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, o = sys.argv[1:]; "
    'M.from_pretrained(s, dtype="auto").save_pretrained(o); T.from_pretrained(s).save_pretrained(o)'
)


def check_directory(path: Path, weights: Iterable[Path], *, has_config: bool) -> None:
    """Return if the directory does not contain an adapter without a model.

    Raises: NotACheckpoint.
    """
    if not (path / ADAPTER_CONFIG).is_file():
        return
    files = {file.name for file in weights}
    if not has_config or (files and files <= ADAPTER_WEIGHTS):
        raise adapter(str(path), _base(path / ADAPTER_CONFIG))


def adapter(where: str, base: str = "") -> NotACheckpoint:
    """Return the error about an adapter without its model."""
    try_ = f"{command('ropetool', 'inspect', base or 'BASE')}, its base model; the adapter also fits an extension of that model"
    of = escaped(base) if base else "a model"
    return NotACheckpoint(f"is a PEFT adapter: changes to {of}, not a model", where=where, try_=try_)


def _base(config: Path) -> str:
    """Return the name of an adapter's base model from its config, or an empty text."""
    data: Any = None
    with suppress(OSError, ValueError, RecursionError):
        if config.stat().st_size <= ADAPTER_BYTES:
            data = json.loads(config.read_bytes())
    base = data.get("base_model_name_or_path") if isinstance(data, Mapping) else None
    return base if isinstance(base, str) and 0 < len(base) <= NAME else ""


def pickled(where: str, first: str, source: str = "") -> CheckpointError:
    """Return the error about a checkpoint whose only weights are pickles. `first` is one of the files."""
    return CheckpointError(
        f"the weights are pickles ({first}), which ropetool never loads", where=where, try_=conversion(source or where)
    )


def conversion(source: str) -> str:
    """Return the command that converts the weights of a path or hub repository to safetensors."""
    name = source.rstrip("/").rpartition("/")[2]
    return command("python", "-c", _CONVERT, source, f"{name}-safetensors")
