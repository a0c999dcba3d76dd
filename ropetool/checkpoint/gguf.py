"""A GGUF model: its keys, its tensors, its vectors, in one file or several, with edits that nobody has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint import identity, provenance
from ropetool.checkpoint.edits import METADATA, PLAN_AGAIN, TENSORS, FileEdit
from ropetool.checkpoint.gguf_edits import patch_of, plain_number, plain_value
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.provenance import Provenance
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import ConfigError, InvalidRope, PlanMismatch
from ropetool.files import parts
from ropetool.files.gguf import GGML_TYPES, GgufHeader, Patch, TensorInfo, Value, ValueType, read_shards, read_vector
from ropetool.files.gguf.kinds import F32
from ropetool.files.hf import ABSENT

ARCHITECTURE = "general.architecture"
MAX_TEXT_BYTES = 4096


def type_problem(key: str, value: Value, type_: ValueType) -> str:
    """Return why llama.cpp would not read a key as this type, empty where it would; it converts nothing."""
    if value.type is not type_:
        return f"key {key} has wrong type {value.type.label} but expected type {type_.label}"
    if type_ is ValueType.STR and len(value.raw) > MAX_TEXT_BYTES:
        return f"key {key} is {len(value.raw)} bytes long; all known values have only a few letters"
    return ""


@dataclass(frozen=True, eq=False)
class GgufCheckpoint:
    """A GGUF model as decoders, searches and writers see it.

    values: the keys, which all stand in the first file. tensors: those of all files. vector: returns the data of a
    one-dimensional F32 tensor. where: its name in messages. files: the headers, none for a model that lies nowhere.
    """

    values: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    vector: Callable[[str], npt.NDArray[np.float32]]
    where: str = "model.gguf"
    files: tuple[GgufHeader, ...] = field(default=(), repr=False)

    format: ClassVar[str] = "gguf"
    runtime: ClassVar[str] = "llama.cpp"  # what the format is made for
    stated_in: ClassVar[str] = "file"  # in messages: what the runtime reads, and what holds its rope keys
    keys_in: ClassVar[str] = "the metadata"

    @classmethod
    def of(cls, files: tuple[GgufHeader, ...]) -> GgufCheckpoint:
        """Return the model of these headers; the first has the keys."""
        owners = {tensor.name: (header, tensor) for header in files for tensor in header.tensors}
        return cls(
            files[0].values,
            {name: tensor for name, (_, tensor) in owners.items()},
            lambda name: read_vector(*owners[name]),
            str(files[0].path),
            files,
        )

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        """Return the model that this file belongs to.

        Raises: CheckpointError.
        """
        return cls.of(read_shards(path))

    @cached_property
    def name(self) -> str:
        """Return the architecture that the model names.

        Raises: InvalidRope if it names none; NotACheckpoint where the file is not a language model.
        """
        kind = self.values.get(parts.GENERAL_TYPE)
        stated = self.values.get(ARCHITECTURE)
        problem = "" if stated is None else type_problem(ARCHITECTURE, stated, ValueType.STR)
        if problem:
            raise InvalidRope(problem, where=self.where)
        found = str(stated.decode()) if stated is not None else ""
        is_text = kind is not None and not type_problem(parts.GENERAL_TYPE, kind, ValueType.STR)
        parts.check_gguf(str(kind.decode()) if kind is not None and is_text else "", found, Path(self.where))
        if not found:
            raise InvalidRope(
                f"{ARCHITECTURE} is missing, so the keys of the file cannot be interpreted", where=self.where
            )
        return found

    @property
    def path(self) -> Path:
        """Return the first file, which the model is named by and beside which its record stands."""
        return self.files[0].path

    @cached_property
    def record(self) -> Provenance | None:
        """Return what ropetool wrote of its making, None for a model of others.

        Raises: CorruptFile, ConfigError.
        """
        return provenance.read(self.path)

    @cached_property
    def stored(self) -> dict[str, StoredTensor]:
        """Return all tensors by name, over all files."""
        return {name: tensor for header in self.files for name, tensor in stored_in(header).items()}

    @cached_property
    def identity(self) -> Identity:
        """Return the identity of the model, as of its first use, to detect a later change of its files."""
        return identity.of_gguf(self.files, self.values, self.name)

    def after(self, patch: Patch) -> GgufCheckpoint:
        """Return the model as it would be with the patch applied."""
        added = {name: TensorInfo(name, vector.shape, F32, 0, vector.nbytes) for name, vector in patch.tensors.items()}
        return replace(
            self,
            values={key: value for key, value in self.values.items() if key not in patch.remove} | dict(patch.set),
            tensors={**self.tensors, **added},
            vector=lambda name: patch.tensors[name] if name in patch.tensors else self.vector(name),
        )

    def edited(self, edits: Sequence[FileEdit]) -> GgufCheckpoint:
        """Return the model with these edits.

        Raises: ConfigError if a value is not of its type, or an edit is of another kind of file.
        """
        return self.after(patch_of(edits)) if edits else self

    def numbers(self, name: str) -> Any:
        """Return the numbers of a vector as JSON can hold them, ABSENT where there is none."""
        return [plain_number(number) for number in self.vector(name).tolist()] if name in self.tensors else ABSENT

    def edits_of(self, patch: Patch) -> list[FileEdit]:
        """Return a patch of the model as edits.

        Raises: ConfigError for an array or a long string, which a plan does not hold.
        """
        edits = []
        for key, value in patch.set.items():
            plain = plain_value(value)
            if "value" not in plain:
                raise ConfigError("a plan cannot store an array or a long text", where=key)
            edits.append(FileEdit(METADATA, (key,), plain_value(self.values.get(key)), plain))
        edits += [FileEdit(METADATA, (key,), plain_value(self.values.get(key)), ABSENT) for key in sorted(patch.remove)]
        edits += [FileEdit(TENSORS, (n,), self.numbers(n), vector.tolist()) for n, vector in patch.tensors.items()]
        return edits

    def check_old_values(self, edits: Sequence[FileEdit]) -> None:
        """Raise PlanMismatch unless the model still holds every old value."""
        for edit in edits:
            name = edit.path[0]
            present = plain_value(self.values.get(name)) if edit.file == METADATA else self.numbers(name)
            if present != edit.old:
                raise PlanMismatch(f"{name} has changed since the plan was made", where=self.where, try_=PLAN_AGAIN)


def stored_in(header: GgufHeader) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name."""
    found = {}
    for info in header.tensors:
        kind = GGML_TYPES[info.ggml_type]
        found[info.name] = StoredTensor(
            header.path, header.data_start + info.offset, info.nbytes, kind.name, info.shape[::-1], kind.nbytes,
            "values" if kind.block == 1 else f"blocks of {kind.block} values",
        )  # fmt: skip
    return found
