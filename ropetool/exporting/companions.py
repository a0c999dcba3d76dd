"""What an export leaves beside the file: a model card, a Modelfile.

Their text is publishing's; here they are filled from the source and put in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import certificate, publishing
from ropetool.formats import hub
from ropetool.formats.output import check_output, staged
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


def check(target: Path, source: Path) -> None:
    """Raise CheckpointError if what goes beside the file cannot be made or written: before an export of hours."""
    publishing.read_card(source / publishing.CARD)
    for name in (publishing.CARD, publishing.MODELFILE):
        check_output(publishing.beside(target, name), source, force=True)


def write(
    host: HfHost, files: Sequence[Path], exporting: Exporting, found: Mapping[str, Any] | None
) -> tuple[Path, ...]:
    """Write the card and the Modelfile beside the files, and return their places."""
    base = hub.origin(host.path)
    card = publishing.with_step(
        publishing.read_card(host.path / publishing.CARD) or "",
        publishing.exported_step(exporting.outtype, exporting.encoding, exporting.bakes, _passed(exporting.checks)),
        exporting.command, commands(serving([Path(file.name) for file in files], exporting.context_length)),
        base_model=base.repo if base else "", long=host.made is not None,
    )  # fmt: skip
    card = publishing.with_verification(card, found, of_source=True)
    texts = publishing.texts_beside(files, card, exporting.context_length)
    for place, text in texts.items():
        with staged(place, host.path, force=True) as stage:
            publishing.write_card(stage, text)
    return tuple(texts)


def serving(files: Sequence[Path], context: int, *, sidecars: bool = True) -> list[str]:
    """Return the lines that serve the model; with a Modelfile among the sidecars, Ollama's too."""
    return gguf_lines(str(files[0]), context, publishing.modelfile_place(files) if sidecars else None)


def _passed(checks: Sequence[Check]) -> list[str]:
    """Return what was compared and found to be the same, in words."""
    return [
        check.detail if check.figure is None or check.name != KL else f"KL {check.figure:.2g} nats a token"
        for check in checks
        if check.verdict == PASS
    ]
