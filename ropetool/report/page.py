"""A result as one HTML page that loads nothing, and its plots as PNG files beside it: what all reports share."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ropetool import __version__
from ropetool.errors import MissingDependency, OutputError
from ropetool.escaping import install_line
from ropetool.files.output import Rule, check_output, output_error
from ropetool.files.transaction import staged
from ropetool.report import drawing
from ropetool.report.charts import Chart
from ropetool.sections import Section

PAGE = "index.html"
REPORT, HTML = "--report", "--html"
NO_SOURCE = Path(os.devnull)  # nothing is rewritten, so that a report may lie anywhere, also inside a checkpoint
CSS_PIXELS = 96  # an inch in CSS


@dataclass(frozen=True)
class Page:
    """What a report says, in its order.

    command: the subcommand that makes it, `verify`. word, sentence: its first line, and tone, how that is coloured (one of
    `TONES`' values). conditions: under which all of it holds. charts: drawn when the page is made, each shown in its section.
    documents, fingerprint, texts: what was read, where anything was.
    """

    command: str
    title: str
    word: str
    tone: str
    sentence: str
    conditions: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    charts: Iterable[Chart] = ()
    notes: Sequence[str] = ()
    documents: Sequence[str] = ()
    fingerprint: str = ""
    texts: Mapping[str, Any] | None = None


def write_page(page: Page, folder: Path, *, force: bool = False) -> list[Path]:
    """Write a page and its plots into a folder, whole or not at all, and return the paths, the page first.

    An existing folder is replaced if it is empty, or with `force` if it contains a report.
    Raises: MissingDependency, OutputError.
    """
    check_folder(folder, force=force)
    files = rendered(page)
    with _refusals(folder), staged(folder, NO_SOURCE, force=True, directory=True, may_replace=_held(force)) as stage:
        for name, data in files.items():
            (stage / name).write_bytes(data)
    return [folder / name for name in files]


def check_file(file: Path) -> None:
    """Return if a page may and can be written as one file: where nothing stands, or another page of ropetool.

    Raises: MissingDependency, OutputError.
    """
    check_packages(HTML)
    with _refusals(file, HTML):
        check_output(file, NO_SOURCE, force=True, may_replace=_no_page)


def write_file(page: Page, file: Path) -> None:
    """Write a page as one file, whole or not at all. Raises: as `check_file`."""
    check_file(file)
    with _refusals(file, HTML), staged(file, NO_SOURCE, force=True, may_replace=_no_page) as stage:
        stage.write_bytes(rendered(page)[PAGE])


def _no_page(file: Path) -> str:
    """Return why a file is not replaced."""
    return "" if _generator().encode() in file.read_bytes()[:500] else not_ours("a page of ropetool")


def not_ours(kind: str) -> str:
    """Return why a file that ropetool did not write is kept."""
    return f"is not {kind}, so ropetool does not replace it"


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Return if a report may and can be written there; to be asked before a long measurement.

    Raises: MissingDependency, OutputError.
    """
    check_packages(REPORT)
    with _refusals(folder):
        if not os.path.lexists(folder) or folder.name in ("", ".."):
            check_output(folder, NO_SOURCE, force=False, directory=True)
        elif reason := _held(force)(folder):
            raise OutputError(f"exists already and {reason}", where=str(folder), try_="a new folder for --report")


def check_packages(option: str) -> None:
    """Return if a page can be made. Raises: MissingDependency, named after the option that asks for it."""
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise MissingDependency(
                f"a report needs {package}, which is not installed", where=option, try_=install_line("report")
            )


def _held(force: bool) -> Rule:
    """Return what says why a folder may not be replaced."""

    def reason(folder: Path) -> str:
        if _is_empty(folder) or (force and _is_report(folder)):
            return ""
        return not_ours("a report of ropetool") if force else "is not empty"

    return reason


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _is_report(folder: Path) -> bool:
    """Return whether a folder holds what `write_page` writes, and nothing else."""
    if folder.is_symlink() or not (folder / PAGE).is_file():
        return False
    plots = all(path.suffix == ".png" and path.is_file() for path in folder.iterdir() if path.name != PAGE)
    return plots and _generator().encode() in (folder / PAGE).read_bytes()[:500]


def _generator() -> str:
    return '<meta name="generator" content="ropetool '


@contextmanager
def _refusals(place: Path, option: str = REPORT) -> Iterator[None]:
    """Make a refusal of what the system does not allow, and let all of them name the option that asks for it."""
    try:
        yield
        return
    except OSError as error:
        refusal = output_error(error, place)
    except OutputError as error:
        refusal = error
    if option == HTML:
        refusal.message = refusal.message.partition("; --force")[0]  # an option that goes with folders
    article = "a" if option == REPORT else "an"
    refusal.try_ = refusal.try_.replace("an -o", f"{article} {option}").replace("another -o", f"another {option}")
    raise refusal


def rendered(page: Page) -> dict[str, bytes]:
    """Return the files of a report by name: the page, then the plots."""
    with drawing.style():
        drawn = list(page.charts)
        plots = {f"{chart.name}.png": drawing.encoded(chart.figure, "png") for chart in drawn}
        vectors = [(chart, drawing.encoded(chart.figure, "svg")) for chart in drawn]
    text = _filled(
        page=page,
        generator=f"ropetool {page.command} {__version__}",
        sections=[(section, _of(section, vectors)) for section in page.sections],
    )
    return {PAGE: text.encode(), **plots}


def _filled(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    source = resources.files("ropetool.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    # names of files and texts are anybody's: what looks like HTML in them has to show as text
    return str(Environment(autoescape=True, undefined=StrictUndefined).from_string(source).render(**values))


def _of(section: Section, vectors: Sequence[tuple[Chart, bytes]]) -> list[dict[str, str | int]]:
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
