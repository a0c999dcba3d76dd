"""The report of a comparison: what its page says."""

from __future__ import annotations

from pathlib import Path

from ropetool import __version__
from ropetool.choosing.results import Comparison
from ropetool.report import compared_charts
from ropetool.report.compared import conditions, sections, sentences
from ropetool.report.page import Page, check_folder, rendered, write_page


def write_report(found: Comparison, folder: Path, *, force: bool = False, command: str = "") -> list[Path]:
    """Write the page and the plots of a comparison, whole or not at all, and return their paths, the page first.

    command: the line that asked for it. Raises: as `write_page`.
    """
    check_folder(folder, force=force)
    return write_page(render(found, command), folder, force=force)


def render(found: Comparison, command: str = "") -> dict[str, bytes]:
    """Return the files of a report by name: the page, then the plots."""
    told = sentences(found)
    longest = told[len(found.rankings) - 1] if found.rankings else told[0]
    word, _, sentence = longest.partition(": ")
    return rendered(
        Page(
            command="compare",
            title=f"{found.source}: {longest}",
            word=word,
            tone="",
            sentence=sentence,
            conditions=conditions(found),
            facts=_facts(found, command),
            sections=list(sections(found)),
            charts=compared_charts.charts(found),
            notes=(*(told[-1:] if found.beside else ()), *found.notes),
            documents=found.documents,
            fingerprint=found.text_fingerprint,
            texts=found.texts,
        )
    )


def _facts(found: Comparison, command: str) -> list[tuple[str, str]]:
    facts = [
        ("source", found.source),
        ("suite", found.suite),
        ("lengths", f"trained {found.trained_length}; measured at {', '.join(map(str, found.lengths))} tokens"),
        ("seed", str(found.seed)),
        ("versions", f"ropetool {__version__}, {found.runtime}"),
        ("command", command),
    ]
    return [(name, value) for name, value in facts if value]
