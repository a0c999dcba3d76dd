"""Readback: whether a checkpoint is what its plan says, in its tables, its tensors and its other files.

Reads files alone and runs no model; whether a runtime rotates by these tables is for rotary.py to ask it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TypeVar

from ropetool import names
from ropetool.checkpoint import certificate, gguf_keys, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.checkpoint.provenance import EXPORT, Provenance
from ropetool.checkpoint.tensor_bytes import Compared, compare_tensors
from ropetool.errors import CheckpointError, LossyExport, RopetoolError
from ropetool.files import hub
from ropetool.plans.plan import Plan
from ropetool.rope.deviation import deviation
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet
from ropetool.runtimes import inspection
from ropetool.runtimes.decoded import Decoded, decoded
from ropetool.verification.readback.carried_files import (
    compare_files,
    compare_keys,
)
from ropetool.verification.readback.table_parity import compare_tables
from ropetool.verification.readback.terms import COPY, FILES, LOGITS_DECIDE, NO_WEIGHTS, TABLES, WEIGHTS, Terms
from ropetool.verification.readback.weights import Named
from ropetool.verification.results import FAIL, INEXACT, NOT_ASKED, NOT_RUN, PASS, Check

T = TypeVar("T")
Open = Callable[["Path | Checkpoint"], Checkpoint]
SAME_TABLES = certificate.SAME_TABLES
NO_RECORD = f"no {names.PROVENANCE_JSON} describes how it was made"


@dataclass(frozen=True)
class Origin:
    """What a target is compared with.

    source: the checkpoint that its provenance names, as it was then. same_format: that, or else the baseline, where it
    has the target's format. words: what `same_format` is called, or why there is none.
    """

    source: Path | None
    same_format: Path | Checkpoint | None
    words: str


def read_back(
    target: Path | Checkpoint,
    baseline: Path | Checkpoint | None = None,
    terms: Terms | None = None,
) -> list[Check]:
    """Return the checks of tables, weights and files.

    The expected checkpoint comes from the target's provenance. Without provenance it is the baseline, extended as the target's
    settings imply. With neither, it is unknown. An export is compared with a new export of its source, or with a
    baseline of its format. A checkpoint that cannot be read fails, with the reason.

    Raises: CorruptFile or ConfigError for a provenance file that is not ropetool's, ConfigError for terms that the
    target does not have.
    """
    known = {source.path: source for source in (target, baseline) if not isinstance(source, (Path, NoneType))}

    @cache  # each is opened once, and what is broken by each check anew, which then names it
    def opened(source: Path | Checkpoint) -> Checkpoint:
        return open_checkpoint(known.get(source, source) if isinstance(source, Path) else source)

    path = _path(target, opened)
    made = provenance.record(path)
    terms = terms or Terms()
    if made is None and baseline is not None and _is_judged_by(target, baseline, opened):
        # It makes the plan again, which no other way needs.
        from ropetool.verification.readback.claimed import is_untabled, read_back_claim, read_back_rest

        try:
            ours, theirs = opened(target), opened(baseline)
            if is_untabled(ours, theirs) or (states_inexact(ours) and ours.format != theirs.format):
                tables = _same_context(dataclasses.replace(same_tables(ours, theirs), name=TABLES), ours, theirs)
                return [tables, *read_back_rest(ours, theirs, theirs, terms, None)]
            return read_back_claim(ours, theirs, terms)
        except CheckpointError as error:
            return [Check(name, None, None, FAIL, error.without_folders()) for name in (TABLES, WEIGHTS, FILES)]
    plan = Plan.from_json(made.plan, str(provenance.place(path))) if made is not None and made.plan else None
    origin = _origin(target, made, baseline, opened)
    tables = _readable(TABLES, lambda: _tables(opened(target), made, plan, origin, opened))
    if made is not None and made.kind == EXPORT:  # its record says what it should rotate by
        alike = baseline if baseline is not None and _alike(target, baseline, opened) else origin.source
        baked = (plan is not None and plan.bakes) or (made.export or {}).get("bakes")
        if alike is not None and not (baked and alike is origin.source):
            from ropetool.verification.readback.claimed import read_back_rest

            rest = read_back_rest(opened(target), opened(alike), opened(alike), terms, None)
            return [tables, *rest]
    return [
        tables,
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
        refused = found is None and wanted is not None and readings[0].known and readings[0].stops
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, FAIL if refused else NOT_RUN, "; ".join(reasons))
    alike = sides[0].format == sides[1].format
    if not alike:
        found, wanted = (
            _as_exported(side, rope, other, windows) if isinstance(side, HfCheckpoint) else rope
            for side, rope, other in zip(sides, (found, wanted), (wanted, found), strict=True)
        )
    figure, reason = compare_tables(wanted, found, same_layout=alike)
    if reason and any(_bakes(side.path) for side in sides) and _holds_the_rest(wanted, found, same_layout=alike):
        detail = f"{reason} in the keys, because the weights contain the rest; {LOGITS_DECIDE}"
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, NOT_ASKED, detail)
    contexts = {rope.max_position_embeddings for rope in (found, wanted)}
    context = f"context {contexts.pop()}" if len(contexts) == 1 else "with different context lengths"
    accepted = reason and _inexact(sides, found, wanted, same_layout=alike)
    if accepted:
        return Check(SAME_TABLES, figure if math.isfinite(figure) else None, TABLE_TOLERANCE, INEXACT, accepted)
    agreed = " and ".join(dict.fromkeys(reading.name for reading in readings))
    return _table_check(SAME_TABLES, figure, reason, f"{agreed} compute the same table, {context}")


def _holds_the_rest(wanted: RopeSet, found: RopeSet, *, same_layout: bool) -> bool:
    """Return whether tables differ only by what weights can hold."""
    from ropetool.weights.residual import without_residual

    return not compare_tables(without_residual(wanted, found), found, same_layout=same_layout)[1]


def _inexact(sides: Sequence[Checkpoint], found: RopeSet, wanted: RopeSet, *, same_layout: bool) -> str:
    """Return how far tables are apart where a file among the two says that much itself; empty where none does."""
    for file, ours, theirs in ((sides[0], wanted, found), (sides[1], found, wanted)):
        apart = deviation(ours, theirs, same_layout=same_layout)
        if isinstance(file, GgufCheckpoint) and apart is not None and gguf_keys.states(file, apart):
            return str(apart)
    return ""


def states_inexact(checkpoint: Checkpoint) -> bool:
    """Return whether a file says that its tables are not exactly those of the checkpoint that it was exported from."""
    return isinstance(checkpoint, GgufCheckpoint) and gguf_keys.INEXACT in checkpoint.values


def _as_exported(checkpoint: HfCheckpoint, rope: RopeSet, file: RopeSet, windows: bool) -> RopeSet:
    """Return the same under llama.cpp's division into layer types: ours of an exported family, else the file's own."""
    from ropetool.runtimes.llama_cpp import exported  # for files of two formats alone
    from ropetool.runtimes.llama_cpp.regrouped import regrouped

    try:
        if checkpoint.family.export is not None:
            return exported.rotation(rope, checkpoint, allow_full_attention=not windows).target
        context, _ = exported.reached_context(rope)
        return regrouped(rope, file, context, checkpoint.where, windows=windows)
    except LossyExport:  # a window that llama.cpp ignores, say: the comparison will name it
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


def _is_judged_by(target: Path | Checkpoint, baseline: Path | Checkpoint, opened: Open) -> bool:
    """Return whether the one can be made of the other: of one format, or a GGUF file of a directory."""
    return _alike(target, baseline, opened) or not _path(target, opened).is_dir()


def _alike(target: Path | Checkpoint, other: Path | Checkpoint, opened: Open) -> bool:
    """Return whether both are of one format."""
    return _path(target, opened).is_dir() == _path(other, opened).is_dir()


def _origin(
    target: Path | Checkpoint, made: Provenance | None, baseline: Path | Checkpoint | None, opened: Open
) -> Origin:
    alike = baseline if baseline is not None and _alike(target, baseline, opened) else None
    if made is None:
        return Origin(None, None, f"{NO_RECORD}, and there is no baseline for comparison")
    source = Path(made.source)
    state = provenance.source_problem(made)
    if made.kind == EXPORT:
        words = f"exported from a different format; {LOGITS_DECIDE}"
        return Origin(None if state else source, None, words)
    if not state:
        return Origin(source, source, "the source")
    gone = f"the source {hub.name_of(source)} {state}"
    if provenance.is_of_itself(_path(target, opened), made):
        gone = f"{provenance.EDITED}{'' if alike else f'; {COPY}'}"
    words = f"the baseline, because {gone}" if alike else gone
    return Origin(None, alike, words)


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
        exported_from = opened(origin.source)
        return _same_context(
            dataclasses.replace(same_tables(target, exported_from), name=TABLES), target, exported_from
        )
    if plan is None:
        reason = "exported without a plan, from a checkpoint that is missing or has changed"
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_ASKED, reason)
    readings = inspection.inspect_checkpoint(target).readings
    wanted = plan.runtimes if made.kind != EXPORT else readings.names[:1]
    source = None if origin.source is None else opened(origin.source)
    results = [_against_plan(plan, readings.named(name), source) for name in wanted]
    figure = max((figure for figure, _ in results), default=math.inf)
    reasons = [f"{name}: {reason}" for name, (_, reason) in zip(wanted, results, strict=True) if reason]
    accepted = reasons and _inexact_plan(plan, readings.named(wanted[0]), target)
    if accepted:
        return Check(TABLES, figure if math.isfinite(figure) else None, TABLE_TOLERANCE, INEXACT, accepted)
    agreed = f"{', '.join(wanted)}: {_agreed(plan, origin)}, context {plan.max_position_embeddings}"
    return _table_check(TABLES, figure, reasons[0] if reasons else "", agreed)


def _inexact_plan(plan: Plan, reading: Decoded | None, target: Checkpoint) -> str:
    """Return how far a file is from the plan of its checkpoint, which is gone, where it says that much; else nothing."""
    found = None if reading is None else reading.rope
    if found is None or found.max_position_embeddings != plan.max_position_embeddings:
        return ""
    return _inexact((target, target), found, _planned(plan, found), same_layout=True)


def _same_context(tables: Check, target: Checkpoint, source: Checkpoint) -> Check:
    """Return the check of an export's tables, failed where the file states another context than what it was made of."""
    found, wanted = (_first_reading(each).rope for each in (target, source))
    if tables.verdict not in (PASS, INEXACT) or found is None or wanted is None:
        return tables
    contexts = found.max_position_embeddings, wanted.max_position_embeddings
    if contexts[0] == contexts[1]:
        return tables
    return dataclasses.replace(tables, verdict=FAIL, detail=f"context {contexts[0]} instead of {contexts[1]}")


def _agreed(plan: Plan, origin: Origin) -> str:
    """Return what was found; a table that follows the length stands in no plan, only in the source and the edits."""
    if plan.tables:
        return "the plan's tables"
    if origin.source is not None:
        return "the rule of the source with the plan's edits"
    return "a rule that depends on the text length, as planned; its numbers need the source for comparison"


def _against_plan(plan: Plan, reading: Decoded | None, source: Checkpoint | None) -> tuple[float, str]:
    """Return the largest difference from the plan, and in words what differs.

    The plan states tables and lengths; what else a layer computes must be what the source with the plan's edits has.
    """
    if reading is None or reading.rope is None:
        return math.inf, reading.refuses if reading is not None else "it does not support this model"
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
    return Decoded(checkpoint.path.name, None, f"the RoPE settings of {what} cannot be decoded", known=False)


def _table_check(name: str, figure: float, reason: str, agreed: str) -> Check:
    shown = figure if math.isfinite(figure) else None
    return Check(name, shown, TABLE_TOLERANCE, FAIL if reason else PASS, reason or agreed)


# --- tensors and files


def _weights(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    """Return whether every tensor that the plan does not name is the source's, and those that it names are as it says."""
    if origin.same_format is None:
        return Check(WEIGHTS, None, None, NOT_ASKED, origin.words)
    source = opened(origin.same_format)
    found = compare_tensors(target.stored, source.stored, {} if plan is None else Named(plan, source))
    if not found.total:
        return Check(WEIGHTS, None, None, NOT_ASKED, NO_WEIGHTS)
    baked = ", with the plan's changes" if plan is not None and plan.tensors else ""
    return _compared(WEIGHTS, found, f"tensors equal {origin.words}{baked}")


def _files(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    if origin.same_format is None:
        return Check(FILES, None, None, NOT_ASKED, origin.words)
    source, edits = opened(origin.same_format), () if plan is None else plan.edits
    if isinstance(target, HfCheckpoint) and isinstance(source, HfCheckpoint):
        things, found = "files equal", compare_files(target.directory, source.directory, edits)
    else:
        assert isinstance(target, GgufCheckpoint)
        assert isinstance(source, GgufCheckpoint)
        things, found = "keys equal", compare_keys(target, source, edits)
    but = ", except for the plan's edits" if edits else ""
    return _compared(FILES, found, f"{things} {origin.words}{but}")


def _compared(name: str, found: Compared, things: str) -> Check:
    count = float(len(found.differences))
    return Check(name, count, 0.0, FAIL if found.differences else PASS, found.sentence(things))
