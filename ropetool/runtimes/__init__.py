"""The runtimes, one file each, found by discovery: how each one really reads a file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ropetool.errors import UnknownRuntime
from ropetool.runtimes.base import GgufView, HfView, Refuses
from ropetool.spec import RopeSet

__all__ = ["GgufView", "HfView", "Refuses", "Runtime", "for_format", "get", "names"]


@dataclass(frozen=True)
class Runtime:
    """A runtime as its module states it; `decode` raises Refuses where the program would stop."""

    name: str
    formats: tuple[str, ...]
    versions: str
    summary: str
    decode: Callable[[Any], RopeSet]


@cache
def _discovered() -> dict[str, Runtime]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NAME"):
            found[module.NAME] = Runtime(module.NAME, module.FORMATS, module.VERSIONS, module.SUMMARY, module.decode)
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Return the names of all runtimes, sorted."""
    return list(_discovered())


def for_format(file_format: str) -> list[Runtime]:
    """Return the runtimes that read this format."""
    return [runtime for runtime in _discovered().values() if file_format in runtime.formats]


def get(name: str, file_format: str | None = None) -> Runtime:
    """Return the runtime of this name.

    Raises: UnknownRuntime if there is none, or it does not read the format.
    """
    runtime = _discovered().get(name)
    if runtime is None:
        raise UnknownRuntime(
            f"no runtime is called {name!r}; known: {', '.join(names())}", where="--for", try_="ropetool runtimes"
        )
    if file_format is not None and file_format not in runtime.formats:
        readers = ", ".join(r.name for r in for_format(file_format))
        raise UnknownRuntime(f"{name} does not read {file_format} files; these do: {readers}", where="--for")
    return runtime
