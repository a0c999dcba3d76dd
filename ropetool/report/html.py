"""The result of a verification as a folder: one HTML page that loads nothing, and its plots as PNG files beside it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ropetool import __version__
from ropetool.errors import MissingDependency, OutputError
from ropetool.files.output import Rule, check_output, output_error
from ropetool.files.transaction import staged
from ropetool.report import charts, drawing
from ropetool.report.gate import gate_section
from ropetool.report.grids import bands_section
from ropetool.report.sections import sections
from ropetool.report.tables import TONES, Section
from ropetool.report.verdict import summary
from ropetool.report.verified import conditions
from ropetool.verification.results import VerifyResult

PAGE = "index.html"
GENERATOR = "ropetool verify"
NO_SOURCE = Path(os.devnull)  # nothing is rewritten, so that a report may lie anywhere, also inside a checkpoint
CSS_PIXELS = 96  # an inch in CSS


def write_report(
    result: VerifyResult, folder: Path, *, force: bool = False, command: str = "", serving: Sequence[str] = ()
) -> list[Path]:
    """Write the page and the plots of a result, whole or not at all, and return their paths, the page first.

    command: the line that asked for it. serving: those that serve the target.
    A folder that is there is replaced if it is empty, or by `force` if it holds a report.
    Raises: MissingDependency, OutputError.
    """
    check_folder(folder, force=force)
    files = render(result, command, serving)
    with _refusals(folder), staged(folder, NO_SOURCE, force=True, directory=True, may_replace=_held(force)) as stage:
        for name, data in files.items():
            (stage / name).write_bytes(data)
    return [folder / name for name in files]


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Return if a report may and can be written there; to be asked before a long measurement.

    Raises: MissingDependency, OutputError.
    """
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise MissingDependency(
                f"a report needs {package}, which is not installed",
                where="--report",
                try_='pip install "ropetool[report]"',
            )
    with _refusals(folder):
        if not os.path.lexists(folder) or folder.name in ("", ".."):
            check_output(folder, NO_SOURCE, force=False, directory=True)
        elif reason := _held(force)(folder):
            raise OutputError(f"exists already and {reason}", where=str(folder), try_="give --report a new folder")


def _held(force: bool) -> Rule:
    """Return what says why a folder may not be replaced."""

    def reason(folder: Path) -> str:
        if _is_empty(folder) or (force and _is_report(folder)):
            return ""
        return "is not a report of ropetool, so that it is not replaced" if force else "is not empty"

    return reason


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _is_report(folder: Path) -> bool:
    """Return whether a folder holds what `write_report` writes, and nothing else."""
    if folder.is_symlink() or not (folder / PAGE).is_file():
        return False
    plots = all(path.suffix == ".png" and path.is_file() for path in folder.iterdir() if path.name != PAGE)
    return plots and _generator().encode() in (folder / PAGE).read_bytes()[:500]


def _generator() -> str:
    return f'<meta name="generator" content="{GENERATOR}'


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Make a refusal of what the system does not allow, and let all of them name the option of reports."""
    try:
        yield
        return
    except OSError as error:
        refusal = output_error(error, folder)
    except OutputError as error:
        refusal = error
    refusal.try_ = refusal.try_.replace("an -o", "a --report").replace("another -o", "another --report")
    raise refusal


def render(result: VerifyResult, command: str = "", serving: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the files of a report by name: the page, then the plots."""
    with drawing.style():
        drawn = list(charts.charts(result))
        plots = {f"{chart.name}.png": drawing.encoded(chart.figure, "png") for chart in drawn}
        vectors = [(chart, drawing.encoded(chart.figure, "svg")) for chart in drawn]
    shown = [gate_section(result), *sections(result)]
    if result.bands is not None:
        shown.append(bands_section(result.bands))
    page = _page(
        result=result,
        generator=f"{GENERATOR} {__version__}",
        tone=TONES[result.verdict],
        conditions=conditions(result),
        sentence=summary(result).partition(": ")[2],
        facts=[*_facts(result, command), *(("served by", line) for line in serving)],
        sections=[(section, _of(section, vectors)) for section in shown],
    )
    return {PAGE: page.encode(), **plots}


def _page(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    source = resources.files("ropetool.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    # names of files and texts are anybody's: what looks like HTML in them has to show as text
    return str(Environment(autoescape=True, undefined=StrictUndefined).from_string(source).render(**values))


def _of(section: Section, vectors: Sequence[tuple[charts.Chart, bytes]]) -> list[dict[str, str | int]]:
    return [
        {
            "title": chart.title,
            "caption": chart.caption,
            "data": base64.b64encode(data).decode(),
            "width": round(chart.figure.get_figwidth() * CSS_PIXELS),
            "height": round(chart.figure.get_figheight() * CSS_PIXELS),
        }
        for chart, data in vectors
        if chart.section == section.key
    ]


def _facts(result: VerifyResult, command: str) -> list[tuple[str, str]]:
    facts = [
        ("target", result.target),
        ("baseline", result.baseline or "the target itself, within its trained length"),
        ("against", result.against or ""),
        ("suite", result.suite),
        ("lengths", f"trained {result.trained_length}, context stated {result.context_length} tokens"),
        ("cache", f"keys and values of the target in {result.cache_type}" if result.cache_type else ""),
        ("seed", str(result.seed)),
        ("versions", f"ropetool {__version__}, {result.runtime}"),
        ("command", command),
    ]
    return [(name, value) for name, value in facts if value]
