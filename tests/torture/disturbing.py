"""The trials: a scene, disturbed once, and judged. Each is decided by the seed and its number alone.

A trial returns what is wrong, and the empty text where nothing is.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torture import judging, mounting, tracing
from torture.commands import Ended, Output, body, run, start
from torture.findings import Skipped
from torture.scenes import SCENES, SOURCE, Scene, Stage, make_sources
from torture.tracing import Decision, Kill, Refuse, Send, Step

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
ERRORS = (errno.ENOSPC, errno.EIO)


class Bench:
    """A worker's folder, and the scenes that are played in it."""

    scenes = SCENES

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        templates = folder / "templates"
        make_sources(templates / SOURCE)
        self.stages = {
            scene.name: Stage(scene, folder / "place", templates, self.preparation(scene)) for scene in self.scenes
        }

    def preparation(self, scene: Scene) -> Callable[[], None] | None:
        """Return what a scene's command does before it begins."""
        return None

    def stage(self, scene: Scene) -> Stage:
        """Return the scene with its yardsticks taken, at its beginning."""
        stage = self.stages[scene.name]
        self.check(stage)
        stage.reset()
        return stage

    def check(self, stage: Stage) -> None:
        """Take the yardsticks of a scene."""
        for ready in (stage.source, stage.before, stage.after, stage.again):
            assert ready is not None

    def steps(self, stage: Stage) -> list[Step]:
        """Return the steps of an undisturbed run."""
        return steps(stage)


# --- a command, step by step


def _watched(stage: Stage, decide: tracing.Decide) -> tuple[Ended, list[Step]]:
    output = Output()
    work = body(stage.scene.arguments, stage.place, output, stage.prepare)
    done = tracing.traced(work, stage.place, _without_exchange(decide) if stage.without_exchange else decide)
    return Ended(os.waitstatus_to_exitcode(done.status), output.text()), done.steps


def _without_exchange(decide: tracing.Decide) -> tracing.Decide:
    def wrapped(number: int, step: Step) -> Decision:
        return decide(number, step) or (Refuse(errno.EINVAL) if step.name == "renameat2" else None)

    return wrapped


def steps(stage: Stage) -> list[Step]:
    """Return the steps of an undisturbed run."""
    ended, found = _watched(stage, tracing.go_on)
    ended.expect(0)
    return found


# --- kills


def kill_at(stage: Stage, at: int, judge: Callable[[Stage], str] | None = None) -> str:
    """Kill the command before its step of that number, and judge; the end of one step is the start of the next."""
    ended, met = _watched(stage, lambda number, step: Kill() if number == at else None)
    if len(met) < at:
        return "" if ended.code == 0 else f"exit code {ended.code} undisturbed"
    return _named(f"killed before {met[-1]}", (judge or _after_kill)(stage))


def kill_later(stage: Stage, rng: random.Random, judge: Callable[[Stage], str] | None = None) -> str:
    """Kill the command after a random time, and judge."""
    pause = rng.random() * _duration(stage)
    running = start(stage.scene.arguments, stage.place, stage.prepare)
    time.sleep(pause)
    os.kill(running.process, signal.SIGKILL)
    running.finish()
    return (judge or _after_kill)(stage)


def _after_kill(stage: Stage) -> str:
    found = judging.seen(stage)
    problem = judging.untouched(stage) or judging.killed(stage, found)
    return problem or _rerun(stage)


def _rerun(stage: Stage) -> str:
    """Run the command again, with --force where its output has become whole, and say what is wrong afterwards."""
    whole = any(judging.loadable(judging.seen(stage))) or os.path.lexists(stage.place / "out" / "new")
    arguments, wanted = (stage.forced, stage.again) if whole else (stage.scene.arguments, stage.after)
    ended = run(arguments, stage.place)
    if ended.code != 0:
        return f"the same command afterwards: {judging.refused(ended, (0,))}"
    problem = judging.at_rest(stage, judging.seen(stage), wanted) or judging.untouched(stage)
    return problem and f"the same command afterwards: {problem}"


_durations: dict[str, float] = {}


def _duration(stage: Stage) -> float:
    """Return how many seconds the command takes undisturbed; measured once."""
    name = stage.scene.name
    if name not in _durations:
        begun = time.monotonic()
        run(stage.scene.arguments, stage.place, stage.prepare).expect(0)
        _durations[name] = time.monotonic() - begun
        stage.reset()
    return _durations[name]


def _named(what: str, problem: str) -> str:
    return problem and f"{what}: {problem}"


# --- signals


def signal_at(stage: Stage, at: int, number: int, judge: Callable[[Stage, Ended, int], str] | None = None) -> str:
    """Send a signal before a step, and judge: the exit code says which, and nothing is left."""
    ended, met = _watched(stage, lambda met, step: Send(number) if met == at else None)
    if len(met) < at:
        return "" if ended.code == 0 else f"exit code {ended.code} undisturbed"
    return _named(f"{signal.Signals(number).name} before {met[at - 1]}", (judge or _after_signal)(stage, ended, number))


def signal_later(stage: Stage, number: int, rng: random.Random) -> str:
    """Send a signal after a random time, and judge."""
    pause = rng.random() * _duration(stage)
    # Blocked until the command opens its first file: before that no program could have answered it in its own way.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    running = start(stage.scene.arguments, stage.place, lambda: _unblock_at_work(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    time.sleep(pause)
    os.kill(running.process, number)
    return _named(signal.Signals(number).name, _after_signal(stage, running.finish(), number))


def _unblock_at_work(number: int) -> None:
    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal waiting
        if waiting and event == "open" and "source/" in str(arguments[0]):
            waiting = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])

    waiting = True
    sys.addaudithook(watch)


def _after_signal(stage: Stage, ended: Ended, number: int) -> str:
    found = judging.seen(stage)
    problem = judging.untouched(stage) or judging.at_rest(stage, found, stage.before, stage.after)
    if not problem and found == stage.after and ended.code in (0, -number):  # it came when all was done
        return ""
    return problem or judging.refused(ended, (CODES[signal.Signals(number)],))


# --- two at a time


def race(stage: Stage, rng: random.Random) -> str:
    """Run the command and the same with --force at the same time, on one output; in the end one has won whole."""
    forces = [rng.random() < 0.5, rng.random() < 0.5]
    pause = rng.random() * rng.choice([0.0, 0.02, 0.2])
    running = []
    for force in forces:
        running.append(start(stage.forced if force else stage.scene.arguments, stage.place))
        time.sleep(pause * (len(running) == 1))
    ended = [one.finish() for one in running]
    problem = judging.untouched(stage) or judging.at_rest(stage, judging.seen(stage), stage.after, stage.again)
    problem = problem or next(filter(None, (judging.refused(one, (0, 1)) for one in ended)), "")
    if not problem and all(one.code for one in ended):
        problem = f"both were refused: {ended[0].text.strip()}"
    if not problem and not any(forces) and stage.scene.arguments != stage.forced and not any(one.code for one in ended):
        problem = "both say that they wrote it"
    return _named(f"two at a time, {['', 'forced'][forces[0]]}/{['', 'forced'][forces[1]]}", problem)


# --- disks


def refuse_at(stage: Stage, at: int, number: int, judge: Callable[[Stage, Ended], str] | None = None) -> str:
    """Have a step fail as on a full or broken disk, and judge: a clean refusal, nothing left."""

    def decide(met: int, step: Step) -> Decision:
        return Refuse(number) if met == at and step.name in tracing.REFUSABLE else None

    ended, met = _watched(stage, decide)
    if len(met) < at:
        return ""
    return _named(f"{errno.errorcode[number]} at {met[at - 1]}", (judge or _after_refusal)(stage, ended))


def _after_refusal(stage: Stage, ended: Ended) -> str:
    found = judging.seen(stage)
    problem = judging.untouched(stage)
    if ended.code == 0:  # another way was found
        return problem or judging.at_rest(stage, found, stage.after)
    problem = problem or judging.refused(ended) or judging.at_rest(stage, found, stage.before)
    return problem or ("" if "Error:" in ended.text else f"no error is printed: {ended.text[:200]}")


def limited(stage: Stage, rng: random.Random) -> str:
    """Let no file become longer than a random size, and judge."""
    size = int(2 ** rng.uniform(0, 18))

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return _named(
        f"files of at most {size} bytes", _after_refusal(stage, run(stage.scene.arguments, stage.place, prepare))
    )


def small_disk(stage: Stage, rng: random.Random) -> str:
    """Let the output's folder be a disk of a random size, and judge. Raises: Skipped where none may be mounted."""
    room = int(2 ** rng.uniform(12, 18))
    kept = sum(len(content or b"") + 4096 for content in stage.before.values())
    return _named(f"a disk with {room} bytes left", _apart(lambda: _on_disk(stage, kept + room)))


def _on_disk(stage: Stage, size: int) -> str:
    out = stage.place / "out"
    earlier = stage.place / "earlier"
    out.rename(earlier)
    out.mkdir()
    mounting.mount_small(out, size)
    shutil.copytree(earlier, out, dirs_exist_ok=True)
    shutil.rmtree(earlier)
    return _after_refusal(stage, run(stage.scene.arguments, stage.place))


def _apart(work: Callable[[], str]) -> str:
    """Return what the work says in a forked child, whose mounts end with it. Raises: Skipped."""
    output = Output()
    child = os.fork()
    if child == 0:
        try:
            os.write(output.descriptor, work().encode())
            os._exit(0)
        except Skipped as reason:
            os.write(output.descriptor, str(reason).encode())
            os._exit(3)
        finally:
            os._exit(97)
    _, status = os.waitpid(child, 0)
    code, text = os.waitstatus_to_exitcode(status), output.text()
    if code == 3:
        raise Skipped(text)
    return text if code == 0 else f"the trial itself ended with {code}"
