"""The operations that are disturbed, each with the files that it starts from, and what it leaves when it is left alone.

Sources are a few kilobytes: what is proved is the order of steps. A worker has one folder, whose name stands in records.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import models

from torture.commands import run

SOURCE, OUT = "source", "out"
EXTEND = ("extend", "source/model", "-m", "yarn", "--factor", "4")
EXPORT = ("export", "source/model", "--no-check")
EXTEND_GGUF = ("extend", "source/m.gguf", "-m", "yarn", "--factor", "4")
EXTEND_PARTS = ("extend", "source/p-00001-of-00003.gguf", "-m", "yarn", "--factor", "4")
PARTS, OTHER_PARTS = ("--split-max-tensors", "8"), ("--split-max-tensors", "12")
DIRECTORY, FILE = ("-o", "out/new"), ("-o", "out/new.gguf")
FORCE = ("--force",)

Files = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Scene:
    """A command, those that ran before it in the same folder, and whether the system lacks the exchange of two names."""

    name: str
    arguments: tuple[str, ...]
    earlier: tuple[tuple[str, ...], ...] = ()
    no_exchange: bool = False


def _earlier(*arguments: str) -> tuple[tuple[str, ...], ...]:
    return (arguments,)


_FACTOR_2 = ("--factor", "2")
SCENES = (
    Scene("extend, links", (*EXTEND, *DIRECTORY)),
    Scene("extend, copies", (*EXTEND, *DIRECTORY, "--copy")),
    Scene("extend over an older output", (*EXTEND, *DIRECTORY, *FORCE), _earlier(*EXTEND, *_FACTOR_2, *DIRECTORY)),
    Scene("the same by two renames", (*EXTEND, *DIRECTORY, *FORCE), _earlier(*EXTEND, *_FACTOR_2, *DIRECTORY), no_exchange=True),
    Scene("apply", ("apply", "source/model", "source/plan.json", *DIRECTORY)),
    Scene("bake", ("bake", "source/model", "score", "--multiplier", "2", *DIRECTORY)),
    Scene("bake over an older output", ("bake", "source/model", "score", "--multiplier", "2", *DIRECTORY, *FORCE),
          _earlier("bake", "source/model", "score", "--multiplier", "0.5", *DIRECTORY)),
    Scene("export", (*EXPORT, *FILE)),
    Scene("export over an older file", (*EXPORT, "--outtype", "f16", *FILE, *FORCE), _earlier(*EXPORT, "--outtype", "q8_0", *FILE)),
    Scene("export in parts", (*EXPORT, *PARTS, *FILE)),
    Scene("export over older parts", (*EXPORT, "--outtype", "f16", *PARTS, *FILE, *FORCE),
          _earlier(*EXPORT, "--outtype", "q8_0", *PARTS, *FILE)),
    Scene("export over more parts", (*EXPORT, "--outtype", "f16", *OTHER_PARTS, *FILE, *FORCE),
          _earlier(*EXPORT, "--outtype", "q8_0", *PARTS, *FILE)),
    Scene("extend a GGUF file", (*EXTEND_GGUF, *FILE)),
    Scene("extend over an older GGUF file", (*EXTEND_GGUF, *FILE, *FORCE), _earlier(*EXTEND_GGUF, *_FACTOR_2, *FILE)),
    Scene("extend a GGUF model in parts", (*EXTEND_PARTS, *FILE)),
    Scene("extend over older GGUF parts", (*EXTEND_PARTS, *FILE, *FORCE), _earlier(*EXTEND_PARTS, *_FACTOR_2, *FILE)),
    Scene("set a key of a GGUF file", ("gguf", "set", "source/m.gguf", "general.name", "x", *FILE)),
    Scene("split a GGUF file", ("gguf", "split", "source/m.gguf", "--max-tensors", "8", *FILE)),
    Scene("merge a GGUF model in parts", ("gguf", "merge", "source/p-00001-of-00003.gguf", *FILE)),
    Scene("bake a GGUF file", ("bake", "source/m.gguf", "score", "--multiplier", "2", *FILE)),
)  # fmt: skip


# --- the folder of a worker


@dataclass
class Stage:
    """A scene in a worker's folder: how it begins, and what an undisturbed run leaves.

    before, after, again: the files of the output's folder at the beginning, after the command, and after the command
    with --force.
    """

    scene: Scene
    place: Path
    templates: Path
    prepare: Callable[[], None] | None = None  # what the command's process does first

    @property
    def without_exchange(self) -> bool:
        """Return whether the system refuses the exchange of two names; an edit in place is without insertion instead."""
        return self.scene.no_exchange and self.prepare is None

    def reset(self) -> None:
        """Put the folder back to its beginning."""
        beginning = self._beginning  # made in the same folder
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(beginning, self.place, symlinks=True)

    @cached_property
    def _beginning(self) -> Path:
        template = self.templates / self.scene.name.replace(" ", "-")
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        shutil.copytree(self.templates / SOURCE, self.place / SOURCE)
        (self.place / OUT).mkdir()
        for arguments in self.scene.earlier:
            run(arguments, self.place).expect(0)
        shutil.copytree(self.place, template, symlinks=True)
        return template

    @cached_property
    def source(self) -> Files:
        """What the source is, with its times."""
        self.reset()
        return contents(self.place / SOURCE, times=True)

    @cached_property
    def before(self) -> Files:
        self.reset()
        return contents(self.place / OUT)

    @cached_property
    def after(self) -> Files:
        return self._undisturbed(self.scene.arguments)

    @cached_property
    def again(self) -> Files:
        return self.after if FORCE[0] in self.scene.arguments else self._undisturbed(self.forced)

    @property
    def forced(self) -> tuple[str, ...]:
        """The command with --force."""
        return self.scene.arguments if FORCE[0] in self.scene.arguments else (*self.scene.arguments, *FORCE)

    def _undisturbed(self, arguments: tuple[str, ...]) -> Files:
        """Return what the command leaves; twice, because bytes that vary could be compared with nothing."""
        found = []
        for _ in range(2):
            self.reset()
            run(arguments, self.place, self.prepare).expect(0)
            found.append(contents(self.place / OUT))
        if found[0] != found[1]:
            varying = [name for name in {**found[0], **found[1]} if found[0].get(name) != found[1].get(name)]
            raise RuntimeError(f"{self.scene.name}: two runs differ in {varying}")
        return found[0]


# Of each file a record states times and digests, or a device and an inode where it was linked. The disk decides which.
_VARYING = re.compile(rb',\s+"(?:mtime_ns|device|inode|sha256)": (?:\d+|"\w+")')


def contents(folder: Path, *, times: bool = False) -> Files:
    """Return everything below a folder by its relative name: the bytes of a file, None of a directory.

    Of records what two runs never share is left out. times: modes and modification times go with it.
    """
    found: dict[str, bytes | None] = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            status = os.lstat(path)
            kept = b"" if not times else f"{status.st_mode:o} {status.st_mtime_ns} ".encode()
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    raw = file.read()
                kept += _VARYING.sub(b"", raw) if name.endswith("ropetool.json") else raw
            elif stat.S_ISLNK(status.st_mode):
                kept += os.fsencode(os.readlink(path))
            relative = os.path.relpath(path, folder)
            found[relative] = None if stat.S_ISDIR(status.st_mode) and not times else kept
    return found


# --- sources


def make_sources(folder: Path) -> None:
    """Write the sources that all scenes share: a checkpoint in two shards, a plan for it, a GGUF model in one file and in three."""
    folder.mkdir(parents=True)
    model = folder / "model"
    models.checkpoint(model, num_hidden_layers=2)
    _shard(model)
    (model / "README.md").write_text("---\nlicense: mit\n---\n# A small model\n")
    place = folder.parent
    for arguments in (
        ("extend", "source/model", "-m", "yarn", "--factor", "4", "--dry-run", "--plan-out", "source/plan.json"),
        (*EXPORT, "-o", "source/m.gguf"),
        (*EXPORT, *PARTS, "-o", "source/p.gguf"),
    ):
        run(arguments, place).expect(0)
    for path in folder.iterdir():  # as if somebody else had made them
        if path.is_file() and path.suffix != ".gguf" and path.name != "plan.json":
            path.unlink()


def _shard(model: Path) -> None:
    """Put the tensors of a checkpoint into two files."""
    tensors = dict(sorted(models.weights(models.config_of(model), "F32").items()))
    (model / "model.safetensors").unlink()
    half = len(tensors) // 2
    places = {name: f"model-{1 + (at >= half):05}-of-00002.safetensors" for at, name in enumerate(tensors)}
    models.write_shards(model, tensors, places)
