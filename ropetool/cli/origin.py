"""The source of `extend`, opened once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import config_alone, local_source
from ropetool.cli.next_steps import OPENED

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.plans.basis import Request
    from ropetool.plans.plan import Plan


@dataclass(frozen=True)
class ExtensionSource:
    """The source of an extension.

    named: as the user wrote it, a path or a hub id.
    path: the files on this disk.
    config_only: the folder has the config of a hub id, but no weights.
    checkpoints: the source and the draft model once they are opened, by path.
    """

    named: str
    path: Path
    config_only: bool
    checkpoints: dict[Path, Checkpoint] = field(default_factory=dict)

    @classmethod
    def of(cls, named: str, *, config_is_enough: bool) -> ExtensionSource:
        """Return the source. From the hub, it downloads only the config if that is enough."""
        config = config_alone(named) if config_is_enough else None
        origin = cls(named, config or local_source(named), config is not None)
        click.get_current_context().meta[OPENED] = origin.opened
        return origin

    def opened(self, path: Path) -> Checkpoint:
        """Return the checkpoint of a path. It is opened once."""
        from ropetool.checkpoint.opening import open_checkpoint

        if path not in self.checkpoints:
            self.checkpoints[path] = open_checkpoint(path)
        return self.checkpoints[path]

    @property
    def checkpoint(self) -> Checkpoint:
        """The source, opened."""
        return self.opened(self.path)

    def planned(self, request: Request) -> tuple[ExtensionSource, Plan]:
        """Return the plan of a request, and the source with all files that the plan needs."""
        from ropetool.plans.formats import CONFIG_ONLY
        from ropetool.plans.search import plan_for

        plan = plan_for(self.checkpoint, request)
        if self.config_only and plan.bakes:  # only the weights show which tensors change, and whether they can store it
            return ExtensionSource.of(self.named, config_is_enough=False).planned(request)
        kept = tuple(note for note in plan.notes if not self.config_only or note != CONFIG_ONLY)
        return self, replace(plan, notes=kept)

    def close(self) -> None:
        """Let go of the opened checkpoints."""
        self.checkpoints.clear()
