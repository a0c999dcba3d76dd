#!/usr/bin/env python3
"""Record the everyday commands on the demo checkpoint in a terminal, and write docs/recording.svg for README.

The picture shows one command after another, and only `verify` where a viewer does not animate. It uses the viewer's own
fonts and follows a light or dark page. Progress and notes, which commands write to stderr, are not in it.

scripts/front/recording.py    run the commands again, about two minutes of two idle cores
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "recording.svg"
SVG = "{http://www.w3.org/2000/svg}"
COMMANDS = (
    "ropetool inspect model",
    "ropetool extend model --method yarn --factor 2 -o X",
    "ropetool verify X",
    "ropetool export X -o x.gguf",
)
SHOWN_WITHOUT_ANIMATION = 2  # the command's number
COLUMNS, ROWS = 80, 27
WIDTH, HEIGHT, SIZE, MARGIN = 8.4, 19, 14, 16  # pixels: of a cell, of the font, and around the text
SECONDS = 7  # for each command
STYLES = {"bold": "bold", "dim": "dim", "color(1)": "red", "color(2)": "green", "color(3)": "yellow"}  # of rich
STYLE = """
.screen{{fill:#f6f8fa;stroke:#d0d7de}}
text{{font:{size}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328}}
.bold{{font-weight:bold}}.dim{{fill:#59636e}}.green{{fill:#1a7f37}}.yellow{{fill:#9a6700}}.red{{fill:#cf222e}}
@media(prefers-color-scheme:dark){{.screen{{fill:#0d1117;stroke:#3d444d}}text{{fill:#f0f6fc}}.dim{{fill:#9198a1}}
.green{{fill:#3fb950}}.yellow{{fill:#d29922}}.red{{fill:#f85149}}}}
g{{opacity:0;animation:show {all}s step-end infinite}}#c{still}{{opacity:1}}
@keyframes show{{0%{{opacity:1}}{share:g}%{{opacity:0}}}}
@media(prefers-reduced-motion){{g{{animation:none}}}}
"""


def printed(command: str, folder: Path) -> str:
    """Return what a command writes to a terminal, with its control sequences. Raises: SystemExit if it fails."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    kept = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    }
    environment = {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "ROPETOOL_CACHE": str(folder / "cache")}
    with open(folder / "stderr", "wb") as notes:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()], cwd=folder, env=environment, stdout=terminal, stderr=notes
        )
    os.close(terminal)
    written = b""
    try:
        while piece := os.read(screen, 1 << 16):
            written += piece
    except OSError:  # Linux reports the end of a terminal so
        pass
    os.close(screen)
    if process.wait():
        raise SystemExit(f"{command}: exit {process.returncode}\n{(folder / 'stderr').read_text(encoding='utf-8')}")
    return written.decode().replace("\r\n", "\n")


def rows(output: str) -> Iterator[Text]:
    """Yield the rows of a terminal with this output, which may have colours."""
    for line in output.rstrip("\n").split("\n"):
        text = Text.from_ansi(line)
        yield from (text[start : start + COLUMNS] for start in range(0, max(len(text), 1), COLUMNS))


def screen(command: str, output: str) -> list[Text]:
    """Return the rows of the picture for a command: its line, and as much of its output as there is room for."""
    every = [Text(f"$ {command}", "bold"), *rows(output)]
    return every if len(every) <= ROWS else [*every[: ROWS - 1], Text("...", "dim")]


def drawn(screens: Sequence[Sequence[Text]]) -> str:
    """Return the picture, with a group of rows for each command."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    seconds = SECONDS * len(screens)
    style = STYLE.format(size=SIZE, all=seconds, still=SHOWN_WITHOUT_ANIMATION, share=100 / len(screens))
    groups = (
        f'<g id="c{number}" style="animation-delay:{SECONDS * number - seconds}s">\n{"".join(map(_row, range(ROWS), texts))}</g>'
        for number, texts in enumerate(screens)
    )
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f"<style>{style}</style>",
        f'<rect class="screen" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
        *groups, "</svg>\n",
    ))  # fmt: skip


def _row(number: int, text: Text) -> str:
    """Return the elements of a row, one for each part without gaps and of one style.

    Each has its length set, because viewers have different fonts.
    """
    return "".join(
        _element(number, start + part.start(), text[start + part.start() : start + part.end()])
        for start, end in _runs(text)
        for part in re.finditer(r"\S+(?: \S+)*", text.plain[start:end])
    )


def _runs(text: Text) -> Iterator[tuple[int, int]]:
    """Yield the ranges between changes of style."""
    edges = sorted({0, len(text), *(edge for span in text.spans for edge in (span.start, span.end))})
    yield from pairwise(edges)


def _element(row: int, column: int, text: Text) -> str:
    words = {word for style in (text.style, *(span.style for span in text.spans)) for word in str(style).split()}
    classes = " ".join(sorted(STYLES[word] for word in words - {"none"}))
    style = f' class="{classes}"' if classes else ""
    x, y = MARGIN + WIDTH * column, MARGIN + HEIGHT * row + SIZE
    return (
        f'<text x="{x:g}" y="{y}" textLength="{len(text) * WIDTH:g}"{style}>{escape(text.plain, quote=False)}</text>\n'
    )


def shown() -> dict[str, list[str]]:
    """Return the rows of the picture by command, with their gaps, and without empty rows."""
    found = {}
    for group in ElementTree.parse(PICTURE).iter(f"{SVG}g"):
        cells: dict[str, str] = {}
        for part in group.iter(f"{SVG}text"):
            column = round((float(part.attrib["x"]) - MARGIN) / WIDTH)
            cells[part.attrib["y"]] = cells.get(part.attrib["y"], "").ljust(column) + str(part.text)
        command, *output = cells.values()
        found[command.removeprefix("$ ")] = output
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "ropetool" / "demo" / "model", folder / "model")
        picture = drawn([screen(command, printed(command, folder)) for command in COMMANDS])
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
