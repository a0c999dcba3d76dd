"""The cells of scripts/corpus.py that run a command: what it prints with --json, and the keys and tensors that it writes.

A command runs in this process, in a folder of its own. Its result counts without prose, places and versions; a refusal counts
by its class. Edits in place run on a planted file system: it inserts ranges or refuses them, whatever the real one does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gguf_files
from corpus_cells import Act, exported, extended, of_folder, of_gguf
from running import run

from ropetool.cli import COMMANDS
from ropetool.files.gguf.in_place import disk

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", ROOT.parent / "shared" / "data"))
LONG = 131072  # tokens: 1 to 32 times the trained length of most published models
# Sentences, what differs from machine to machine, and digests of what another cell counts.
NOT_COUNTED = {
    "notes", "reason", "reasons", "why", "cost", "sentence", "message", "try", "where", "differences", "words", "summary", "skipped",
    "detail", "version", "versions", "made_with", "source_fingerprint", "fingerprint", "weight_files", "identity", "seconds", "minutes",
    "more_minutes",
}  # fmt: skip
# A sentence too may begin with "ropetool".
COMMAND = re.compile(
    rf"ropetool (?:{'|'.join(COMMANDS)}) |\S+: (?:python -m|vllm serve|llama-server|koboldcpp|lms load|ollama) "
)
COMPUTED = "rotation"  # the check whose figure a runtime computes in float32, a little different on each machine
DIGITS = 6
WORDS = 4  # a text of so many words is prose, unless it is a command

BUG = 70  # the exit code of a command that met an error in ropetool itself
ENDED = 128  # plus the number of the signal that ended a command
RESULT, DATA = (
    "result",
    "stated",
)  # the part of a cell that is printed; a key of it whose content is the source's own keys

Write = Callable[[Path], Path]
Cells = Iterator[tuple[str, Write, Act]]


class Keys:
    """Which keys of printed results count, by group. known: their paths, empty if all count.

    met: the paths of all results so far.
    """

    def __init__(self, known: Mapping[str, Sequence[str]]) -> None:
        self._known = {group: frozenset(paths) for group, paths in known.items()}
        self.met: dict[str, set[str]] = {}

    def counted(self, group: str, cell: Any) -> Any:
        """Return what a cell of a group comes to without new keys of printed results."""
        if isinstance(cell, dict):
            return {
                key: self._known_part(group, part, "") if key == RESULT else self.counted(group, part)
                for key, part in cell.items()
            }
        return [self.counted(group, part) for part in cell] if isinstance(cell, list) else cell

    def _known_part(self, group: str, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self._known_part(group, part, path) for part in value]
        if not isinstance(value, dict):
            return value
        places = {key: f"{path}/{key}" for key in value}
        self.met.setdefault(group, set()).update(places.values())
        kept = [key for key, place in places.items() if not self._known or place in self._known.get(group, ())]
        return {key: value[key] if key == DATA else self._known_part(group, value[key], places[key]) for key in kept}

    def new(self) -> list[str]:
        """Return the keys that results have and that do not count, with their groups."""
        return sorted(
            f"{group}: {path}"
            for group, paths in self.met.items()
            for path in paths - self._known.get(group, frozenset())
        )


# --- running a command


def printed(*arguments: str | Path, source: Path) -> Any:
    """Return the exit code of a command and what counts of its JSON. "SOURCE" in the arguments is the source.

    A signal that ended the command was for this process, and ends it too.
    """
    done = run(*(source if argument == "SOURCE" else argument for argument in arguments), "--json")
    if done.code > ENDED:
        raise SystemExit(done.code)
    assert done.code != BUG, done.err
    places = {str(source): "SOURCE", os.getcwd(): "HERE", str(source.parent): "BESIDE"}
    text = done.out
    for place, word in places.items():
        text = text.replace(place, word)
    try:
        return {"code": done.code, RESULT: counted(json.loads(text))}
    except json.JSONDecodeError:
        return {"code": done.code, RESULT: "no JSON"}


def counted(value: Any) -> Any:
    """Return the part of a result that counts. Numbers count to `DIGITS` digits: some are small differences of large sums."""
    if isinstance(value, dict):
        not_here = NOT_COUNTED | ({"figure"} if value.get("name") == COMPUTED else set())
        return {key: counted(part) for key, part in value.items() if key not in not_here}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [counted(part) for part in value]
    is_prose = isinstance(value, str) and len(value.split()) >= WORDS and not COMMAND.match(value)
    return "prose" if is_prose else value


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[Path]:
    """Work in a new folder below this one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.chdir(scratch)
        try:
            yield Path(scratch)
        finally:
            os.chdir(before)


def command(*arguments: str, output: str = "") -> Act:
    """Return what a command prints. output: the file or directory in the working folder whose content counts too."""

    def act(source: Path, folder: Path) -> Any:
        with inside(folder) as here:
            result = printed(*arguments, source=source)
            return {**result, "written": written(here / output, source)} if output else result

    return act


def written(output: Path, source: Path) -> Any:
    """Return the content of an output, None if there is none."""
    if output.is_dir():
        return of_folder(output, source)
    return of_gguf(sorted(output.parent.glob("*.gguf"))) or None


# --- sources


def copied(path: Path, name: str) -> Write:
    """Return what puts a published file into a folder, under the name that its format has."""

    def write(folder: Path) -> Path:
        place = folder / path.stem
        place.mkdir(exist_ok=True)
        if not (place / name).exists():
            shutil.copyfile(path, place / name)
        return place if name == "config.json" else place / name

    return write


def published() -> Iterator[tuple[str, Write]]:
    """Yield published configs, vocabularies and inputs of bug reports, by name; nothing where the files are not at hand."""
    for path in sorted(REAL.glob("configs/*.json")):
        yield path.stem, copied(path, "config.json")
    for path in sorted(REAL.glob("vocab-gguf/*.gguf")):
        yield path.stem, copied(path, "vocabulary.gguf")
    for path in sorted(REAL.glob("reports/*/config.json")):
        yield f"report {path.parent.name}", lambda _, folder=path.parent: folder
    for path in sorted(REAL.glob("reports/*/*.gguf")):
        yield f"report {path.parent.name} {path.stem}", lambda _, path=path: path


# --- groups that read


def inspected(headers: Mapping[str, Write], models: Mapping[str, Write]) -> Cells:
    for name, write in {**dict(published()), **models, **headers}.items():
        yield name, write, command("inspect", "SOURCE")
    for name, write in models.items():
        yield f"{name}, to 2k", write, command("inspect", "SOURCE", "--target-length", "2k", "--cost")


def advised(headers: Mapping[str, Write], models: Mapping[str, Write]) -> Cells:
    """Yield the advice for every other published config, and for some architectures; each costs a second."""
    some = (itertools.islice(published(), 0, None, 2), itertools.islice(headers.items(), 0, None, 9))
    for name, write in itertools.chain(*some):
        yield name, write, command("advise", "SOURCE", "--target-length", str(LONG))
    for name, write in itertools.islice(models.items(), 0, None, 2):
        yield f"{name}, for vllm", write, command("advise", "SOURCE", "--target-length", "2k", "--for", "vllm")


def examined(headers: Mapping[str, Write], models: Mapping[str, Write]) -> Cells:
    for name, write in {**dict(published()), **models, **headers}.items():
        yield name, write, command("doctor", "SOURCE")


def compared(headers: Mapping[str, Write], models: Mapping[str, Write]) -> Cells:
    """Yield pairs of a checkpoint and its extension, tensor by tensor, and of files of neighbouring architectures."""
    for name, write in models.items():
        yield f"{name}, extended", write, _diff
    names = list(headers)
    for first, second in itertools.islice(itertools.pairwise(names), 0, None, 9):
        yield f"{first}, {second}", headers[first], _diff_with(headers[second])


def _diff(source: Path, folder: Path) -> Any:
    longer = extended(source)
    with inside(folder) as here:
        shutil.copytree(longer, here / "longer")
        return printed("diff", "SOURCE", "longer", source=source)


def _diff_with(write: Write) -> Act:
    def act(source: Path, folder: Path) -> Any:
        other = write(folder)
        with inside(folder) as here:
            shutil.copyfile(other, here / "other.gguf")
            return printed("diff", "SOURCE", "other.gguf", source=source)

    return act


# --- groups that write


def imported(models: Mapping[str, Write]) -> Cells:
    """Yield the checkpoints that exported files become, in the types of the file and in float32."""
    for name, write in models.items():
        yield name, as_file(write), command("import", "SOURCE", "--no-check", "-o", "out", output="out")
    for name, write in itertools.islice(models.items(), 0, None, 5):
        more = ("import", "SOURCE", "--no-check", "--dtype", "f32", "-o", "out")
        yield f"{name}, f32", as_file(write), command(*more, output="out")


def as_file(write: Write) -> Write:
    """Return what exports a checkpoint as q8_0, next to it."""

    def export(folder: Path) -> Path:
        source = write(folder)
        return exported(source, source.with_name("exported.gguf"), outtype="q8_0")

    return export


EDITED = ("llama", "qwen2", "qwen3")
EDITS: dict[str, tuple[str, ...]] = {
    "list": ("list", "SOURCE"),
    "set a number": ("set", "SOURCE", "{arch}.rope.freq_base", "2e6", "-o", "out.gguf"),
    "set a text": ("set", "SOURCE", "general.name", "another", "-o", "out.gguf"),
    "set a type that llama.cpp refuses": ("set", "SOURCE", "{arch}.context_length", "many", "-o", "out.gguf"),
    "set a key that llama.cpp ignores": ("set", "SOURCE", "{arch}.rope.scaling.type", "linear", "-o", "out.gguf"),
    "unset": ("unset", "SOURCE", "{arch}.rope.freq_base", "-o", "out.gguf"),
    "unset a required key": ("unset", "SOURCE", "{arch}.context_length", "-o", "out.gguf"),
    "unset an absent key": ("unset", "SOURCE", "{arch}.rope.scaling.factor", "-o", "out.gguf"),
    "split by tensors": ("split", "SOURCE", "--max-tensors", "8", "-o", "out.gguf"),
    "split by size": ("split", "SOURCE", "--max-size", "50K", "-o", "out.gguf"),
    "merge one": ("merge", "SOURCE", "-o", "out.gguf"),
}


def edited() -> Cells:
    """Yield `gguf list`, `set`, `unset`, `split` and `merge` of three architectures."""
    for arch, (name, words) in itertools.product(EDITED, EDITS.items()):
        arguments = ("gguf", *(word.format(arch=arch) for word in words))
        yield f"{arch}/{name}", model(arch), command(*arguments, output="" if name == "list" else "out.gguf")
    for arch in EDITED:
        yield (
            f"{arch}/merge parts",
            model(arch, 3),
            command("gguf", "merge", "SOURCE", "-o", "out.gguf", output="out.gguf"),
        )


def model(arch: str, shards: int = 1) -> Write:
    """Return what writes a model of 512 trained tokens with weights, in one file or in parts."""

    def write(folder: Path) -> Path:
        place = folder / f"{arch} in {shards}"
        if not place.exists():
            place.mkdir()
            gguf_files.model(place / "m.gguf", arch, shards=shards)
        return min(place.glob("*.gguf"))

    return write


# --- edits in place, on a planted file system


def _insert(self: disk.Disk, at: int, nbytes: int) -> None:
    rest = self.read(at, self.size() - at)
    self.write(at, bytes(nbytes) + rest)


def _refuse(*_: object) -> None:
    raise disk.NotHere


FILE_SYSTEMS = {"ranges are inserted": _insert, "no ranges are inserted": _refuse}
LONGER = ("extend", "m.gguf", "--method", "yarn", "--factor", "4", "--in-place")
LLAMA3 = ("extend", "m.gguf", "--method", "llama3", "--factor", "4", "--in-place")
IN_PLACE: dict[str, Sequence[tuple[str, ...]]] = {
    "a number": [("gguf", "set", "m.gguf", "{arch}.rope.freq_base", "2e6", "--in-place")],
    "extend": [LONGER],
    "extend and restore": [LONGER, ("restore", "m.gguf")],
    "two edits and restore": [LONGER, ("gguf", "set", "m.gguf", "general.name", "x" * 5000, "--in-place"), ("restore", "m.gguf")],
    "two edits and restore all": [
        LONGER, ("gguf", "set", "m.gguf", "general.name", "x" * 5000, "--in-place"), ("restore", "m.gguf", "--all")
    ],
    "a vector": [LLAMA3],
    "a vector and restore": [LLAMA3, ("restore", "m.gguf")],
    "a vector and restore by a copy": [LLAMA3, ("restore", "m.gguf", "--copy-if-needed")],
    "a long text": [("gguf", "set", "m.gguf", "general.name", "x" * 60_000, "--in-place")],
    "a long text by a copy": [("gguf", "set", "m.gguf", "general.name", "x" * 60_000, "--in-place", "--copy-if-needed")],
    "unset": [("gguf", "unset", "m.gguf", "{arch}.rope.freq_base", "--in-place")],
    "restore of nothing": [("restore", "m.gguf")],
}  # fmt: skip


def in_place() -> Cells:
    """Yield edits in place and their way back: what each prints, and the keys and tensors in the end."""
    for arch, system, name in itertools.product(("llama", "qwen3"), FILE_SYSTEMS, IN_PLACE):
        steps = [tuple(word.format(arch=arch) for word in step) for step in IN_PLACE[name]]
        yield f"{arch}/{system}/{name}", model(arch), _edit(steps, FILE_SYSTEMS[system])


def _edit(steps: Sequence[tuple[str, ...]], insert: Callable[..., None]) -> Act:
    def act(source: Path, folder: Path) -> Any:
        with inside(folder) as here, mock.patch.object(disk.Disk, "insert", insert):
            shutil.copyfile(source, here / "m.gguf")
            told = [printed(*step, source=source) for step in steps]
            return {"steps": told, "written": of_gguf([here / "m.gguf"]), "beside": sorted(os.listdir(here))}

    return act
