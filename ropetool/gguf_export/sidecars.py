"""The extra files of an export: a model card and a Modelfile.

plans.model_card has their text. This module fills it in from the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint import certificate
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.files import hub
from ropetool.plans import model_card, model_index
from ropetool.plans.serving import commands, gguf_lines
from ropetool.rope.deviation import Deviation
from ropetool.verification.results import KL, KL_NAMES, PASS, Check


@dataclass(frozen=True)
class Exporting:
    """An export, as the model card describes it.

    outtype: the type of the matrices.
    encoding: the form of the positions.
    context_length: in tokens.
    bakes: a phrase for each setting that is in the weights and not in the keys.
    checks: the comparisons with the checkpoint.
    command: the command line of the export.
    deviation: the difference between the tables of file and checkpoint; None if they are equal.
    """

    outtype: str
    encoding: str
    context_length: int
    bakes: tuple[str, ...]
    checks: tuple[Check, ...]
    command: str
    deviation: Deviation | None = None


def fresh_certificate(source: HfCheckpoint) -> Mapping[str, Any] | None:
    """Return the certificate of a checkpoint that ropetool wrote; None if it is missing or belongs to other bytes."""
    if source.record is None:
        return None
    state = certificate.state(source.path)
    return None if state.certificate is None or state.name == certificate.STALE else state.certificate.to_json()


def check(source: Path) -> None:
    """Raise CheckpointError if the model card of the source cannot be read, before an export that may take hours."""
    model_card.read_card(source / model_card.CARD)


def texts(
    source: HfCheckpoint, files: Sequence[Path], exporting: Exporting, certificate_json: Mapping[str, Any] | None
) -> dict[Path, str]:
    """Return the text of the card and of the Modelfile of these files, by path.

    certificate_json: the certificate of the source, or None.
    """
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
    card = model_card.with_verification(card, certificate_json, of_source=True)
    results = None if certificate_json is None else model_index.entry(certificate_json, names[0].name, of_source=True)
    return model_card.texts_beside(files, card, exporting.context_length, results)


def serving(files: Sequence[Path], context: int, sidecars: Collection[Path]) -> list[str]:
    """Return the command lines that serve the model. This includes a line for Ollama if the sidecars have a Modelfile."""
    place = model_card.modelfile_place(files)
    return gguf_lines(str(files[0]), context, place if place in sidecars else None)


def _inexact(exporting: Exporting) -> str:
    """Return the difference between file and checkpoint, in tables and logits. Empty if the tables are equal."""
    if exporting.deviation is None:
        return ""
    (measured,) = [check.figure for check in exporting.checks if check.name == KL][:1] or [None]
    return f"{exporting.deviation}; " + (
        "the predictions were not compared" if measured is None else f"KL {measured:.2g} nats per token"
    )


def _passed(checks: Sequence[Check]) -> list[str]:
    """Return a phrase for each comparison that passed."""
    return [
        f"KL {check.figure:.2g} nats per token" if check.name == KL else check.detail
        for check in checks
        if check.verdict == PASS and (check.name == KL or check.name not in KL_NAMES)
    ]
