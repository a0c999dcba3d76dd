"""What an export leaves beside the file: a model card, a Modelfile.

Their text is publishing's; here they are filled from the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import certificate, publishing
from ropetool.formats import hub
from ropetool.hosts import HfHost
from ropetool.results import PASS, Check
from ropetool.serving import commands, gguf_lines
from ropetool.verification.gate import KL


@dataclass(frozen=True)
class Exporting:
    """What was exported how: the type of the matrices, the encoding of the positions, the context, what went into the
    weights, how the file compares with the checkpoint, the command line."""

    outtype: str
    encoding: str
    context_length: int
    bakes: tuple[str, ...]
    checks: tuple[Check, ...]
    command: str


def fresh_certificate(host: HfHost) -> Mapping[str, Any] | None:
    """Return the certificate of a checkpoint that ropetool made, if it is of these bytes."""
    if host.made is None:
        return None
    found = certificate.state(host.path)
    return None if found.certificate is None or found.name == certificate.STALE else found.certificate.to_json()


def check(source: Path) -> None:
    """Raise CheckpointError if what goes beside the file cannot be made: before an export of hours."""
    publishing.read_card(source / publishing.CARD)


def texts(
    host: HfHost, files: Sequence[Path], exporting: Exporting, found: Mapping[str, Any] | None
) -> dict[Path, str]:
    """Return the card and the Modelfile of these files, by place."""
    base, names = hub.origin(host.path), [Path(file.name) for file in files]
    place = publishing.modelfile_place(names)
    lines = serving(names, exporting.context_length, [] if place is None else [place])
    card = publishing.with_step(
        publishing.read_card(host.path / publishing.CARD) or "",
        publishing.exported_step(exporting.outtype, exporting.encoding, exporting.bakes, _passed(exporting.checks)),
        exporting.command, commands(lines),
        base_model=base.repo if base else "", long=host.made is not None,
    )  # fmt: skip
    card = publishing.with_verification(card, found, of_source=True)
    return publishing.texts_beside(files, card, exporting.context_length)


def serving(files: Sequence[Path], context: int, sidecars: Collection[Path]) -> list[str]:
    """Return the lines that serve the model; with a Modelfile among the sidecars, Ollama's too."""
    place = publishing.modelfile_place(files)
    return gguf_lines(str(files[0]), context, place if place in sidecars else None)


def _passed(checks: Sequence[Check]) -> list[str]:
    """Return what was compared and found to be the same, in words."""
    return [
        check.detail if check.figure is None or check.name != KL else f"KL {check.figure:.2g} nats a token"
        for check in checks
        if check.verdict == PASS
    ]
