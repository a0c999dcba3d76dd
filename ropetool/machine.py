"""Facts about this machine, which no output contains: the cache folder, the processors, and the paths of sources.

All other files that ropetool writes may be published, so they contain no paths of the machine.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def cache() -> Path:
    """Return the folder of ropetool's cache: ROPETOOL_CACHE, else in XDG_CACHE_HOME, else in ~/.cache."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:  # the user has no home, for instance in some containers: do not save anything
        folder = os.devnull
    return Path(os.environ.get("ROPETOOL_CACHE") or Path(folder) / "ropetool")


def processors() -> int:
    """Return the number of processors that this process may use. Under taskset, the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def remember(fingerprint: str, path: Path) -> None:
    """Save the path of the checkpoint with this fingerprint. Does nothing if the cache is not writable."""
    place = _place(fingerprint)
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.fsencode(path))


def recall(fingerprint: str) -> Path | None:
    """Return the saved path of the checkpoint with this fingerprint, or None."""
    with suppress(OSError):
        return Path(os.fsdecode(_place(fingerprint).read_bytes()))
    return None


def _place(fingerprint: str) -> Path:
    # An edited file can contain any text as fingerprint, so the text must not become a part of the path.
    return cache() / "origins" / hashlib.sha256(fingerprint.encode("utf-8", "surrogateescape")).hexdigest()
