"""A Hugging Face directory: its config, its weight files and its shard index. It does not load weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ropetool import names
from ropetool.errors import CorruptFile, MissingFile, NotACheckpoint
from ropetool.escaping import word
from ropetool.files import parts
from ropetool.files.hf.jsontext import LARGE, SMALL, JsonLimits, parse_object, twice
from ropetool.files.hf.safetensors import MAX_HEADER, MAX_TENSORS, Header, Members, read_header
from ropetool.files.regular import is_lfs_pointer, lfs_refusal, open_regular, read_regular, too_long

SUFFIX = ".safetensors"
SINGLE_FILE = "model.safetensors"
_SAME_FOLDER = re.compile(r"^(?:\./)+(?=[^/\\]+$)")
MAX_INDEX = MAX_HEADER  # bytes; for each tensor it has a line of about the same length as a header


@dataclass(frozen=True)
class Directory:
    """The files of a directory.

    path: the directory.
    config: the parsed config.json.
    config_text: its text.
    tokenizer_config: the parsed tokenizer_config.json, or None.
    weights: the weight files that a loader reads.
    index: the names of shards by tensor name; None without a shard index.
    pickles: weight files that are pickles, which are never loaded.
    """

    path: Path
    config: Mapping[str, Any]
    config_text: str
    tokenizer_config: Mapping[str, Any] | None
    weights: tuple[Path, ...]
    index: Mapping[str, str] | None
    pickles: tuple[Path, ...]

    @property
    def config_only(self) -> bool:
        """Return whether the directory has no weights of any type."""
        return not self.weights and not self.pickles

    @property
    def pickle_only(self) -> bool:
        """Return whether the only weights are pickles, which are never loaded."""
        return bool(self.pickles) and not self.weights


def open_directory(path: Path) -> Directory:
    """Return the files of a directory. All shards in its index exist.

    Raises: NotACheckpoint, MissingFile, CorruptFile, or CheckpointError if a file cannot be read.
    """
    path = Path(path)
    _check_directory(path)
    text, config = read_object(path / names.CONFIG_JSON)
    tokenizer = read_optional_object(path / names.TOKENIZER_CONFIG_JSON)
    index = _read_index(path)
    weights, pickles = _weights(path, index), tuple(sorted(_pickles(path)))
    parts.check_directory(path, (*weights, *pickles), has_config=True)
    return Directory(
        path, config, text,
        tokenizer_config=tokenizer[1] if tokenizer else None,
        weights=weights,
        index=index,
        pickles=pickles,
    )  # fmt: skip


_A_DIRECTORY, _A_GGUF = f"a directory with a {names.CONFIG_JSON}", "the path of a GGUF file"
_SHOWN, _COMPARED = 4, 200  # the number of models to list, and of names to compare with a mistyped one


def _check_directory(path: Path) -> None:
    where = str(path)
    if os.path.isfile(path):
        if path.suffix.lower() == ".gguf":
            raise NotACheckpoint("is a GGUF file, not a Hugging Face directory", where=where)
        raise NotACheckpoint(
            f"is a file; a checkpoint is a directory with a {names.CONFIG_JSON}",
            where=where, try_=_directory_of(path),
        )  # fmt: skip
    if not os.path.isdir(path):
        if os.path.lexists(path):
            raise NotACheckpoint("is neither a directory nor a file", where=where, try_=f"pass {_A_DIRECTORY}")
        raise NotACheckpoint("does not exist", where=where, try_=_neighbour(path))
    config = path / names.CONFIG_JSON
    if not os.path.lexists(config):
        parts.check_directory(path, (), has_config=False)
        files = [file for file in sorted(path.glob("*.gguf")) if not _LATER_SHARD.search(file.name)]
        also = f"; it contains {len(files)} GGUF models" if len(files) > 1 else ""
        raise NotACheckpoint(f"does not contain a {names.CONFIG_JSON}{also}", where=where, try_=_nearby(path, files))


_LATER_SHARD = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$")


def _nearby(path: Path, files: Sequence[Path]) -> str:
    """Return the next step for a directory without a config.

    It is one of its GGUF files, or the snapshot of a folder in the hub's cache.
    """
    snapshots = [config.parent for config in sorted(path.glob(f"snapshots/*/{names.CONFIG_JSON}"))][:1]
    known = [word(place) for place in files[:_SHOWN] or snapshots]
    more = f" or one of the {len(files) - _SHOWN} others" if len(files) > _SHOWN else ""
    return f"pass {' or '.join(known)}{more}" if known else f"pass {_A_DIRECTORY}"


def _neighbour(path: Path) -> str:
    """Return the next step for a path that does not exist: a model with a similar name next to it, if one exists."""
    from difflib import get_close_matches

    try:
        models = sorted(place for place in path.parent.iterdir() if _is_gguf(place) or place.is_dir())[:_COMPARED]
    except OSError:
        models = []
    similar = get_close_matches(_stem(path), map(_stem, models), n=1)
    similar_models = [place for place in models if [_stem(place)] == similar]
    # Prefer a file for a file, and a folder for a folder.
    similar_models.sort(key=lambda place: _is_gguf(place) != _is_gguf(path))
    return f"pass {word(similar_models[0]) if similar_models else _A_GGUF if _is_gguf(path) else _A_DIRECTORY}"


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def _stem(path: Path) -> str:
    return path.name.lower().removesuffix(".gguf")


def limits_of(name: str) -> JsonLimits:
    """Return the limits of a JSON file with this name. A shard index may be larger than a config."""
    return LARGE if name == names.SAFETENSORS_INDEX_JSON else SMALL


def read_object(path: Path, limits: JsonLimits | None = None) -> tuple[str, dict[str, Any]]:
    """Return the text of a JSON file with its original line ends, and the object in it.

    limits: by default from `limits_of`.
    Raises: MissingFile, CorruptFile, or CheckpointError if it cannot be read.
    """
    where = str(path)
    limits = limits or limits_of(path.name)
    raw = read_regular(path, limits.chars)
    if is_lfs_pointer(raw, len(raw)):
        raise lfs_refusal(where, "file itself")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"is not UTF-8: {error.reason} at byte {error.start}", where=where) from None
    if not text.strip():
        raise CorruptFile("is empty", where=where)
    return text, parse_object(text, where, limits)


def read_optional_object(path: Path, limits: JsonLimits | None = None) -> tuple[str, dict[str, Any]] | None:
    """Return the result of `read_object`, or None if the file does not exist."""
    return read_object(path, limits) if os.path.lexists(path) else None


def _pickles(path: Path) -> Iterator[Path]:
    """Yield the pickles at any depth, because Meta's repositories have them in original/."""
    for folder, inner, files in os.walk(path):
        inner[:] = [name for name in inner if not name.startswith(".")]  # .git and the hub's .cache
        yield from (Path(folder, name) for name in files if name.endswith(names.PICKLE_SUFFIXES))


def _weights(path: Path, index: Mapping[str, str] | None) -> tuple[Path, ...]:
    """Return the files that loaders read: model.safetensors and the shards in the index, or else all weight files."""
    files = sorted(path.glob(f"*{SUFFIX}"))
    loaded = {SINGLE_FILE, *(index or {}).values()}
    return tuple([file for file in files if file.name in loaded] or files)


# --- the shard index


def _read_index(path: Path) -> Mapping[str, str] | None:
    file = path / names.SAFETENSORS_INDEX_JSON
    if not os.path.lexists(file):
        return None
    with open_regular(file) as opened:
        index = _weight_map(opened, str(file))
    first_tensor = {shard: tensor for tensor, shard in reversed(index.items())}
    for shard, tensor in sorted(first_tensor.items()):
        _check_shard(path, shard, tensor, str(file))
    return index


def _weight_map(file: BinaryIO, where: str) -> dict[str, str]:
    size = os.fstat(file.fileno()).st_size
    if size > MAX_INDEX:
        raise too_long(size, MAX_INDEX, where)
    no_map = CorruptFile("has no weight_map of tensor names to file names", where=where)
    index: dict[str, str] = {}
    shards: dict[str, str] = {}  # file names by names in the index, so that all tensors of a shard share one string
    text = Members(file, size, where, "")
    for tensor, shard in text.members_of("weight_map"):
        if not isinstance(shard, str):
            raise no_map
        if tensor in index:
            raise twice(tensor, where)
        if len(index) == MAX_TENSORS:
            raise CorruptFile(f"lists more than {MAX_TENSORS:,} tensors, the limit", where=where)
        if shard not in shards:
            shards[shard] = _SAME_FOLDER.sub("", shard)
        index[tensor] = shards[shard]
    text.end()
    if not index:
        raise no_map
    return index


def _check_shard(path: Path, shard: str, tensor: str, where: str) -> None:
    if any(char in shard for char in "/\\\0") or not shard.endswith(SUFFIX):
        raise CorruptFile(
            f"lists {tensor!r} in {shard!r}; shards must be {SUFFIX} files in the same directory", where=where
        )
    if not os.path.isfile(path / shard):
        raise MissingFile(
            f"lists {tensor!r} in {shard}, which does not exist",
            where=where, try_=f"download {word(shard)} into {word(path)}",
        )  # fmt: skip


def _directory_of(file: Path) -> str:
    """Return the path to use instead of a file. A config with a different name needs its own directory."""
    if file.suffix == ".json" and not (file.parent / names.CONFIG_JSON).is_file():
        folder = file.with_suffix("")
        return f"mkdir {word(folder)} && cp {word(file)} {word(folder / names.CONFIG_JSON)}, then pass {word(folder)}"
    return f"pass its directory, {word(file.parent)}"


def headers(checkpoint: Directory) -> list[Header]:
    """Return the checked headers of all weight files. Each tensor occurs only once, in the file that the index names.

    Raises: CorruptFile.
    """
    result: list[Header] = []
    left = MAX_TENSORS
    for path in checkpoint.weights:
        result.append(read_header(path, left))
        left -= len(result[-1].tensors)
    holder: dict[str, str] = {}
    for header in result:
        for name in header.tensors:
            if name in holder:
                raise CorruptFile(
                    f"tensor {name!r} is in {holder[name]} and in {header.path.name}: loaders disagree on which one to use",
                    where=str(checkpoint.path),
                )
            holder[name] = header.path.name
    for name, shard in (checkpoint.index or {}).items():
        if holder.get(name) != shard:
            raise CorruptFile(
                f"lists tensor {name!r} in {shard}, but it is in {holder.get(name, 'no weight file')}",
                where=str(checkpoint.path / names.SAFETENSORS_INDEX_JSON),
            )
    return result
