"""Aligned columns for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ropetool.escaping import escaped

BESIDE = 30  # characters that the last column needs to be wrapped in its place
_QUOTED = re.compile("`[^`]*`")
UNBROKEN = "\0"  # a space where no line ends; text that is shown has no other


def columns(rows: Sequence[Sequence[str]], indent: int = 2, width: int | None = None) -> str:
    """Return the rows with every column but the last padded to its widest cell, whatever stands in them.

    A row is one line, whatever its length, unless a width is given: then the last cell of a longer one is wrapped in its
    column, or below the others where its column is too narrow for text. A word that is longer stays whole.
    """
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    start = indent + sum(widths) + 2 * len(widths)
    text = ""
    for row in rows:
        padded = [cell.ljust(w) for cell, w in zip(row, widths, strict=False)]
        line = (" " * indent + "  ".join([*padded, row[-1]])).rstrip()
        if width is None or len(line) <= width:
            text += line + "\n"
        elif not widths or width - start >= BESIDE:
            text += wrapped(row[-1], width, " " * indent + "".join(f"{cell}  " for cell in padded), start)
        else:
            text += " " * indent + "  ".join(row[:-1]).rstrip() + "\n"
            text += wrapped(row[-1], width, " " * (indent + 2), indent + 2)
    return text


def wrapped(text: str, width: int, first: str = "", indent: int = 2) -> str:
    """Return the text in lines of at most this width, `first` in front of the first, the others indented.

    What stands in backquotes stays on one line, however long it is: it is a command, to be copied.
    """
    whole = _QUOTED.sub(lambda found: found[0].replace(" ", UNBROKEN), text)
    lines = textwrap.wrap(
        whole, max(width, indent + 1), initial_indent=first, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return "".join(f"{line}\n" for line in lines).replace(UNBROKEN, " ") or f"{first.rstrip()}\n"


def sidecar_rows(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the row that names the card and the Modelfile of an output; none where there are none."""
    return [("sidecars", ", ".join(path.name for path in paths))] if paths else []


def serving_text(lines: Sequence[str]) -> str:
    """Return the command lines that serve an output, under their heading; empty where there are none."""
    return f"\nserved by\n{columns([(line,) for line in lines])}" if lines else ""


def not_ours(kind: str) -> str:
    """Return why a file that ropetool did not write is kept."""
    return f"is not {kind}, so ropetool does not replace it"


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: 1 text, 2 texts."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
