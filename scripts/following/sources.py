"""The rope code that differs between two releases of a package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROPE = re.compile(
    r"(?i)rope|rotary|rotat|inv_freq|mscale|attention_factor|position_ids|sinusoid|layer_types|sliding_window"
)


@dataclass(frozen=True)
class Change:
    """The rope lines of a file that changed.

    file: the path in the package.
    state: "new", "gone" or "changed".
    lines: the changed lines that name rope code, each with + or -.
    """

    file: str
    state: str
    lines: tuple[str, ...]


def changes(before: Path, after: Path, globs: tuple[str, ...]) -> Iterator[Change]:
    """Yield the files whose rope code differs. before, after: folders of two releases."""
    old, new = (_files(folder, globs) for folder in (before, after))
    for file in sorted(old.keys() | new.keys()):
        lines = tuple(_rope_lines(old.get(file, ""), new.get(file, "")))
        if lines:
            yield Change(file, "new" if file not in old else "gone" if file not in new else "changed", lines)


def _files(folder: Path, globs: tuple[str, ...]) -> dict[str, str]:
    paths = {path for pattern in globs for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace") for path in paths}


def _rope_lines(old: str, new: str) -> Iterator[str]:
    """Yield changed lines that name rope code, without those that only moved."""
    if old == new:
        return
    difference = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    changed = [line[0] + line[1:].strip() for line in difference if line[0] in "+-" and ROPE.search(line)]
    both = {line[1:] for line in changed if line[0] == "+"} & {line[1:] for line in changed if line[0] == "-"}
    yield from (line for line in changed if line[1:] not in both)
