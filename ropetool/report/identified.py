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
    return f"{said}\ndistance to each table in nats, the mean over {len(found.lengths)} prompts\n{columns(lines, width=width)}"


def _answer(found: Identified) -> list[str]:
    decision = found.decision
    if decision.best < 0:
        apart, nearest = min((figure, at) for at, figure in enumerate(decision.figures))
        return [
            f"None of these: the answers of {found.program} differ by {apart:.2g} nats from the nearest table, "
            f"{found.hypotheses[nearest].name}; rounding explains at most {decision.limit:.2g}"
        ]
    one = found.hypotheses[decision.best]
    if found.rivals:
        rivals = ", ".join((one.name, *found.rivals))
        more = f"pass --prompts {2 * len(found.lengths)} or a longer --length"
        said = [
            f"{found.program} computes one of these tables, and its answers do not distinguish them: {rivals}; {more}"
        ]
    else:
        said = [f"{found.program} computes the table {one.name}: {one.says}"]
    if decision.margin:
        said.append(f"The second best table is worse by {decision.margin:.2g} nats per prompt")
    said.append(
        f"Its answers differ by {decision.figures[decision.best]:.2g} nats from this table; rounding explains at most "
        f"{decision.limit:.2g}. A table outside the list could be as close"
    )
    if one.alike:
        said.append(f"The same table: {', '.join(one.alike)}")
    return said
