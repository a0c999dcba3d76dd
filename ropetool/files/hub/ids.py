"""Names of models on the hub and in local stores: the hub's cache and Ollama's store. It does not send requests."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import NotACheckpoint
from ropetool.escaping import word

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_ID = re.compile(rf"({_NAME}/{_NAME})(?:@([^:\s@]+))?(?::(.+))?")
_REPO, _REVISION = re.compile(rf"(?:{_NAME}/)?{_NAME}"), re.compile(r"[^:\s@]+")
_NO_REPOSITORY = re.compile(r"--|\.\.|[-.](/|$)|\.git$|/.{97}")  # huggingface_hub's own rules, validate_repo_id
_FILE_SUFFIXES = (".gguf", ".json", ".safetensors", ".bin", ".pt", ".pth")  # FOLDER/FILE is a path
_SLASHED = re.compile(rf"({_NAME}/{_NAME}(?:@[^:\s@/]+)?)/(.+\.gguf)")
_PAGE = re.compile(
    rf"https?://[^/]+/({_NAME}/{_NAME})(?:/(?:tree|blob|resolve)/([^/?]+)(?:/([^?]+\.gguf))?)?/?(?:\?.*)?"
)
# huggingface_hub's cache: models--ORG--NAME/snapshots/COMMIT/FILE is a link to models--ORG--NAME/blobs/DIGEST
_REPOSITORY, _SNAPSHOTS, _BLOBS = "models--", "snapshots", "blobs"
_OLLAMA_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_LARGEST_MANIFEST = 1 << 16  # bytes; Ollama's manifests have about a thousand


@dataclass(frozen=True)
class HubId:
    """ORG/NAME[@REVISION][:FILE].

    revision: a branch, tag or commit; empty means the default branch.
    file: a GGUF file of the repository; empty for a whole repository.
    """

    repo: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo}{'@' * bool(self.revision)}{self.revision}{':' * bool(self.file)}{self.file}"

    @property
    def name(self) -> str:
        """Return the name of the file, or of the repository without its owner."""
        return (self.file or self.repo).rpartition("/")[2]


def hub_id(source: str | Path) -> HubId | None:
    """Return the hub id in this text, or None for an existing path, a Path object, or any other text.

    Raises: NotACheckpoint for a repository file that is not a GGUF file, for a file after a slash, for a URL, or for an
    invalid revision.
    """
    if not isinstance(source, str) or os.path.lexists(source):
        return None
    page = _PAGE.fullmatch(source)
    if page is not None:
        shown = HubId(page[1], page[2] or "", page[3] or "")
        raise NotACheckpoint("is a URL; pass a model on the hub as ORG/NAME", where=source, try_=word(str(shown)))
    slashed = _SLASHED.fullmatch(source)
    if slashed is not None:
        raise NotACheckpoint(
            "does not exist", where=source, try_=f"{word(f'{slashed[1]}:{slashed[2]}')}, if it is a file on the hub"
        )
    match = _ID.fullmatch(source)
    if match is None or match[1].endswith(_FILE_SUFFIXES) or _NO_REPOSITORY.search(match[1]):
        return None
    model_id = HubId(match[1], match[2] or "", match[3] or "")
    if model_id.revision and {"", ".", ".."} & {*model_id.revision.split("/")}:  # the cache would use it as a path
        raise NotACheckpoint("names a revision that is not a branch, tag or commit", where=source, try_=model_id.repo)
    if model_id.file and (not model_id.file.endswith(".gguf") or ".." in model_id.file.split("/")):
        raise NotACheckpoint(
            "names a file that is not a .gguf file; other models are read as a whole repository",
            where=source,
            try_=model_id.repo,
        )
    return model_id


def origin(path: Path) -> HubId | None:
    """Return the commit of a repository at this path of the hub's cache, or None for any other path."""
    parts, at = _in_cache(path)
    if not at:
        return None
    repo = parts[at - 1].removeprefix(_REPOSITORY).replace("--", "/")
    if not _REPO.fullmatch(repo) or not _REVISION.fullmatch(parts[at + 1]):
        return None  # another folder with such a name
    return HubId(repo, parts[at + 1], "/".join(parts[at + 2 :]))


def blobs(path: Path) -> Path | None:
    """Return the folder that the links of this commit in the hub's cache lead to, or None for any other path."""
    parts, at = _in_cache(path)
    return Path(*parts[:at], _BLOBS) if at else None


def _in_cache(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the parts of the absolute path, and the index of a repository's snapshots folder in them, or 0."""
    parts = absolute(path).parts
    places = (
        at for at in range(1, len(parts) - 1) if parts[at] == _SNAPSHOTS and parts[at - 1].startswith(_REPOSITORY)
    )
    return parts, next(places, 0)


def beside(source: Path) -> Path:
    """Return the path whose folder and name default outputs use. For a model in a store, it is in the current folder."""
    repository = origin(source)
    name = _name_in_ollama(Path(os.path.abspath(source))) if repository is None else repository.name
    return source if name is None else Path.cwd() / name


def _name_in_ollama(blob: Path) -> str | None:
    """Return a name for a blob of Ollama's store, from the first manifest that lists it, or None for any other path.

    Source: the store of Ollama 0.30 has blobs/sha256-DIGEST and manifests/HOST/OWNER/MODEL/TAG.
    """
    if blob.parent.name != "blobs" or not _OLLAMA_BLOB.fullmatch(blob.name):
        return None
    digest = blob.name.replace("-", ":").encode()
    for manifest in sorted((blob.parents[1] / "manifests").rglob("*")):
        if manifest.is_file() and manifest.stat().st_size <= _LARGEST_MANIFEST and digest in manifest.read_bytes():
            return f"{manifest.parent.name}-{manifest.name}.gguf"
    return f"{blob.name[:15]}.gguf"


def name_of(path: Path) -> str:
    """Return the name of a checkpoint. For a path in the hub's cache, it is the name on the hub.

    Such paths end in a commit or a digest.
    """
    model_id = origin(path)
    return path.resolve().name if model_id is None else model_id.name


def absolute(path: Path) -> Path:
    """Return the absolute path with links resolved, except in the hub's cache.

    The blobs of the cache have no readable names.
    """
    plain = Path(os.path.abspath(path))
    return plain if f"{os.sep}{_SNAPSHOTS}{os.sep}" in str(plain) else plain.resolve()
