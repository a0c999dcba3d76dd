"""Trials of edits in place: killed, refused or met with a signal at each step, then recovered; the file is the old or the new one.

Where the folder's file system inserts ranges (ext4, xfs), an edit does; on others, as in memory, it moves tensors.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from torture import disturbing, judging, tracing
from torture.commands import Output, body, run, start
from torture.disturbing import CODES
from torture.scenes import OUT, Scene, Stage, contents
from torture.tracing import Kill

FILE = "out/m.gguf"
JOURNAL = ".m.gguf.ropetool-journal"
COPIED = (("extend", "source/m.gguf", "-m", "yarn", "--factor", "2", "-o", FILE, "--no-sidecars"),)
EXTEND = ("extend", FILE, "-m", "yarn", "--factor", "4", "--from", "original", "--in-place")
LLAMA3 = ("extend", FILE, "-m", "llama3", "--factor", "4", "--from", "original", "--in-place", "--copy-if-needed")
SCENES = (
    Scene("overwrite", EXTEND, COPIED),
    Scene("a vector, by insertion or a move", LLAMA3, COPIED),
    Scene("a vector, without insertion", LLAMA3, COPIED, no_exchange=True),
    Scene("keys taken out, over an edit", EXTEND, (*COPIED, LLAMA3)),
    Scene("a vector again, over edits", LLAMA3, (*COPIED, LLAMA3, EXTEND)),
    Scene("a key set by hand", ("gguf", "set", FILE, "general.name", "x" * 40, "--in-place"), COPIED),
    Scene("an edit undone, and its log gone", ("restore", FILE), (*COPIED, EXTEND)),
)  # fmt: skip


class InPlaceBench(disturbing.Bench):
    """The same for edits in place, some of them without insertion."""

    scenes = SCENES

    def preparation(self, scene: Scene) -> Callable[[], None] | None:
        """Return what forbids insertion, if the scene is without."""
        return _without_insertion if scene.no_exchange else None

    def check(self, stage: Stage) -> None:
        """Take the file before and after the edit, which differ."""
        assert stage.before is not None
        assert stage.after != stage.before


def _without_insertion() -> None:
    from ropetool.files.gguf.in_place.disk import Disk, NotHere

    def refuse(*_: object) -> None:
        raise NotHere

    Disk.insert = refuse  # type: ignore[method-assign]


def recovered(stage: Stage, rng: random.Random | None = None) -> str:
    """Recover the file, and say what is wrong with it then; with chance, the recovery is killed too, at random steps.

    While the journal is there no other command opens the file.
    """
    if (stage.place / OUT / JOURNAL).exists():
        ended = run(("inspect", FILE), stage.place)
        if ended.code != 1 or "ropetool recover" not in ended.text:
            return f"a pending edit is not refused: {ended.text[:200]}"
    while rng is not None and rng.random() < 0.5:
        at = rng.randint(1, 12)
        tracing.traced(
            body(("recover", FILE), stage.place, Output()),
            stage.place,
            lambda number, step, at=at: Kill() if number == at else None,
        )
    ended = run(("recover", FILE), stage.place)
    if ended.code != 0:
        return f"not recovered: {ended.text.strip()[:300]}"
    found = {name: data for name, data in contents(stage.place / OUT).items() if not name.endswith(".ropetool-new")}
    if found not in (stage.before, stage.after):
        return judging.at_rest(stage, found, stage.before, stage.after)
    return judging.untouched(stage)


def kill_at(stage: Stage, at: int, _: object = None) -> str:
    """Kill the edit before its step of that number, recover, and judge."""
    rng = random.Random(f"{stage.scene.name} {at}")
    return disturbing.kill_at(stage, at, lambda stage: recovered(stage, rng))


def kill_later(stage: Stage, rng: random.Random) -> str:
    """Kill the edit after a random time, recover, and judge."""
    return disturbing.kill_later(stage, rng, recovered)


def signal_at(stage: Stage, at: int, number: int) -> str:
    """Send a signal before a step, and judge: the file is the old or the new one, with or without a recovery."""
    return disturbing.signal_at(
        stage,
        at,
        number,
        lambda stage, ended, number: judging.refused(ended, (CODES[signal.Signals(number)], 0)) or recovered(stage),
    )


def refuse_at(stage: Stage, at: int, number: int) -> str:
    """Have a step fail as on a full or broken disk, and judge: a sentence, and the old or the new file."""
    return disturbing.refuse_at(
        stage, at, number, lambda stage, ended: judging.refused(ended, (0, 1)) or recovered(stage)
    )


def race(stage: Stage, rng: random.Random) -> str:
    """Run the edit twice at the same time: it is done once or not at all, and not by halves.

    Each reads the file before it changes it, so each may refuse because the other does.
    """
    pause = rng.random() * rng.choice([0.0, 0.02, 0.2])
    running = [start(stage.scene.arguments, stage.place, stage.prepare)]
    time.sleep(pause)
    running.append(start(stage.scene.arguments, stage.place, stage.prepare))
    ended = [one.finish() for one in running]
    problem = next(filter(None, (judging.refused(one, (0, 1)) for one in ended)), "")
    done = not all(one.code for one in ended)
    return problem or judging.at_rest(stage, contents(stage.place / OUT), stage.after if done else stage.before)
