"""What is a part of a model, or stands beside one, in place of a checkpoint: what it is, and the command that helps.

Knows their names and the keys by which they are told, not what a checkpoint is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.errors import CheckpointError, NotACheckpoint, RopetoolError
from ropetool.escaping import command, escaped
from ropetool.files.gguf import ValueType, read_header

GENERAL_TYPE = "general.type"
GENERAL_ARCHITECTURE = "general.architecture"
ADAPTER_CONFIG = "adapter_config.json"  # of PEFT
ADAPTER_WEIGHTS = {"adapter_model.safetensors", "adapter_model.bin"}
ADAPTER_BYTES = 1 << 20  # of its config; a list of modules is short
NAME = 100  # characters of a base model that are shown
# transformers reads the weights there with torch.load(weights_only=True), which runs nothing that a pickle says.
_CONVERT = (
    "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, o = sys.argv[1:]; "
    'M.from_pretrained(s, dtype="auto").save_pretrained(o); T.from_pretrained(s).save_pretrained(o)'
)


@dataclass(frozen=True)
class ForeignFile:
    """What a GGUF file of another kind than a model is, and how a command line that helps is made of its path."""

    says: str
    helps: tuple[str, ...]
    why: str = ""


# By general.type, or by general.architecture in files that are older than that key; FILE is the path.
PARTS = {
    "mmproj": ForeignFile(
        "is the image or audio projector of a multimodal model, not its language model",
        ("ropetool", "inspect", "LANGUAGE-MODEL.gguf"), "the language model, which works with this file unchanged",
    ),
    "adapter": ForeignFile(
        "is a LoRA adapter: changes to a model, not a model",
        ("llama-export-lora", "-m", "BASE.gguf", "--lora", "FILE", "-o", "MERGED.gguf"), "which merges both into a model",
    ),
    "imatrix": ForeignFile(
        "is an importance matrix, not a model",
        ("ropetool", "export", "MODEL", "--outtype", "q4_k_m", "--imatrix", "FILE"), "which quantises a model with it",
    ),
}  # fmt: skip
PARTS["clip"] = PARTS["mmproj"]


def check_gguf(kind: str | None, architecture: str | None, path: Path) -> None:
    """Return if a GGUF file is of the kind that a language model is.

    Raises: NotACheckpoint.
    """
    part = PARTS.get(kind or "") or PARTS.get(architecture or "")
    if part is None:
        return
    words = [path if found == "FILE" else found for found in part.helps]
    if part is PARTS["mmproj"]:
        words[-1] = _language_model(path) or words[-1]
    raise NotACheckpoint(part.says, where=str(path), try_=f"{command(*words)}, {part.why}")


def _language_model(projector: Path) -> Path | None:
    """Return the model of the same folder, as projectors lie beside theirs; None unless there is one such file only."""
    others = [file for file in projector.parent.glob("*.gguf") if file.name != projector.name]
    candidates = [file for file in others if "mmproj" not in file.name.lower()]
    return candidates[0] if len(candidates) == 1 and _is_model(candidates[0]) else None


def _is_model(path: Path) -> bool:
    """Return whether the header of a GGUF file says that it is a model."""
    with suppress(RopetoolError, OSError):
        header = read_header(path)
        kind, architecture = (header.get(key, ValueType.STR) for key in (GENERAL_TYPE, GENERAL_ARCHITECTURE))
        return kind in (None, "model") and architecture is not None and architecture not in PARTS
    return False


def check_directory(path: Path, weights: Iterable[Path], *, has_config: bool) -> None:
    """Return unless the directory holds an adapter and no model.

    Raises: NotACheckpoint.
    """
    if not (path / ADAPTER_CONFIG).is_file():
        return
    found = {file.name for file in weights}
    if not has_config or (found and found <= ADAPTER_WEIGHTS):
        raise adapter(str(path), _base(path / ADAPTER_CONFIG))


def adapter(where: str, base: str = "") -> NotACheckpoint:
    """Return the refusal of an adapter without its model."""
    try_ = f"{command('ropetool', 'inspect', base or 'BASE')}, its base model; the adapter also fits an extension of that model"
    of = escaped(base) if base else "a model"
    return NotACheckpoint(f"is a PEFT adapter: changes to {of}, not a model", where=where, try_=try_)


def _base(config: Path) -> str:
    """Return the model that an adapter was trained on, as far as its config says so."""
    data: Any = None
    with suppress(OSError, ValueError, RecursionError):
        if config.stat().st_size <= ADAPTER_BYTES:
            data = json.loads(config.read_bytes())
    base = data.get("base_model_name_or_path") if isinstance(data, Mapping) else None
    return base if isinstance(base, str) and 0 < len(base) <= NAME else ""


def pickled(where: str, first: str, source: str = "") -> CheckpointError:
    """Return the refusal of a checkpoint whose only weights are pickles, `first` one of them."""
    return CheckpointError(
        f"the weights are pickles ({first}), which ropetool never loads", where=where, try_=conversion(source or where)
    )


def conversion(source: str) -> str:
    """Return the command that stores the weights of a checkpoint as safetensors: of a path, or a repository of the hub."""
    name = source.rstrip("/").rpartition("/")[2]
    return command("python", "-c", _CONVERT, source, f"{name}-safetensors")
