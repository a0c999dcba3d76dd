"""Facts about a model on the hub without its weights: the config of a checkpoint, and headers of GGUF files.

Configs and records come from huggingface_hub's cache. The header of a GGUF file is read by range and not cached,
because it has megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool import names
from ropetool.errors import HubError, HubUnreachable, MissingFile
from ropetool.files.gguf import (
    MAX_HEADER_BYTES,
    GgufHeader,
    HeaderGoesOn,
    TensorInfo,
    check_vector,
    parse_header,
    read_shards,
    read_vector,
)
from ropetool.files.hf import Directory, open_directory, read_object
from ropetool.files.hf.directory import SUFFIX
from ropetool.files.hf.jsontext import SMALL
from ropetool.files.hub.ids import HubId
from ropetool.files.hub.snapshots import (
    Listing,
    asking,
    cached,
    check_checkpoint,
    files_of,
    listing,
    pickles,
    quiet,
    weight_files,
)
from ropetool.files.regular import too_long

FIRST_BYTES = 256 << 10  # of the first try; a header without a vocabulary has about ten thousand
FROM_CACHE = "the hub cannot be reached: this comes from its local cache and may be out of date"


@dataclass(frozen=True, eq=False)
class Peeked:
    """A GGUF model on the hub.

    headers: the headers of its files.
    vector: returns a vector by name, and downloads it.
    path: a path that has the record next to it, if there is one.
    notes: notes for the user.
    """

    headers: tuple[GgufHeader, ...]
    vector: Callable[[str], npt.NDArray[np.float32]]
    path: Path
    notes: tuple[str, ...] = ()


def peek_checkpoint(model_id: HubId) -> tuple[Directory, tuple[str, ...]]:
    """Return a checkpoint with only the names of its weight files, and notes.

    Its path is the folder of the cache with its config. Index, tokenizer and weights are not read.
    Raises: HubError, NotACheckpoint, CorruptFile.
    """
    try:
        repository = listing(model_id)
    except HubUnreachable as error:
        return open_directory(cached(model_id, error, weights=False)), (FROM_CACHE,)
    check_checkpoint(model_id, repository)
    folder = _small_file(model_id, repository, names.CONFIG_JSON).parent
    if names.PROVENANCE_JSON in repository.sizes:
        _small_file(model_id, repository, names.PROVENANCE_JSON)
    text, config = read_object(folder / names.CONFIG_JSON)
    weights, pickled = weight_files(repository.sizes), pickles(repository.sizes)
    return Directory(
        folder, config, text, None, tuple(folder / name for name in weights), None, tuple(folder / p for p in pickled)
    ), ()


def config_folder(model_id: HubId) -> Path | None:
    """Return the cache folder with the config files of a checkpoint, after downloading them, but without weights.

    Returns None for a GGUF file, for a model without safetensors, if the hub does not answer, or if the folder has
    weights.
    Raises: HubError, CorruptFile.
    """
    try:
        repository = listing(model_id)
    except HubUnreachable:
        return None
    if model_id.file or names.CONFIG_JSON not in repository.sizes or not weight_files(repository.sizes):
        return None
    folder = _small_file(model_id, repository, names.CONFIG_JSON).parent
    for name in (names.TOKENIZER_CONFIG_JSON, names.PROVENANCE_JSON):
        if name in repository.sizes:
            _small_file(model_id, repository, name)
    return None if any(folder.glob(f"*{SUFFIX}*")) else folder


def peek_gguf(model_id: HubId) -> Peeked:
    """Return the headers of all files of a GGUF model, from the cache if it has the complete files.

    Raises: HubError, MissingFile, CorruptFile.
    """
    try:
        repository = listing(model_id)
    except HubUnreachable as error:
        return _on_disk(cached(model_id, error), (FROM_CACHE,))
    whole = _whole(model_id, repository)
    if whole is not None:
        return _on_disk(whole, ())
    remote = _Remote(model_id, repository)
    headers = read_shards(str(model_id), remote.header)
    owners = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
    record = files_of(model_id)[-1]
    path = headers[0].path
    if record in repository.sizes:
        file = _small_file(model_id, repository, record)
        path = file.with_name(file.name.removesuffix(f".{names.PROVENANCE_JSON}"))
    return Peeked(headers, lambda name: remote.vector(*owners[name]), path)


def _on_disk(path: Path, notes: tuple[str, ...]) -> Peeked:
    headers = read_shards(path)
    owners = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
    return Peeked(headers, lambda name: read_vector(*owners[name]), headers[0].path, notes)


def _whole(model_id: HubId, repository: Listing) -> Path | None:
    """Return the path in the cache if it has all files of the model at this commit, or None."""
    from huggingface_hub import try_to_load_from_cache

    needed = [name for name in files_of(model_id) if name in repository.sizes]
    paths = [try_to_load_from_cache(model_id.repo, name, revision=repository.commit) for name in needed]
    if not all(isinstance(path, str) for path in paths):
        return None
    return Path(str(paths[needed.index(model_id.file)]))


def _small_file(model_id: HubId, repository: Listing, name: str) -> Path:
    """Return the path of a JSON file in the cache, after downloading it. A file above the size limit is refused."""
    from huggingface_hub import hf_hub_download

    from ropetool.files.hub.bounds import within

    size = repository.sizes[name]
    if size is not None and size > SMALL.chars:
        raise too_long(size, SMALL.chars, f"{model_id}: {name}")
    with asking(model_id), quiet():
        return Path(
            within(SMALL.chars, lambda: hf_hub_download(model_id.repo, name, revision=model_id.revision or None))
        )


class _Remote:
    """The files of a repository at one commit, read by range. Their paths are hub ids with different files."""

    def __init__(self, model_id: HubId, repository: Listing) -> None:
        self._model_id, self._repository = model_id, repository
        self._files: dict[str, Any] = {}

    def header(self, path: Path) -> GgufHeader:
        """Return the header of a file from its first bytes. Their number doubles until the header is complete."""
        name = str(path).partition(":")[2]
        size = self._repository.sizes.get(name)
        if size is None:
            raise MissingFile(f"the repository does not contain {name}", where=str(path))
        start, end = b"", FIRST_BYTES
        while True:
            end = min(end, size, MAX_HEADER_BYTES)
            start += self._range(name, len(start), end)
            try:
                return parse_header(memoryview(start), path, size)
            except HeaderGoesOn:
                if end == min(size, MAX_HEADER_BYTES):
                    raise
            end *= 2

    def vector(self, header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float32]:
        """Return the data of a one-dimensional F32 tensor."""
        check_vector(header, info)
        begin = header.data_start + info.offset
        name = str(header.path).partition(":")[2]
        return np.frombuffer(self._range(name, begin, begin + info.nbytes), "<f4")

    def _range(self, name: str, begin: int, end: int) -> bytes:
        from ropetool.files.hub.bounds import within

        with asking(self._model_id):
            data = within(end - begin, lambda: self._read(name, begin, end))
        if len(data) != end - begin:
            raise HubError(
                f"the hub sent {len(data):,} of {end - begin:,} requested bytes of {name}", where=str(self._model_id)
            )
        return data

    def _read(self, name: str, begin: int, end: int) -> bytes:
        if name not in self._files:
            self._files[name] = self._opened(name)
        file = self._files[name]
        file.seek(begin)
        data: bytes = file.read(end - begin)
        return data

    def _opened(self, name: str) -> Any:
        from huggingface_hub import HfFileSystem

        files = HfFileSystem(skip_instance_cache=True)  # a cached instance may have an old listing
        # Without fsspec's cache, which reads megabytes ahead.
        return files.open(f"{self._model_id.repo}@{self._repository.commit}/{name}", "rb", cache_type="none")
