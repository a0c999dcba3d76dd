"""The writer for HTML: a result as one page that loads nothing, with its charts in it and as PNG files."""

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
from ropetool.charts import Chart
from ropetool.errors import MissingDependency, OutputError
from ropetool.escaping import install_line
from ropetool.files.output import Rule, check_output, check_place, output_error
from ropetool.files.transaction import staged
from ropetool.report import drawing
from ropetool.sections import Section

PAGE = "index.html"
REPORT, HTML = "--report", "--html"
NO_SOURCE = Path(os.devnull)  # a report has no source, so it may be anywhere, also inside a checkpoint
CSS_PIXELS = 96  # an inch in CSS


@dataclass(frozen=True)
class Page:
    """The content of a report, in its order.

    command: the subcommand that makes it, such as `verify`.
    word, sentence: the first line.
    tone: the colour of the first line: `GOOD`, `BAD`, `WARN` or empty.
    conditions: the conditions of the result.
    facts: names and values, which are folded away. A name with an empty value is omitted.
    charts: each is shown in its section.
    documents, fingerprint, texts: the texts that were read, if any.
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
    """Return if a page can be written to this file, which must not exist or be a page of ropetool.

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
    """Return why a file is not replaced; empty for a page of ropetool."""
    return "" if _generator().encode() in file.read_bytes()[:500] else not_ours("a page of ropetool")


def not_ours(what: str) -> str:
    """Return why a file or folder of others is not replaced. what: the expected content, with its article."""
    return f"is not {what}, so ropetool does not replace it"


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Return if a report can be written to this folder. Call this before a long measurement.

    Raises: MissingDependency, OutputError.
    """
    check_packages(REPORT)
    with _refusals(folder):
        check_place(folder, NO_SOURCE)
        if os.path.lexists(folder) and (reason := _held(force)(folder)):
            raise OutputError(f"exists already and {reason}", where=str(folder), try_="a new folder for --report")


def check_packages(option: str) -> None:
    """Return if matplotlib and jinja2 are installed. Raises: MissingDependency, with the option as its place."""
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise MissingDependency(
                f"a report needs {package}, which is not installed", where=option, try_=install_line("report")
            )


def _held(force: bool) -> Rule:
    """Return a rule that gives the reason why a folder may not be replaced, or an empty text."""

    def reason(folder: Path) -> str:
        if _is_empty(folder) or (force and _is_report(folder)):
            return ""
        return not_ours("a report of ropetool") if force else "is not empty"

    return reason


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def _is_report(folder: Path) -> bool:
    """Return whether a folder contains a report and nothing else."""
    if folder.is_symlink() or not (folder / PAGE).is_file():
        return False
    plots = all(path.suffix == ".png" and path.is_file() for path in folder.iterdir() if path.name != PAGE)
    return plots and _generator().encode() in (folder / PAGE).read_bytes()[:500]


def _generator() -> str:
    return '<meta name="generator" content="ropetool '


@contextmanager
def _refusals(place: Path, option: str = REPORT) -> Iterator[None]:
    """Raise system errors as OutputError, and name the option of the user in each error."""
    try:
        yield
        return
    except OSError as error:
        refusal = output_error(error, place)
    except OutputError as error:
        refusal = error
    if option == HTML:
        refusal.message = refusal.message.partition("; --force")[0]  # which --html does not have
    article = "a" if option == REPORT else "an"
    refusal.try_ = refusal.try_.replace("an -o", f"{article} {option}").replace("another -o", f"another {option}")
    raise refusal


def rendered(page: Page) -> dict[str, bytes]:
    """Return the files of a report by name: the page, then the plots."""
    drawn = [(chart, drawing.images(chart, "png", "svg")) for chart in page.charts]
    plots = {f"{chart.name}.png": png for chart, (png, _) in drawn}
    vectors = [(chart, svg) for chart, (_, svg) in drawn]
    text = _filled(
        page=page,
        generator=f"ropetool {page.command} {__version__}",
        sections=[(section, _of(section, vectors)) for section in page.sections],
    )
    return {PAGE: text.encode(), **plots}


def _filled(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    source = resources.files("ropetool.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    # names of files and texts are foreign data, so HTML in them is shown as text
    return str(Environment(autoescape=True, undefined=StrictUndefined).from_string(source).render(**values))


def _of(section: Section, vectors: Sequence[tuple[Chart, bytes]]) -> list[dict[str, str | int]]:
    return [
        {
            "title": chart.title,
            "caption": chart.caption,
            "data": base64.b64encode(data).decode(),
            "width": round(drawing.WIDTH * CSS_PIXELS),
            "height": round(chart.height * CSS_PIXELS),
        }
        for chart, data in vectors
        if chart.section == section.key
    ]
