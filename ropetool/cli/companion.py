"""--companion: the draft model of a model that `extend` extends."""

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
"""Returns the plan of a checkpoint. The text is a value for --from; None keeps the value of the command."""


@dataclass(frozen=True)
class Companion:
    """A draft model, with the plan that gives it the table of the model.

    source, output: its files, and the path to write.
    """

    source: Path
    plan: Plan
    output: Path

    @classmethod
    def of(
        cls, named: str, of: Path, model: Plan, as_type: str | None, opened: Callable[[Path], Checkpoint], planned: Planned
    ) -> Companion:  # fmt: skip
        """Return the draft model with its plan.

        named: the draft model as the user wrote it.
        of, model: the path of the model, and its plan.
        as_type: the value of --as.
        opened: opens a checkpoint.
        planned: plans a checkpoint like the model.

        Raises: InvalidRope if the draft model cannot have the table of the model.
        """
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
            trained_length = inspect(opened(source), as_type).trained_length
        except RopetoolError as error:
            if error.where.startswith(named):  # a file of the draft model
                error.where = f"--companion {error.where}"
            else:
                error.where = f"{where}: {error.where}" if error.where else where
            raise
        if trained_length not in (None, model.trained_length):
            note = (
                f"{where} was trained for {trained_length} tokens, the model for {model.trained_length}: when you serve both, check how "
                f"many drafted tokens the model accepts beyond {trained_length} tokens"
            )
            plan = replace(plan, notes=(*plan.notes, note))
        return cls(source, plan, plan.output_beside(source))

    def check_place(self, source: Path, target: Path, *, force: bool) -> None:
        """Raise OutputError if the output exists already, or overlaps with the model or the output of the model.

        source, target: the paths of the model and of its output.
        force: replace an earlier output of ropetool.
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
    """Return the plan of a draft model.

    Raises: as `planned`. For a draft model with two possible starts, the error proposes the start that works for both
    models.
    """
    from ropetool.plans.basis import ORIGINAL

    try:
        return planned(source, None)
    except AmbiguousRope as error:
        try:  # the model does not have the draft model's current table, so only the original table can work
            planned(source, ORIGINAL)
        except RopetoolError:
            raise error from None
        error.try_ = f"add --from {ORIGINAL}, to replace its scaling by the model's"
        raise
