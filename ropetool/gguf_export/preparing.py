"""Prepare an export: find the contents of the file, and run every check that is possible without the weights.

Reads headers, config and tokenizer, but no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import NotACheckpoint
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.files.gguf import Value
from ropetool.gguf_export import files
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.options import ExportOptions
from ropetool.gguf_model.contents import Keys, body_of, check_source, keys_of
from ropetool.gguf_model.outtypes import is_made_by_libllama
from ropetool.gguf_model.tensors import Layout
from ropetool.rope.deviation import Deviation
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.verification.results import Check

SUFFIX = ".gguf"


@dataclass(frozen=True, eq=False)
class PreparedExport:
    """An export that passed all checks before the weights are read.

    source: the checkpoint.
    target: the output file.
    layout: the tensors.
    outtype: the type of the matrices, for libllama's types the type after quantisation.
    encoding: the form of the positions in the keys and vectors.
    values: the keys.
    arch: llama.cpp's architecture.
    context_length: in tokens.
    bakes: a phrase for each setting that is in the weights and not in the keys.
    window: the sliding window in tokens that llama.cpp ignores; None without one.
    checks: the check of the tokens.
    notes: the notes so far.
    deviation: the difference between the tables of file and checkpoint; None if they are equal.
    converter: the converter's name; empty if ropetool converts the tensors.
    """

    source: HfCheckpoint
    target: Path
    layout: Layout
    outtype: str
    encoding: GgufEncoding
    values: Mapping[str, Value]
    arch: str
    context_length: int
    bakes: tuple[str, ...]
    window: int | None
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    deviation: Deviation | None = None
    converter: str = ""


def prepare(source: Path | Checkpoint, output: str | Path | None, options: ExportOptions) -> PreparedExport:
    """Return the export of a checkpoint. Without an output, the file is next to the source, as NAME-TYPE.gguf.

    Raises: the errors of export_checkpoint, except for errors in the numbers of the weights.
    """
    checkpoint = open_checkpoint(source)
    if isinstance(checkpoint, GgufCheckpoint):
        raise _is_gguf_already(checkpoint.path, checkpoint)
    check_source(checkpoint)
    body = body_of(
        checkpoint, options.outtype, rearch=options.rearch, allow_full_attention=options.allow_full_attention,
        safe_to_shift=options.shift_safe,
    )  # fmt: skip
    written_as = options.outtype if is_made_by_libllama(options.outtype) else body.layout.outtype
    target = Path(output) if output is not None else beside(checkpoint.path, written_as)
    # This check precedes the tokenizer, which takes a second.
    file_notes = files.check(target, checkpoint.path, options.limits, force=options.force)
    if options.sidecars:
        companions.check(checkpoint.path)
    keys = keys_of(body, allow_inexact=options.allow_inexact)
    checks = _token_checks(checkpoint, keys) if options.check else ()
    rotation = body.rotation
    return PreparedExport(
        checkpoint, target, body.layout, written_as, keys.encoding, keys.values, body.model.arch,
        rotation.target.max_position_embeddings, body.bakes, rotation.ignored_window, checks,
        (*body.notes, *keys.notes, *file_notes), keys.deviation,
    )  # fmt: skip


def _token_checks(checkpoint: HfCheckpoint, keys: Keys) -> tuple[Check, ...]:
    from ropetool.gguf_export.token_check import check_tokens  # only for an export that is checked

    return (check_tokens(checkpoint.path, keys.tokenizer, keys.tokenizer_notes, compose=False),)


def _is_gguf_already(source: Path, model: GgufCheckpoint) -> NotACheckpoint:
    """Return the error for a GGUF file, with a command: the export of the checkpoint in its record, or other steps."""
    _ = model.name  # raises a better error for a file that is not a model
    record = provenance.record(model.path)
    if record is not None and record.kind == provenance.EXPORT and not provenance.source_problem(record):
        try_ = f"{command('ropetool', 'export', Path(record.source))}, the checkpoint of this file"
    else:
        try_ = (
            f"{command('ropetool', 'extend', source)} --method yarn --factor 4 to extend it, or llama-quantize to change "
            "the type of its matrices"
        )
    return NotACheckpoint("is already a GGUF file; export reads Hugging Face directories", where=str(source), try_=try_)


def beside(source: Path, outtype: str) -> Path:
    """Return the default place of an export: NAME-TYPE.gguf next to the checkpoint."""
    source = hub.beside(source).absolute()
    return source.with_name(f"{source.name}-{outtype.upper()}{SUFFIX}")
