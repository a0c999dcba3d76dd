"""An export before anything is written: what goes into the file, after all that could stand against it has been asked.

Reads headers, config and tokenizer; no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropetool.checkpoint import provenance
from ropetool.checkpoint.opening import first_file, is_gguf
from ropetool.checkpoint.views import GgufView, HfView
from ropetool.errors import NotACheckpoint
from ropetool.escaping import command
from ropetool.files import hub, linking
from ropetool.files.gguf import Value, read_shards
from ropetool.files.hf import headers
from ropetool.gguf_export import files, metadata
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.outtypes import AUTO, is_made_by_libllama
from ropetool.gguf_export.shapes import Model, family_of, read_model
from ropetool.gguf_export.shift_safe import ShiftSafe, shift_safe
from ropetool.gguf_export.splitting import Limits
from ropetool.gguf_export.tensors import Layout, lay_out
from ropetool.gguf_export.tokenizer import tokenizer_values
from ropetool.gguf_export.tokenizer.check import check_tokens
from ropetool.plans.hosts import HfHost
from ropetool.runtimes import inspection
from ropetool.runtimes.llama_cpp import exported
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.verification.results import Check
from ropetool.weights import view_of

SUFFIX = ".gguf"


@dataclass(frozen=True)
class Wish:
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


@dataclass(frozen=True, eq=False)
class Prepared:
    """An export that nothing stands against: what goes into the file, and the notes so far.

    bakes: in words, what its weights do that the checkpoint's keys ask for. window: of the checkpoint's sliding layers,
    where llama.cpp is allowed to attend to everything. checks: of the tokens.
    """

    host: HfHost
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


def prepare(source: Path, output: str | Path | None, wish: Wish) -> Prepared:
    """Return the export of a checkpoint; without an output it goes beside the source, as NAME-TYPE.gguf.

    Raises: what export_checkpoint does, but for what stands in the numbers of the weights.
    """
    if is_gguf(source):
        raise _is_gguf_already(source)
    host = HfHost.open(source, None)
    checkpoint, where = host.checkpoint, host.where
    family = family_of(host.family.model_type if host.family.gguf_architecture else host.name, where)
    if checkpoint.config_only:
        raise NotACheckpoint(
            "holds a config and no weights", where=str(host.path), try_="give a directory with weights, *.safetensors"
        )
    linking.check_links(host.path)  # its card and its chat template go into the file
    rope = inspection.understood(host.read(host.runtime), where)
    safe = shift_safe(view_of(checkpoint, host.family)) if wish.shift_safe else ShiftSafe(rope, {}, ())
    rotation = exported.rotation(
        safe.rope, HfView(checkpoint.config, host.family, where), rearch=wish.rearch,
        allow_full_attention=wish.allow_full_attention,
    )  # fmt: skip
    model = read_model(family, checkpoint.config, rotation.arch, rotation.head_dim, rotation.rotary_dim, where)
    layout = _layout(host, model, wish.outtype, rotation.interleaved, safe)
    written_as = wish.outtype if is_made_by_libllama(wish.outtype) else layout.outtype
    target = Path(output) if output is not None else _beside(host.path, written_as)
    # before the tokenizer, which takes a second
    file_notes = files.check(target, host.path, wish.limits, force=wish.force)
    if wish.sidecars:
        companions.check(host.path)

    general, card_notes = metadata.general_values(host.path, model, layout)
    values = general | metadata.model_values(model, layout)
    encoding, rope_notes = exported.encode(rotation, values, [placed.info for placed in layout.tensors], where)
    tokenizer, token_notes = tokenizer_values(host.path, checkpoint.config, model.counts["vocabulary"])
    values, name_notes = metadata.loadable(values, tokenizer["tokenizer.ggml.tokens"])
    checks = (check_tokens(host.path, tokenizer, token_notes),) if wish.check else ()
    notes = (
        *host.notes(),
        *layout.notes,
        *rotation.notes,
        *rope_notes,
        *token_notes,
        *card_notes,
        *name_notes,
        *file_notes,
    )
    return Prepared(
        host, target, layout, written_as, encoding, values | dict(encoding.keys) | tokenizer, model.arch,
        rotation.target.max_position_embeddings, safe.words, rotation.ignored_window, checks, notes,
    )  # fmt: skip


def _is_gguf_already(source: Path) -> NotACheckpoint:
    """Return the refusal of a GGUF file, with what does what was meant: by its record, an export of its checkpoint."""
    inspection.architecture(GgufView.of(read_shards(source)))  # what is no model is told as what it is
    made = provenance.record(first_file(source))
    if made is not None and made.kind == provenance.EXPORT and not provenance.source_problem(made):
        try_ = f"{command('ropetool', 'export', Path(made.source))}, its checkpoint"
    else:
        try_ = (
            f"{command('ropetool', 'extend', source)} --method yarn --factor 4, which reads GGUF files; llama-quantize "
            "changes the type of its matrices"
        )
    return NotACheckpoint("is a GGUF file already; a Hugging Face directory is exported", where=str(source), try_=try_)


def _layout(host: HfHost, model: Model, outtype: str, interleaved: bool, safe: ShiftSafe) -> Layout:
    """Return the layout; of a type that libllama makes that of the file which it reads, rounded as little as can be."""
    found, quantization = headers(host.checkpoint), host.checkpoint.config.get("quantization_config")

    def lay(outtype: str) -> Layout:
        return lay_out(
            found, model, outtype, interleaved=interleaved, where=str(host.path), quantization=quantization,
            gains=safe.gains,
        )  # fmt: skip

    if not is_made_by_libllama(outtype):
        return lay(outtype)
    layout = lay(AUTO)
    exact = lay("f32") if files.rounds(layout) else layout
    return replace(exact, notes=(*exact.notes, f"matrices are quantised to {outtype} by llama.cpp's own quantiser"))


def _beside(source: Path, outtype: str) -> Path:
    source = hub.beside(source).absolute()
    return source.with_name(f"{source.name}-{outtype.upper()}{SUFFIX}")
