"""Export to GGUF: a Hugging Face checkpoint as one file that llama.cpp runs, computing the same positions.

Tensors are streamed; what the file or llama.cpp cannot hold is refused, and so is what ropetool made and no passing
certificate covers. What differs otherwise is noted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import certificate, exported_rope, inspection, provenance
from ropetool.encodings_gguf import GgufEncoding
from ropetool.errors import CheckpointError, NotACheckpoint
from ropetool.exporting import container, metadata
from ropetool.exporting.container import Progress
from ropetool.exporting.sizes import kind_of, sizes
from ropetool.exporting.tensors import AUTO, Layout, lay_out
from ropetool.exporting.tokenizer import tokenizer_values
from ropetool.formats.gguf import Value
from ropetool.formats.hf import headers
from ropetool.formats.output import check_output, staged
from ropetool.hosts import HfHost
from ropetool.provenance import Provenance

SUFFIX = ".gguf"

__all__ = ["Exported", "Progress", "check_export", "export_checkpoint"]


@dataclass(frozen=True)
class Exported:
    """A file that was written. encoding: how its rotary table is stated. nbytes: its size."""

    output: Path
    arch: str
    outtype: str
    tensors: int
    nbytes: int
    encoding: str
    context_length: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {**vars(self), "output": str(self.output), "notes": list(self.notes)}


@dataclass(frozen=True, eq=False)
class _Prepared:
    """An export that nothing stands against: what goes into the file, and the notes so far."""

    host: HfHost
    target: Path
    layout: Layout
    encoding: GgufEncoding
    values: Mapping[str, Value]
    arch: str
    context_length: int
    notes: tuple[str, ...]


def export_checkpoint(
    source: str | Path,
    output: str | Path | None = None,
    *,
    outtype: str = AUTO,
    force: bool = False,
    allow_full_attention: bool = False,
    allow_unverified: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a checkpoint as a GGUF file, whole or not at all, and return what was written.

    Without an output it goes beside the source, as NAME-TYPE.gguf; its provenance goes beside it. `outtype` is the type
    of the matrices: f32, f16, bf16, or auto for the source's own. What ropetool made needs a fresh, passing certificate
    up to its whole context, unless `allow_unverified`. `progress` is told the tensor, the bytes done, and those of the
    whole file.
    Raises: CheckpointError for broken files and for a source without such a certificate, ConfigError for broken values,
    UnknownName for an unknown family or type, LossyExport for what a GGUF file or llama.cpp cannot hold, OutputError.
    """
    ready = _prepared(Path(source), output, outtype, force, allow_full_attention)
    gate_notes = _gate(ready, allow_unverified)
    made = _provenance(ready)
    record = provenance.beside(ready.target)
    with ExitStack() as stack:  # nothing is put in place before both are written
        beside = stack.enter_context(staged(record, ready.host.path, force=force or record.exists()))
        provenance.write(made, beside)
        stage = stack.enter_context(staged(ready.target, ready.host.path, force=force))
        nbytes = container.write(stage, ready.values, ready.layout, ready.encoding.tensors, progress or _ignore)
    return Exported(
        ready.target, ready.arch, ready.layout.outtype, len(ready.layout.tensors) + len(ready.encoding.tensors), nbytes,
        ready.encoding.name, ready.context_length, (*ready.notes, *gate_notes),
    )  # fmt: skip


def check_export(source: str | Path, output: str | Path, *, force: bool = False) -> None:
    """Return if export_checkpoint would write this, its certificate aside: before a verification of hours.

    Raises: what export_checkpoint does.
    """
    _prepared(Path(source), output, AUTO, force, allow_full_attention=False)


def _prepared(
    source: Path, output: str | Path | None, outtype: str, force: bool, allow_full_attention: bool
) -> _Prepared:
    host = HfHost.open(source, None)
    checkpoint, where = host.checkpoint, host.where
    kind = kind_of(host.family.model_type, where)
    if checkpoint.config_only:
        raise NotACheckpoint("holds a config and no weights", where=str(host.path))
    source_rope = inspection.understood(host.read(host.runtime), where)
    rotation = exported_rope.rotation(
        source_rope, host.family.gguf_architecture, where, allow_full_attention=allow_full_attention
    )
    shape = sizes(checkpoint.config, kind, rotation.arch, rotation.head_dim, where)
    layout = lay_out(headers(checkpoint), shape, outtype, interleaved=rotation.interleaved, where=str(host.path))
    target = Path(output) if output is not None else _beside(host.path, layout)
    check_output(target, host.path, force=force)  # before the tokenizer, which takes a second

    general, card_notes = metadata.general_values(host.path, shape, layout)
    values = general | metadata.model_values(shape, layout)
    encoding, rope_notes = exported_rope.encode(rotation, values, [placed.info for placed in layout.tensors], where)
    tokenizer, token_notes = tokenizer_values(host.path, checkpoint.config, shape.vocabulary)
    notes = (*host.notes(), *layout.notes, *rotation.notes, *rope_notes, *token_notes, *card_notes)
    everything = values | dict(encoding.keys) | tokenizer
    context = rotation.target.max_position_embeddings
    return _Prepared(host, target, layout, encoding, everything, shape.arch, context, notes)


def _gate(ready: _Prepared, allow_unverified: bool) -> tuple[str, ...]:
    """Return a note where no certificate is asked for.

    Raises: CheckpointError where one is, and none covers the context that the file would state.
    """
    path = ready.host.path
    if ready.host.made is None:
        return ("exported as it came, without a certificate: ropetool did not make this checkpoint",)
    if allow_unverified:
        return ("exported without asking for a certificate, as --allow-unverified says",)
    lacking = certificate.shortfall(path, ready.context_length)
    if lacking:
        raise CheckpointError(
            f"ropetool made it, and {lacking}",
            where=str(path), try_=f"ropetool verify {shlex.quote(str(path))} --suite quick",
        )  # fmt: skip
    return ()


def _provenance(ready: _Prepared) -> Provenance:
    """Return what the file says about its making: the source's own plan and trained length, as far as it has them."""
    host, made = ready.host, ready.host.made
    found = made or inspection.inspect_checkpoint(host.checkpoint)
    return Provenance(
        str(host.path.resolve()), provenance.fingerprint(host.path), found.trained_length, made.plan if made else {},
        export={"outtype": ready.layout.outtype, "encoding": ready.encoding.name},
    )  # fmt: skip


def _beside(source: Path, layout: Layout) -> Path:
    source = source.absolute()
    return source.with_name(f"{source.name}-{layout.outtype.upper()}{SUFFIX}")


def _ignore(tensor: str, done: int, total: int) -> None:
    """Be told of progress, and do nothing."""
