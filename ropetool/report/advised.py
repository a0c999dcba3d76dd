"""Advice: as parts for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropetool import runtimes
from ropetool.files.counting import byte_size
from ropetool.sections import Part, listing

if TYPE_CHECKING:
    from ropetool.plans.advice import Advice, Way

SCHEMA = 1


def advice_parts(advice: Advice, *, explain: bool = False) -> Iterator[Part]:
    """Yield what `ropetool advise` prints. explain: all reasons of a refusal, not only the first."""
    inspected = advice.inspection
    trained = f"{inspected.trained_length} tokens" if inspected.trained_length else "not stored in the file"
    rows = [("trained length", trained), ("target", f"{advice.target_length} tokens")]
    if advice.critical is not None:
        seen, channels = advice.critical
        rows.append(("critical dimension", f"{seen} of {channels} rotary channels saw every angle in training"))
    if advice.base is not None:
        least = f"; the target length needs at least {advice.least_base:.2g}" if advice.least_base else ""
        rows.append(("base", f"{advice.base:.3g}{least}"))
    if advice.holds is not None:
        more = " and beyond" if advice.holds >= advice.target_length else ""
        rows.append(("attention holds", f"up to {advice.holds} tokens{more}, with the current table"))
    if inspected.kv_bytes:
        cache = byte_size(inspected.cache_bytes(advice.target_length))
        rows.append(("KV cache", f"{cache} per sequence, in 16 bits"))
    yield listing(f"{inspected.source}: {inspected.model_type}", rows)
    yield from ways_parts(advice, explain=explain)


def ways_parts(advice: Advice, title: str = "methods", *, explain: bool = False) -> Iterator[Part]:
    """Yield the result of each method, and the recommended command; `inspect` ends with them."""
    if advice.ways:
        yield listing(title, [way_row(way, explain) for way in advice.ways])
    if advice.chosen is None:
        yield from ("", advice.reason)
        if advice.shorter is not None:
            yield listing("", [(advice.shorter.line,)], whole=True)
        return
    yield listing("advised", [(advice.command,)], whole=True)
    for note in (advice.why, *(advice.extent.notes if advice.extent else ())):
        yield listing("", [(f"{note}.",)], depth=1)
    for name, ranges in (("works in", advice.readers), ("not in", advice.others)):
        if ranges:
            yield listing("", [(name, ", ".join(runtimes.display_ranges(ranges)))], depth=1)
    if advice.native_short:
        yield listing(
            "at no cost for short texts, but at a higher cost for long ones", [(advice.native_short,)], whole=True
        )


def way_row(way: Way, explain: bool = False) -> tuple[str, str]:
    """Return a method and where it leads."""
    if way.proposal.refusal:
        reason = way.proposal.refusal if explain or not way.proposal.brief else way.proposal.brief
        return way.name, f"refused: {reason}"
    if way.reach is None:
        return way.name, "reaches the target; its trained length is unknown"
    return way.name, f"reaches {way.reach} tokens"


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return the advice as `advise --json` prints it."""
    return {
        "schema": SCHEMA, "source": str(advice.inspection.source), "trained_length": advice.inspection.trained_length,
        "target_length": advice.target_length, "command": advice.command or None,
        "native_short": advice.native_short or None,
        "method": advice.chosen.method if advice.chosen else None, "why": advice.why,
        "longest": {"target_length": advice.shorter.step.reach, "command": advice.shorter.line} if advice.shorter else None,
        "cost": list(advice.extent.notes) if advice.extent else [],
        "ways": [
            {
                "method": way.method, "from": way.proposal.step.reading or None, "reach": way.reach,
                "command": way.proposal.line or None, "refusal": way.proposal.refusal or None,
            }
            for way in advice.ways
        ],
        "readers": list(advice.readers), "not_for": list(advice.others), "base": advice.base, "least_base": advice.least_base,
        "attention_holds": advice.holds, "critical_dimension": advice.critical[0] if advice.critical else None,
        "kv_cache_bytes": advice.inspection.cache_bytes(advice.target_length) if advice.inspection.kv_bytes else None,
    }  # fmt: skip
