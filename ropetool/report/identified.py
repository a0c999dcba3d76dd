"""The result of `ropetool identify`, as parts for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropetool.sections import Line, Part, listing

if TYPE_CHECKING:
    from ropetool.identify.asking import Identified


def identified_parts(identified: Identified) -> Iterator[Part]:
    """Yield the answer, then every hypothesis with its distance, the nearest first."""
    yield from map(Line, _answer(identified))
    ordered = sorted(
        zip(identified.decision.figures, identified.hypotheses, strict=True),
        key=lambda distance_and_table: distance_and_table[0],
    )
    rows = [(f"{distance:.2g}", table.name, table.says) for distance, table in ordered]
    yield listing(f"distance to each table in nats, the mean over {len(identified.lengths)} prompts", rows)


def _answer(identified: Identified) -> list[str]:
    decision = identified.decision
    if decision.best < 0:
        distance, nearest = min((figure, at) for at, figure in enumerate(decision.figures))
        return [
            f"None of these: the answers of {identified.program} differ by {distance:.2g} nats from the nearest table, "
            f"{identified.hypotheses[nearest].name}; rounding explains at most {decision.limit:.2g}"
        ]
    one = identified.hypotheses[decision.best]
    if identified.rivals:
        rivals = ", ".join((one.name, *identified.rivals))
        more = f"pass --prompts {2 * len(identified.lengths)} or a longer --length"
        sentences = [
            f"{identified.program} computes one of these tables, and its answers do not distinguish them: {rivals}; {more}"
        ]
    else:
        sentences = [f"{identified.program} computes the table {one.name}: {one.says}"]
    if decision.margin:
        sentences.append(f"The second best table is worse by {decision.margin:.2g} nats per prompt")
    sentences.append(
        f"Its answers differ by {decision.figures[decision.best]:.2g} nats from this table; rounding explains at most "
        f"{decision.limit:.2g}. A table outside the list could be as close"
    )
    if one.alike:
        sentences.append(f"The same table: {', '.join(one.alike)}")
    return sentences
