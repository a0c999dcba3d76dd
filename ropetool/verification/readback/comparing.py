"""Readback: compare a checkpoint with its plan.

This only reads files and does not run a model. `measures/rotary.py` asks the runtime which tables it uses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType

from ropetool import names
from ropetool.checkpoint import certificate, gguf_keys, listings, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.checkpoint.provenance import EXPORT, Provenance
from ropetool.checkpoint.tensor_bytes import CountedDifferences, compare_tensors
from ropetool.errors import CheckpointError, LossyExport, RopetoolError
from ropetool.files import hub
from ropetool.plans.plan import Plan
from ropetool.rope.deviation import deviation
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet
from ropetool.runtimes import inspection
from ropetool.runtimes.decoded import Decoded, decoded
from ropetool.verification.readback.carried_files import compare_files, compare_keys
from ropetool.verification.readback.table_parity import compare_tables
from ropetool.verification.readback.terms import COPY, FILES, LOGITS_DECIDE, NO_WEIGHTS, TABLES, WEIGHTS, Terms
from ropetool.verification.readback.weights import Named
from ropetool.verification.results import FAIL, INEXACT, NOT_ASKED, NOT_RUN, PASS, Check

Open = Callable[["Path | Checkpoint"], Checkpoint]
SAME_TABLES = certificate.SAME_TABLES
NO_RECORD = f"no {names.PROVENANCE_JSON} describes how it was made"


@dataclass(frozen=True)
class Origin:
    """The checkpoints that a target is compared with.

    source: the source in the record. If it is missing or has changed: for an export the baseline, else None.
    same_format: the source, else the baseline; None if neither has the target's format.
    words: the description of `same_format` in a check, or the reason why it is missing.
    """

    source: Path | Checkpoint | None
    same_format: Path | Checkpoint | None
    words: str


def read_back(
    target: Path | Checkpoint, baseline: Path | Checkpoint | None = None, terms: Terms | None = None
) -> list[Check]:
    """Return the checks of tables, weights and files.

    The expected checkpoint comes from the target's provenance. Without provenance it is the baseline, extended as the
    target's settings imply. With neither, it is unknown. An export is compared with a baseline of its format, else with a
    new export of its source or of the baseline, else with the digests in its record. A checkpoint that cannot be read
    fails, with the reason.

    Raises: CorruptFile or ConfigError for a provenance file that is not ropetool's, ConfigError for terms that the
    target does not have.
    """
    known = {source.path: source for source in (target, baseline) if not isinstance(source, (Path, NoneType))}

    @cache  # opens a checkpoint once; an exception is not cached, so that each check reports it
    def opened(source: Path | Checkpoint) -> Checkpoint:
        return open_checkpoint(known.get(source, source) if isinstance(source, Path) else source)

    path = _path(target, opened)
    record = provenance.record(path)
    terms = terms or Terms()
    if record is None and baseline is not None and _is_judged_by(target, baseline, opened):
        # Imported here because only this branch rebuilds a plan.
        from ropetool.verification.readback.claimed import is_untabled, read_back_claim, read_back_rest

        try:
            ours, theirs = opened(target), opened(baseline)
            if is_untabled(ours, theirs) or (states_inexact(ours) and ours.format != theirs.format):
                tables = _same_context(dataclasses.replace(same_tables(ours, theirs), name=TABLES), ours, theirs)
                return [tables, *read_back_rest(ours, theirs, theirs, terms, None)]
            return read_back_claim(ours, theirs, terms)
        except CheckpointError as error:
            return [Check(name, None, None, FAIL, error.without_folders()) for name in (TABLES, WEIGHTS, FILES)]
    plan = Plan.from_json(record.plan, str(provenance.place(path))) if record is not None and record.plan else None
    origin = _origin(target, record, baseline, opened)
    tables = _readable(TABLES, lambda: _tables(opened(target), record, plan, origin, opened))
    if record is not None and record.kind == EXPORT:
        alike = baseline if baseline is not None and _alike(target, baseline, opened) else origin.source
        baked = (plan is not None and plan.bakes) or (record.export or {}).get("bakes")
        if alike is not None and not (baked and alike is origin.source):
            from ropetool.verification.readback.claimed import read_back_rest

            rest = read_back_rest(opened(target), opened(alike), opened(alike), terms, None)
            return [tables, *rest]
        weights = _readable(WEIGHTS, lambda: _recorded(opened(target), record, origin))
        return [tables, weights, dataclasses.replace(weights, name=FILES)]
    return [
        tables,
        _readable(WEIGHTS, lambda: _weights(opened(target), plan, origin, opened)),
        _readable(FILES, lambda: _files(opened(target), plan, origin, opened)),
    ]


def same_tables(target: Path | Checkpoint, other: Path | Checkpoint, *, windows: bool = True) -> Check:
    """Return the check that target and other have the same tables, decoded by the first runtime of each format.

    A GGUF file has float32 numbers. Their rounding of 6e-8 is within the tolerance.
    windows: whether sliding windows that llama.cpp ignores count too.
    Raises: CheckpointError or ConfigError if one cannot be read.
    """
    sides = [open_checkpoint(source) for source in (target, other)]
    readings = [_first_reading(side) for side in sides]
    ours, theirs = (reading.rope for reading in readings)
    if ours is None or theirs is None:
        reasons = [f"{r.name}: {r.refuses}" for r in readings if r.rope is None]
        refused = ours is None and theirs is not None and readings[0].known and readings[0].stops
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, FAIL if refused else NOT_RUN, "; ".join(reasons))
    alike = sides[0].format == sides[1].format
    if not alike:
        ours, theirs = (
            _as_exported(side, rope, other, windows) if isinstance(side, HfCheckpoint) else rope
            for side, rope, other in zip(sides, (ours, theirs), (theirs, ours), strict=True)
        )
    figure, reason = compare_tables(theirs, ours, same_layout=alike)
    if reason and any(_bakes(side.path) for side in sides) and _holds_the_rest(theirs, ours, same_layout=alike):
        detail = f"{reason} in the keys, because the weights contain the rest; {LOGITS_DECIDE}"
        return Check(SAME_TABLES, None, TABLE_TOLERANCE, NOT_ASKED, detail)
    contexts = {rope.max_position_embeddings for rope in (ours, theirs)}
    context = f"context {contexts.pop()}" if len(contexts) == 1 else "with different context lengths"
    accepted = reason and _inexact(sides, ours, theirs, same_layout=alike)
    if accepted:
        return Check(SAME_TABLES, figure if math.isfinite(figure) else None, TABLE_TOLERANCE, INEXACT, accepted)
    agreed = " and ".join(dict.fromkeys(reading.name for reading in readings))
    return _table_check(SAME_TABLES, figure, reason, f"{agreed} compute the same table, {context}")


def _holds_the_rest(expected: RopeSet, rope: RopeSet, *, same_layout: bool) -> bool:
    """Return whether the tables differ only by a factor that weights can contain."""
    from ropetool.weights.residual import without_residual

    return not compare_tables(without_residual(expected, rope), rope, same_layout=same_layout)[1]


def _inexact(sides: Sequence[Checkpoint], rope: RopeSet, expected: RopeSet, *, same_layout: bool) -> str:
    """Return the deviation of the tables if a GGUF file among the sides declares the same deviation, else ""."""
    for file, ours, theirs in ((sides[0], expected, rope), (sides[1], rope, expected)):
        apart = deviation(ours, theirs, same_layout=same_layout)
        if isinstance(file, GgufCheckpoint) and apart is not None and gguf_keys.states(file, apart):
            return str(apart)
    return ""


def states_inexact(checkpoint: Checkpoint) -> bool:
    """Return whether a file declares that its tables differ from the tables of the checkpoint that it was exported from."""
    return isinstance(checkpoint, GgufCheckpoint) and gguf_keys.INEXACT in checkpoint.values


def _as_exported(checkpoint: HfCheckpoint, rope: RopeSet, file: RopeSet, windows: bool) -> RopeSet:
    """Return the rotation of a directory with llama.cpp's layer types: by the export table, or else the file's own."""
    from ropetool.runtimes.llama_cpp import exported  # only for two different formats
    from ropetool.runtimes.llama_cpp.regrouped import regrouped

    try:
        if checkpoint.family.export is not None:
            return exported.rotation(rope, checkpoint, allow_full_attention=not windows).target
        context, _ = exported.reached_context(rope)
        return regrouped(rope, file, context, checkpoint.where, windows=windows)
    except LossyExport:  # for example a window that llama.cpp ignores; the comparison then reports the difference
        return rope


def _bakes(path: Path) -> bool:
    """Return whether a record in the checkpoint's lineage puts a factor into the weights."""
    records = provenance.lineage(path)
    return any(record.plan.get("bakes") or (record.export or {}).get("bakes") for record in records)


# --- what to compare with


def _path(source: Path | Checkpoint, opened: Open) -> Path:
    """Return the path of a checkpoint. For a broken one this is the given path, so that the checks can report it."""
    try:
        return opened(source).path
    except CheckpointError:
        assert isinstance(source, Path)
        return source


def _is_judged_by(target: Path | Checkpoint, baseline: Path | Checkpoint, opened: Open) -> bool:
    """Return whether the target can be built from the baseline: both have one format, or the target is a GGUF file."""
    return _alike(target, baseline, opened) or not _path(target, opened).is_dir()


def _alike(target: Path | Checkpoint, other: Path | Checkpoint, opened: Open) -> bool:
    """Return whether both have the same format."""
    return _path(target, opened).is_dir() == _path(other, opened).is_dir()


def _origin(
    target: Path | Checkpoint, record: Provenance | None, baseline: Path | Checkpoint | None, opened: Open
) -> Origin:
    alike = baseline if baseline is not None and _alike(target, baseline, opened) else None
    if record is None:
        return Origin(None, None, f"{NO_RECORD}, and there is no baseline for comparison")
    source = Path(record.source)
    state = provenance.source_problem(record)
    if record.kind == EXPORT:
        words = f"exported from a different format; {LOGITS_DECIDE}"
        return Origin((None if alike else baseline) if state else source, None, words)
    if not state:
        return Origin(source, source, "the source")
    gone = f"the source {hub.name_of(source)} {state}"
    if provenance.is_of_itself(_path(target, opened), record):
        gone = f"{provenance.EDITED}{'' if alike else f'; {COPY}'}"
    words = f"the baseline, because {gone}" if alike else gone
    return Origin(None, alike, words)


def _readable(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except RopetoolError as error:
        return Check(name, None, None, FAIL, error.without_folders())


# --- tables


def _tables(target: Checkpoint, record: Provenance | None, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    if record is None:
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_ASKED, NO_RECORD)
    if record.kind == EXPORT and origin.source is not None:
        exported_from = opened(origin.source)
        return _same_context(
            dataclasses.replace(same_tables(target, exported_from), name=TABLES), target, exported_from
        )
    if plan is None:
        reason = "exported without a plan, from a checkpoint that is missing or has changed"
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_ASKED, reason)
    readings = inspection.inspect_checkpoint(target).readings
    runtimes = plan.runtimes if record.kind != EXPORT else readings.names[:1]
    source = None if origin.source is None else opened(origin.source)
    results = [_against_plan(plan, readings.named(name), source) for name in runtimes]
    figure = max((figure for figure, _ in results), default=math.inf)
    reasons = [f"{name}: {reason}" for name, (_, reason) in zip(runtimes, results, strict=True) if reason]
    accepted = reasons and _inexact_plan(plan, readings.named(runtimes[0]), target)
    if accepted:
        return Check(TABLES, figure if math.isfinite(figure) else None, TABLE_TOLERANCE, INEXACT, accepted)
    agreed = f"{', '.join(runtimes)}: {_agreed(plan, origin)}, context {plan.max_position_embeddings}"
    return _table_check(TABLES, figure, reasons[0] if reasons else "", agreed)


def _inexact_plan(plan: Plan, reading: Decoded | None, target: Checkpoint) -> str:
    """Return the deviation of an exported file from the plan of its missing source if the file declares it, else ""."""
    rope = None if reading is None else reading.rope
    if rope is None or rope.max_position_embeddings != plan.max_position_embeddings:
        return ""
    return _inexact((target, target), rope, _planned(plan, rope), same_layout=True)


def _same_context(tables: Check, target: Checkpoint, source: Checkpoint) -> Check:
    """Return the check of an export's tables. It fails if the file has a different context length than its source."""
    ours, theirs = (_first_reading(each).rope for each in (target, source))
    if tables.verdict not in (PASS, INEXACT) or ours is None or theirs is None:
        return tables
    contexts = ours.max_position_embeddings, theirs.max_position_embeddings
    if contexts[0] == contexts[1]:
        return tables
    return dataclasses.replace(tables, verdict=FAIL, detail=f"context {contexts[0]} instead of {contexts[1]}")


def _agreed(plan: Plan, origin: Origin) -> str:
    """Return the words for equal tables. A plan does not contain tables that depend on the text length."""
    if plan.tables:
        return "the plan's tables"
    if origin.source is not None:
        return "the rule of the source with the plan's edits"
    return "a rule that depends on the text length, as planned; its numbers need the source for comparison"


def _against_plan(plan: Plan, reading: Decoded | None, source: Checkpoint | None) -> tuple[float, str]:
    """Return the largest difference from the plan, and a description of the difference.

    The plan has the tables and the lengths. All other settings of a layer must equal the source with the plan's edits.
    """
    if reading is None or reading.rope is None:
        return math.inf, reading.refuses if reading is not None else "it does not support this model"
    rope = reading.rope
    expected = decoded(reading.name, source.edited(plan.edits)).rope if source is not None else None
    fixed = {t for t, entry in rope.entries.items() if entry.table is not None and entry.table.rule is None}
    if fixed != set(plan.tables):
        return math.inf, f"fixed tables for {sorted(fixed)} instead of {sorted(plan.tables)}"
    figure, reason = compare_tables(_planned(plan, expected or rope), rope)
    if not reason and rope.max_position_embeddings != plan.max_position_embeddings:
        reason = f"context {rope.max_position_embeddings} instead of {plan.max_position_embeddings}"
    return figure, reason


def _planned(plan: Plan, base: RopeSet) -> RopeSet:
    """Return `base` with the tables, the softmax multiplier and the length of the plan."""
    entries = dict(base.entries)
    for layer_type, table in plan.rope_tables().items():
        entry, channels = entries[layer_type], 2 * table.regimes[0].inv_freq.size
        head_dim = max(channels, entry.head_dim)
        entries[layer_type] = dataclasses.replace(entry, table=table, rotary_dim=channels, head_dim=head_dim)
    full = dataclasses.replace(entries[names.FULL_ATTENTION], softmax_multiplier=plan.softmax_multiplier)
    entries[names.FULL_ATTENTION] = full
    return RopeSet(entries, plan.max_position_embeddings, base.original_max_position_embeddings)


def _first_reading(checkpoint: Checkpoint) -> Decoded:
    inspected = inspection.inspect_checkpoint(checkpoint)
    if inspected.readings:
        return inspected.readings[0]
    what = f"a {inspected.model_type}" if inspected.model_type else "a model without model_type"
    return Decoded(checkpoint.path.name, None, f"the RoPE settings of {what} cannot be decoded", known=False)


def _table_check(name: str, figure: float, reason: str, agreed: str) -> Check:
    shown = figure if math.isfinite(figure) else None
    return Check(name, shown, TABLE_TOLERANCE, FAIL if reason else PASS, reason or agreed)


# --- tensors and files


def _recorded(target: Checkpoint, record: Provenance, origin: Origin) -> Check:
    """Return the check of an export without its source: its bytes have the digests in its record."""
    headers = target.files if isinstance(target, GgufCheckpoint) else ()
    problem = listings.digest_problem(record, [header.path for header in headers])
    if problem is None:
        return Check(WEIGHTS, None, None, NOT_ASKED, origin.words)
    detail = problem or "the bytes have the digest in the record"
    return Check(WEIGHTS, None, None, FAIL if problem else PASS, detail)


def _weights(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    """Return the check that each tensor equals the source's tensor with the plan's change."""
    if origin.same_format is None:
        return Check(WEIGHTS, None, None, NOT_ASKED, origin.words)
    source = opened(origin.same_format)
    compared = compare_tensors(target.stored, source.stored, {} if plan is None else Named(plan, source))
    if not compared.total:
        return Check(WEIGHTS, None, None, NOT_ASKED, NO_WEIGHTS)
    baked = ", with the plan's changes" if plan is not None and plan.tensors else ""
    return _compared(WEIGHTS, compared, f"tensors equal {origin.words}{baked}")


def _files(target: Checkpoint, plan: Plan | None, origin: Origin, opened: Open) -> Check:
    if origin.same_format is None:
        return Check(FILES, None, None, NOT_ASKED, origin.words)
    source, edits = opened(origin.same_format), () if plan is None else plan.edits
    if isinstance(target, HfCheckpoint) and isinstance(source, HfCheckpoint):
        things, compared = "files equal", compare_files(target.directory, source.directory, edits)
    else:
        assert isinstance(target, GgufCheckpoint)
        assert isinstance(source, GgufCheckpoint)
        things, compared = "keys equal", compare_keys(target, source, edits)
    but = ", except for the plan's edits" if edits else ""
    return _compared(FILES, compared, f"{things} {origin.words}{but}")


def _compared(name: str, compared: CountedDifferences, things: str) -> Check:
    count = float(len(compared.differences))
    return Check(name, count, 0.0, FAIL if compared.differences else PASS, compared.sentence(things))
