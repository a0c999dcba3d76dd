"""Trials of edits in place: killed, refused or met with a signal at each step, then recovered; the file is the old or the new one.

Where the folder's file system inserts ranges (ext4, xfs), an edit does; on others, as in memory, it moves tensors.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable

from torture import disturbing, judging, tracing
from torture.commands import Ended, Output, body, run, start
from torture.scenes import OUT, Scene, Stage, contents
from torture.tracing import Decision, Kill, Refuse, Send, Step

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

    def steps(self, stage: Stage) -> list[Step]:
        """Return the steps of an undisturbed run."""
        ended, found = _watched(stage, tracing.go_on)
        ended.expect(0)
        return found


def _without_insertion() -> None:
    from ropetool.files.gguf.in_place.disk import Disk, NotHere

    def refuse(*_: object) -> None:
        raise NotHere

    Disk.insert = refuse  # type: ignore[method-assign]


def _watched(stage: Stage, decide: tracing.Decide) -> tuple[Ended, list[Step]]:
    output = Output()
    done = tracing.traced(body(stage.scene.arguments, stage.place, output, stage.prepare), stage.place, decide)
    return Ended(os.waitstatus_to_exitcode(done.status), output.text()), done.steps


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
    ended, met = _watched(stage, lambda number, step: Kill() if number == at else None)
    if len(met) < at:
        return "" if ended.code == 0 else f"exit code {ended.code} undisturbed"
    problem = recovered(stage, random.Random(f"{stage.scene.name} {at}"))
    return problem and f"killed before {met[-1]}: {problem}"


def kill_later(stage: Stage, rng: random.Random) -> str:
    """Kill the edit after a random time, recover, and judge."""
    pause = rng.random() * _duration(stage)
    running = start(stage.scene.arguments, stage.place, stage.prepare)
    time.sleep(pause)
    os.kill(running.process, signal.SIGKILL)
    running.finish()
    return recovered(stage)


_durations: dict[str, float] = {}


def _duration(stage: Stage) -> float:
    if stage.scene.name not in _durations:
        begun = time.monotonic()
        run(stage.scene.arguments, stage.place, stage.prepare).expect(0)
        _durations[stage.scene.name] = time.monotonic() - begun
        stage.reset()
    return _durations[stage.scene.name]


def signal_at(stage: Stage, at: int, number: int) -> str:
    """Send a signal before a step, and judge: the file is the old or the new one, with or without a recovery."""
    ended, met = _watched(stage, lambda met, step: Send(number) if met == at else None)
    if len(met) < at:
        return "" if ended.code == 0 else f"exit code {ended.code} undisturbed"
    problem = judging.refused(ended, (disturbing.CODES[signal.Signals(number)], 0)) or recovered(stage)
    return problem and f"{signal.Signals(number).name} before {met[at - 1]}: {problem}"


def refuse_at(stage: Stage, at: int, number: int) -> str:
    """Have a step fail as on a full or broken disk, and judge: a sentence, and the old or the new file."""

    def decide(met: int, step: Step) -> Decision:
        return Refuse(number) if met == at and step.name in tracing.REFUSABLE else None

    ended, met = _watched(stage, decide)
    if len(met) < at:
        return ""
    problem = judging.refused(ended, (0, 1)) or recovered(stage)
    return problem and f"{errno.errorcode[number]} at {met[at - 1]}: {problem}"


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
