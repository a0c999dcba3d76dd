"""--companion: a model that drafts tokens for the one that is extended, planned and placed beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool.cli import local_source
from ropetool.errors import AmbiguousRope, ConfigError, OutputError, RopetoolError

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.plans.plan import Plan


Planned = Callable[[Path, str | None], "Plan"]
"""Makes the plan of a checkpoint, with another --from than the command's if one is given."""


@dataclass(frozen=True)
class Companion:
    """A model that drafts tokens for the one that is extended: its plan, which gives it the same table."""

    source: Path
    plan: Plan
    output: Path

    @classmethod
    def of(
        cls, named: str, of: Path, model: Plan, as_type: str | None, opened: Callable[[Path], Checkpoint], planned: Planned
    ) -> Companion:  # fmt: skip
        """Return the plan of a companion of the model at `of`. Raises: InvalidRope where the model's table is none for it."""
        from ropetool.plans.companions import check_companion
        from ropetool.runtimes.inspection import inspect

        where = f"--companion {named}"
        try:
            source = local_source(named)
            if source.resolve() == of.resolve():
                raise ConfigError(
                    "is the model itself, not its draft model", try_="pass the checkpoint of the draft model"
                )
            plan = _planned(source, planned)
            check_companion(model, plan)
            stated = inspect(opened(source), as_type).trained_length
        except RopetoolError as error:
            if error.where.startswith(named):  # a file of it
                error.where = f"--companion {error.where}"
            else:
                error.where = f"{where}: {error.where}" if error.where else where
            raise
        if stated not in (None, model.trained_length):
            note = (
                f"{where} was trained for {stated} tokens, the model for {model.trained_length}: when you serve both, check how "
                f"many drafted tokens the model accepts beyond {stated} tokens"
            )
            plan = replace(plan, notes=(*plan.notes, note))
        return cls(source, plan, plan.output_beside(source))

    def check_place(self, source: Path, target: Path, *, force: bool) -> None:
        """Refuse a place that is taken, or where the model or its output lies, before anything is written.

        source, target: the model and its output. Raises: OutputError.
        """
        from ropetool.files.output import check_place
        from ropetool.plans.applying import check_target

        own, place = target.resolve(), self.output.resolve()
        if own == place or own in place.parents or place in own.parents:
            raise OutputError(
                f"the draft model cannot be written here, because the model is written to {target}", where=str(self.output),
                try_="pass another -o",
            )  # fmt: skip
        check_place(target, self.source)
        try:
            check_place(self.output, source)
            check_target(self.plan, self.source, self.output, force=force)
        except OutputError as error:
            raise OutputError(
                f"the draft model cannot be written here: it {error.message}", where=error.where,
                try_="move it away, or rename the draft model" + ("" if force else "; --force replaces an output of ropetool"),
            ) from None  # fmt: skip


def _planned(source: Path, planned: Planned) -> Plan:
    """Return the plan of a companion. Raises: as `planned`; where --from would tell, with the answer that serves both models."""
    from ropetool.plans.basis import ORIGINAL

    try:
        return planned(source, None)
    except AmbiguousRope as error:
        try:  # by itself it could also be extended from its current table, which the model has not
            planned(source, ORIGINAL)
        except RopetoolError:
            raise error from None
        error.try_ = f"add --from {ORIGINAL}, to replace its scaling by the model's"
        raise
