"""A progress bar on stderr, silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(unit: str = "tokens") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that takes what is being done, how many units are done, and how many the whole run has."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """How many units a second, as soon as that is known."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.0f} {unit}/s" if task.speed else "")

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
    )
    with Progress(
        *columns,
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        task = shown.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            shown.update(task, description=stage, completed=done, total=total or None)

        yield update
