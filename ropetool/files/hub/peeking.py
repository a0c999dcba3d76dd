"""What can be known of a model on the hub without its weights: a checkpoint's config, the headers of GGUF files by range.

Configs and records come through huggingface_hub's cache; a header of megabytes is a part of a file and is not kept.
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

FIRST_BYTES = 256 << 10  # a header without a vocabulary has some ten thousand; then it doubles
FROM_CACHE = "the hub cannot be reached: this comes from its local cache and may be out of date"


@dataclass(frozen=True, eq=False)
class Peeked:
    """The headers of a GGUF model, its vectors on demand, and the path beside which its record would lie."""

    headers: tuple[GgufHeader, ...]
    vector: Callable[[str], npt.NDArray[np.float32]]
    path: Path
    notes: tuple[str, ...] = ()


def peek_checkpoint(asked: HubId) -> tuple[Directory, tuple[str, ...]]:
    """Return a checkpoint whose weight files are known by name alone, and notes.

    Its path is the folder of the cache that holds its config. Index, tokenizer and weights are not read.
    Raises: HubError, NotACheckpoint, CorruptFile.
    """
    try:
        held = listing(asked)
    except HubUnreachable as error:
        return open_directory(cached(asked, error, weights=False)), (FROM_CACHE,)
    check_checkpoint(asked, held)
    folder = _small_file(asked, held, names.CONFIG_JSON).parent
    if names.PROVENANCE_JSON in held.sizes:
        _small_file(asked, held, names.PROVENANCE_JSON)
    text, config = read_object(folder / names.CONFIG_JSON)
    weights, pickled = weight_files(held.sizes), pickles(held.sizes)
    return Directory(
        folder, config, text, None, tuple(folder / name for name in weights), None, tuple(folder / p for p in pickled)
    ), ()


def config_folder(asked: HubId) -> Path | None:
    """Return the folder of the cache with the config files of a checkpoint, which are fetched, and no weights.

    None for a GGUF file, for what has no safetensors, where the hub cannot be asked, and where weights are in the cache.
    Raises: HubError, CorruptFile.
    """
    try:
        held = listing(asked)
    except HubUnreachable:
        return None
    if asked.file or names.CONFIG_JSON not in held.sizes or not weight_files(held.sizes):
        return None
    folder = _small_file(asked, held, names.CONFIG_JSON).parent
    for name in (names.TOKENIZER_CONFIG_JSON, names.PROVENANCE_JSON):
        if name in held.sizes:
            _small_file(asked, held, name)
    return None if any(folder.glob(f"*{SUFFIX}*")) else folder


def peek_gguf(asked: HubId) -> Peeked:
    """Return the headers of all files of a GGUF model; where the cache holds them whole, from there.

    Raises: HubError, MissingFile, CorruptFile.
    """
    try:
        held = listing(asked)
    except HubUnreachable as error:
        return _on_disk(cached(asked, error), (FROM_CACHE,))
    whole = _whole(asked, held)
    if whole is not None:
        return _on_disk(whole, ())
    remote = _Remote(asked, held)
    headers = read_shards(str(asked), remote.header)
    owners = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
    record = files_of(asked)[-1]
    path = headers[0].path
    if record in held.sizes:
        file = _small_file(asked, held, record)
        path = file.with_name(file.name.removesuffix(f".{names.PROVENANCE_JSON}"))
    return Peeked(headers, lambda name: remote.vector(*owners[name]), path)


def _on_disk(path: Path, notes: tuple[str, ...]) -> Peeked:
    headers = read_shards(path)
    owners = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
    return Peeked(headers, lambda name: read_vector(*owners[name]), headers[0].path, notes)


def _whole(asked: HubId, held: Listing) -> Path | None:
    """Return where the cache holds all files of the model at that commit, or None."""
    from huggingface_hub import try_to_load_from_cache

    needed = [name for name in files_of(asked) if name in held.sizes]
    found = [try_to_load_from_cache(asked.repo, name, revision=held.commit) for name in needed]
    if not all(isinstance(path, str) for path in found):
        return None
    return Path(str(found[needed.index(asked.file)]))


def _small_file(asked: HubId, held: Listing, name: str) -> Path:
    """Return where the cache has a JSON file, which is fetched unless it is too long to be read."""
    from huggingface_hub import hf_hub_download

    from ropetool.files.hub.bounds import within

    size = held.sizes[name]
    if size is not None and size > SMALL.chars:
        raise too_long(size, SMALL.chars, f"{asked}: {name}")
    with asking(asked), quiet():
        return Path(within(SMALL.chars, lambda: hf_hub_download(asked.repo, name, revision=asked.revision or None)))


class _Remote:
    """The files of a repository at one commit, read by range; a path is the hub id with another file."""

    def __init__(self, asked: HubId, held: Listing) -> None:
        self._asked, self._held = asked, held
        self._files: dict[str, Any] = {}

    def header(self, path: Path) -> GgufHeader:
        """Return the header of a file from as few bytes as it takes, doubled until it ends within them."""
        name = str(path).partition(":")[2]
        size = self._held.sizes.get(name)
        if size is None:
            raise MissingFile(f"the repository does not contain {name}", where=str(path))
        start, wanted = b"", FIRST_BYTES
        while True:
            wanted = min(wanted, size, MAX_HEADER_BYTES)
            start += self._range(name, len(start), wanted)
            try:
                return parse_header(memoryview(start), path, size)
            except HeaderGoesOn:
                if wanted == min(size, MAX_HEADER_BYTES):
                    raise
            wanted *= 2

    def vector(self, header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float32]:
        """Return the data of a one-dimensional F32 tensor."""
        check_vector(header, info)
        begin = header.data_start + info.offset
        name = str(header.path).partition(":")[2]
        return np.frombuffer(self._range(name, begin, begin + info.nbytes), "<f4")

    def _range(self, name: str, begin: int, end: int) -> bytes:
        from ropetool.files.hub.bounds import within

        with asking(self._asked):
            found = within(end - begin, lambda: self._read(name, begin, end))
        if len(found) != end - begin:
            raise HubError(
                f"the hub sent {len(found):,} of {end - begin:,} requested bytes of {name}", where=str(self._asked)
            )
        return found

    def _read(self, name: str, begin: int, end: int) -> bytes:
        if name not in self._files:
            self._files[name] = self._opened(name)
        file = self._files[name]
        file.seek(begin)
        found: bytes = file.read(end - begin)
        return found

    def _opened(self, name: str) -> Any:
        from huggingface_hub import HfFileSystem

        files = HfFileSystem(skip_instance_cache=True)  # one from before may remember another listing
        # Without fsspec's cache: it reads ahead by megabytes.
        return files.open(f"{self._asked.repo}@{self._held.commit}/{name}", "rb", cache_type="none")
