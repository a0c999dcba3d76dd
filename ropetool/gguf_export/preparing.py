"""An export before anything is written: what goes into the file, after all that could stand against it has been asked.

Reads headers, config and tokenizer; no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import LossyExport, NotACheckpoint
from ropetool.escaping import command
from ropetool.files import hub, linking
from ropetool.files.gguf import Value
from ropetool.files.gguf.splitting import Limits
from ropetool.gguf_export import files, metadata
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.outtypes import AUTO, is_made_by_libllama
from ropetool.gguf_export.shapes import Model, check_exported, read_model
from ropetool.gguf_export.shift_safe import ShiftSafe, shift_safe
from ropetool.gguf_export.tensors import Layout, lay_out
from ropetool.gguf_export.tokenizer import tokenizer_values
from ropetool.gguf_export.tokenizer.check import check_tokens
from ropetool.gguf_export.wrapped import text_config
from ropetool.plans.formats import HfFormat
from ropetool.rope.deviation import Deviation
from ropetool.runtimes.llama_cpp import exported
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.verification.results import Check
from ropetool.weights import bakeable

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
    limits: Limits = field(default_factory=Limits)
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
    form, where = HfFormat.of(checkpoint, None), checkpoint.where
    check_exported(checkpoint.family, where)
    check_weights(checkpoint)
    linking.check_links(checkpoint.path)  # its card and its chat template go into the file
    rope = form.read(checkpoint.runtime).understood(where)
    safe = shift_safe(bakeable(checkpoint).targets) if options.shift_safe else ShiftSafe(rope, {}, ())
    rotation = exported.rotation(
        safe.rope, checkpoint, rearch=options.rearch,
        allow_full_attention=options.allow_full_attention,
    )  # fmt: skip
    model = _model(checkpoint, rotation)
    layout = _layout(checkpoint, model, options.outtype, rotation.interleaved, safe)
    written_as = options.outtype if is_made_by_libllama(options.outtype) else layout.outtype
    target = Path(output) if output is not None else beside(checkpoint.path, written_as)
    # before the tokenizer, which takes a second
    file_notes = files.check(target, checkpoint.path, options.limits, force=options.force)
    if options.sidecars:
        companions.check(checkpoint.path)

    general, card_notes = metadata.general_values(checkpoint.path, model, layout)
    values = general | metadata.model_values(model, layout)
    encoding, rope_notes, deviation = _encoded(rotation, values, layout, where, options.allow_inexact)
    tokenizer, token_notes = tokenizer_values(checkpoint.path, text_config(checkpoint), model.counts["vocabulary"])
    values, name_notes = metadata.loadable(values, tokenizer["tokenizer.ggml.tokens"])
    checks = (check_tokens(checkpoint.path, tokenizer, token_notes),) if options.check else ()
    notes = (
        *form.notes(),
        *layout.notes,
        *rotation.notes,
        *rope_notes,
        *token_notes,
        *card_notes,
        *name_notes,
        *file_notes,
    )
    return Prepared(
        checkpoint, target, layout, written_as, encoding, values | dict(encoding.keys) | tokenizer, model.arch,
        rotation.target.max_position_embeddings, safe.words, rotation.ignored_window, checks, notes,
        deviation,
    )  # fmt: skip


def plain_layout(checkpoint: HfCheckpoint) -> Layout:
    """Return where a directory's tensors go, all in float32 but for those that are MXFP4 blocks already.

    Raises: LossyExport where no table says so, and what export_checkpoint does of its config and its headers.
    """
    check_exported(checkpoint.family, checkpoint.where)
    rope = HfFormat.of(checkpoint, None).read(checkpoint.runtime).understood(checkpoint.where)
    rotation = exported.rotation(rope, checkpoint, allow_full_attention=True)
    return _layout(checkpoint, _model(checkpoint, rotation), "f32", rotation.interleaved, ShiftSafe(rope, {}, ()))


def _model(checkpoint: HfCheckpoint, rotation: exported.Rotation) -> Model:
    return read_model(
        checkpoint.family, text_config(checkpoint), rotation.arch, rotation.head_dim, rotation.rotary_dim,
        checkpoint.where,
    )  # fmt: skip


def check_weights(checkpoint: HfCheckpoint) -> None:
    """Raise NotACheckpoint for a config without weights."""
    if checkpoint.directory.config_only:
        raise NotACheckpoint(
            "holds a config and no weights",
            where=str(checkpoint.path),
            try_="give a directory with weights, *.safetensors",
        )


def _encoded(
    rotation: exported.Rotation, values: Mapping[str, Value], layout: Layout, where: str, allow_inexact: bool
) -> tuple[GgufEncoding, tuple[str, ...], Deviation | None]:
    """Return the encoding of the positions, notes, and how far they are from the checkpoint's where that is allowed.

    Raises: LossyExport where no encoding holds them, with the size of the difference that allow_inexact would accept.
    """
    infos = [placed.info for placed in layout.tensors]
    try:
        return (*exported.encode(rotation, values, infos, where), None)
    except LossyExport as refusal:
        nearest = exported.approximate(rotation, values, infos, where)
        if nearest is None:
            raise
        if not allow_inexact:
            step = f"--allow-inexact, which writes the nearest that llama.cpp holds: {nearest.deviation}"
            refusal.try_ = f"{refusal.try_}; or {step}" if refusal.try_ else step
            raise
        note = f"positions are not exactly the checkpoint's, as --allow-inexact accepts: {nearest.deviation}"
        return replace(nearest.encoding, name=f"{nearest.encoding.name}, inexact"), (note,), nearest.deviation


def _is_gguf_already(source: Path, model: GgufCheckpoint) -> NotACheckpoint:
    """Return the refusal of a GGUF file, with what does what was meant: by its record, an export of its checkpoint."""
    _ = model.name  # what is not a model is told as what it is
    made = provenance.record(model.path)
    if made is not None and made.kind == provenance.EXPORT and not provenance.source_problem(made):
        try_ = f"{command('ropetool', 'export', Path(made.source))}, its checkpoint"
    else:
        try_ = (
            f"{command('ropetool', 'extend', source)} --method yarn --factor 4, which reads GGUF files; llama-quantize "
            "changes the type of its matrices"
        )
    return NotACheckpoint("is a GGUF file already; a Hugging Face directory is exported", where=str(source), try_=try_)


def _layout(checkpoint: HfCheckpoint, model: Model, outtype: str, interleaved: bool, safe: ShiftSafe) -> Layout:
    """Return the layout; of a type that libllama makes that of the file which it reads, rounded as little as can be."""
    found, quantization = checkpoint.headers, checkpoint.config.get("quantization_config")
    wrapped = checkpoint.family.wrapped

    def lay(outtype: str) -> Layout:
        return lay_out(
            found, model, outtype, interleaved=interleaved, where=str(checkpoint.path), quantization=quantization,
            gains=safe.gains, wrapped=wrapped,
        )  # fmt: skip

    if not is_made_by_libllama(outtype):
        return lay(outtype)
    layout = lay(AUTO)
    exact = lay("f32") if files.rounds(layout) else layout
    return replace(exact, notes=(*exact.notes, f"matrices are quantised to {outtype} by llama.cpp's own quantiser"))


def beside(source: Path, outtype: str) -> Path:
    """Return where an export goes that no output is named for: NAME-TYPE.gguf beside the checkpoint."""
    source = hub.beside(source).absolute()
    return source.with_name(f"{source.name}-{outtype.upper()}{SUFFIX}")
