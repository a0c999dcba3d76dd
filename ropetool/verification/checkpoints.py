"""Verification of a checkpoint as a user names it: finds its lengths, its baseline and its texts, then measures.

Target and baseline may each be a Hugging Face directory, run by transformers, or a GGUF file, run by llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool import inspection, names, provenance
from ropetool.errors import ConfigError
from ropetool.inspection import is_gguf
from ropetool.verification import default_lengths, verify
from ropetool.verification.llama_runner import LlamaRunner
from ropetool.verification.loss import Runner, VerifyResult
from ropetool.verification.texts import embedded_documents, read_documents
from ropetool.verification.torch_runner import TorchRunner


def verify_checkpoint(
    target: str | Path,
    *,
    baseline: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    lengths: Sequence[int] | None = None,
    **options: Any,
) -> VerifyResult:
    """Return the losses of the target and its baseline with growing context, and both verdicts for each length.

    Without a baseline, the source that the target was made from serves if it is unchanged, otherwise the target's
    own figures within its trained length. Without texts, the embedded documents serve. `options` are those of
    `verify`: max_ratio, segments, seed, device, dtype, progress.

    Raises: CheckpointError, ConfigError.
    """
    target = Path(target)
    made = provenance.read(target)
    notes: list[str] = []
    if baseline is None and made is not None:
        baseline = _unchanged_source(made, notes)
    context, trained = _lengths_of(target)
    if baseline is not None:
        trained = min(trained, _lengths_of(Path(baseline))[1])
        if is_gguf(target) != is_gguf(Path(baseline)):
            notes.append(f"{_runtime(target)} runs the target, {_runtime(Path(baseline))} the baseline")
    result = verify(
        target,
        baseline=Path(baseline) if baseline is not None else None,
        texts=read_documents([Path(text) for text in texts]) if texts else embedded_documents(),
        lengths=list(lengths) if lengths is not None else default_lengths(trained, max(trained, context)),
        trained_length=trained,
        context_length=context,
        runner=_open,
        **options,
    )
    return replace(result, notes=(*notes, *result.notes))


def _unchanged_source(made: provenance.Provenance, notes: list[str]) -> Path | None:
    """Return the source that the provenance names, if it is still what it was; otherwise say so."""
    source = Path(made.source)
    if not (is_gguf(source) or (source / names.CONFIG_JSON).is_file()):
        notes.append(
            f"the source {source} is gone: the target's own figures within {made.trained_length} tokens are the baseline"
        )
        return None
    if provenance.fingerprint(source) != made.source_fingerprint:
        notes.append(
            f"the source {source} has changed: the target's own figures within {made.trained_length} tokens are the baseline"
        )
        return None
    return source


def _runtime(path: Path) -> str:
    return "llama.cpp" if is_gguf(path) else "transformers"


def _open(path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
    make = LlamaRunner if is_gguf(path) else TorchRunner
    return make(path, device=device, dtype=dtype, report=report)


def _lengths_of(path: Path) -> tuple[int, int]:
    """Return the context that the checkpoint states, and the length it was trained on.

    Raises: ConfigError if it states neither.
    """
    found = inspection.inspect(path)
    stated = f"{found.model_type}.context_length" if is_gguf(path) else names.MAX_POSITION_EMBEDDINGS
    context = found.rope.max_position_embeddings if found.rope else found.stated.get(stated)
    trained = found.trained_length or context
    if type(context) is not int or type(trained) is not int:
        raise ConfigError(
            f"it states no {stated}, so its trained length is unknown",
            where=str(path if is_gguf(path) else path / names.CONFIG_JSON),
        )
    return context, trained
