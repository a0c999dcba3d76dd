"""A model on the hub as files on this disk: what a repository holds, which of it is fetched, and what stands in the way.

Downloads, the cache, tokens and the offline switch are huggingface_hub's, by its own rules and variables.
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
from ropetool.files.gguf import shard_paths
from ropetool.files.hf.directory import SUFFIX
from ropetool.files.hub.ids import HubId, hub_id

# Beside the weights: configs, tokenizers, templates, the card, and the terms, which must go with the weights.
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".md", ".tiktoken")
_TERMS = re.compile(r"(?i)(licen[sc]e|notice|copying|use_policy)")
_LOADED = re.compile(r"model(-[0-9]+-of-[0-9]+)?\.safetensors")  # the rest are copies, such as consolidated.*
_SHARD = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.gguf$")
_TIMEOUT = 10.0  # seconds, huggingface_hub's own for such a question
_HTTP_LIBRARIES = ("requests", "httpx", "httpx2")  # by release of huggingface_hub


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit: sizes in bytes by file name."""

    commit: str
    sizes: Mapping[str, int | None]


def local(source: str | Path, *, bars: bool = False) -> Path:
    """Return where the checkpoint lies on this disk; one on the hub is downloaded, or taken from its cache.

    An existing path wins, then a hub id; any other text is a path, for its reader to refuse. Never fetches pickles or
    code. bars: huggingface_hub shows how far it is, on stderr.
    Raises: HubError, MissingDependency; NotACheckpoint or CheckpointError for a repository without a checkpoint.
    """
    asked = hub_id(source)
    if asked is None:
        return Path(source)
    try:
        held = listing(asked)
    except HubUnreachable as error:
        return cached(asked, error)
    chosen = [name for name in files_of(asked) if name in held.sizes] if asked.file else _checkpoint_files(asked, held)
    from huggingface_hub import snapshot_download

    from ropetool.files.hub.bounds import MAX_SIZE, guarded

    largest = max((held.sizes[name] or MAX_SIZE for name in chosen), default=0)
    with asking(asked), guarded(largest), nullcontext() if bars else quiet():
        folder = snapshot_download(
            asked.repo, revision=asked.revision or None, allow_patterns=[glob.escape(name) for name in chosen]
        )
    return Path(folder, asked.file)


@contextmanager
def quiet() -> Iterator[None]:
    """Hold the progress bars back, unless the variable of huggingface_hub asks for them."""
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


def listing(asked: HubId) -> Listing:
    """Return what the repository holds.

    Raises: HubUnreachable where the hub cannot be asked; HubError where it refuses; MissingFile if it lacks the file.
    """
    with asking(asked):
        from huggingface_hub import HfApi

        from ropetool.files.hub.bounds import within

        found = within(0, lambda: HfApi().model_info(
            asked.repo, revision=asked.revision or None, files_metadata=True, timeout=_TIMEOUT
        ))  # fmt: skip
        if found.siblings is None:
            raise HubError("the hub does not list its files", try_="check HF_ENDPOINT")
        held = Listing(str(found.sha), {file.rfilename: file.size for file in found.siblings})
    if asked.file and asked.file not in held.sizes:
        raise MissingFile(f"the repository does not contain this file{_gguf_files(held)}", where=str(asked))
    return held


def cached(asked: HubId, error: HubUnreachable, *, weights: bool = True) -> Path:
    """Return where the local cache has the checkpoint, with its weights unless they do not matter.

    Raises: the error, where it has not.
    """
    found = on_disk(asked)
    if found is None:
        raise error
    if weights and not asked.file and not list(found.glob(f"*{SUFFIX}")):
        error.message += " with its weights"
        raise error
    return found


def on_disk(asked: HubId) -> Path | None:
    """Return where the local cache has the checkpoint, or its config at least; asks nobody."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    first = asked.file or names.CONFIG_JSON
    try:
        found = try_to_load_from_cache(asked.repo, first, revision=asked.revision or None)
    except (OSError, ValueError):  # a reference that cannot be read, or is not text
        return None
    if not isinstance(found, str):
        return None
    return Path(Path(found).parents[len(PurePosixPath(first).parts) - 1], asked.file)


def files_of(asked: HubId) -> list[str]:
    """Return the names that a GGUF model of this file has: it, the shards beside it, and the record of ropetool."""
    shard = _SHARD.search(asked.file)
    shards = shard_paths(Path(asked.file), int(shard[1])) if shard else [Path(asked.file)]
    return [*(path.as_posix() for path in shards), f"{shards[0].as_posix()}.{names.PROVENANCE_JSON}"]


# --- directories


def _checkpoint_files(asked: HubId, held: Listing) -> list[str]:
    check_checkpoint(asked, held)
    weights = weight_files(held.sizes)
    if not weights and pickles(held.sizes):
        raise parts.pickled(str(asked), pickles(held.sizes)[0], asked.repo)
    return [*weights, *(name for name in held.sizes if _is_text(name))]


def check_checkpoint(asked: HubId, held: Listing) -> None:
    """Raise NotACheckpoint if the repository has no config.json; says which GGUF files it has."""
    if names.CONFIG_JSON not in held.sizes:
        if parts.ADAPTER_CONFIG in held.sizes:
            raise parts.adapter(str(asked))
        files = [name for name in held.sizes if name.endswith(".gguf")]
        try_ = command("ropetool", "inspect", str(HubId(asked.repo, asked.revision, files[0]))) if files else ""
        raise NotACheckpoint(f"does not contain a {names.CONFIG_JSON}{_gguf_files(held)}", where=str(asked), try_=try_)


def weight_files(held: Iterable[str]) -> list[str]:
    """Return the safetensors files that a loader reads."""
    found = [name for name in held if "/" not in name and name.endswith(SUFFIX)]
    return [name for name in found if _LOADED.fullmatch(name)] or found


def pickles(held: Iterable[str]) -> list[str]:
    """Return the pickles at any depth."""
    return [name for name in held if name.endswith(names.PICKLE_SUFFIXES)]


def _is_text(name: str) -> bool:
    if "/" in name:
        return name.startswith("additional_chat_templates/") and name.endswith(".jinja")
    return name != names.PICKLE_INDEX_JSON and (name.endswith(_TEXT_SUFFIXES) or bool(_TERMS.match(name)))


def _gguf_files(held: Listing) -> str:
    found = [name for name in held.sizes if name.endswith(".gguf")]
    return f"; its GGUF files: {', '.join(found[:8])}{' ...' * (len(found) > 8)}" if found else ""


# --- what the hub says


@contextmanager
def asking(asked: HubId) -> Iterator[None]:
    """Turn what huggingface_hub raises within the body into one sentence.

    Raises: HubError, HubUnreachable; MissingDependency where the package is absent.
    """
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise MissingDependency(
            "does not exist here; to look on the hub, ropetool needs huggingface_hub, which is not installed",
            where=str(asked), try_=install_line("hub"),
        ) from error  # fmt: skip
    http: Any = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's own, of whatever release it is
    try:
        yield
    except RopetoolError as error:
        error.where = error.where or str(asked)
        raise
    except (http, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        refusal = _refusal(error, asked)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(error: Exception, asked: HubId) -> HubError | None:
    """Return what an exception means to a user; None for one of this disk, which speaks for itself."""
    from huggingface_hub import constants, errors

    where, page = str(asked), f"{constants.ENDPOINT}/{asked.repo}"
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            "the model is gated: its authors give access on request", where=where,
            try_=f"request access at {page}, then run hf auth login",
        )  # fmt: skip
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"does not have a revision {asked.revision!r}", where=where, try_=asked.repo)
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
    """Return whether huggingface_hub has looked in vain into its cache, as it does when nobody answers."""
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError)


def _is_transport(error: Exception) -> bool:
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, (ConnectionError, TimeoutError)) or library in _HTTP_LIBRARIES
