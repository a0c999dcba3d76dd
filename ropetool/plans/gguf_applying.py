"""Apply a plan to a GGUF model: write its files, and link the unchanged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import RopetoolError
from ropetool.files import linking
from ropetool.files.counting import counted
from ropetool.files.gguf import Patch, write_patched
from ropetool.plans import model_card
from ropetool.plans.applied import (
    Applied,
    Following,
    Progress,
    Steps,
    card_of,
    check_identity,
    check_marks,
    check_outcome,
    following,
    record_of,
)
from ropetool.plans.gguf_output import gguf_output
from ropetool.plans.plan import Plan
from ropetool.plans.serving import gguf_lines
from ropetool.runtimes.llama_cpp import kv_cache
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import WeightFile, marks, write_weights


def apply_gguf(
    plan: Plan, path: Path, target: Path, *, force: bool, copy: bool, command: str, sidecars: bool, tell: Progress
) -> Applied:  # fmt: skip
    """Write the model's files. Unchanged files are linked. path: a file of the source. Others: as `apply`."""
    source = GgufCheckpoint.open(path)
    headers = source.files
    files = checked_gguf(plan, source)
    placed, edited = dict[Path, str](), list[str]()
    steps = Steps(tell, headers[0].path.parent, [Path(header.path.name) for header in headers])
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
        steps.end()
        texts = partial(_texts_beside, plan, headers[0].path, output.files, command)
        output.finish(record_of(plan, source), texts if sidecars else None, placed)
    lines = gguf_lines(str(output.files[0]), plan.max_position_embeddings, output.modelfile)
    return Applied(
        output.files[0], Counter(placed.values()), tuple(edited), (), done.tensors, tuple(lines), tuple(output.sidecars),
        output.notes, following=following_gguf(plan, source, output.files[0]),
    )  # fmt: skip


def checked_gguf(plan: Plan, source: GgufCheckpoint) -> Sequence[WeightFile]:
    """Return the files of a model with the plan's edits.

    Raises: PlanMismatch if the model differs from the plan's source.
    """
    source.check_old_values(plan.edits)
    files = weight_files(source, plan.edits)
    check_marks(plan, marks(plan.tensors, files), source.path.parent)
    check_outcome(plan, source)
    check_identity(plan, source.identity, source.path)
    return files


def _texts_beside(plan: Plan, source: Path, targets: list[Path], command: str) -> dict[Path, str]:
    """Return the text of the card and of the Modelfile of a GGUF output, by path."""
    context = plan.max_position_embeddings
    lines = gguf_lines(targets[0].name, context, model_card.modelfile_place([Path(path.name) for path in targets]))
    return model_card.texts_beside(targets, card_of(plan, source, _card_beside(source), command, lines), context)


def _card_beside(file: Path) -> str:
    place = model_card.card_place(file)
    linking.check_within(place, place.parent)
    return model_card.read_card(place) or ""


def following_gguf(plan: Plan, source: GgufCheckpoint, output: Path) -> Following | None:
    """Return the next step after a plan for a GGUF file, with the source's KV cache at the new context."""
    try:
        caches = {} if plan.target is None else kv_cache.of_gguf(source, plan.target)
    except RopetoolError:  # llama.cpp does not load the keys
        caches = {}
    return following(plan, output, caches)
