"""The output of an applied plan, and the checks, progress and records that both formats share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint import provenance, style
from ropetool.checkpoint.edits import PLAN_AGAIN
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import PlanMismatch
from ropetool.escaping import Shown, command
from ropetool.files import hub
from ropetool.plans import model_card
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.serving import commands
from ropetool.runtimes.decoded import decoded
from ropetool.runtimes.kv_cache import KvCache

if TYPE_CHECKING:
    from ropetool.files.gguf.in_place import Edited
    from ropetool.weights.writing import BakedTensor

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Following:
    """The next step after an extension.

    kv_cache_bytes: the cache of one sequence at the new context; None if it is unknown.
    verify: a command line.
    """

    kv_cache_bytes: int | None
    verify: str


@dataclass(frozen=True)
class Applied(Shown):
    """The result of a write.

    output: the path of the output.
    placed: the number of unchanged files that were linked, reflinked and copied.
    edited: the names of the edited files.
    left: names in the source that the output lacks.
    baked: the tensors with new numbers, each with its error.
    serving: command lines that serve the output.
    sidecars: the model card, and for a GGUF file a Modelfile.
    notes: notes on leftover files from other programs and dead processes.
    in_place: how a file was edited in place; None for a new output.
    following: the memory of the new context and a command to measure it; None for a bake.
    """

    output: Path
    placed: Mapping[str, int]
    edited: tuple[str, ...]
    left: tuple[str, ...]
    baked: tuple[BakedTensor, ...] = ()
    serving: tuple[str, ...] = ()
    sidecars: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    in_place: Edited | None = None
    following: Following | None = None


def following(plan: Plan, output: Path, caches: Mapping[str, KvCache], quantization: Any = None) -> Following | None:
    """Return the next step after a plan, or None for a bake.

    caches: the KV cache by layer type. quantization: the quantization_config of the config.
    """
    if plan.method == BAKE:
        return None
    context = plan.max_position_embeddings
    line = command("ropetool", "verify", output)
    if quantization is not None:
        from ropetool import packed  # few models have packed weights

        line = packed.measuring(quantization, output)
    return Following(sum(cache.bytes_at(context) for cache in caches.values()) if caches else None, line)


class Steps:
    """The progress of an output in bytes. A link counts at once, a copy while it is written."""

    def __init__(self, tell: Progress, source: Path, files: Sequence[Path]) -> None:
        self._tell = tell
        self._sizes = {str(path): (source / path).stat().st_size for path in files}
        self._total = sum(self._sizes.values())
        self._name, self._before, self._now = "", 0, 0

    def begin(self, name: str) -> None:
        """Start this file. The previous one is finished."""
        self._before += self._sizes.get(self._name, 0)
        self._name, self._now = name, 0
        self.moved(0)

    def moved(self, nbytes: int) -> None:
        """Count bytes of the current file. If a file is written twice, its bytes count once."""
        self._now = min(self._now + nbytes, self._sizes.get(self._name, 0))
        self._tell(self._name, self._before + self._now, self._total)

    def end(self) -> None:
        """Report that all files are written and are being flushed to the disk."""
        self._tell("flushing to disk", 0, 0)


def check_marks(plan: Plan, present: Mapping[str, str], where: Path) -> None:
    """Raise PlanMismatch if a weight file has changed. present: the identity of each file now, by name."""
    changed = sorted(name for name, mark in plan.weight_files.items() if present.get(name) != mark)
    if changed or present.keys() != plan.weight_files.keys():
        raise PlanMismatch(
            f"{', '.join(changed) or 'a weight file'} has changed since the plan was made", where=str(where),
            try_="make a new plan",
        )  # fmt: skip


def check_outcome(plan: Plan, source: Checkpoint) -> None:
    """Raise PlanMismatch if a runtime would decode a different table, because keys outside the plan have changed."""
    edited = source.edited(plan.edits)
    if edited.format == "hf":
        style.read(edited.config, edited.family, edited.where)
    for runtime in plan.runtimes:
        if plan.target is None:
            raise PlanMismatch(
                "an earlier version wrote the plan, without the data to check the output",
                where=source.where, try_=PLAN_AGAIN,
            )  # fmt: skip
        objection = decoded(runtime, edited).objection(plan.target)
        if objection:
            raise PlanMismatch(
                f"a key outside the plan has changed: with the plan, {runtime} would compute something else ({objection})",
                where=source.where, try_=PLAN_AGAIN,
            )  # fmt: skip


def check_identity(plan: Plan, now: Identity, where: Path) -> None:
    """Raise PlanMismatch if the checkpoint is not the plan's source any more. now: its identity."""
    changed = plan.identity.change(now) if plan.identity is not None else ""
    if changed:
        raise PlanMismatch(f"{changed} changed since the plan was made", where=str(where), try_=PLAN_AGAIN)


def record_of(plan: Plan, source: Checkpoint, files: Sequence[Mapping[str, Any]] = ()) -> Provenance:
    """Return the record of an output. files: the entries of its files."""
    text = source.text if source.format == "hf" else None
    seen = provenance.fingerprint(source.path, text)
    return Provenance(str(hub.absolute(source.path)), seen, plan.trained_length, plan.to_json(), files=files)


def card_of(plan: Plan, source: Path, card: str, command: str, serving: list[str]) -> str:
    """Return the model card of the output, from the source's card."""
    base = hub.origin(source)
    return model_card.with_step(
        card, model_card.planned_step(plan), command, commands(serving), base_model=base.repo if base else "",
        long=plan.method != BAKE,
    )  # fmt: skip
