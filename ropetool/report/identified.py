"""What `ropetool identify` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropetool.escaping import escaped
from ropetool.report.layout import columns, wrapped

if TYPE_CHECKING:
    from ropetool.identify.asking import Identified


def identified_text(found: Identified, width: int = 100) -> str:
    """Return the answer first, then every hypothesis, the nearest first."""
    rows = sorted(zip(found.decision.figures, found.hypotheses, strict=True), key=lambda one: one[0])
    lines = [(f"{apart:.2g}", one.name, one.says) for apart, one in rows]
    said = "".join(wrapped(escaped(sentence), width, indent=0) for sentence in _answer(found))
    return f"{said}\nnats from each table, the mean over {len(found.lengths)} prompts\n{columns(lines, width=width)}"


def _answer(found: Identified) -> list[str]:
    decision = found.decision
    if decision.best < 0:
        apart, nearest = min((figure, at) for at, figure in enumerate(decision.figures))
        return [
            f"None of these: the answers of {found.program} are {apart:.2g} nats from the nearest, {found.hypotheses[nearest].name}; "
            f"rounding makes {decision.limit:.2g} at most"
        ]
    one = found.hypotheses[decision.best]
    if found.rivals:
        rivals = ", ".join((one.name, *found.rivals))
        more = f"--prompts {2 * len(found.lengths)}, or a longer --length, asks more"
        said = [f"{found.program} computes one of these tables, which its answers do not tell apart: {rivals}; {more}"]
    else:
        said = [f"{found.program} computes the table {one.name}: {one.says}"]
    if decision.margin:
        said.append(f"The next table is {decision.margin:.2g} nats a prompt worse")
    said.append(
        f"Its answers are {decision.figures[decision.best]:.2g} nats from it, and rounding makes {decision.limit:.2g} at most: "
        "a table outside of the list that is as near would be taken for it"
    )
    if one.alike:
        said.append(f"The same table: {', '.join(one.alike)}")
    return said
