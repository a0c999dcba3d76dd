"""An inspection as a page: wavelengths of the pairs against the lengths, what each runtime reads, and what is advised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.files.counting import byte_size
from ropetool.plans.advice import Advice
from ropetool.report.advised import way_row
from ropetool.report.charts import bands_chart
from ropetool.report.grids import bands_section
from ropetool.report.inspected import AGREES, made_of, named, readings_alike
from ropetool.report.page import Page
from ropetool.rope.tables import LayerRope
from ropetool.runtimes.inspection import Inspection
from ropetool.sections import BAD, GOOD, WARN, Cell, Section, Table, row

TONES = {AGREES: GOOD, "DIFFERS": BAD}


def inspection_page(found: Inspection, advice: Advice, command: str = "") -> Page:
    """Return what the page of an inspection says: advice is for the context that it draws beside the present one."""
    assert found.rope is not None
    differ = [reading.name for reading in found.readings if made_of(reading, found.rope)[0] == "DIFFERS"]
    context = found.rope.max_position_embeddings
    sentence = f"{found.source.name or found.source}, {context} tokens; " + (
        f"{', '.join(runtimes.display_ranges(differ))} would compute something different"
        if differ
        else "no checked runtime silently computes something different"
    )
    drawn = list(_drawn(found, advice))
    several = len(drawn) > 1
    return Page(
        command="inspect",
        title=f"{found.model_type}: {found.source}",
        word=found.model_type,
        tone=BAD if differ else GOOD,
        sentence=sentence,
        conditions=f"Calculated from the files, without running a model. To {advice.target_length} tokens: {advice.why}.",
        facts=_facts(found, advice, command),
        sections=[
            *(
                bands_section(bands, key, f"Rotary frequencies{f', {kind}' if several else ''}")
                for kind, key, bands, _ in drawn
            ),
            runtimes_section(found),
            *([_ways_section(advice)] if advice.ways else []),
        ],
        charts=(bands_chart(bands, context, key, kind if several else "") for kind, key, bands, context in drawn),
        notes=found.notes,
    )


def runtimes_section(found: Inspection) -> Section:
    """Return what each runtime makes of the file, those that agree first."""
    rows = tuple(
        row(names, Cell(label, TONES.get(label, WARN)), "; ".join(reasons))
        for (label, *reasons), names in readings_alike(found)
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
        row(name, Cell(said, WARN) if way.proposal.refusal else said, way.proposal.line)
        for way, (name, said) in ((way, way_row(way)) for way in advice.ways)
    )
    table = Table(("method", f"to {advice.target_length} tokens", ""), rows, words=(0, 1, 2))
    return Section("methods", "Methods for a longer context", table, notes=() if advice.chosen else (advice.why,))


def _drawn(found: Inspection, advice: Advice) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """Yield each kind of layers that rotates, the key of its section, its tables, and the length that they are drawn for."""
    assert found.rope is not None
    plan = advice.chosen.proposal.plan if advice.chosen else None
    after = plan.target.entries if plan is not None and plan.target is not None else {}
    rotating = {kind: entry for kind, entry in found.rope.entries.items() if entry.table is not None}
    for at, (kind, entry) in enumerate(rotating.items()):
        context, trained = found.rope.max_position_embeddings, found.trained_length
        window = entry.sliding_window or advice.target_length
        table = _table(entry, context)
        extended = _table(after[kind], advice.target_length) if kind in after else None
        bands = {
            "trained_length": min(trained or context, window), "before": table.inv_freq.tolist(),
            "after": None if extended is None else extended.inv_freq.tolist(),
            names.ATTENTION_FACTOR: (extended or table).attention_factor,
        }  # fmt: skip
        yield kind, f"bands-{at}" if at else "bands", bands, min(advice.target_length, window)


def _table(entry: LayerRope, length: int) -> Any:
    assert entry.table is not None
    return entry.table.at(length)


def _facts(found: Inspection, advice: Advice, command: str) -> list[tuple[str, str]]:
    assert found.rope is not None
    facts = [
        ("file", str(Path(found.source))),
        ("family", named(found)),
        ("trained length", f"{found.trained_length} tokens" if found.trained_length else "not stored in the file"),
        ("context length", f"{found.rope.max_position_embeddings} tokens"),
        (
            "KV cache",
            f"{byte_size(found.cache_bytes(advice.target_length))} per sequence at {advice.target_length} tokens",
        ),
        ("advised", advice.command),
        ("works in", ", ".join(runtimes.display_ranges(advice.readers)) if advice.readers else ""),
        ("command", command),
    ]
    return [(name, value) for name, value in facts if value]
