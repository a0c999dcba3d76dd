"""Apply a plan: stage a copy of the source with the planned edits, and rename it to its place when it is complete.

The source is only read. If it lacks an old value of the plan, ropetool refuses before it writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool import names
from ropetool.checkpoint import listings, provenance
from ropetool.checkpoint.edits import PLAN_AGAIN
from ropetool.checkpoint.hf import HfCheckpoint, edits_of_file
from ropetool.errors import LossyExport, PlanMismatch
from ropetool.files import hub, linking
from ropetool.files.counting import counted, nobody
from ropetool.files.hf import Directory, apply_edits, limits_of, read_object
from ropetool.files.hf.jsontext import shown
from ropetool.files.output import check_output
from ropetool.files.transaction import transaction
from ropetool.plans import model_card
from ropetool.plans.applied import (
    Applied,
    Progress,
    Steps,
    card_of,
    check_identity,
    check_marks,
    check_outcome,
    following,
    record_of,
)
from ropetool.plans.plan import Plan
from ropetool.plans.serving import serving_lines
from ropetool.runtimes import inspection

if TYPE_CHECKING:
    from ropetool.weights.writing import BakedTensor, WeightFile


def check_target(plan: Plan, source: Path, target: Path, *, force: bool) -> None:
    """Return if `apply` may write to `target`. Call it before anything is written. Raises: as `apply`."""
    if plan.format == "gguf":
        from ropetool.plans.gguf_output import check as check_gguf

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
    write = _apply_directory
    if plan.format == "gguf":
        from ropetool.plans.gguf_applying import apply_gguf  # a directory does not need the writer of GGUF files

        write = apply_gguf
    return write(
        plan, hub.local(source), Path(target), force=force, copy=copy, command=command, sidecars=sidecars,
        tell=progress or nobody,
    )  # fmt: skip


def _apply_directory(
    plan: Plan, path: Path, target: Path, *, force: bool, copy: bool, command: str, sidecars: bool, tell: Progress
) -> Applied:  # fmt: skip
    """Write the planned directory. path: the source. Others: as `apply`."""
    checkpoint = HfCheckpoint.open(path)
    card = model_card.read_card(checkpoint.path / model_card.CARD) if sidecars else None
    edited = checked_texts(plan, checkpoint)
    weights = _checked_weights(plan, checkpoint)
    carried, left = _sorted_out(checkpoint.directory)
    placed: dict[str, str] = {}
    rewritten = {*edited, *([model_card.CARD] if card is not None else [])}
    unchanged = [path for path in carried if str(path) not in rewritten]
    steps = Steps(tell, checkpoint.path, unchanged)
    with (
        transaction(
            target, checkpoint.path, force=force, directory=True, may_replace=listings.directory_rule(target)
        ) as staging,
        counted(steps.moved),
    ):
        stage = staging.stage(target)
        stage.mkdir()
        shards, baked = _baked(plan, weights, stage, steps)
        written = {*edited, *(file.name for file in shards)}
        for relative in (path for path in unchanged if str(path) not in written):
            destination = stage / relative
            destination.parent.mkdir(parents=True, exist_ok=True)
            steps.begin(str(relative))
            placed[relative.as_posix()] = linking.carry(checkpoint.path / relative, destination, copy=copy)
        for name, text in edited.items():
            (stage / name).write_bytes(text.encode("utf-8"))
        more = [names.PROVENANCE_JSON, *([model_card.CARD] if card is not None else [])]
        record = record_of(plan, checkpoint, listings.of_directory(stage, more, placed))
        provenance.write(record, stage / names.PROVENANCE_JSON)  # with paths from the stage, for the inspection below
        inspected = inspection.inspect(stage)
        provenance.write(record, stage / names.PROVENANCE_JSON, target / names.PROVENANCE_JSON)
        if card is not None:
            text = card_of(plan, checkpoint.path, card, command, serving_lines(inspected, target.name))
            model_card.write_card(stage / model_card.CARD, text)
        steps.end()
    lines = serving_lines(inspected, str(target))
    sidecar_paths, notes = () if card is None else (target / model_card.CARD,), tuple(staging.notes)
    return Applied(
        target, Counter(placed.values()), tuple(sorted(written)), left, baked, tuple(lines), sidecar_paths, notes,
        following=following(plan, target, inspected.kv_bytes, checkpoint.config.get(names.QUANTIZATION_CONFIG)),
    )  # fmt: skip


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
    from ropetool.weights.weight_files import weight_files
    from ropetool.weights.writing import marks

    files = weight_files(checkpoint)
    check_marks(plan, marks(plan.tensors, files), checkpoint.path)
    return files


def _baked(
    plan: Plan, weights: Sequence[WeightFile], stage: Path, steps: Steps
) -> tuple[Collection[Path], tuple[BakedTensor, ...]]:
    """Write the weight files of a plan that bakes, and return their paths and the tensors with new numbers."""
    if not weights and not plan.tensors:
        return (), ()
    from ropetool.weights.writing import write_weights  # most plans change no weights

    shards = [stage / file.path.name for file in weights]
    done = write_weights(plan.tensors, weights, shards, bake_dtype=plan.bake_dtype, progress=steps.begin)
    return done.files, done.tensors


def checked_texts(plan: Plan, source: HfCheckpoint) -> dict[str, str]:
    """Return the new text of each file that the plan edits.

    Raises: PlanMismatch if the source differs from the planned one.
    """
    _check_family(plan, source)
    edited = _edited_texts(plan, source)
    check_outcome(plan, source)
    check_identity(plan, source.identity, source.path)
    return edited


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
