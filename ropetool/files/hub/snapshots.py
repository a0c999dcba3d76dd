"""A model on the hub as files on this disk: the files of a repository, the download, and errors of the hub.

huggingface_hub manages downloads, the cache, tokens and the offline mode, with its own environment variables.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ropetool import names
from ropetool.errors import HubError, HubUnreachable, MissingDependency, MissingFile, NotACheckpoint, RopetoolError
from ropetool.escaping import command, install_line
from ropetool.files import parts
from ropetool.files.hf.directory import SUFFIX
from ropetool.files.hub.ids import HubId
from ropetool.files.shard_names import shard_paths

# Files besides the weights: configs, tokenizers, templates, the card, and the terms, which must accompany the weights.
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".md", ".tiktoken")
_TERMS = re.compile(r"(?i)(licen[sc]e|notice|copying|use_policy)")
_LOADED = re.compile(r"model(-[0-9]+-of-[0-9]+)?\.safetensors")  # other files are copies, such as consolidated.*
_SHARD = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.gguf$")
_TIMEOUT = 10.0  # seconds, huggingface_hub's value for such a request
_HTTP_LIBRARIES = ("requests", "httpx", "httpx2")  # by release of huggingface_hub


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit.

    commit: its hash.
    sizes: sizes in bytes by file name; None if the hub does not report a size.
    """

    commit: str
    sizes: Mapping[str, int | None]


def downloaded(model_id: HubId, *, bars: bool = False) -> Path:
    """Return the path of a model of the hub in the local cache, after downloading what is missing.

    bars: show huggingface_hub's progress bars on stderr.
    Raises: as `hub.local`.
    """
    try:
        repository = listing(model_id)
    except HubUnreachable as error:
        return cached(model_id, error)
    chosen = (
        [name for name in files_of(model_id) if name in repository.sizes]
        if model_id.file
        else _checkpoint_files(model_id, repository)
    )
    from huggingface_hub import snapshot_download

    from ropetool.files.hub.bounds import MAX_SIZE, guarded

    largest = max((repository.sizes[name] or MAX_SIZE for name in chosen), default=0)
    with asking(model_id), guarded(largest), nullcontext() if bars else quiet():
        folder = snapshot_download(
            model_id.repo, revision=model_id.revision or None, allow_patterns=[glob.escape(name) for name in chosen]
        )
    return Path(folder, model_id.file)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars, unless the variable of huggingface_hub enables them."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def listing(model_id: HubId) -> Listing:
    """Return the files of a repository.

    Raises: HubUnreachable if the hub does not answer; HubError if it refuses; MissingFile if the requested file does
    not exist.
    """
    with asking(model_id):
        from huggingface_hub import HfApi

        from ropetool.files.hub.bounds import within

        info = within(0, lambda: HfApi().model_info(
            model_id.repo, revision=model_id.revision or None, files_metadata=True, timeout=_TIMEOUT
        ))  # fmt: skip
        if info.siblings is None:
            raise HubError("the hub does not list its files", try_="check HF_ENDPOINT")
        repository = Listing(str(info.sha), {file.rfilename: file.size for file in info.siblings})
    if model_id.file and model_id.file not in repository.sizes:
        raise MissingFile(f"the repository does not contain this file{_gguf_files(repository)}", where=str(model_id))
    return repository


def cached(model_id: HubId, error: HubUnreachable, *, weights: bool = True) -> Path:
    """Return the path of the checkpoint in the local cache, with its weights unless `weights` is False.

    Raises: the given error if the cache does not have it.
    """
    folder = on_disk(model_id)
    if folder is None:
        raise error
    if weights and not model_id.file and not list(folder.glob(f"*{SUFFIX}")):
        error.message += " with its weights"
        raise error
    return folder


def on_disk(model_id: HubId) -> Path | None:
    """Return the path of the checkpoint, or at least of its config, in the local cache, or None. Sends no request."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    first = model_id.file or names.CONFIG_JSON
    try:
        path = try_to_load_from_cache(model_id.repo, first, revision=model_id.revision or None)
    except (OSError, ValueError):  # a reference that cannot be read, or is not text
        return None
    if not isinstance(path, str):
        return None
    return Path(Path(path).parents[len(PurePosixPath(first).parts) - 1], model_id.file)


def files_of(model_id: HubId) -> list[str]:
    """Return the files of the GGUF model with this file: all its shards, and ropetool's record."""
    shard = _SHARD.search(model_id.file)
    shards = shard_paths(Path(model_id.file), int(shard[1])) if shard else [Path(model_id.file)]
    return [*(path.as_posix() for path in shards), f"{shards[0].as_posix()}.{names.PROVENANCE_JSON}"]


# --- directories


def _checkpoint_files(model_id: HubId, repository: Listing) -> list[str]:
    check_checkpoint(model_id, repository)
    weights = weight_files(repository.sizes)
    if not weights and pickles(repository.sizes):
        raise parts.pickled(str(model_id), pickles(repository.sizes)[0], model_id.repo)
    return [*weights, *(name for name in repository.sizes if _is_text(name))]


def check_checkpoint(model_id: HubId, repository: Listing) -> None:
    """Raise NotACheckpoint if the repository has no config.json. The message lists its GGUF files."""
    if names.CONFIG_JSON not in repository.sizes:
        if parts.ADAPTER_CONFIG in repository.sizes:
            raise parts.adapter(str(model_id))
        files = [name for name in repository.sizes if name.endswith(".gguf")]
        try_ = command("ropetool", "inspect", str(HubId(model_id.repo, model_id.revision, files[0]))) if files else ""
        raise NotACheckpoint(
            f"does not contain a {names.CONFIG_JSON}{_gguf_files(repository)}", where=str(model_id), try_=try_
        )


def weight_files(repository: Iterable[str]) -> list[str]:
    """Return the safetensors files that a loader reads."""
    files = [name for name in repository if "/" not in name and name.endswith(SUFFIX)]
    return [name for name in files if _LOADED.fullmatch(name)] or files


def pickles(repository: Iterable[str]) -> list[str]:
    """Return the pickles at any depth."""
    return [name for name in repository if name.endswith(names.PICKLE_SUFFIXES)]


def _is_text(name: str) -> bool:
    if "/" in name:
        return name.startswith("additional_chat_templates/") and name.endswith(".jinja")
    return name != names.PICKLE_INDEX_JSON and (name.endswith(_TEXT_SUFFIXES) or bool(_TERMS.match(name)))


def _gguf_files(repository: Listing) -> str:
    files = [name for name in repository.sizes if name.endswith(".gguf")]
    return f"; its GGUF files: {', '.join(files[:8])}{' ...' * (len(files) > 8)}" if files else ""


# --- errors of the hub


@contextmanager
def asking(model_id: HubId) -> Iterator[None]:
    """Convert errors of huggingface_hub within the body into errors of ropetool.

    Raises: HubError, HubUnreachable; MissingDependency if the package is not installed.
    """
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise MissingDependency(
            "does not exist here; to look on the hub, ropetool needs huggingface_hub, which is not installed",
            where=str(model_id), try_=install_line("hub"),
        ) from error  # fmt: skip
    http: Any = errors.HfHubHTTPError.__bases__[0]  # the base class of the HTTP library's errors, in any release
    try:
        yield
    except RopetoolError as error:
        error.where = error.where or str(model_id)
        raise
    except (http, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        refusal = _refusal(error, model_id)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(error: Exception, model_id: HubId) -> HubError | None:
    """Return an exception as an error for the user, or None for an error of this disk, whose message is clear."""
    from huggingface_hub import constants, errors

    where, page = str(model_id), f"{constants.ENDPOINT}/{model_id.repo}"
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            "the model is gated: its authors give access on request", where=where,
            try_=f"request access at {page}, then run hf auth login",
        )  # fmt: skip
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"does not have a revision {model_id.revision!r}", where=where, try_=model_id.repo)
    if isinstance(error, errors.RepositoryNotFoundError):
        return HubError(
            f"does not exist here, and {page} does not exist or is not open to you",
            where=where, try_="check the name; for a private model, run hf auth login or set HF_TOKEN",
        )  # fmt: skip
    if isinstance(error, errors.OfflineModeIsEnabled) or (constants.HF_HUB_OFFLINE and _is_absent(error)):
        return HubUnreachable(
            "does not exist here, HF_HUB_OFFLINE turns the hub off, and its local cache does not contain the model",
            where=where, try_="unset HF_HUB_OFFLINE, or pass the path of a copy",
        )  # fmt: skip
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return HubError(
            "the hub does not accept the token", where=where, try_="run hf auth login, or set a different HF_TOKEN"
        )
    if status is not None and status < 500 and status != 429:
        return HubError(f"the hub refuses with status {status}", where=where, try_=f"look at {page}")
    if status is not None or _is_absent(error) or _is_transport(error):
        reason = f"status {status}" if status is not None else type(error).__name__
        return HubUnreachable(
            f"does not exist here, {constants.ENDPOINT} does not answer ({reason}), and its local cache does not contain the model",
            where=where, try_="check the connection and HF_ENDPOINT, or pass the path of a copy",
        )  # fmt: skip
    if isinstance(error, OSError):
        return None
    return HubError(
        f"{constants.ENDPOINT} sends an unexpected answer ({type(error).__name__})", where=where, try_="check HF_ENDPOINT"
    )  # fmt: skip


def _is_absent(error: Exception) -> bool:
    """Return whether huggingface_hub did not find a file in its cache. It looks there if the hub does not answer."""
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError)


def _is_transport(error: Exception) -> bool:
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, (ConnectionError, TimeoutError)) or library in _HTTP_LIBRARIES
