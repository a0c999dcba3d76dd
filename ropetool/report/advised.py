"""Advice as text for a terminal, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropetool import runtimes
from ropetool.escaping import escaped
from ropetool.files.counting import byte_size
from ropetool.report.layout import columns

if TYPE_CHECKING:
    from ropetool.plans.advice import Advice, Way

SCHEMA = 1


def advice_text(found: Advice, width: int | None = None, *, explain: bool = False) -> str:
    """Return what `ropetool advise` prints. explain: with all reasons of a refusal, not only the first."""
    inspected = found.found
    trained = f"{inspected.trained_length} tokens" if inspected.trained_length else "not stored in the file"
    head = [("trained length", trained), ("target", f"{found.target_length} tokens")]
    if found.critical is not None:
        head.append(
            (
                "critical dimension",
                f"{found.critical[0]} of {found.critical[1]} rotary channels saw every angle in training",
            )
        )
    if found.base is not None:
        least = f"; the target length needs at least {found.least_base:.2g}" if found.least_base else ""
        head.append(("base", f"{found.base:.3g}{least}"))
    if found.holds is not None:
        more = " and beyond" if found.holds >= found.target_length else ""
        head.append(("attention holds", f"up to {found.holds} tokens{more}, with the current table"))
    if inspected.kv_bytes:
        head.append(("KV cache", f"{byte_size(inspected.cache_bytes(found.target_length))} per sequence, in 16 bits"))
    text = f"{escaped(inspected.source)}: {escaped(inspected.model_type)}\n" + columns(head, width=width)
    return text + ways_text(found, width, explain=explain)


def ways_text(found: Advice, width: int | None = None, title: str = "methods", *, explain: bool = False) -> str:
    """Return what each method does, and which command is advised; `inspect` ends with it."""
    text = ""
    if found.ways:
        text += f"\n{title}\n" + columns([way_row(way, explain) for way in found.ways], width=width)
    if found.chosen is None:
        text = f"{text}\n{escaped(found.reason)}\n"
        return text if found.shorter is None else text + columns([(found.shorter.line,)])
    text += "\nadvised\n" + columns([(found.command,)]) + columns([(f"{found.why}.",)], indent=4, width=width)
    for sentence in found.extent.notes if found.extent else ():
        text += columns([(f"{sentence}.",)], indent=4, width=width)
    if found.readers:
        text += columns([("works in", ", ".join(runtimes.display_ranges(found.readers)))], indent=4, width=width)
    if found.others:
        text += columns([("not in", ", ".join(runtimes.display_ranges(found.others)))], indent=4, width=width)
    return text


def way_row(way: Way, explain: bool = False) -> tuple[str, str]:
    """Return a method and where it leads."""
    if way.proposal.refusal:
        reason = way.proposal.refusal if explain or not way.proposal.brief else way.proposal.brief
        return way.name, f"refused: {reason}"
    if way.reach is None:
        return way.name, "reaches the target; its trained length is unknown"
    return way.name, f"reaches {way.reach} tokens"


def advice_json(found: Advice) -> dict[str, Any]:
    """Return the advice as `advise --json` prints it."""
    return {
        "schema": SCHEMA, "source": str(found.found.source), "trained_length": found.found.trained_length,
        "target_length": found.target_length, "command": found.command or None,
        "method": found.chosen.method if found.chosen else None, "why": found.why,
        "longest": {"target_length": found.shorter.step.reach, "command": found.shorter.line} if found.shorter else None,
        "cost": list(found.extent.notes) if found.extent else [],
        "ways": [
            {
                "method": way.method, "from": way.proposal.step.reading or None, "reach": way.reach,
                "command": way.proposal.line or None, "refusal": way.proposal.refusal or None,
            }
            for way in found.ways
        ],
        "readers": list(found.readers), "not_for": list(found.others), "base": found.base, "least_base": found.least_base,
        "attention_holds": found.holds, "critical_dimension": found.critical[0] if found.critical else None,
        "kv_cache_bytes": found.found.cache_bytes(found.target_length) if found.found.kv_bytes else None,
    }  # fmt: skip
