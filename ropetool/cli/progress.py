"""A progress bar on stderr. It appears only on a terminal, and only for work that takes more than a second."""

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
    """Shows the stage, the finished and total units, and the unit if it is not the unit of the bar."""

    def __call__(self, stage: str, done: int, total: int, unit: str = ...) -> None: ...


DELAY = 1.0  # seconds
BYTES = "bytes"
NARROW = 80  # columns
AT_ONCE = 1e6  # units per second; no computation of tokens is as fast
SPEED_OVER = 600.0  # seconds: a row of a large model takes minutes, and a speed needs two rows


@contextmanager
def bar(unit: str = "tokens") -> Iterator[Update]:
    """Yield a callback that shows the stage, the finished units, and all units of the run.

    A stage with a different unit passes the unit as the fourth argument. A total of 0 means that the total is unknown.
    The stage may be the name of a file or a tensor; its control characters are escaped. Bytes are shown as B, kB, MB or
    GB.
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
            state.total = None  # in update(), None keeps the earlier total
        at_once = done - state.completed > AT_ONCE * (now - state.fields["at"])
        if at_once and unit != BYTES:  # from the journal of an earlier run, so not a part of the speed
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
        appearance.join()  # the timer may be starting the display at this moment
        progress.stop()


@contextmanager
def bar_of_bytes(in_tokens: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield the callback of a bar of bytes. in_tokens: the stage that counts tokens instead."""
    with bar(BYTES) as progress:
        yield lambda stage, done, total: progress(stage, done, total, "tokens" if stage == in_tokens else BYTES)


def unfinished(interrupt: KeyboardInterrupt, again: str) -> str:
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
    """Return a display of one line for any width. If the line is too narrow, it shortens the stage and not the figures."""
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
        unit_shown = narrow and unit != BYTES and task.total is not None
        return f"{_scaled(task.speed, 0, unit) if unit_shown else _amount(task.speed, unit)}/s"

    def left(task: Task) -> str:
        if task.time_remaining is None:
            return _clock(task.elapsed or 0)
        return f"{_clock(task.time_remaining)} left"

    narrow, kept = console.width < NARROW, Column(no_wrap=True)
    return Progress(
        Figure(lambda task: escaped(task.description), Column()),  # only this column may become narrower
        BarColumn(10 if narrow else 30, table_column=kept),
        *(Figure(text, kept) for text in (count, rate, left)),
        console=console, transient=True, redirect_stdout=False, speed_estimate_period=SPEED_OVER,
    )  # fmt: skip


def _scale(largest: float, unit: str) -> tuple[float, str]:
    """Return the number of units in a shown unit, and the name of the shown unit."""
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
    """Show nothing."""
