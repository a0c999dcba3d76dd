"""Open the checkpoints that a user names, and the rules about files that do not open."""

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

UNREADABLE = "unreadable"  # most of these findings arise before there is a case for a rule
MAX_DEPTH, MAX_FOLDERS, MAX_FOUND = 12, 20_000, 5_000


@dataclass(frozen=True)
class Target:
    """A checkpoint to examine.

    name: a path or a Hub id.
    explicit: whether the user named it. False for a checkpoint in a folder.
    """

    name: str
    explicit: bool


def targets_of(name: str) -> Iterator[Target]:
    """Yield the checkpoint of a path or Hub id, or the checkpoints in a folder, sorted by name.

    Follows each link to a folder once, and skips hidden folders.
    Raises: NotACheckpoint if a folder contains no checkpoint, or more folders or checkpoints than the limits.
    """
    if hub_id(name) is not None or not os.path.isdir(name):
        yield Target(_without_config(name), True)
        return
    inside = list(_within(Path(name)))
    if not inside:
        raise NotACheckpoint(f"does not contain a {names.CONFIG_JSON} or a GGUF file, at any depth", where=name)
    yield from inside


def _without_config(name: str) -> str:
    """Return the folder if the user named its config.json, else the name unchanged."""
    path = Path(name)
    return str(path.parent) if path.name == names.CONFIG_JSON and path.is_file() else name


def _within(top: Path) -> Iterator[Target]:
    seen: set[str] = set()
    waiting, count = [(top, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            is_checkpoint = (folder / names.CONFIG_JSON).is_file()
            checkpoints = [*([folder] if is_checkpoint else []), *_gguf_models(folder)]
            inner = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
        except OSError:
            yield Target(str(folder), True)  # opening it reports the error
            continue
        count += len(checkpoints)
        yield from (Target(str(path), path == top) for path in checkpoints)
        if len(seen) > MAX_FOLDERS or count > MAX_FOUND:
            raise NotACheckpoint(
                f"contains more than {MAX_FOLDERS} folders or {MAX_FOUND} checkpoints", where=str(top),
                try_="pass smaller folders, one per command",
            )  # fmt: skip
        if depth < MAX_DEPTH:
            waiting += [(path, depth + 1) for path in reversed(inner)]


def _gguf_models(folder: Path) -> Iterator[Path]:
    """Yield the GGUF files of a folder, and only the first file of a model in several files."""
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


def opened(target: Target, source: Case | None = None, for_runtimes: frozenset[str] = frozenset()) -> Case:
    """Open a checkpoint and inspect it. Does not read weights.

    source: the checkpoint that it must have the same table as. Without it, a GGUF file may name one.
    for_runtimes: as in Case.
    Raises: CheckpointError or HubError if it does not open.
    """
    if hub_id(target.name) is not None:
        inspection, remote = inspect_opened(target.name)
        return Case(target.name, remote, inspection, None, source, for_runtimes)
    checkpoint = open_checkpoint(Path(target.name))
    if isinstance(checkpoint, GgufCheckpoint):
        _ = checkpoint.name  # raises an error that names a projector or an adapter as such
        source = source or source_of(checkpoint)
    case = Case(target.name, checkpoint, None, None, source, for_runtimes)
    try:
        return replace(case, inspection=inspect_checkpoint(checkpoint))
    except ConfigError as problem:
        return replace(case, problem=problem)
    except UnknownFamily as problem:
        return replace(case, problem=problem)


# --- rules about problems that prevent opening or running


def pointers(case: Case) -> Iterator[Finding]:
    """Yield the files that are Git LFS pointers because the clone did not fetch their content."""
    if case.hf is not None and case.hf.files is not None and case.hf.path.is_dir():
        for name in lfs_pointers(case.hf.path, known=(names.CONFIG_JSON,)):  # ropetool has parsed this file already
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
    sentence = f"{where}: {problem.message}" if where else problem.message
    return Finding(rule, ERROR, sentence, problem.try_, where.rpartition(": ")[2].rpartition(".")[2])


def stops(case: Case) -> Iterator[Finding]:
    """Yield why the format's own runtime does not run the file. For llama.cpp, yield each broken rule of its loader."""
    own = case.own
    if own is None or not own.known:
        return
    broken = {rule: sentence for rule, sentence in case.refusals.items() if not rule.startswith("type ")}
    for rule, sentence in broken.items():
        yield Finding("not-loaded", ERROR, sentence, step(case, rule), key_of(case, rule), runtimes=(own.name,))
    if own.rope is None and not case.refusals:
        sentence = f"{own.name} {'stops with' if own.stops else 'does not compute the configured table:'} {own.refuses}"
        yield Finding("not-loaded", ERROR, sentence, _newer_name(case), runtimes=(own.name,))


def _newer_name(case: Case) -> str:
    """Return the step that replaces an outdated name of a rope type by the current name, or an empty string."""
    family = case.inspection.family if case.inspection else None
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
    elif case.inspection is not None and case.hf is not None and case.inspection.family is None:
        yield Finding("unknown-family", NOTE, case.inspection.notes[-1])
