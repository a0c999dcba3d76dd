"""What belongs to this machine and never travels with an output: its cache, and where sources lie on it.

Every other file that ropetool writes may be published, so it names no place of the machine.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def cache() -> Path:
    """Return the folder of ropetool's cache: ROPETOOL_CACHE, else within XDG_CACHE_HOME, else within ~/.cache."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in some containers: nothing is kept
        folder = os.devnull
    return Path(os.environ.get("ROPETOOL_CACHE") or Path(folder) / "ropetool")


def processors() -> int:
    """Return how many processors this process may use: under taskset fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def remember(fingerprint: str, path: Path) -> None:
    """Keep where the checkpoint with this fingerprint lies; nothing is kept where the cache cannot be written."""
    place = _place(fingerprint)
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.fsencode(path))


def recall(fingerprint: str) -> Path | None:
    """Return where the checkpoint with this fingerprint was when an output was made from it, or None."""
    with suppress(OSError):
        return Path(os.fsdecode(_place(fingerprint).read_bytes()))
    return None


def _place(fingerprint: str) -> Path:
    # A fingerprint out of a file that somebody edited is any text, and no part of a path.
    return cache() / "origins" / hashlib.sha256(fingerprint.encode("utf-8", "surrogateescape")).hexdigest()
