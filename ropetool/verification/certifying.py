"""The certificate of a finished verification."""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool import __version__
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import Certificate
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.plans import model_card
from ropetool.verification.gate import LENGTHS, LONG, SHORT, YARDSTICK
from ropetool.verification.measures.rotary import ROTATION
from ropetool.verification.readback.terms import DRESS, FILES, TABLES, WEIGHTS
from ropetool.verification.results import CUSTOM, LengthResult, VerifyResult, is_true
from ropetool.verification.verdict.answers import Question

OF_FILES = (TABLES, WEIGHTS, FILES, DRESS, ROTATION, YARDSTICK)  # the checks of the file, without a text


def summary(result: VerifyResult) -> dict[str, Any]:
    """Return the verdict, the answer about the file, and each measured perplexity ratio, for the model card.

    A question without bounds has no answer.
    """
    file = is_true(check for check in result.checks if check.name in OF_FILES)
    answers = result.answers
    measured: list[tuple[str, LengthResult | Question, int]]
    if answers is None:
        measured = [(LENGTHS, entry, entry.segments) for entry in result.lengths]
    else:
        questions = {SHORT: answers.short, LONG: answers.long}
        measured = [(name, question, question.texts) for name, question in questions.items() if question is not None]
    figures = [
        {"question": name, "length": figure.length, "ratio": figure.ratio, "lower": figure.lower, "upper": figure.upper,
         "texts": texts}
        for name, figure, texts in measured
        if figure.lower is not None and figure.upper is not None and math.isfinite(figure.upper)
    ]  # fmt: skip
    return {"verdict": result.verdict if answers is None else answers.verdict, "file": file, "figures": figures}


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
        summary=summary(result),
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
