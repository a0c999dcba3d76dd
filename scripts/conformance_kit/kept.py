"""The golden values of the recorded kit, in tests/conformance/golden.tar.xz. Tests use them without making the kit.

A kit whose golden values differ is another kit, so its version must be another one.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance_kit.cases import CASES

ARCHIVE = Path(__file__).resolve().parents[2] / "tests" / "conformance" / "golden.tar.xz"
CLOSE = 1e-4  # nats: how far the values of another machine may be, a third of the bound of exact answers


def write(kit: Path) -> None:
    """Keep the golden values of a whole kit."""
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for name in CASES:
            content = (kit / "golden" / f"{name}.json").read_bytes()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def read(names: Sequence[str] = tuple(CASES)) -> Iterator[tuple[str, bytes]]:
    """Yield the content of the golden files of these cases."""
    with tarfile.open(ARCHIVE) as archive:
        for name in names:
            file = archive.extractfile(f"{name}.json")
            assert file is not None
            yield name, file.read()


def rebuild(folder: Path, names: Sequence[str]) -> None:
    """Write checkpoints, GGUF files and the kept golden values of these cases into a new folder."""
    from conformance_kit import checkpoints  # which the pages do without

    (folder / "golden").mkdir(parents=True)
    for name, content in read(names):
        (folder / "golden" / f"{name}.json").write_bytes(content)
        checkpoint = checkpoints.write(folder / "hf" / name, CASES[name])
        if CASES[name].quantised:
            checkpoints.write_gguf(checkpoint, folder / "gguf" / f"{name}.gguf", CASES[name].quantised)


def difference(kit: Path) -> str:
    """Return the first case of a kit whose golden values are not the kept ones, empty if there is none."""
    for name, content in read():
        path = kit / "golden" / f"{name}.json"
        if path.exists() and not _is_close(json.loads(content), json.loads(path.read_text(encoding="utf-8"))):
            return name
    return ""


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return abs(one - other) <= CLOSE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_close(one[key], other[key]) for key in one if key != "bounds")
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(itertools.starmap(_is_close, zip(one, other, strict=True)))
    return bool(one == other)
