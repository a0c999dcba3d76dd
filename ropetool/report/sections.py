"""What was measured, as the sections of a report: each measure states its own. Measures and judges nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ropetool.registry import addition
from ropetool.report.beside import yardstick_sections
from ropetool.report.grids import divergence_section
from ropetool.sections import Section
from ropetool.verification import measures
from ropetool.verification.results import VerifyResult


def sections(result: VerifyResult) -> Iterator[Section]:
    """Yield what was measured, in the order of a report."""
    results = {measures.LENGTHS: result.lengths, **result.measures}
    for key, measure in measures.by_key().items() if any(results.values()) else ():
        if results.get(key):
            yield from measure.sections(results[key], result)
    if result.lm_eval is not None:
        section: Section = addition("lm_eval_section")(result.lm_eval)
        yield section
    if result.yardsticks:
        yield from yardstick_sections(result)
    if result.divergence is not None:
        yield divergence_section(result.divergence, result.trained_length)
