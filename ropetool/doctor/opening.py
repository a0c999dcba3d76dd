"""From what was named to cases, and the rules about what stands against that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.doctor.cases import Case, rope_keys
from ropetool.doctor.configs import numbers_as_text
from ropetool.doctor.findings import ERROR, NOTE, Finding
from ropetool.doctor.gguf_loading import key_of, step
from ropetool.doctor.sources import source_of
from ropetool.errors import AmbiguousRope, ConfigError, NotACheckpoint, RopetoolError, UnknownFamily
from ropetool.escaping import escaped
from ropetool.files.hub import hub_id
from ropetool.files.regular import LFS_TRY, lfs_pointers, lfs_refusal
from ropetool.runtimes.inspection import inspect_checkpoint, inspect_opened

UNREADABLE = "unreadable"  # most of it is found before there is anything that a rule could look at
MAX_DEPTH, MAX_FOLDERS, MAX_FOUND = 12, 20_000, 5_000


@dataclass(frozen=True)
class Place:
    """A checkpoint to examine. explicit: whether it was named, and not found in a folder."""

    name: str
    explicit: bool


def places(named: str) -> Iterator[Place]:
    """Yield the checkpoints that a path or a hub id stands for: itself, or those in a folder, by name.

    Links to folders are followed once, hidden folders not at all.
    Raises: NotACheckpoint for a path that is none and holds none, and for a folder with more than is looked through.
    """
    if hub_id(named) is not None or not os.path.isdir(named):
        yield Place(_without_config(named), True)
        return
    found = list(_within(Path(named)))
    if not found:
        raise NotACheckpoint(f"does not contain a {names.CONFIG_JSON} or a GGUF file, at any depth", where=named)
    yield from found


def _without_config(named: str) -> str:
    """Return the folder of a config.json that was named itself."""
    path = Path(named)
    return str(path.parent) if path.name == names.CONFIG_JSON and path.is_file() else named


def _within(top: Path) -> Iterator[Place]:
    seen: set[str] = set()
    waiting, found = [(top, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            is_checkpoint = (folder / names.CONFIG_JSON).is_file()
            held = [*([folder] if is_checkpoint else []), *_gguf_models(folder)]
            inner = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
        except OSError:
            yield Place(str(folder), True)  # to open it says that nothing can be seen there
            continue
        found += len(held)
        yield from (Place(str(path), path == top) for path in held)
        if len(seen) > MAX_FOLDERS or found > MAX_FOUND:
            raise NotACheckpoint(
                f"contains more than {MAX_FOLDERS} folders or {MAX_FOUND} checkpoints", where=str(top),
                try_="pass smaller folders, one per command",
            )  # fmt: skip
        if depth < MAX_DEPTH:
            waiting += [(path, depth + 1) for path in reversed(inner)]


def _gguf_models(folder: Path) -> Iterator[Path]:
    """Yield the GGUF files of a folder, of a model in several files the first."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    for path in files:
        first = _first_shard(path)
        if first == path or not first.is_file():
            yield path


def _first_shard(path: Path) -> Path:
    stem, _, count = path.stem.rpartition("-of-")
    whole, _, number = stem.rpartition("-")
    if not (count.isdigit() and number.isdigit() and len(number) == 5):
        return path
    return path.with_name(f"{whole}-00001-of-{count}{path.suffix}")


def opened(place: Place, source: Case | None = None, wanted: frozenset[str] = frozenset()) -> Case:
    """Return the checkpoint as the rules see it; reads no weights.

    source: what it should compute the same as; a GGUF file may name another. wanted: as in Case.
    Raises: CheckpointError, HubError where there is nothing to look at.
    """
    if hub_id(place.name) is not None:
        found, remote = inspect_opened(place.name)
        return Case(place.name, remote, found, None, source, wanted)
    checkpoint = open_checkpoint(Path(place.name))
    if isinstance(checkpoint, GgufCheckpoint):
        _ = checkpoint.name  # a projector or an adapter is told as what it is
        source = source or source_of(checkpoint)
    case = Case(place.name, checkpoint, None, None, source, wanted)
    try:
        return replace(case, found=inspect_checkpoint(checkpoint))
    except ConfigError as problem:
        return replace(case, problem=problem)
    except UnknownFamily as problem:
        return replace(case, problem=problem)


# --- rules about what stands against it


def pointers(case: Case) -> Iterator[Finding]:
    """Yield the files of a checkpoint whose content a clone without Git LFS did not fetch."""
    if case.hf is not None and case.hf.files is not None and case.hf.path.is_dir():
        for name in lfs_pointers(case.hf.path, known=(names.CONFIG_JSON,)):  # which was read as JSON
            yield Finding(UNREADABLE, ERROR, f"{escaped(name)} {lfs_refusal('', 'file itself').message}", LFS_TRY)


def invalid(case: Case) -> Iterator[Finding]:
    if (
        isinstance(case.problem, ConfigError)
        and not isinstance(case.problem, AmbiguousRope)
        and not numbers_as_text(case)
    ):
        yield _of_error("invalid-value", case.problem, case)


def ambiguous(case: Case) -> Iterator[Finding]:
    if isinstance(case.problem, AmbiguousRope):
        yield _of_error("ambiguous", case.problem, case)


def _of_error(rule: str, problem: RopetoolError, case: Case) -> Finding:
    where = problem.where.removeprefix(case.name).lstrip("/: ")
    said = f"{where}: {problem.message}" if where else problem.message
    return Finding(rule, ERROR, said, problem.try_, where.rpartition(": ")[2].rpartition(".")[2])


def stops(case: Case) -> Iterator[Finding]:
    """Yield why the format's own runtime does not run the file; of llama.cpp, each rule of its loader that is broken."""
    own = case.own
    if own is None or not own.known:
        return
    broken = {rule: said for rule, said in case.refusals.items() if not rule.startswith("type ")}
    for rule, said in broken.items():
        yield Finding("not-loaded", ERROR, said, step(case, rule), key_of(case, rule), runtimes=(own.name,))
    if own.rope is None and not case.refusals:
        said = f"{own.name} {'stops with' if own.stops else 'does not compute the configured table:'} {own.refuses}"
        yield Finding("not-loaded", ERROR, said, _newer_name(case), runtimes=(own.name,))


def _newer_name(case: Case) -> str:
    """Return the step that names a rope type by the word that has taken the place of an older one, if one stands there."""
    family = case.found.family if case.found else None
    for place, value in rope_keys(case.hf.config, family.text_path) if case.hf and family else ():
        if (
            place[-1] in (names.ROPE_TYPE, names.LEGACY_TYPE)
            and isinstance(value, str)
            and value in names.ROPE_TYPE_ALIASES
        ):
            return f"write {names.ROPE_TYPE_ALIASES[value]} instead of {value}; both mean the same"
    return ""


def unknown(case: Case) -> Iterator[Finding]:
    if isinstance(case.problem, UnknownFamily):
        yield Finding("unknown-family", NOTE, case.problem.message, case.problem.try_)
    elif case.own is not None and not case.own.known:
        yield Finding("unknown-family", NOTE, case.own.refuses, runtimes=(case.own.name,))
    elif case.found is not None and case.hf is not None and case.found.family is None:
        yield Finding("unknown-family", NOTE, case.found.notes[-1])
