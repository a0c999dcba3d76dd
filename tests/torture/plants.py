"""Planted defects for the harness of scripts/torture; run as a program, it prints what the harness says of each, as JSON.

A planted command writes the right bytes in a wrong way; a planted reader does what no reader may.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ropetool.cli
from ropetool.errors import CorruptFile
from ropetool.files.hf import jsontext
from torture import commands, disturbing, inputs
from torture.disturbing import Bench
from torture.mutating import bytes_of
from torture.readers import Reader
from torture.readers.texts import edit, texts
from torture.scenes import SCENES, Files, Stage

DIRECTORY, PARTS, FILE = "extend, links", "extend over older GGUF parts", "extend a GGUF file"


# --- commands


def writer(files: Files, order: Callable[[str], Any], more: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return a command line that writes these files one after the other, each whole, none of them aside."""

    def main() -> None:
        more()
        for name in sorted(files, key=order):
            content, path = files[name], Path("out", name)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                aside = Path("out", ".x.ropetool-1")
                aside.write_bytes(content)
                path.parent.mkdir(exist_ok=True)
                aside.replace(path)
        sys.exit(0)

    return main


def planted(
    bench: Bench, scene: str, plant: Callable[[Stage], Callable[[], None]], hold: Callable[[Stage], str]
) -> str:
    """Return what the harness says of a scene whose command is another; the yardsticks are those of the real one."""
    stage = bench.stage(next(one for one in SCENES if one.name == scene))
    true = ropetool.cli.main
    ropetool.cli.main = plant(stage)  # type: ignore[assignment]
    try:
        return hold(stage)
    finally:
        ropetool.cli.main = true


def at_every_step(stage: Stage, hold: Callable[[Stage, int], str]) -> str:
    """Return the first complaint over all steps of the planted command."""
    count = len(disturbing.steps(stage))
    for at in range(1, count + 1):
        stage.reset()
        problem = hold(stage, at)
        if problem:
            return problem
    return ""


def touch_source() -> None:
    os.utime("source/model/config.json")


def leave_something() -> None:
    Path("out", ".new.ropetool-1").mkdir(exist_ok=True)
    Path("out", ".new.ropetool-1", "a").write_text("a")
    sys.exit(1)


def disturbances(bench: Bench) -> Mapping[str, str]:
    """Return what the harness says of each planted command."""

    def killed(stage: Stage) -> str:
        return at_every_step(stage, disturbing.kill_at)

    def last(name: str) -> tuple[bool, str]:
        return name.endswith(".json"), name

    return {
        "true": planted(bench, FILE, lambda stage: ropetool.cli.main, lambda stage: disturbing.refuse_at(stage, 1, errno.EIO)),
        "file by file": planted(bench, DIRECTORY, lambda stage: writer(stage.after, str), killed),
        "source touched": planted(bench, DIRECTORY, lambda stage: writer(stage.after, str, touch_source), killed),
        "record last": planted(bench, FILE, lambda stage: writer(stage.after, last), killed),
        "part by part": planted(bench, PARTS, lambda stage: writer(stage.after, str), killed),
        "signal ignored": planted(
            bench, DIRECTORY, lambda stage: writer(stage.after, str), lambda stage: disturbing.signal_at(stage, 3, signal.SIGTERM)
        ),
        "traceback": planted(
            bench, DIRECTORY, lambda stage: writer(stage.after, str), lambda stage: disturbing.refuse_at(stage, 2, errno.ENOSPC)
        ),
        "left behind": planted(bench, DIRECTORY, lambda stage: leave_something, lambda stage: disturbing.race(stage, random.Random(0))),
    }  # fmt: skip


# --- readers


def loop(data: bytes, rng: random.Random) -> None:
    while True:
        try:
            time.monotonic()
        except Exception:  # noqa: BLE001 - as careless code has it
            continue


def lookup(data: bytes, rng: random.Random) -> None:
    _ = {}["key"]


def much(data: bytes, rng: random.Random) -> None:
    held = bytearray(1 << 30)
    held[::4096] = bytes(len(held[::4096]))


def crash(data: bytes, rng: random.Random) -> None:
    ctypes.string_at(0)


def wordless(data: bytes, rng: random.Random) -> None:
    raise CorruptFile("")


class Wordy(CorruptFile):
    """Is not cut, as others are."""

    @property
    def sentence(self) -> str:
        return "x" * 5000


def endless(data: bytes, rng: random.Random) -> None:
    raise Wordy("is broken")


def good(data: bytes, rng: random.Random) -> None:
    raise CorruptFile("is broken")


def verdict(read: Callable[[bytes, random.Random], None], seed: bytes = b"seed") -> str:
    """Return the first complaint of the harness about a reader."""
    report = inputs.feed(Reader("planted", [seed], bytes_of, read), 0, 1, 0, most=3 if read is not loop else 1)
    return report.bad[0].problem if report.bad else ""


def readings() -> Mapping[str, str]:
    """Return what the harness says of each planted reader."""
    found = {read.__name__: verdict(read) for read in (good, lookup, loop, much, crash, wordless, endless)}
    true = jsontext.apply_edits
    jsontext.apply_edits = lambda text, edits, where: json.dumps(
        json.loads(true(text, edits, where).removeprefix("\ufeff"))
    )
    try:
        report = inputs.feed(Reader("planted", texts(), bytes_of, edit), 0, 1, 0, most=200)
        found["rewritten"] = report.bad[0].problem if report.bad else ""
    finally:
        jsontext.apply_edits = true
    return found


def main() -> None:
    commands.load()
    folder = Path(tempfile.mkdtemp(prefix="ropetool-plants-"))
    try:
        sys.stdout.write(json.dumps({**disturbances(Bench(folder, 0)), **readings()}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
