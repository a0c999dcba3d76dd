"""A change of a checkpoint as plain data: one key of one of its JSON files, one metadata key or one vector of a GGUF model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.files.hf import ABSENT, Edit
from ropetool.files.hf.jsontext import shown

PLAN_AGAIN = "make a new plan with ropetool extend ... --dry-run --plan-out FILE"
METADATA, TENSORS = "metadata", "tensors"  # the two parts of a GGUF model that plans edit


EDITED_FILES = (names.CONFIG_JSON, names.TOKENIZER_CONFIG_JSON, names.SAFETENSORS_INDEX_JSON, METADATA, TENSORS)


@dataclass(frozen=True)
class FileEdit:
    """One change in one JSON file of the checkpoint, or to the METADATA or TENSORS of a GGUF model.

    old and new may be ABSENT. A metadata value is {"type", "value"}, a tensor a list of numbers.
    """

    file: str
    path: tuple[str, ...]
    old: Any
    new: Any

    def to_json(self) -> dict[str, Any]:
        values = {key: v for key, v in (("old", self.old), ("new", self.new)) if v is not ABSENT}
        return {"file": self.file, "path": list(self.path), **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FileEdit:
        """Return the edit of a plan file.

        Raises: KeyError, TypeError or ValueError if it is none, or of a file that plans do not edit.
        """
        file, path = data["file"], data["path"]
        if file not in EDITED_FILES:
            raise ValueError(f"{shown(file)} is not a file that plans edit")
        if not isinstance(path, list) or not path or not all(isinstance(key, str) for key in path):
            raise ValueError(f"{shown(path)} is not a path to a key")
        return cls(file, tuple(path), data.get("old", ABSENT), data.get("new", ABSENT))


def config_file_edits(edits: Iterable[Edit]) -> list[FileEdit]:
    """Return edits of config.json as those of a checkpoint."""
    return [FileEdit(names.CONFIG_JSON, edit.path, edit.old, edit.new) for edit in edits]


def edits_of_file(edits: Iterable[FileEdit], name: str) -> list[Edit]:
    """Return those edits of a checkpoint that concern one of its JSON files."""
    return [Edit(edit.path, edit.old, edit.new) for edit in edits if edit.file == name]
