"""Apply a plan: stage a copy of the source with the planned edits, and rename it to its place when it is complete.

The source is only read. If it lacks an old value of the plan, ropetool refuses before it writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import listings, provenance, style
from ropetool.checkpoint.edits import PLAN_AGAIN, edits_of_file
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import LossyExport, PlanMismatch
from ropetool.escaping import Shown
from ropetool.files import hub, linking
from ropetool.files.counting import counted, nobody
from ropetool.files.gguf import Patch, write_patched
from ropetool.files.gguf.in_place import Edited
from ropetool.files.hf import Directory, apply_edits, limits_of, read_object
from ropetool.files.hf.jsontext import shown
from ropetool.files.output import check_output
from ropetool.files.transaction import transaction
from ropetool.plans import model_card
from ropetool.plans.following import Following, following, following_gguf
from ropetool.plans.gguf_output import check as check_gguf
from ropetool.plans.gguf_output import gguf_output
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.serving import commands, gguf_lines, serving_lines
from ropetool.runtimes import inspection
from ropetool.runtimes.decoded import decoded
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import BakedTensor, WeightFile, marks, write_weights

Progress = Callable[[str, int, int], None]


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


def check_target(plan: Plan, source: Path, target: Path, *, force: bool) -> None:
    """Return if `apply` may write to `target`. Call it before anything is written. Raises: as `apply`."""
    if plan.format == "gguf":
        check_gguf([target], source, force=force)
        return
    checkpoint = HfCheckpoint.open(source)
    checked_texts(plan, checkpoint)
    check_output(target, source, force=force, directory=True, may_replace=listings.directory_rule(target))


def apply(
    plan: Plan,
    source: str | Path,
    target: str | Path,
    *,
    force: bool = False,
    copy: bool = False,
    command: str = "",
    sidecars: bool = True,
    progress: Progress | None = None,
) -> Applied:
    """Write the planned checkpoint to `target`, complete or not at all.

    command: the user's command line, for the model card.
    sidecars: add the step to the model card, and write a Modelfile next to a GGUF file. Without sidecars, the source's
      card is copied unchanged.
    progress: called with the file, the finished bytes and the bytes of the whole output. The bytes are 0 while the
      system flushes to the disk.
    Raises: PlanMismatch if the source differs from the plan's source; OutputError if the target cannot be written.
    """
    path = hub.local(source)
    if plan.format == "gguf":
        return _apply_gguf(
            plan, GgufCheckpoint.open(path), Path(target), force=force, copy=copy, command=command, sidecars=sidecars,
            tell=progress or nobody,
        )  # fmt: skip
    checkpoint = HfCheckpoint.open(path)
    card = model_card.read_card(checkpoint.path / model_card.CARD) if sidecars else None
    edited = checked_texts(plan, checkpoint)
    weights = _checked_weights(plan, checkpoint)
    carried, left = _sorted_out(checkpoint.directory)
    placed: dict[str, str] = {}
    target = Path(target)
    rewritten = {*edited, *([model_card.CARD] if card is not None else [])}
    unchanged = [path for path in carried if str(path) not in rewritten]
    steps = _Steps(progress or nobody, checkpoint.path, unchanged)
    with (
        transaction(
            target, checkpoint.path, force=force, directory=True, may_replace=listings.directory_rule(target)
        ) as staging,
        counted(steps.moved),
    ):
        stage = staging.stage(target)
        stage.mkdir()
        shards = [stage / file.path.name for file in weights]
        done = write_weights(plan.tensors, weights, shards, bake_dtype=plan.bake_dtype, progress=steps.begin)
        written = {*edited, *(file.name for file in done.files)}
        for relative in (path for path in unchanged if str(path) not in written):
            destination = stage / relative
            destination.parent.mkdir(parents=True, exist_ok=True)
            steps.begin(str(relative))
            placed[relative.as_posix()] = linking.carry(checkpoint.path / relative, destination, copy=copy)
        for name, text in edited.items():
            (stage / name).write_bytes(text.encode("utf-8"))
        more = [names.PROVENANCE_JSON, *([model_card.CARD] if card is not None else [])]
        record = _record(plan, checkpoint, listings.of_directory(stage, more, placed))
        provenance.write(record, stage / names.PROVENANCE_JSON)  # with paths from the stage, for the inspection below
        inspected = inspection.inspect(stage)
        provenance.write(record, stage / names.PROVENANCE_JSON, target / names.PROVENANCE_JSON)
        if card is not None:
            text = _card(plan, checkpoint.path, card, command, serving_lines(inspected, target.name))
            model_card.write_card(stage / model_card.CARD, text)
        steps.end()
    lines = serving_lines(inspected, str(target))
    sidecar_paths, notes = () if card is None else (target / model_card.CARD,), tuple(staging.notes)
    return Applied(
        target, Counter(placed.values()), tuple(sorted(written)), left, done.tensors, tuple(lines), sidecar_paths, notes,
        following=following(plan, target, inspected.kv_bytes),
    )  # fmt: skip


class _Steps:
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


def _checked_weights(plan: Plan, checkpoint: HfCheckpoint) -> Sequence[WeightFile]:
    """Return the weight files if the plan bakes, else nothing.

    Raises: LossyExport, PlanMismatch if the weights do not fit.
    """
    if not plan.bakes:
        return []
    if not plan.tensors:
        raise LossyExport(
            f"the plan bakes {plan.bakes[0]}, but the source has no weights", where=str(checkpoint.path),
            try_="run the same command on the checkpoint with its weights",
        )  # fmt: skip
    files = weight_files(checkpoint)
    _check_marks(plan, marks(plan.tensors, files), checkpoint.path)
    return files


def _check_marks(plan: Plan, present: Mapping[str, str], where: Path) -> None:
    changed = sorted(name for name, mark in plan.weight_files.items() if present.get(name) != mark)
    if changed or present.keys() != plan.weight_files.keys():
        raise PlanMismatch(
            f"{', '.join(changed) or 'a weight file'} has changed since the plan was made", where=str(where),
            try_="make a new plan",
        )  # fmt: skip


def _record(plan: Plan, source: Checkpoint, files: Sequence[Mapping[str, Any]] = ()) -> Provenance:
    text = source.text if isinstance(source, HfCheckpoint) else None
    seen = provenance.fingerprint(source.path, text)
    return Provenance(str(hub.absolute(source.path)), seen, plan.trained_length, plan.to_json(), files=files)


def _card(plan: Plan, source: Path, card: str, command: str, serving: list[str]) -> str:
    """Return the model card of the output, from the source's card."""
    base = hub.origin(source)
    return model_card.with_step(
        card, model_card.planned_step(plan), command, commands(serving), base_model=base.repo if base else "",
        long=plan.method != BAKE,
    )  # fmt: skip


def _apply_gguf(
    plan: Plan, source: GgufCheckpoint, target: Path, *, force: bool, copy: bool, command: str, sidecars: bool, tell: Progress
) -> Applied:  # fmt: skip
    """Write the model's files. Unchanged files are linked."""
    headers = source.files
    files = checked_gguf(plan, source)
    placed, edited = dict[Path, str](), list[str]()
    steps = _Steps(tell, headers[0].path.parent, [Path(header.path.name) for header in headers])
    with gguf_output(target, headers[0].path, force=force) as output, counted(steps.moved):
        stages = output.stage(len(headers))
        done = write_weights(plan.tensors, files, stages, bake_dtype=plan.bake_dtype, progress=steps.begin)
        for header, stage in zip(headers, stages, strict=True):
            if stage not in done.files:
                steps.begin(header.path.name)
            if stage not in done.files and header is not headers[0]:
                placed[stage] = linking.carry(header.path, stage, copy=copy)
                continue
            if stage not in done.files:
                write_patched(header, Patch(), stage)
            edited.append(stage.name)
        texts = _texts_beside(plan, headers[0].path, output.files, command) if sidecars else {}
        steps.end()
        output.finish(_record(plan, source), texts, placed)
    lines = gguf_lines(str(output.files[0]), plan.max_position_embeddings, output.modelfile)
    return Applied(
        output.files[0], Counter(placed.values()), tuple(edited), (), done.tensors, tuple(lines), tuple(output.sidecars),
        output.notes, following=following_gguf(plan, source, output.files[0]),
    )  # fmt: skip


def checked_texts(plan: Plan, source: HfCheckpoint) -> dict[str, str]:
    """Return the new text of each file that the plan edits.

    Raises: PlanMismatch if the source differs from the planned one.
    """
    _check_family(plan, source)
    edited = _edited_texts(plan, source)
    _check_outcome(plan, source)
    _check_identity(plan, source.identity, source.path)
    return edited


def checked_gguf(plan: Plan, source: GgufCheckpoint) -> Sequence[WeightFile]:
    """Return the files of a model with the plan's edits.

    Raises: PlanMismatch if the model differs from the plan's source.
    """
    source.check_old_values(plan.edits)
    files = weight_files(source, plan.edits)
    _check_marks(plan, marks(plan.tensors, files), source.path.parent)
    _check_outcome(plan, source)
    _check_identity(plan, source.identity, source.path)
    return files


def _texts_beside(plan: Plan, source: Path, targets: list[Path], command: str) -> dict[Path, str]:
    """Return the text of the card and of the Modelfile of a GGUF output, by path."""
    context = plan.max_position_embeddings
    lines = gguf_lines(targets[0].name, context, model_card.modelfile_place([Path(path.name) for path in targets]))
    return model_card.texts_beside(targets, _card(plan, source, _card_beside(source), command, lines), context)


def _card_beside(file: Path) -> str:
    place = model_card.card_place(file)
    linking.check_within(place, place.parent)
    return model_card.read_card(place) or ""


def _check_family(plan: Plan, checkpoint: HfCheckpoint) -> None:
    model_type = checkpoint.config.get(names.MODEL_TYPE)
    renamed = any(edit.new == plan.family and edit.path == (names.MODEL_TYPE,) for edit in plan.edits)
    if model_type != plan.family and not renamed:
        raise PlanMismatch(
            f"the plan is for {plan.family}, but the source is {shown(model_type)}",
            where=str(checkpoint.path),
            try_=PLAN_AGAIN,
        )


def _edited_texts(plan: Plan, checkpoint: HfCheckpoint) -> dict[str, str]:
    """Return the new text of each file that the plan edits."""
    texts = {}
    for name in dict.fromkeys(edit.file for edit in plan.edits):
        path = checkpoint.path / name
        if not path.is_file():
            raise PlanMismatch(
                f"the plan edits {name}, which does not exist", where=str(checkpoint.path), try_=PLAN_AGAIN
            )
        if name == names.CONFIG_JSON:
            texts[name] = checkpoint.edited(plan.edits).text
            continue
        texts[name] = apply_edits(read_object(path)[0], edits_of_file(plan.edits, name), str(path), limits_of(name))
    return texts


def _check_outcome(plan: Plan, source: Checkpoint) -> None:
    """Raise PlanMismatch if a runtime would decode a different table, because keys outside the plan have changed."""
    edited = source.edited(plan.edits)
    if isinstance(edited, HfCheckpoint):
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


def _check_identity(plan: Plan, now: Identity, where: Path) -> None:
    changed = plan.identity.change(now) if plan.identity is not None else ""
    if changed:
        raise PlanMismatch(f"{changed} changed since the plan was made", where=str(where), try_=PLAN_AGAIN)


def _sorted_out(checkpoint: Directory) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of the source that belong in the output, and the names of the others.

    Left out are pickles and their index, folders of tools, pipes, devices, and links that lead to a directory or
    nowhere.
    Raises: CheckpointError for a link that leads out of the checkpoint.
    """
    carried, left = [], []
    for path in sorted(checkpoint.path.rglob("*")):
        relative = path.relative_to(checkpoint.path)
        if not listings.LEFT_BEHIND.isdisjoint(relative.parts[:-1]) or str(relative) == names.PROVENANCE_JSON:
            continue
        pickled = path in checkpoint.pickles or path.name == names.PICKLE_INDEX_JSON
        if relative.name in listings.LEFT_BEHIND or pickled or not (path.is_file() or _is_real_directory(path)):
            left.append(str(relative))
        elif path.is_file():
            linking.check_within(path, checkpoint.path)
            carried.append(relative)
    return carried, tuple(left)


def _is_real_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
