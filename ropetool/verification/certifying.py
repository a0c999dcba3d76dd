"""The certificate of a finished verification."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from ropetool import __version__
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import Certificate
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.plans import model_card
from ropetool.verification.results import CUSTOM, VerifyResult


def certified(result: VerifyResult, target: Path, place: Path | None, marked: str, command: str) -> VerifyResult:
    """Write the certificate if the result can have one, and return the result with a note about it.

    place: the file of the certificate; None writes it into the target's record.
    marked: the fingerprint of the target before the run.
    command: the command line of the run.
    Raises: ConfigError for single measurements with a `place`.
    """
    if result.suite == CUSTOM:
        if place is None:
            return result
        raise ConfigError(
            "a certificate requires a suite, not single measurements", where="--certificate", try_="--suite quick"
        )
    if place is None and result.cache_type is not None:
        note = "the record gets no certificate, because --cache-type applies only to this run; pass --certificate FILE to write one"
        return replace(result, notes=(*result.notes, note))
    if place is None and hub.origin(target) is not None:
        note = "ropetool does not write certificates into the Hub cache; pass --certificate FILE to write one"
        return replace(result, notes=(*result.notes, note))
    lengths = (
        tuple(entry.length for entry in result.lengths)
        if result.answers is None
        else tuple(filter(None, [result.answers.length]))
    )
    versions = {"ropetool": __version__, "python": platform.python_version(), "runtime": result.runtime}
    new = Certificate(
        verdict=result.verdict,
        suite=result.suite,
        longest=max(lengths, default=0),
        checks=tuple(vars(check) for check in result.checks),
        text_fingerprint=result.text_fingerprint,
        versions=versions,
        command=model_card.portable(command),
        made=certificate.now(),
        fingerprint=marked,
        full_hash=fingerprints.is_full(marked),
        lengths=lengths,
        baseline=result.baseline,
        texts=result.texts,
        unbound=fingerprints.unbound(target, marked),
        grade=result.grade,
        cache_type=result.cache_type,
    )
    reach_note = certificate.reach(new.to_json())
    if reach_note:
        result = replace(result, notes=(*result.notes, reach_note))
    file = place or provenance.place(target)
    kept = certificate.kept(target, new, place)
    if kept:
        state = {"file": str(file), "written": False, "kept": kept}
        return replace(result, certificate=state, notes=(*result.notes, kept))
    written = certificate.write(target, new, place)
    if written is not None and place is None:
        model_card.refresh(target, new.to_json())
    if written is None:
        return result
    state = {"file": str(written), "written": True, "kept": ""}
    return replace(result, certificate=state, notes=(*result.notes, f"certificate: {written}"))
