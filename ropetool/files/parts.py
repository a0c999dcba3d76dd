"""Files that are not a checkpoint but belong to one, such as adapters and projectors, and the command to use."""

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
ADAPTER_CONFIG = "adapter_config.json"  # PEFT's name
ADAPTER_WEIGHTS = {"adapter_model.safetensors", "adapter_model.bin"}
ADAPTER_BYTES = 1 << 20  # size limit of its config, which has a short list of modules
NAME = 100  # the longest name of a base model to show, in characters
# transformers reads these weights with torch.load(weights_only=True), which does not run code in a pickle.
_CONVERT = (
    "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, o = sys.argv[1:]; "
    'M.from_pretrained(s, dtype="auto").save_pretrained(o); T.from_pretrained(s).save_pretrained(o)'
)


@dataclass(frozen=True)
class ForeignFile:
    """A type of GGUF file that is not a model.

    problem: the message.
    words: a command to use instead; FILE stands for the path.
    reason: text after the command.
    """

    problem: str
    words: tuple[str, ...]
    reason: str = ""


# By general.type, or by general.architecture in files that are older than this key.
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


def check_gguf(general_type: str | None, architecture: str | None, path: Path) -> None:
    """Return if a GGUF file can be a language model, by its general.type and general.architecture.

    Raises: NotACheckpoint.
    """
    part = PARTS.get(general_type or "") or PARTS.get(architecture or "")
    if part is None:
        return
    words = [path if word == "FILE" else word for word in part.words]
    if part is PARTS["mmproj"]:
        words[-1] = _language_model(path) or words[-1]
    raise NotACheckpoint(part.problem, where=str(path), try_=f"{command(*words)}, {part.reason}")


def _language_model(projector: Path) -> Path | None:
    """Return the only model next to a projector, where publishers put it, or None."""
    others = [file for file in projector.parent.glob("*.gguf") if file.name != projector.name]
    candidates = [file for file in others if "mmproj" not in file.name.lower()]
    return candidates[0] if len(candidates) == 1 and _is_model(candidates[0]) else None


def _is_model(path: Path) -> bool:
    """Return whether a GGUF file is a model, by its header."""
    with suppress(RopetoolError, OSError):
        header = read_header(path)
        general_type, architecture = (header.get(key, ValueType.STR) for key in (GENERAL_TYPE, GENERAL_ARCHITECTURE))
        return general_type in (None, "model") and architecture is not None and architecture not in PARTS
    return False


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
