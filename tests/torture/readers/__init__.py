"""Everything of ropetool that reads what somebody else wrote, each with good input to start from.

A reader gets bytes and either returns, or raises what it documents; anything else is a defect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ropetool.errors import RopetoolError
from torture.mutating import bytes_of
from torture.readers.base import Reader
from torture.readers.configs import configs
from torture.readers.hub import ANSWER, hub
from torture.readers.records import records
from torture.readers.texts import edit, texts
from torture.readers.tokenizers import tokenizers
from torture.readers.weights import weights
from torture.scenes import make_sources

__all__ = ["Reader", "readers"]


def readers(folder: Path) -> dict[str, Reader]:
    """Return the readers by name; they work in the folder, which has to be this process's own."""
    sources = folder / "source"
    if not sources.exists():
        make_sources(sources)
    found = {reader.name: reader for reader in _readers(folder, sources)}
    for reader in found.values():
        if reader.name != ANSWER:  # whose server would have a thread before processes are forked
            with suppress(RopetoolError):  # not every reader likes every seed
                reader.read(reader.seeds[0], random.Random(0))  # so that no input is charged with imports
    return found


def _readers(folder: Path, sources: Path) -> Iterator[Reader]:
    yield from weights(folder, sources)
    yield from configs(folder, sources)
    yield from tokenizers(folder)
    yield from records(folder)
    yield Reader("JSON editor", texts(), bytes_of, edit, share=2)
    yield from hub()
