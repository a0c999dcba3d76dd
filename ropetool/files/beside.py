"""Where outputs go by default: beside their source, but never into a store whose files are named by their digest."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ropetool.files.hub import origin

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_LARGEST = 1 << 16  # bytes of a manifest; those of Ollama have about a thousand


def beside(source: Path) -> Path:
    """Return the path beside which outputs go. For a model of the hub's cache or of Ollama's store, its name in the current folder."""
    repository = origin(source)
    if repository is not None:
        return Path.cwd() / repository.name
    name = _name_in_ollama(Path(os.path.abspath(source)))
    return source if name is None else Path.cwd() / name


def _name_in_ollama(blob: Path) -> str | None:
    """Return a name for a blob of Ollama's store, from the first manifest that lists it; None for any other path.

    Source: the store of Ollama 0.30 has blobs/sha256-DIGEST and manifests/HOST/OWNER/MODEL/TAG.
    """
    if blob.parent.name != "blobs" or not _BLOB.fullmatch(blob.name):
        return None
    digest = blob.name.replace("-", ":").encode()
    for manifest in sorted((blob.parents[1] / "manifests").rglob("*")):
        if manifest.is_file() and manifest.stat().st_size <= _LARGEST and digest in manifest.read_bytes():
            return f"{manifest.parent.name}-{manifest.name}.gguf"
    return f"{blob.name[:15]}.gguf"
