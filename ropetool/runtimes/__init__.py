"""The runtimes, one file each, found by discovery: how each one really reads a file.

Where releases of a program differ there is one runtime for each stretch of them, named like vllm@0.30.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import ModuleType
from typing import Any

from ropetool.errors import UnknownRuntime, did_you_mean
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import NotHeld, NotKnown, Refuses, Releases, Serving, numbers

__all__ = [
    "NotHeld",
    "NotKnown",
    "Refuses",
    "Runtime",
    "all_of",
    "collapse_releases",
    "display_ranges",
    "for_format",
    "get",
    "names",
]

FIRST = ("transformers", "llama.cpp")  # what a format is read by where nobody asks for another
FIRST_SERVER = "vllm"  # its lines come before those of other servers


@dataclass(frozen=True)
class Runtime:
    """A runtime as its module states it; `decode` raises Refuses where the program would stop.

    releases: the releases that it stands for; None if all known releases compute the same.
    serving: how the program serves files; None if ropetool knows no command line.
    run_by: the names of other programs that run it, in small letters, each with the first release that does.
    """

    name: str
    formats: tuple[str, ...]
    versions: str
    summary: str
    decode: Callable[[Any], RopeSet]
    releases: Releases | None = None
    serving: Serving | None = None
    run_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> str:
        """The name without the releases."""
        return self.name.partition("@")[0]


@cache
def _discovered() -> dict[str, tuple[Runtime, ...]]:
    """Return the runtimes of each program, the oldest releases first."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NAME"):
            found[module.NAME] = _stated(module)
    return dict(sorted(found.items()))


@cache
def _by_name() -> dict[str, Runtime]:
    """Return every runtime by its name, releases included."""
    return {runtime.name: runtime for program in _discovered().values() for runtime in program}


def _stated(module: ModuleType) -> tuple[Runtime, ...]:
    serving = getattr(module, "SERVING", None)
    if not hasattr(module, "RELEASES"):
        return (
            Runtime(
                module.NAME, module.FORMATS, module.VERSIONS, module.SUMMARY, module.decode, None, serving,
                getattr(module, "RUN_BY", {}),
            ),
        )  # fmt: skip
    return tuple(
        Runtime(
            f"{module.NAME}@{releases.first}", module.FORMATS, str(releases), module.SUMMARY,
            partial(_in_python, module.decode, releases), releases, serving,
        )
        for releases in module.RELEASES
    )  # fmt: skip


def _in_python(decode: Callable[..., RopeSet], releases: Releases, view: Any) -> RopeSet:
    """Return what a program written in Python computes; like it, stop at values of a kind that nothing checks for.

    Raises: Refuses.
    """
    try:
        return decode(view, releases=releases)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise Refuses(f"{type(error).__name__}: {error}") from None


def names() -> list[str]:
    """Return the names of all programs, sorted."""
    return list(_discovered())


def for_format(file_format: str) -> list[Runtime]:
    """Return the runtimes that read this format, one for each stretch of releases; the format's first comes first."""
    found = [runtime for program in _discovered().values() for runtime in program if file_format in runtime.formats]
    return sorted(found, key=lambda runtime: runtime.name not in FIRST)


def flagged(file_format: str) -> list[str]:
    """Return the programs with flags that change the rotation of a file: those that read the format, then by an export."""
    reads, exports = [], []
    for name, (first, *_) in _discovered().items():
        if first.serving is not None and first.serving.flags is not None:
            if file_format in first.formats:
                reads.append(name)
            elif first.serving.takes_exports:
                exports.append(name)
    return [*sorted(reads, key=lambda name: name != FIRST_SERVER), *exports]


def all_of(name: str, file_format: str | None = None) -> tuple[Runtime, ...]:
    """Return the runtimes that a name stands for: all that are known of a program, or with @VERSION the one of it.

    Raises: UnknownRuntime if there is none, or it does not read the format.
    """
    program, _, version = name.partition("@")
    for first, *_ in _discovered().values():
        if program.lower() in first.run_by:
            _check_release(program.lower(), version, first)
            name = program = first.program
    found = _discovered().get(program)
    if found is None:
        raise UnknownRuntime(
            f"no runtime is called {program[:40]!r}{did_you_mean(program, names())}; known: {', '.join(names())}",
            where="--for", try_="ropetool runtimes",
        )  # fmt: skip
    if file_format is not None and file_format not in found[0].formats:
        readers = ", ".join(dict.fromkeys(r.program for r in for_format(file_format)))
        raise UnknownRuntime(f"{program} does not read {file_format} files; these do: {readers}", where="--for")
    return _of_version(found, program, version) if "@" in name else found


def _check_release(program: str, version: str, runtime: Runtime) -> None:
    """Raise UnknownRuntime for a release of another program that does not run this runtime."""
    since = runtime.run_by[program]
    release = tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit())
    if release and release < numbers(since):
        raise UnknownRuntime(
            f"{program} {version} does not use {runtime.program}, and ropetool does not support its older engine",
            where="--for", try_=f"--for {program}, for release {since} and later",
        )  # fmt: skip


def _of_version(found: tuple[Runtime, ...], program: str, version: str) -> tuple[Runtime, ...]:
    chosen = tuple(runtime for runtime in found if runtime.releases is not None and runtime.releases.has(version))
    if not chosen:
        known = ", ".join(runtime.versions for runtime in found)
        raise UnknownRuntime(
            f"{program} {version} is an unknown release; known: {known}",
            where="--for",
            try_=f"--for {program}, for all known releases",
        )
    return chosen


def collapse_releases(found: Sequence[str]) -> list[str]:
    """Return names of runtimes with those of one program as its name alone, where all that are known of it are there."""
    short = []
    for name in found:
        program = name.partition("@")[0]
        whole = all(runtime.name in found for runtime in _discovered().get(program, ()))
        short.append(program if whole else name)
    return list(dict.fromkeys(short))


def display_ranges(found: Sequence[str]) -> list[str]:
    """Return names of runtimes for a reader: those of one program as stretches of releases, as long as they go."""
    words = []
    for program in dict.fromkeys(name.partition("@")[0] for name in found):
        known = _discovered().get(program, ())
        if len(known) < 2 or all(runtime.name in found for runtime in known):
            words.append(program)
            continue
        for there, run in itertools.groupby(known, lambda runtime: runtime.name in found):
            if there:
                words.append(f"{program} {_as_one(list(run))}")
    return words


def _as_one(found: Sequence[Runtime]) -> str:
    """Return the releases of runtimes that follow each other."""
    first, last = found[0].releases, found[-1].releases
    assert first is not None
    assert last is not None
    return str(Releases(first.first, last.last))


def get(name: str, file_format: str | None = None) -> Runtime:
    """Return the runtime of this name; for a program of several releases one that stands for all of them.

    Raises: UnknownRuntime if there is none, or it does not read the format.
    """
    exact = _by_name().get(name)
    if exact is not None and file_format in (None, *exact.formats):
        return exact
    found = all_of(name, file_format)
    if len(found) == 1:
        return found[0]
    versions = f"{found[0].versions.partition(' ')[0]} to {found[-1].versions.rpartition(' ')[2]}"
    return replace(found[0], name=name, versions=versions, decode=partial(_as_all, found), releases=None)


def _as_all(found: tuple[Runtime, ...], view: Any) -> RopeSet:
    """Return what all of them compute.

    Raises: Refuses if one of them stops, or two differ.
    """
    first, *others = [(runtime, runtime.decode(view)) for runtime in found]
    for runtime, decoded in others:
        reason = first[1].disagreement(decoded)
        if reason:
            raise Refuses(f"{first[0].versions} and {runtime.versions} differ: {reason}")
    return first[1]
