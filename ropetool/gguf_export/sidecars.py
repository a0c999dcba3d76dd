"""The extra files of an export: a model card, a Modelfile.

plans.model_card has their text; this module fills it from the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint import certificate
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.files import hub
from ropetool.plans import model_card
from ropetool.plans.serving import commands, gguf_lines
from ropetool.rope.deviation import Deviation
from ropetool.verification.kl_gate import KL
from ropetool.verification.kl_gate import NAMES as KL_NAMES
from ropetool.verification.results import PASS, Check


@dataclass(frozen=True)
class Exporting:
    """What was exported how: the type of the matrices, the encoding of the positions, the context, what went into the
    weights, how the file compares with the checkpoint, the command line, how far its tables are from the checkpoint's."""

    outtype: str
    encoding: str
    context_length: int
    bakes: tuple[str, ...]
    checks: tuple[Check, ...]
    command: str
    deviation: Deviation | None = None


def fresh_certificate(source: HfCheckpoint) -> Mapping[str, Any] | None:
    """Return the certificate of a checkpoint that ropetool made, if it is of these bytes."""
    if source.record is None:
        return None
    found = certificate.state(source.path)
    return None if found.certificate is None or found.name == certificate.STALE else found.certificate.to_json()


def check(source: Path) -> None:
    """Raise CheckpointError if what goes beside the file cannot be made: before an export of hours."""
    model_card.read_card(source / model_card.CARD)


def texts(
    source: HfCheckpoint, files: Sequence[Path], exporting: Exporting, found: Mapping[str, Any] | None
) -> dict[Path, str]:
    """Return the card and the Modelfile of these files, by place."""
    base, names = hub.origin(source.path), [Path(file.name) for file in files]
    place = model_card.modelfile_place(names)
    lines = serving(names, exporting.context_length, [] if place is None else [place])
    card = model_card.with_step(
        model_card.read_card(source.path / model_card.CARD) or "",
        model_card.exported_step(
            exporting.outtype, exporting.encoding, exporting.bakes, _passed(exporting.checks), _inexact(exporting)
        ),
        exporting.command, commands(lines),
        base_model=base.repo if base else "", long=source.record is not None,
    )  # fmt: skip
    card = model_card.with_verification(card, found, of_source=True)
    return model_card.texts_beside(files, card, exporting.context_length)


def serving(files: Sequence[Path], context: int, sidecars: Collection[Path]) -> list[str]:
    """Return the lines that serve the model; with a Modelfile among the sidecars, Ollama's too."""
    place = model_card.modelfile_place(files)
    return gguf_lines(str(files[0]), context, place if place in sidecars else None)


def _inexact(exporting: Exporting) -> str:
    """Return how far the file is from the checkpoint, in tables and in logits; empty where it holds the same tables."""
    if exporting.deviation is None:
        return ""
    (measured,) = [check.figure for check in exporting.checks if check.name == KL][:1] or [None]
    return f"{exporting.deviation}; " + (
        "the predictions were not compared" if measured is None else f"KL {measured:.2g} nats per token"
    )


def _passed(checks: Sequence[Check]) -> list[str]:
    """Return what was compared and found to be the same, in words."""
    return [
        f"KL {check.figure:.2g} nats per token" if check.name == KL else check.detail
        for check in checks
        if check.verdict == PASS and (check.name == KL or check.name not in KL_NAMES)
    ]
