"""Sources and earlier outputs on a disk, and all that lies under a folder, for tests of what may be written where."""

from __future__ import annotations

import os
from pathlib import Path


def small_source(folder: Path) -> Path:
    """Write the smallest folder that stands for a checkpoint."""
    path = folder / "work" / "source"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def everything(root: Path) -> dict[str, str]:
    """Return every path under `root` with what it is and holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        kind = f"-> {os.readlink(path)}" if path.is_symlink() else "folder" if path.is_dir() else path.read_text()
        found[str(path.relative_to(root))] = kind
    return found


def earlier_output(path: Path) -> Path:
    """Write what stands for an output of an earlier run."""
    path.mkdir()
    (path / "ropetool.json").write_text("{}")
    (path / "old").write_text("old")
    return path
