"""An export before anything is written: what goes into the file, after all that could stand against it has been asked.

Reads headers, config and tokenizer; no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import NotACheckpoint
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.files.gguf import Value
from ropetool.files.gguf.splitting import SplitLimits
from ropetool.gguf_export import files
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.token_check import check_tokens
from ropetool.gguf_model.contents import body_of, check_source, keys_of
from ropetool.gguf_model.outtypes import AUTO, is_made_by_libllama
from ropetool.gguf_model.tensors import Layout
from ropetool.rope.deviation import Deviation
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.verification.results import Check

SUFFIX = ".gguf"


@dataclass(frozen=True)
class ExportOptions:
    """What a user may ask of an export. check: hold its tokens against the tokenizer's. sidecars: a card and a
    Modelfile beside it. The rest is as the options have it."""

    outtype: str = AUTO
    force: bool = False
    allow_full_attention: bool = False
    rearch: str = ""
    shift_safe: bool = False
    check: bool = True
    limits: SplitLimits = field(default_factory=SplitLimits)
    sidecars: bool = True
    allow_inexact: bool = False


@dataclass(frozen=True, eq=False)
class Prepared:
    """An export that nothing stands against: what goes into the file, and the notes so far.

    bakes: in words, what its weights do that the checkpoint's keys ask for. window: of the checkpoint's sliding layers,
    where llama.cpp is allowed to attend to everything. checks: of the tokens. deviation: of its tables from the checkpoint's,
    None where they are the same. converter: what wrote its tensors, where ropetool did not.
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


def prepare(source: Path | Checkpoint, output: str | Path | None, options: ExportOptions) -> Prepared:
    """Return the export of a checkpoint; without an output it goes beside the source, as NAME-TYPE.gguf.

    Raises: what export_checkpoint does, but for what stands in the numbers of the weights.
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
    # before the tokenizer, which takes a second
    file_notes = files.check(target, checkpoint.path, options.limits, force=options.force)
    if options.sidecars:
        companions.check(checkpoint.path)
    keys = keys_of(body, allow_inexact=options.allow_inexact)
    checks = (check_tokens(checkpoint.path, keys.tokenizer, keys.tokenizer_notes),) if options.check else ()
    rotation = body.rotation
    return Prepared(
        checkpoint, target, body.layout, written_as, keys.encoding, keys.values, body.model.arch,
        rotation.target.max_position_embeddings, body.bakes, rotation.ignored_window, checks,
        (*body.notes, *keys.notes, *file_notes), keys.deviation,
    )  # fmt: skip


def _is_gguf_already(source: Path, model: GgufCheckpoint) -> NotACheckpoint:
    """Return the refusal of a GGUF file, with what does what was meant: by its record, an export of its checkpoint."""
    _ = model.name  # what is not a model is told as what it is
    made = provenance.record(model.path)
    if made is not None and made.kind == provenance.EXPORT and not provenance.source_problem(made):
        try_ = f"{command('ropetool', 'export', Path(made.source))}, the checkpoint of this file"
    else:
        try_ = (
            f"{command('ropetool', 'extend', source)} --method yarn --factor 4 to extend it, or llama-quantize to change "
            "the type of its matrices"
        )
    return NotACheckpoint("is already a GGUF file; export reads Hugging Face directories", where=str(source), try_=try_)


def beside(source: Path, outtype: str) -> Path:
    """Return where an export goes that no output is named for: NAME-TYPE.gguf beside the checkpoint."""
    source = hub.beside(source).absolute()
    return source.with_name(f"{source.name}-{outtype.upper()}{SUFFIX}")
