"""A Hugging Face checkpoint: its config and the files next to it, also with edits that are not yet written."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ropetool import families, names
from ropetool.checkpoint import identity, provenance, style
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.provenance import Provenance
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import InvalidRope, UnknownFamily
from ropetool.escaping import install_line
from ropetool.families import records
from ropetool.families.family import Family
from ropetool.files.hf import DTYPE_BITS, Directory, Edit, Header, apply_edits, headers, open_directory, parse_object


@dataclass(frozen=True, eq=False)
class HfCheckpoint:
    """A Hugging Face checkpoint for decoders, searches and writers.

    config: the parsed config.json.
    given: its family, if it differs from the family in the config; else None.
    where: the path of the config in messages.
    files: the directory; None for a config that is not on disk.
    text: the text of config.json.
    """

    config: Mapping[str, Any]
    given: Family | None = None
    where: str = names.CONFIG_JSON
    files: Directory | None = None
    text: str = field(default="", repr=False)
    _edited: dict[str, HfCheckpoint] = field(default_factory=dict, repr=False, init=False)

    format: ClassVar[Literal["hf"]] = "hf"
    runtime: ClassVar[str] = "transformers"  # the runtime that the format is made for
    stated_in: ClassVar[str] = "config"  # in messages, the source of a setting
    keys_in: ClassVar[str] = names.CONFIG_JSON  # in messages, the place of the rope keys

    @classmethod
    def of(cls, files: Directory) -> HfCheckpoint:
        """Return the checkpoint in a directory."""
        return cls(files.config, None, str(files.path / names.CONFIG_JSON), files, files.config_text)

    @classmethod
    def open(cls, path: Path) -> HfCheckpoint:
        """Return the checkpoint in this directory.

        Raises: CheckpointError.
        """
        return cls.of(open_directory(path))

    @cached_property
    def family(self) -> Family:
        """Return the family of the config.

        Raises: InvalidRope for a model without rotary positions, UnknownFamily for any other unknown one.
        """
        if self.given is not None:
            return self.given
        try:
            return known_family(self.config, self.where)
        except UnknownFamily as unknown:
            why, built_in = self.likeness
            if not why:
                raise
            try_ = f"--as {built_in}, if the model computes the same as that class"
            raise UnknownFamily(f"{unknown.message}; {why}", where=unknown.where, try_=try_) from None

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def directory(self) -> Directory:
        """Return the files. Call this only for a checkpoint on disk."""
        assert self.files is not None
        return self.files

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def section(self) -> Mapping[str, Any]:
        """Return the object of the config with the rope keys.

        Raises: InvalidRope if it is missing.
        """
        return style.section(self.config, self.family, self.where)

    @cached_property
    def record(self) -> Provenance | None:
        """Return the record of how ropetool wrote the checkpoint, or None if there is no record.

        Raises: CorruptFile, ConfigError.
        """
        return provenance.read(self.path)

    @cached_property
    def headers(self) -> list[Header]:
        """Return the checked headers of the weight files.

        Raises: CorruptFile.
        """
        return headers(self.directory)

    @cached_property
    def stored(self) -> dict[str, StoredTensor]:
        """Return the tensors of all files, by name.

        Raises: CheckpointError if a header cannot be read, or a file is too short for its tensors.
        """
        return {name: tensor for header in self.headers for name, tensor in stored_in(header).items()}

    @cached_property
    def identity(self) -> Identity:
        """Return the identity of the checkpoint at the first call, to detect later changes of its files."""
        return identity.of_checkpoint(self.directory)

    def edited(self, edits: Sequence[FileEdit]) -> HfCheckpoint:
        """Return the checkpoint with these edits of config.json applied in memory.

        Edits of other files are ignored, because they do not affect any decoder.
        Raises: PlanMismatch if an old value is missing; UnknownFamily or InvalidRope if a wrapper needs a key that an
        edit removes.
        """
        changes = edits_of_file(edits, names.CONFIG_JSON)
        key = repr(changes)  # 1 and 1.0 are not the same
        if changes and key not in self._edited:  # cached, because each runtime decodes the same edits
            text = apply_edits(self.text, changes, self.where)
            config = parse_object(text, self.where)
            family = families.of_config(config, self.where)
            renamed = _types(config) != _types(self.config)
            self._edited[key] = replace(self, config=config, text=text, given=family if renamed else self.family)
        return self._edited[key] if changes else self

    def edits_as(self, model_type: str) -> list[FileEdit]:
        """Return the edits that turn a checkpoint with remote code into a checkpoint of this built-in class.

        Raises: UnknownFamily, InvalidRope, LossyExport.
        """
        from ropetool.checkpoint import likeness  # only for remote code

        if families.find(model_type) is None and families.wrapper_of(model_type) is None:
            known_family({names.MODEL_TYPE: model_type}, "--as")  # reads the class from transformers if it is installed
        return likeness.edits_as(self.config, model_type, self._tensor_names(), self.where)

    @property
    def likeness(self) -> tuple[str, str]:
        """Return the built-in class that matches a type with remote code, as text, and its model_type.

        Both are empty if no class matches.
        """
        model_type = self.config.get(names.MODEL_TYPE)
        if not isinstance(model_type, str) or families.wrapper_of(model_type) or records.reason(model_type):
            return "", ""
        from ropetool.checkpoint import likeness

        return likeness.remedy(self.config, self._tensor_names())

    def _tensor_names(self) -> tuple[str, ...]:
        return () if self.files is None or self.files.config_only else tuple(self.stored)


def edits_of_file(edits: Iterable[FileEdit], name: str) -> list[Edit]:
    """Return the edits that concern one JSON file of the checkpoint."""
    return [Edit(edit.path, edit.old, edit.new) for edit in edits if edit.file == name]


def _types(config: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the model_type of a config, and the model_type of the text model inside."""
    return config.get(names.MODEL_TYPE), families.text_type(config)


def stored_in(header: Header) -> dict[str, StoredTensor]:
    """Return the tensors of one weight file, by name."""
    return {
        info.name: StoredTensor(
            header.path, info.begin, info.end - info.begin, info.dtype, info.shape,
            max(1, DTYPE_BITS[info.dtype] // 8), "values" if DTYPE_BITS[info.dtype] % 8 == 0 else "bytes",
        )
        for info in header.tensors.values()
    }  # fmt: skip


def known_family(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of this config.json.

    Raises: InvalidRope for a model without rotary positions, UnknownFamily for any other unknown one.
    """
    model_type = config.get(names.MODEL_TYPE)
    if not isinstance(model_type, str) or not model_type:
        from ropetool.checkpoint import likeness

        problem = f"model_type is missing, so the family is unknown{likeness.untyped(config)}"
        raise InvalidRope(problem, where=where, try_="ropetool families")
    inner = families.text_type(config)
    if inner in records.unrotated():
        within = "" if inner == model_type else f"the {inner} inside this "
        raise InvalidRope(f"{within}{model_type} has no rotary positions: there is nothing to extend", where=where)
    for _ in ("the config", "the text model inside"):
        try:
            return families.of_config(config, where)
        except UnknownFamily as unknown:
            missing = families.unread_type(config)
            if families.unread(missing):
                raise
            if not _has_transformers():
                raise UnknownFamily(
                    unknown.message,
                    where=where,
                    try_=f"{install_line('verify')}, then run again: ropetool reads the type from transformers",
                ) from None
            if not families.read_live(missing):
                raise
    return families.of_config(config, where)


def _has_transformers() -> bool:
    """Return whether the packages that read an unknown family from its class are installed. Imports nothing."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
