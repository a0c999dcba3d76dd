"""Read and write the releases that the repository pins and states."""

from __future__ import annotations

import re
from pathlib import Path

from following.packages import PEERS, Package, Statement


def pinned(root: Path, package: Package) -> str:
    """Return the newest release that is pinned everywhere, empty if the files differ."""
    newest = {releases((root / file).read_text(encoding="utf-8"), package.name)[-1] for file in package.pins}
    return newest.pop() if len(newest) == 1 else ""


def write(root: Path, package: Package, release: str) -> list[str]:
    """Pin and state a release. Return the files that changed."""
    changed = []
    for file in package.pins:
        if releases((root / file).read_text(encoding="utf-8"), package.name)[-1] != release:
            _replace(root / file, _line(package.name), release, adds=file == PEERS)
            changed.append(file)
    for statement in package.statements:
        if _write_statement(root / statement.file, statement, release):
            changed.append(statement.file)
    return changed


def releases(text: str, name: str) -> list[str]:
    """Return the pinned releases of a package in a text, in order. Raises: ValueError if the text pins none."""
    pinned = re.findall(_line(name), text)
    if not pinned:
        raise ValueError(f"no line pins {name}; add a line {name}==RELEASE")
    return pinned


def _line(name: str) -> str:
    return rf"(?m)^{re.escape(name)}==([\w.]+)"


def _replace(path: Path, pattern: str, release: str, *, adds: bool) -> None:
    """Write a release into the last line that pins the package, or add a line after it."""
    text = path.read_text(encoding="utf-8")
    last = list(re.finditer(pattern, text))[-1]
    end = text.find("\n", last.start())
    if adds:
        line = text[last.start() : last.start(1)] + release
        text = text[:end] + "\n" + line + text[end:]
    else:
        text = text[: last.start(1)] + release + text[last.end(1) :]
    path.write_text(text, encoding="utf-8")


def _write_statement(path: Path, statement: Statement, release: str) -> bool:
    """Write a release where the code states it, with as many numbers as there are. Return whether the file changed.

    Raises: ValueError if the file does not state a release.
    """
    text = path.read_text(encoding="utf-8")
    place = re.search(statement.pattern, text)
    if place is None:
        raise ValueError(f"{path} has no match of {statement.pattern}; change scripts/following/packages.py")
    numbers = release.split(".")[: place[1].count(".") + 1]
    new = ".".join(numbers)
    if new == place[1]:
        return False
    if statement.adds:
        text = f'{text[: place.end(1)]}", "{new}{text[place.end(1) :]}'
    else:
        text = f"{text[: place.start(1)]}{new}{text[place.end(1) :]}"
    path.write_text(text, encoding="utf-8")
    return True
