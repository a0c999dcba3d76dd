"""A progress bar on stderr: silent where that is not a terminal, and for work that is done within a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Protocol

from ropetool.cli import is_terminal
from ropetool.escaping import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Update(Protocol):
    """What is being done, how many units are done, how many there are; and the unit, if it is another."""

    def __call__(self, stage: str, done: int, total: int, unit: str = ...) -> None: ...


DELAY = 1.0  # seconds
BYTES = "bytes"
NARROW = 80  # columns
AT_ONCE = 1e6  # units a second: faster than anything computes tokens
SPEED_OVER = 600.0  # seconds: a row of a large model takes minutes, and a speed needs two


@contextmanager
def bar(unit: str = "tokens") -> Iterator[Update]:
    """Yield a callback that takes what is being done, how many units are done, and how many the whole run has.

    A stage that counts in another unit names it after these. A total of 0 stands for one that is not known. What is being
    done may be the name of a file or a tensor: it is shown as it is, control characters escaped. Bytes are shown in the
    unit that fits.
    """
    if not is_terminal(sys.stderr):
        yield _ignore
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield _ignore
        return
    progress = _line(console)
    task = progress.add_task("starting", total=None, unit=unit, at=time.monotonic())

    def update(stage: str, done: int, total: int, unit: str = unit) -> None:
        state, now = progress.tasks[0], time.monotonic()
        if not total:
            state.total = None  # to update(), None means the total of before
        at_once = done - state.completed > AT_ONCE * (now - state.fields["at"])
        if at_once and unit != BYTES:  # kept from an earlier run, and no part of the speed
            progress.reset(task, total=total or None, completed=done)
        state.fields["at"] = now
        progress.update(task, description=stage, completed=done, total=total or None, unit=unit)

    appearance = Timer(DELAY, progress.start)
    appearance.daemon = True
    appearance.start()
    try:
        yield update
    finally:
        appearance.cancel()
        appearance.join()  # it may be starting the display at this moment
        progress.stop()


def unfinished(interrupt: KeyboardInterrupt, again: str = "the same command with --resume") -> str:
    """Return the note on the measurements of an interrupted command.

    again: the command that continues.
    """
    unkept, rows = getattr(interrupt, "unkept", ""), getattr(interrupt, "rows", 0)
    if unkept:
        return f"the measurements were not saved: {unkept}"
    return (
        f"{rows} rows are saved; to continue, run {again}"
        if rows
        else "nothing was saved: no measurement was completed"
    )


def _line(console: Console) -> Progress:
    """Return a display of one line, whatever the width: what is being done gives way to the figures."""
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Figure(ProgressColumn):
        def __init__(self, text: Callable[[Task], str], column: Column) -> None:
            self.text = text
            super().__init__(column)

        def render(self, task: Task) -> Text:
            return Text(self.text(task), no_wrap=True, overflow="ellipsis")

    def count(task: Task) -> str:
        if task.total is None:
            return ""
        unit = task.fields["unit"]
        return f"{_scaled(task.completed, task.total, unit)}/{_amount(task.total, unit)}"

    def rate(task: Task) -> str:
        if not task.speed:
            return ""
        unit = task.fields["unit"]
        said_by_count = narrow and unit != BYTES and task.total is not None
        return f"{_scaled(task.speed, 0, unit) if said_by_count else _amount(task.speed, unit)}/s"

    def left(task: Task) -> str:
        if task.time_remaining is None:
            return _clock(task.elapsed or 0)
        return f"{_clock(task.time_remaining)} left"

    narrow, kept = console.width < NARROW, Column(no_wrap=True)
    return Progress(
        Figure(lambda task: escaped(task.description), Column()),  # the one that may become narrower
        BarColumn(10 if narrow else 30, table_column=kept),
        *(Figure(text, kept) for text in (count, rate, left)),
        console=console, transient=True, redirect_stdout=False, speed_estimate_period=SPEED_OVER,
    )  # fmt: skip


def _scale(largest: float, unit: str) -> tuple[float, str]:
    """Return how many units one shown unit is, and its name."""
    if unit != BYTES:
        return 1, unit
    return next(((size, name) for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= size), (1, "B"))


def _scaled(number: float, largest: float, unit: str) -> str:
    size, name = _scale(largest, unit)
    return f"{number / size:.1f}" if name == "GB" else f"{number / size:.0f}"


def _amount(number: float, unit: str) -> str:
    return f"{_scaled(number, number, unit)} {_scale(number, unit)[1]}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def _ignore(stage: str, done: int, total: int, unit: str = "") -> None:
    """Be told of progress, and do nothing."""
