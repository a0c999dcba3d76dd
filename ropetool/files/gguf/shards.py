"""Models split over several GGUF files: which files belong together, and the file that a change affects.

All metadata except the split.* keys is in the first file. Only the header of this file ever changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropetool.errors import ConfigError, CorruptFile, MissingFile
from ropetool.files.gguf.codec import Value, shown
from ropetool.files.gguf.header import GgufHeader, read_header
from ropetool.files.gguf.kinds import ValueType
from ropetool.files.gguf.patch import Patch
from ropetool.files.shard_names import shard_name, shard_paths

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

_TOGETHER = "put all files of the model into one folder, with their original names"


def shards(path: str | Path) -> list[Path]:
    """Return the files of the model that contains this file, in order."""
    return [header.path for header in read_shards(path)]


def read_shards(path: str | Path, read: Callable[[Path], GgufHeader] | None = None) -> tuple[GgufHeader, ...]:
    """Return the headers of all files of a model, from the path of any of them. The first header has the metadata.

    A file without a shard count is a complete model, regardless of its name, as in llama.cpp.

    read: returns the header of a file that is not on this disk.
    Raises: MissingFile if a shard is missing.
    Raises: CorruptFile if the name of a shard does not match its keys, if it has metadata, or if the number of tensors
    differs from the number in the first file.
    """
    given = read_header(path) if read is None else read(Path(path))
    count = given.get(SPLIT_COUNT, ValueType.U16) or 1
    if count == 1:
        return (given,)
    _check_name(given)
    headers = tuple(
        given if each == given.path else _read_neighbour(each, given, read) for each in shard_paths(given.path, count)
    )
    for header in headers[1:]:
        _check_no_metadata(header)
    _check_tensors(headers)
    return headers


def split_patch(headers: tuple[GgufHeader, ...], patch: Patch) -> tuple[Patch, ...]:
    """Return the patch for each file of a model. An empty patch leaves its file unchanged.

    Keys and new tensors go to the first file, whose count of tensors then increases. New data goes to the file of its
    tensor.
    Raises: ConfigError if the patch changes the split.* keys.
    """
    for key in (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS):
        if key in patch.set or key in patch.remove:
            raise ConfigError("follows from the files of a split model and cannot be edited", where=key)
    owner = {tensor.name: index for index, header in enumerate(headers) for tensor in header.tensors}
    parts = [
        Patch(
            tensors={name: vector for name, vector in patch.tensors.items() if owner.get(name, 0) == index},
            drop=frozenset(name for name in patch.drop if owner.get(name, 0) == index),
        )
        for index in range(len(headers))
    ]
    announced = headers[0].get(SPLIT_TENSORS, ValueType.I32)
    new = len(patch.tensors.keys() - owner.keys()) - len(patch.drop & owner.keys())
    recount = {SPLIT_TENSORS: Value.of(ValueType.I32, announced + new)} if new and announced is not None else {}
    return (Patch({**patch.set, **recount}, patch.remove, parts[0].tensors, parts[0].drop), *parts[1:])


def _read_neighbour(path: Path, given: GgufHeader, read: Callable[[Path], GgufHeader] | None) -> GgufHeader:
    if read is None and not path.exists():
        raise MissingFile(
            f"the shard {path.name} is missing from its folder",
            where=str(given.path),
            try_=_TOGETHER,
        )
    header = read_header(path) if read is None else read(path)
    _check_name(header)
    return header


def _check_name(header: GgufHeader) -> None:
    """Raise CorruptFile if the name of a shard does not match its keys.

    llama.cpp finds shards by name and checks the keys.
    """
    count = header.get(SPLIT_COUNT, ValueType.U16)
    number = header.get(SPLIT_NO, ValueType.U16)
    if count is None or number is None:
        missing = SPLIT_COUNT if count is None else SPLIT_NO
        raise CorruptFile(f"is not a shard: it has no {missing}", where=str(header.path), try_=_TOGETHER)
    if number >= count:
        raise CorruptFile(
            f"{SPLIT_NO} is {number}, but {SPLIT_COUNT} only {count}", where=str(header.path), try_=_TOGETHER
        )
    name = shard_name(header.path.name, number, count)
    if header.path.name != name:
        raise CorruptFile(
            f"is shard {number + 1} of {count} by its keys, so llama.cpp requires the name {name}",
            where=str(header.path),
            try_=_TOGETHER,
        )


def _check_no_metadata(header: GgufHeader) -> None:
    """Raise CorruptFile for keys that seem to have an effect. llama.cpp reads only the metadata of the first shard."""
    for key in header.values:
        if not key.startswith(("split.", "general.")):
            raise CorruptFile(
                f"has the key {shown(key)}; only the first shard of a model may contain metadata",
                where=str(header.path),
                try_=_TOGETHER,
            )


def _check_tensors(headers: tuple[GgufHeader, ...]) -> None:
    first = headers[0]
    home: dict[str, Path] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in home:
                raise CorruptFile(
                    f"contains tensor {shown(tensor.name)}, but so does {home[tensor.name].name}",
                    where=str(header.path),
                    try_=_TOGETHER,
                )
            home[tensor.name] = header.path
    # The other shards also have a count, which is wrong after a tensor is added. llama.cpp ignores it.
    announced = first.get(SPLIT_TENSORS, ValueType.I32)
    if announced != len(home):
        problem = "is missing" if announced is None else f"is {announced}"
        strange = [header for header in headers[1:] if header.get(SPLIT_TENSORS, ValueType.I32) != announced]
        names = ", ".join(header.path.name for header in strange)
        of_others = (
            f"; by its own count, {names} belongs to a different model" if len(strange) == 1 < len(headers) - 1 else ""
        )
        raise CorruptFile(
            f"{SPLIT_TENSORS} {problem}, but its {len(headers)} shards have {len(home)}{of_others}",
            where=str(first.path),
            try_=_TOGETHER,
        )
