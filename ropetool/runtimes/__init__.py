"""The runtimes, one file each, found by discovery: how each one really reads a file.

If releases of a program differ, each range of releases is a runtime with a name like vllm@0.30.
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

LLAMA_CPP = "llama.cpp"
FIRST = ("transformers", LLAMA_CPP)  # the runtime of each format if the user requests none
FIRST_SERVER = "vllm"  # its lines come before those of other servers


@dataclass(frozen=True)
class Runtime:
    """A runtime, from its module.

    name: the program, with @ and the first release of the range if releases differ.
    formats: "hf", "gguf" or both.
    versions: the releases that the decoder was written from, as text.
    summary: a sentence on the keys that it reads.
    decode: returns what the program computes from a checkpoint. Raises: Refuses if the program would stop.
    releases: the range of releases; None if all known releases compute the same.
    serving: how the program serves files; None if it is not a server.
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
    by_program = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NAME"):
            by_program[module.NAME] = _of_module(module)
    return dict(sorted(by_program.items()))


@cache
def _by_name() -> dict[str, Runtime]:
    """Return every runtime by its name, releases included."""
    return {runtime.name: runtime for program in _discovered().values() for runtime in program}


def _of_module(module: ModuleType) -> tuple[Runtime, ...]:
    """Return the runtimes of a module: one, or one for each range of releases."""
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
    """Return what a program written in Python computes.

    Raises: Refuses, also for a value of a wrong type, because the program stops there with the same error as its
    decoder.
    """
    try:
        return decode(view, releases=releases)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise Refuses(f"{type(error).__name__}: {error}") from None


def names() -> list[str]:
    """Return the names of all programs, sorted."""
    return list(_discovered())


def for_format(file_format: str) -> list[Runtime]:
    """Return the runtimes that read this format, each range of releases apart.

    The format's own runtime is the first.
    """
    readers = [runtime for program in _discovered().values() for runtime in program if file_format in runtime.formats]
    return sorted(readers, key=lambda runtime: runtime.name not in FIRST)


def flagged(file_format: str) -> list[str]:
    """Return the programs whose flags can change the rotation of a file of this format.

    Programs that read the format precede programs that read an export of it.
    """
    reads, exports = [], []
    for name, (first, *_) in _discovered().items():
        if first.serving is not None and first.serving.flags is not None:
            if file_format in first.formats:
                reads.append(name)
            elif first.serving.takes_exports:
                exports.append(name)
    return [*sorted(reads, key=lambda name: name != FIRST_SERVER), *exports]


def all_of(name: str, file_format: str | None = None) -> tuple[Runtime, ...]:
    """Return the runtimes with a name: each range of releases of a program, or with @VERSION the range of that release.

    Raises: UnknownRuntime if the name is unknown, or the program does not read the format.
    """
    program, _, version = name.partition("@")
    for first, *_ in _discovered().values():
        if program.lower() in first.run_by:
            _check_release(program.lower(), version, first)
            name = program = first.program
    runtimes = _discovered().get(program)
    if runtimes is None:
        raise UnknownRuntime(
            f"no runtime is called {program[:40]!r}{did_you_mean(program, names())}; known: {', '.join(names())}",
            where="--for", try_="ropetool runtimes",
        )  # fmt: skip
    if file_format is not None and file_format not in runtimes[0].formats:
        readers = ", ".join(dict.fromkeys(r.program for r in for_format(file_format)))
        raise UnknownRuntime(f"{program} does not read {file_format} files; these do: {readers}", where="--for")
    return _of_version(runtimes, program, version) if "@" in name else runtimes


def _check_release(program: str, version: str, runtime: Runtime) -> None:
    """Raise UnknownRuntime if a release of a program does not run this runtime."""
    since = runtime.run_by[program]
    release = tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit())
    if release and release < numbers(since):
        raise UnknownRuntime(
            f"{program} {version} does not use {runtime.program}, and ropetool does not support its older engine",
            where="--for", try_=f"--for {program}, for release {since} and later",
        )  # fmt: skip


def _of_version(runtimes: tuple[Runtime, ...], program: str, version: str) -> tuple[Runtime, ...]:
    chosen = tuple(runtime for runtime in runtimes if runtime.releases is not None and runtime.releases.has(version))
    if not chosen:
        ranges = ", ".join(runtime.versions for runtime in runtimes)
        raise UnknownRuntime(
            f"{program} {version} is an unknown release; known: {ranges}",
            where="--for",
            try_=f"--for {program}, for all known releases",
        )
    return chosen


def collapse_releases(runtime_names: Sequence[str]) -> list[str]:
    """Return names of runtimes. If all ranges of a program are among them, its name without a release replaces them."""
    short = []
    for name in runtime_names:
        program = name.partition("@")[0]
        whole = all(runtime.name in runtime_names for runtime in _discovered().get(program, ()))
        short.append(program if whole else name)
    return list(dict.fromkeys(short))


def display_ranges(runtime_names: Sequence[str]) -> list[str]:
    """Return names of runtimes for a reader, with the longest ranges of releases of each program."""
    words = []
    for program in dict.fromkeys(name.partition("@")[0] for name in runtime_names):
        known = _discovered().get(program, ())
        if len(known) < 2 or all(runtime.name in runtime_names for runtime in known):
            words.append(program)
            continue
        for there, run in itertools.groupby(known, lambda runtime: runtime.name in runtime_names):
            if there:
                words.append(f"{program} {_as_one(list(run))}")
    return words


def _as_one(runtimes: Sequence[Runtime]) -> str:
    """Return the releases of adjacent ranges as one range."""
    first, last = runtimes[0].releases, runtimes[-1].releases
    assert first is not None
    assert last is not None
    return str(Releases(first.first, last.last))


def get(name: str, file_format: str | None = None) -> Runtime:
    """Return the runtime with this name. If releases of a program differ, its name is a runtime for all of them.

    Raises: UnknownRuntime if the name is unknown, or the program does not read the format.
    """
    exact = _by_name().get(name)
    if exact is not None and file_format in (None, *exact.formats):
        return exact
    runtimes = all_of(name, file_format)
    if len(runtimes) == 1:
        return runtimes[0]
    versions = f"{runtimes[0].versions.partition(' ')[0]} to {runtimes[-1].versions.rpartition(' ')[2]}"
    return replace(runtimes[0], name=name, versions=versions, decode=partial(_as_all, runtimes), releases=None)


def decode(name: str, checkpoint: Any) -> RopeSet:
    """Return what a runtime computes from a checkpoint. Raises: Refuses; as `get`."""
    return get(name).decode(checkpoint)


def _as_all(runtimes: tuple[Runtime, ...], view: Any) -> RopeSet:
    """Return what all runtimes compute.

    Raises: Refuses if one of them stops, or two differ.
    """
    first, *others = [(runtime, runtime.decode(view)) for runtime in runtimes]
    for runtime, decoded in others:
        reason = first[1].disagreement(decoded)
        if reason:
            raise Refuses(f"{first[0].versions} and {runtime.versions} differ: {reason}")
    return first[1]
