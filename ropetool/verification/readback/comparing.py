"""Readback: whether a checkpoint is what its plan says, in its tables, its tensors and its other files.

Reads files alone and runs no model; whether a runtime rotates by these tables is for rotary.py to ask it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TypeVar

from ropetool import names
from ropetool.checkpoint import certificate, provenance
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import patch_of
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.checkpoint.provenance import EXPORT, Provenance
from ropetool.checkpoint.tensor_bytes import Compared, compare_tensors
from ropetool.errors import CheckpointError, LossyExport, PlanMismatch, RopetoolError
from ropetool.files import hub
from ropetool.plans.plan import Plan
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet
from ropetool.runtimes import inspection
from ropetool.runtimes.decoded import Decoded, decoded
from ropetool.runtimes.llama_cpp import exported
from ropetool.verification.readback.carried_files import (
    TOKENIZER_KEYS,
    compare_files,
    compare_keys,
    compare_tokenizers,
)
from ropetool.verification.readback.table_parity import compare_tables
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, Check
from ropetool.weights import baked_bytes, by_tensor, without_residual

T = TypeVar("T")
Open = Callable[["Path | Checkpoint"], Checkpoint]
TABLES, WEIGHTS, FILES, SAME_TABLES = "tables", "weights", "files", certificate.SAME_TABLES
NO_RECORD = f"no {names.PROVENANCE_JSON} says how it was made"


@dataclass(frozen=True)
class Origin:
    """What a target is compared with.

    source: the checkpoint that its provenance names, as it was then. same_format: that, or else the baseline, where it
    has the target's format. gates: whether a difference from `same_format` is a defect; without provenance it may be
    meant. words: what `same_format` is called, or why there is none.
    """

    source: Path | None
    same_format: Path | Checkpoint | None
    gates: bool
    words: str


def read_back(target: Path | Checkpoint, baseline: Path | Checkpoint | None = None) -> list[Check]:
    """Return the checks of tables, weights and files.

    Without provenance nothing says what the target should be: then only the baseline of the same format is compared,
    and what differs informs and does not gate. What cannot be read fails, with the reason.

    Raises: CorruptFile or ConfigError for a provenance file that is not ropetool's.
    """
    known = {source.path: source for source in (target, baseline) if not isinstance(source, (Path, NoneType))}

    @cache  # each is opened once, and what is broken by each check anew, which then names it
    def opened(source: Path | Checkpoint) -> Checkpoint:
        return open_checkpoint(known.get(source, source) if isinstance(source, Path) else source)

    path = _path(target, opened)
    made = provenance.record(path)
    plan = Plan.from_json(made.plan, str(provenance.place(path))) if made is not None and made.plan else None
    origin = _origin(target, made, baseline, opened)
    return [
        _readable(TABLES, lambda: _tables(opened(target), made, plan, origin, opened)),
        _readable(WEIGHTS, lambda: _weights(opened(target), plan, origin, opened)),
        _readable(FILES, lambda: _files(opened(target), plan, origin, opened)),
    ]


def same_tables(target: Path | Checkpoint, other: Path | Checkpoint, *, windows: bool = True) -> Check:
    """Return whether the target rotates by the other's tables, each as the first runtime of its format has it.

    windows: whether windows that llama.cpp ignores count too. GGUF holds its numbers in float32, whose rounding of 6e-8
    lies within the tolerance.
    Raises: CheckpointError or ConfigError if one cannot be read.
    """
    sides = [open_checkpoint(source) for source in (target, other)]
    readings = [_first_reading(side) for side in sides]
    found, wanted = (reading.rope for reading in readings)
    if found is None or wanted is None:
        reasons = [f"{r.name}: {r.refuses}" for r in readings if r.rope is None]
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, NOT_RUN, "; ".join(reasons))
    alike = sides[0].format == sides[1].format
    if not alike:
        found, wanted = (
            _as_exported(side, rope, windows) if isinstance(side, HfCheckpoint) else rope
            for side, rope in zip(sides, (found, wanted), strict=True)
        )
    figure, reason = compare_tables(wanted, found, same_layout=alike)
    baked = reason and any(_bakes(side.path) for side in sides)
    if baked and not compare_tables(without_residual(wanted, found), found, same_layout=alike)[1]:
        detail = f"{reason} by the keys, for weights hold the rest; the logits say whether it is the same model"
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, NOT_ASKED, detail)
    contexts = {rope.max_position_embeddings for rope in (found, wanted)}
    context = f"context {contexts.pop()}" if len(contexts) == 1 else "of different contexts"
    agreed = " and ".join(dict.fromkeys(reading.name for reading in readings))
    return _table_check(SAME_TABLES, figure, reason, f"{agreed} compute the same, {context}")


def _as_exported(checkpoint: HfCheckpoint, rope: RopeSet, windows: bool) -> RopeSet:
    """Return the same under llama.cpp's division into layer types; as it is where the family is not exported."""
    if not checkpoint.family.gguf_architecture:
        return rope
    try:
        return exported.rotation(rope, checkpoint, allow_full_attention=not windows).target
    except LossyExport:  # a window that llama.cpp ignores: the comparison will name it
        return rope


def _bakes(path: Path) -> bool:
    """Return whether the record of a checkpoint, or of what it was made from, says that its weights hold a factor."""
    records = provenance.lineage(path)
    return any(made.plan.get("bakes") or (made.export or {}).get("bakes") for made in records)


# --- what to compare with


def _path(source: Path | Checkpoint, opened: Open) -> Path:
    """Return what a checkpoint is named by; of a broken one the path that was given, for the checks to name."""
    try:
        return opened(source).path
    except CheckpointError:
        assert isinstance(source, Path)
        return source


def _origin(
    target: Path | Checkpoint, made: Provenance | None, baseline: Path | Checkpoint | None, opened: Open
) -> Origin:
    alike = baseline
    if baseline is not None and _path(target, opened).is_dir() != _path(baseline, opened).is_dir():
        alike = None
    if made is None:
        return Origin(
            None, alike, False, "the baseline's" if alike else f"{NO_RECORD}, nor is there a baseline like it"
        )
    source = Path(made.source)
    state = provenance.source_problem(made)
    if made.kind == EXPORT:
        words = "exported from another format: the logits of the two files say whether it is the same model"
        return Origin(None if state else source, alike, False, "the baseline's" if alike else words)
    if not state:
        return Origin(source, source, True, "the source's")
    words = (
        f"those of the baseline, for the source {hub.name_of(source)} {state}"
        if alike
        else f"the source {hub.name_of(source)} {state}"
    )
    return Origin(None, alike, True, words)


def _readable(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except RopetoolError as error:
        return Check(name, None, None, FAIL, error.without_folders())


# --- tables


def _tables(target: Checkpoint, made: Provenance | None, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    if made is None:
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_ASKED, NO_RECORD)
    if made.kind == EXPORT and origin.source is not None:
        return dataclasses.replace(same_tables(target, opened(origin.source)), name=TABLES)
    if plan is None:
        reason = "exported from a checkpoint that is gone or has changed, and without a plan"
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_ASKED, reason)
    readings = {reading.name: reading for reading in inspection.inspect_checkpoint(target).readings}
    wanted = plan.runtimes if made.kind != EXPORT else tuple(readings)[:1]
    source = None if origin.source is None else opened(origin.source)
    results = [_against_plan(plan, readings.get(name), source) for name in wanted]
    figure = max((figure for figure, _ in results), default=math.inf)
    reasons = [f"{name}: {reason}" for name, (_, reason) in zip(wanted, results, strict=True) if reason]
    agreed = f"{', '.join(wanted)}: {_agreed(plan, origin)}, context {plan.max_position_embeddings}"
    return _table_check(TABLES, figure, reasons[0] if reasons else "", agreed)


def _agreed(plan: Plan, origin: Origin) -> str:
    """Return what was found; a table that follows the length stands in no plan, only in the source and the edits."""
    if plan.tables:
        return "the plan's tables"
    if origin.source is not None:
        return "the rule that the plan's edits make of the source"
    return "a rule that follows the length, as planned; without the source its numbers were not compared"


def _against_plan(plan: Plan, reading: Decoded | None, source: Checkpoint | None) -> tuple[float, str]:
    """Return the largest difference from the plan, and in words what differs.

    The plan states tables and lengths; what else a layer computes must be what the source with the plan's edits has.
    """
    if reading is None or reading.rope is None:
        return math.inf, reading.refuses if reading is not None else "it does not read this model"
    found = reading.rope
    expected = decoded(reading.name, source.edited(plan.edits)).rope if source is not None else None
    fixed = {t for t, entry in found.entries.items() if entry.table is not None and entry.table.rule is None}
    if fixed != set(plan.tables):
        return math.inf, f"fixed tables for {sorted(fixed)} instead of {sorted(plan.tables)}"
    figure, reason = compare_tables(_planned(plan, expected or found), found)
    if not reason and found.max_position_embeddings != plan.max_position_embeddings:
        reason = f"context {found.max_position_embeddings} instead of {plan.max_position_embeddings}"
    return figure, reason


def _planned(plan: Plan, base: RopeSet) -> RopeSet:
    """Return a reading with the tables, the softmax multiplier and the length of the plan."""
    entries = dict(base.entries)
    for layer_type, table in plan.rope_tables().items():
        entry, channels = entries[layer_type], 2 * table.regimes[0].inv_freq.size
        head_dim = max(channels, entry.head_dim)
        entries[layer_type] = dataclasses.replace(entry, table=table, rotary_dim=channels, head_dim=head_dim)
    full = dataclasses.replace(entries[names.FULL_ATTENTION], softmax_multiplier=plan.softmax_multiplier)
    entries[names.FULL_ATTENTION] = full
    return RopeSet(entries, plan.max_position_embeddings, base.original_max_position_embeddings)


def _first_reading(checkpoint: Checkpoint) -> Decoded:
    found = inspection.inspect_checkpoint(checkpoint)
    if found.readings:
        return found.readings[0]
    what = f"a {found.model_type}" if found.model_type else "a model without model_type"
    return Decoded(checkpoint.path.name, None, f"how {what} rotates is not known")


def _table_check(name: str, figure: float, reason: str, agreed: str) -> Check:
    shown = figure if math.isfinite(figure) else None
    return Check(name, shown, TABLE_TOLERANCE, FAIL if reason else PASS, reason or agreed)


# --- tensors and files


def _weights(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    """Return whether every tensor that the plan does not name is the source's, and those that it names are as it says."""
    if origin.same_format is None:
        return Check(WEIGHTS, None, None, NOT_ASKED, origin.words)
    source = opened(origin.same_format)
    found = compare_tensors(target.stored, source.stored, _named(plan, origin, source))
    if not found.total:
        return Check(WEIGHTS, None, None, NOT_ASKED, "neither has any weights")
    baked = ", with what the plan bakes" if plan is not None and plan.tensors and origin.gates else ""
    return _compared(WEIGHTS, found, f"tensors equal {origin.words}{baked}", origin)


def _named(plan: Plan | None, origin: Origin, source: Checkpoint) -> Mapping[str, bytes]:
    """Return what the tensors that the plan names must hold; of baked ones each is computed when it is asked for."""
    return {} if plan is None or not origin.gates else Named(plan, source)


class Named(Mapping[str, bytes]):
    """The tensors that a plan names, and what each must hold: a vector, or the source's numbers times the plan's.

    Raises: PlanMismatch for a tensor that the source does not have.
    """

    def __init__(self, plan: Plan, source: Checkpoint) -> None:
        self._vectors = patch_of(plan.edits).tensors if plan.format == "gguf" else {}
        self._changes, self._bake_dtype = by_tensor(plan.tensors), plan.bake_dtype
        self._stored = source.stored if self._changes else {}

    def __getitem__(self, name: str) -> bytes:
        if name in self._vectors:
            return self._vectors[name].astype("<f4").tobytes()
        change = self._changes[name]
        if name not in self._stored:
            raise PlanMismatch("the plan bakes into it, and the source does not have it", where=name)
        return baked_bytes(name, self._stored[name], change, self._bake_dtype)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._vectors, **self._changes})

    def __len__(self) -> int:
        return len({**self._vectors, **self._changes})


def _files(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    if origin.same_format is None:
        return Check(FILES, None, None, NOT_ASKED, origin.words)
    source, edits = opened(origin.same_format), _edits(plan, origin)
    if isinstance(target, HfCheckpoint) and isinstance(source, HfCheckpoint):
        if origin.gates:
            things, found = "files equal", compare_files(target.directory, source.directory, edits)
        else:
            things, found = "files of the tokenizer equal", compare_tokenizers(target.path, source.path)
    else:
        assert isinstance(target, GgufCheckpoint)
        assert isinstance(source, GgufCheckpoint)
        things = "keys equal" if origin.gates else "keys of the tokenizer equal"
        found = compare_keys(target, source, edits, "" if origin.gates else TOKENIZER_KEYS)
    but = ", but for the plan's edits" if edits else ""
    return _compared(FILES, found, f"{things} {origin.words}{but}", origin)


def _edits(plan: Plan | None, origin: Origin) -> tuple[FileEdit, ...]:
    """Return what the plan changed on the way from the origin; an exported plan's edits belong to another format."""
    return plan.edits if plan is not None and origin.gates else ()


def _compared(name: str, found: Compared, things: str, origin: Origin) -> Check:
    different = FAIL if origin.gates else NOT_ASKED
    count = float(len(found.differences))
    return Check(name, count, 0.0, different if found.differences else PASS, found.sentence(things))
