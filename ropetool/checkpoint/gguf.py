"""A GGUF model: its keys, tensors and vectors, in one file or several, also with edits that are not yet written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ropetool import names
from ropetool.checkpoint import identity, provenance
from ropetool.checkpoint.edits import METADATA, PLAN_AGAIN, TENSORS, FileEdit
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.provenance import Provenance
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import ConfigError, InvalidRope, NotACheckpoint, PlanMismatch, RopetoolError
from ropetool.escaping import command
from ropetool.files.gguf import (
    GGML_TYPES,
    GgufHeader,
    Patch,
    TensorInfo,
    Value,
    ValueType,
    read_header,
    read_shards,
    read_vector,
)
from ropetool.files.gguf.codec import plain_number
from ropetool.files.gguf.kinds import F32
from ropetool.files.hf import ABSENT
from ropetool.rope.tables import is_number

GENERAL_TYPE = "general.type"
ARCHITECTURE = "general.architecture"
MAX_TEXT_BYTES = 4096
MAX_PLAIN_BYTES = 1024
ARRAY_OF = "arr of "


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


def type_problem(key: str, value: Value, type_: ValueType) -> str:
    """Return the reason why llama.cpp would not read a key as this type, or an empty text.

    llama.cpp does not convert types.
    """
    if value.type is not type_:
        return f"key {key} has wrong type {value.type.label} but expected type {type_.label}"
    if type_ is ValueType.STR and len(value.raw) > MAX_TEXT_BYTES:
        return f"key {key} is {len(value.raw)} bytes long; all known values have only a few letters"
    return ""


@dataclass(frozen=True, eq=False)
class GgufCheckpoint:
    """A GGUF model for decoders, searches and writers.

    values: the metadata keys, which are all in the first file.
    tensors: the tensors of all files, by name.
    vector: returns the data of a one-dimensional F32 tensor by name.
    where: the name of the model in messages.
    files: the headers of its files; empty for a model that is not on disk.
    """

    values: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    vector: Callable[[str], npt.NDArray[np.float32]]
    where: str = "model.gguf"
    files: tuple[GgufHeader, ...] = field(default=(), repr=False)

    format: ClassVar[Literal["gguf"]] = "gguf"
    runtime: ClassVar[str] = "llama.cpp"  # the runtime that the format is made for
    stated_in: ClassVar[str] = "file"  # in messages, the source of a setting
    keys_in: ClassVar[str] = "the metadata"  # in messages, the place of the rope keys

    @classmethod
    def of(cls, files: tuple[GgufHeader, ...]) -> GgufCheckpoint:
        """Return the model with these headers. The first header has the keys."""
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
        """Return the model that contains this file.

        Raises: CheckpointError.
        """
        return cls.of(read_shards(path))

    @cached_property
    def name(self) -> str:
        """Return the architecture in the file's metadata.

        Raises: InvalidRope if the key is missing or has a wrong type; NotACheckpoint if the file is not a language
        model.
        """
        general_type = self.values.get(GENERAL_TYPE)
        architecture = self.values.get(ARCHITECTURE)
        problem = "" if architecture is None else type_problem(ARCHITECTURE, architecture, ValueType.STR)
        if problem:
            raise InvalidRope(problem, where=self.where)
        name = str(architecture.decode()) if architecture is not None else ""
        is_text = general_type is not None and not type_problem(GENERAL_TYPE, general_type, ValueType.STR)
        check_gguf(str(general_type.decode()) if general_type is not None and is_text else "", name, Path(self.where))
        if not name:
            raise InvalidRope(
                f"{ARCHITECTURE} is missing, so the keys of the file cannot be interpreted", where=self.where
            )
        return name

    @property
    def path(self) -> Path:
        """Return the first file. Messages name the model by it, and the record is next to it."""
        return self.files[0].path

    @cached_property
    def record(self) -> Provenance | None:
        """Return the record of how ropetool wrote the model, or None if there is no record.

        A file without its record contains part of it in ropetool's keys. The source is then empty.
        Raises: CorruptFile, ConfigError.
        """
        return provenance.read(self.path) or self.own_record

    @property
    def own_record(self) -> Provenance | None:
        """What ropetool's keys in the file repeat of its record: the plan's method, factor and bakes, and no source."""
        stored = {
            key: self.values.get(f"{names.OWN_KEYS}{key}") for key in ("method", "factor", "trained_length", "bakes")
        }
        known = {key: value.decode() for key, value in stored.items() if value is not None}
        trained = known.pop("trained_length", None)
        return Provenance("", "", trained, known) if "method" in known and isinstance(trained, int) else None

    @cached_property
    def stored(self) -> dict[str, StoredTensor]:
        """Return the tensors of all files, by name."""
        return {name: tensor for header in self.files for name, tensor in stored_in(header).items()}

    @cached_property
    def identity(self) -> Identity:
        """Return the identity of the model at the first call, to detect later changes of its files."""
        return identity.of_gguf(self.files, self.values, self.name)

    def after(self, patch: Patch) -> GgufCheckpoint:
        """Return the model with the patch applied in memory."""
        added = {name: TensorInfo(name, vector.shape, F32, 0, vector.nbytes) for name, vector in patch.tensors.items()}
        return replace(
            self,
            values={key: value for key, value in self.values.items() if key not in patch.remove} | dict(patch.set),
            tensors={**self.tensors, **added},
            vector=lambda name: patch.tensors[name] if name in patch.tensors else self.vector(name),
        )

    def edited(self, edits: Sequence[FileEdit]) -> GgufCheckpoint:
        """Return the model with these edits applied in memory.

        Raises: ConfigError if a value does not match its type, or an edit is for a different format.
        """
        return self.after(patch_of(edits)) if edits else self

    def numbers(self, name: str) -> Any:
        """Return the numbers of a vector as JSON values, or ABSENT if the model does not have it."""
        return [plain_number(number) for number in self.vector(name).tolist()] if name in self.tensors else ABSENT

    def edits_of(self, patch: Patch) -> list[FileEdit]:
        """Return a patch of the model as edits.

        Raises: ConfigError for an array or a long text, which a plan cannot store.
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
        """Raise PlanMismatch if the model lacks an old value of these edits."""
        for edit in edits:
            name = edit.path[0]
            present = plain_value(self.values.get(name)) if edit.file == METADATA else self.numbers(name)
            if present != edit.old:
                raise PlanMismatch(f"{name} has changed since the plan was made", where=self.where, try_=PLAN_AGAIN)


def stored_in(header: GgufHeader) -> dict[str, StoredTensor]:
    """Return the tensors of one file, by name."""
    tensors = {}
    for info in header.tensors:
        ggml_type = GGML_TYPES[info.ggml_type]
        tensors[info.name] = StoredTensor(
            header.path, header.data_start + info.offset, info.nbytes, ggml_type.name, info.shape[::-1], ggml_type.nbytes,
            "values" if ggml_type.block == 1 else f"blocks of {ggml_type.block} values",
        )  # fmt: skip
    return tensors


def plain_value(value: Value | None) -> Any:
    """Return a value in JSON types. An array or a long text is replaced by its digest."""
    if value is None:
        return ABSENT
    if value.type is ValueType.ARR or len(value.raw) > MAX_PLAIN_BYTES:
        return {"type": value.label, "sha256": hashlib.sha256(value.raw).hexdigest()}
    return {"type": value.label, "value": plain_number(value.decode())}


def plain_array(value: Value) -> dict[str, Any]:
    """Return a short array for an edit, in JSON types."""
    return {"type": value.label, "value": [plain_number(number) for number in np.asarray(value.decode()).tolist()]}


def _value(data: Any, key: str) -> Value:
    """Return the typed value of an edit.

    Raises: ConfigError if the data is not a typed value.
    """
    try:
        name = str(data["type"])
        if name.startswith(ARRAY_OF):
            return Value.array(ValueType[name.removeprefix(ARRAY_OF).upper()], data["value"])
        return Value.of(ValueType[name.upper()], data["value"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the plan does not contain a value of a known type ({error})", where=key) from None


def _vector(data: Any, name: str) -> npt.NDArray[np.float32]:
    """Return the new data of a tensor.

    Raises: ConfigError if it is not a list of finite numbers.
    """
    if not isinstance(data, list) or not data or not all(map(is_number, data)):
        raise ConfigError("the plan does not contain a list of finite numbers", where=name)
    with np.errstate(over="ignore"):
        vector = np.array(data, np.float32)
    if not np.isfinite(vector).all():
        raise ConfigError("the plan contains numbers that do not fit f32", where=name)
    return vector


def patch_of(edits: Sequence[FileEdit]) -> Patch:
    """Return the patch for these edits.

    Raises: ConfigError if a value does not match its type, or an edit is for a different format.
    """
    foreign = next((e.file for e in edits if e.file not in (METADATA, TENSORS)), None)
    if foreign is not None:
        raise ConfigError("the plan edits this file, which a GGUF model does not have", where=foreign)
    values = {e.path[0]: e for e in edits if e.file == METADATA}
    return Patch(
        {key: _value(edit.new, key) for key, edit in values.items() if edit.new is not ABSENT},
        frozenset(key for key, edit in values.items() if edit.new is ABSENT),
        {e.path[0]: _vector(e.new, e.path[0]) for e in edits if e.file == TENSORS},
    )


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
        general_type, architecture = (header.get(key, ValueType.STR) for key in (GENERAL_TYPE, ARCHITECTURE))
        return general_type in (None, "model") and architecture is not None and architecture not in PARTS
    return False
