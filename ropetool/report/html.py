"""The report of a verification: what its page says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool import __version__
from ropetool.report import charts
from ropetool.report.answered import TONES as ANSWERED
from ropetool.report.answered import questions_section, texts_section
from ropetool.report.gate import gate_section
from ropetool.report.grids import bands_section
from ropetool.report.inspected_page import runtimes_section
from ropetool.report.page import Page, check_folder, rendered, write_page
from ropetool.report.sections import sections
from ropetool.report.verdict import summary
from ropetool.report.verified import conditions
from ropetool.runtimes.inspection import Inspection
from ropetool.sections import TONES
from ropetool.verification.results import VerifyResult


def write_report(
    result: VerifyResult,
    folder: Path,
    *,
    force: bool = False,
    command: str = "",
    serving: Sequence[str] = (),
    target: Inspection | None = None,
) -> list[Path]:
    """Write the page and the plots of a result, whole or not at all, and return their paths, the page first.

    command: the line that asked for it. serving: those that serve the target. target: as inspected, for what runtimes make of it.
    Raises: as `write_page`.
    """
    check_folder(folder, force=force)
    return write_page(render(result, command, serving, target), folder, force=force)


def render(
    result: VerifyResult, command: str = "", serving: Sequence[str] = (), target: Inspection | None = None
) -> dict[str, bytes]:
    """Return the files of a report by name: the page, then the plots."""
    word, tone = result.verdict, TONES[result.verdict]
    shown = [gate_section(result), *sections(result)]
    if result.answers is not None:
        word, tone = result.answers.verdict, ANSWERED[result.answers.verdict]
        shown = [questions_section(result), texts_section(result), *shown]
    if result.bands is not None:
        shown.append(bands_section(result.bands))
    if target is not None:
        shown.append(runtimes_section(target))
    return rendered(
        Page(
            command="verify",
            title=f"{word}: {result.target}",
            word=word,
            tone=tone,
            sentence=summary(result).partition(": ")[2],
            conditions=conditions(result),
            facts=[*_facts(result, command), *(("served by", line) for line in serving)],
            sections=shown,
            charts=charts.charts(result),
            notes=result.notes,
            documents=result.documents,
            fingerprint=result.text_fingerprint,
            texts=result.texts,
        )
    )


def _facts(result: VerifyResult, command: str) -> list[tuple[str, str]]:
    facts = [
        ("target", result.target),
        ("baseline", result.baseline or "the target itself, within its trained length"),
        ("against", result.against or ""),
        ("suite", result.suite),
        ("lengths", f"trained length {result.trained_length}, context length {result.context_length} tokens"),
        ("cache", f"keys and values of the target in {result.cache_type}" if result.cache_type else ""),
        ("seed", str(result.seed)),
        ("versions", f"ropetool {__version__}, {result.runtime}"),
        ("command", command),
    ]
    return [(name, value) for name, value in facts if value]
