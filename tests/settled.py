"""Comparisons that were made before with the same inputs: what they passed with stands in settled.json, as hashes.

What two programs make of the same bytes is the same tomorrow, so such a comparison is made in part, and in whole where an
input differs: our output, the other program's version, or the strings. scripts/settled/settle.py makes all of them in whole again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

RESULT = Path(__file__).with_name("settled.json")
ALL = "ROPETOOL_SETTLE" in os.environ  # set by that script: nothing is settled, and what passes is written down


@cache
def known() -> dict[str, str]:
    found: dict[str, str] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    return found


class Comparison:
    """A comparison by its name and its inputs: bytes, files, folders of files, and versions of packages."""

    def __init__(self, name: str, inputs: Mapping[str, bytes | Path], *packages: str) -> None:
        whole = hashlib.sha256()
        for key, value in sorted({**inputs, **{package: version(package).encode() for package in packages}}.items()):
            whole.update(f"{key} {_digest(value)}\n".encode())
        self._name, self._hash = name, whole.hexdigest()[:16]
        self.settled = not ALL and known().get(name) == self._hash

    def passed(self) -> None:
        """Write it down, where all comparisons are made."""
        if ALL:
            known()[self._name] = self._hash
            RESULT.write_text(json.dumps(dict(sorted(known().items())), indent=0) + "\n", encoding="utf-8")


def _digest(value: bytes | Path) -> str:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if value.is_dir():
        return " ".join(
            f"{path.relative_to(value)} {_digest(path)}" for path in sorted(value.rglob("*")) if path.is_file()
        )
    return _digest(value.read_bytes())
