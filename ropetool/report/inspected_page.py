"""The page of an inspection: wavelengths of the rotary pairs, the runtimes, and methods for a longer context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.files.counting import byte_size
from ropetool.plans.advice import Advice
from ropetool.report.advised import way_row
from ropetool.report.bands import bands_chart, bands_section
from ropetool.report.inspected import AGREES, made_of, named, readings_alike
from ropetool.report.page import Page
from ropetool.rope.tables import LayerRope
from ropetool.runtimes.inspection import Inspection
from ropetool.sections import BAD, GOOD, WARN, Cell, Section, Table, row

TONES = {AGREES: GOOD, "DIFFERS": BAD}


def inspection_page(inspection: Inspection, advice: Advice, command: str = "") -> Page:
    """Return the page of an inspection.

    advice: for the context length whose table is drawn next to the present table.
    command: the command line of the inspection.
    """
    assert inspection.rope is not None
    differ = [reading.name for reading in inspection.readings if made_of(reading, inspection.rope)[0] == "DIFFERS"]
    context = inspection.rope.max_position_embeddings
    sentence = f"{inspection.source.name or inspection.source}, {context} tokens; " + (
        f"{', '.join(runtimes.display_ranges(differ))} would compute something different"
        if differ
        else "no checked runtime silently computes something different"
    )
    drawn = list(_drawn(inspection, advice))
    several = len(drawn) > 1
    return Page(
        command="inspect",
        title=f"{inspection.model_type}: {inspection.source}",
        word=inspection.model_type,
        tone=BAD if differ else GOOD,
        sentence=sentence,
        conditions=f"Calculated from the files, without running a model. To {advice.target_length} tokens: {advice.why}.",
        facts=_facts(inspection, advice, command),
        sections=[
            *(
                bands_section(bands, key, f"Rotary frequencies{f', {layer_type}' if several else ''}")
                for layer_type, key, bands, _ in drawn
            ),
            runtimes_section(inspection),
            *([_ways_section(advice)] if advice.ways else []),
        ],
        charts=(
            bands_chart(bands, context, key, layer_type if several else "") for layer_type, key, bands, context in drawn
        ),
        notes=inspection.notes,
    )


def runtimes_section(inspection: Inspection) -> Section:
    """Return the result of each runtime for the file. The runtimes that agree with the table are first."""
    rows = tuple(
        row(names, Cell(label, TONES.get(label, WARN)), "; ".join(reasons))
        for (label, *reasons), names in readings_alike(inspection)
    )
    legend = (
        (AGREES, "computes this table, and the same scale and mask of the scores"),
        ("DIFFERS", "loads the file, but computes something different, usually without a warning"),
        ("refuses", "stops with an error"),
    )
    table = Table(("runtime", "reads it", ""), rows, words=(0, 1, 2))
    return Section("runtimes", "Runtimes", table, legend)


def _ways_section(advice: Advice) -> Section:
    rows = tuple(
        row(name, Cell(outcome, WARN) if way.proposal.refusal else outcome, way.proposal.line)
        for way, (name, outcome) in ((way, way_row(way)) for way in advice.ways)
    )
    table = Table(("method", f"to {advice.target_length} tokens", ""), rows, words=(0, 1, 2))
    return Section("methods", "Methods for a longer context", table, notes=() if advice.chosen else (advice.why,))


def _drawn(inspection: Inspection, advice: Advice) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """Yield each rotating layer type, the key of its section, its `bands` for `bands_section`, and its context length."""
    assert inspection.rope is not None
    plan = advice.chosen.proposal.plan if advice.chosen else None
    after = plan.target.entries if plan is not None and plan.target is not None else {}
    rotating = {layer_type: entry for layer_type, entry in inspection.rope.entries.items() if entry.table is not None}
    for at, (layer_type, entry) in enumerate(rotating.items()):
        context, trained = inspection.rope.max_position_embeddings, inspection.trained_length
        window = entry.sliding_window or advice.target_length
        table = _table(entry, context)
        extended = _table(after[layer_type], advice.target_length) if layer_type in after else None
        bands = {
            "trained_length": min(trained or context, window), "before": table.inv_freq.tolist(),
            "after": None if extended is None else extended.inv_freq.tolist(),
            names.ATTENTION_FACTOR: (extended or table).attention_factor,
        }  # fmt: skip
        yield layer_type, f"bands-{at}" if at else "bands", bands, min(advice.target_length, window)


def _table(entry: LayerRope, length: int) -> Any:
    assert entry.table is not None
    return entry.table.at(length)


def _facts(inspection: Inspection, advice: Advice, command: str) -> list[tuple[str, str]]:
    assert inspection.rope is not None
    facts = [
        ("file", str(Path(inspection.source))),
        ("family", named(inspection)),
        (
            "trained length",
            f"{inspection.trained_length} tokens" if inspection.trained_length else "not stored in the file",
        ),
        ("context length", f"{inspection.rope.max_position_embeddings} tokens"),
        (
            "KV cache",
            f"{byte_size(inspection.cache_bytes(advice.target_length))} per sequence at {advice.target_length} tokens",
        ),
        ("advised", advice.command),
        ("works in", ", ".join(runtimes.display_ranges(advice.readers)) if advice.readers else ""),
        ("command", command),
    ]
    return [(name, value) for name, value in facts if value]
