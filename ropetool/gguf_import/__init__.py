"""Import of GGUF files: write a Hugging Face checkpoint that computes the same as llama.cpp with the file.

Import uses the tables of export in reverse. It refuses a file if an export would not write its keys, tensors and
positions. Notes list the values that a GGUF file does not contain and that import sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import listings, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import ConfigError, NotACheckpoint, RopetoolError
from ropetool.escaping import Shown, command
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import GGML_TYPES, ggml_type
from ropetool.files.shard_names import model_name
from ropetool.files.transaction import transaction
from ropetool.gguf_export.comparing import compare
from ropetool.gguf_export.token_check import check_tokens
from ropetool.gguf_import.card import card_of
from ropetool.gguf_import.config import Described, described
from ropetool.gguf_import.tensors import CheckpointTensor, checkpoint_tensors, main_type, write_tensors
from ropetool.gguf_import.tokenizer import tokenizer_files
from ropetool.runtimes import inspection
from ropetool.verification import floors
from ropetool.verification.results import COMPARING_LOGITS, Check
from ropetool.verification.short_divergence import ModelLengths

__all__ = ["COMPARING_LOGITS", "DTYPES", "Imported", "import_gguf"]

AUTO = "auto"
DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
_IN_CONFIG = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Imported(Shown):
    """The result of an import.

    output: the directory.
    model_type: the type of the checkpoint.
    arch: the architecture of the GGUF file.
    dtype: the type of the tensors.
    tensors: their number.
    nbytes: the bytes of all tensors.
    encoding: the name of the rope keys' form.
    context_length: in tokens.
    checks: the comparisons with the GGUF file.
    notes: sentences for the user.
    """

    output: Path
    model_type: str
    arch: str
    dtype: str
    tensors: int
    nbytes: int
    encoding: str
    context_length: int
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            **vars(self), "output": str(self.output), "checks": [vars(check) for check in self.checks], "notes": list(self.notes)
        }  # fmt: skip


def import_gguf(
    source: str | Path,
    output: str | Path | None = None,
    *,
    dtype: str = AUTO,
    as_type: str = "",
    check: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Write a GGUF file as a Hugging Face checkpoint, completely or not at all, and return the result.

    output: the directory; by default next to the source, with the source's name without .gguf.
    dtype: the type of the tensors, one of DTYPES. `auto` takes the most common type of the file, or bf16 for blocks.
    as_type: a model_type of the file's architecture, if not the one with the same name.
    check: compare tokens, tables and logits with the file before the directory gets its name.
    progress: called with the tensor, the bytes done and all bytes; in the stage COMPARING_LOGITS with tokens.

    Raises: CheckpointError for broken files; ConfigError for broken values; LossyExport if no class of transformers
    computes the same as llama.cpp; VerificationFailed if a comparison fails; OutputError.
    """
    if dtype not in (AUTO, *DTYPES):
        raise ConfigError(f"unknown type {dtype!r}; known: {', '.join((AUTO, *DTYPES))}", where="--dtype")
    model = open_checkpoint(Path(source))
    if not isinstance(model, GgufCheckpoint):
        raise NotACheckpoint(
            "is already a Hugging Face checkpoint; import reads GGUF files", where=str(model.path),
            try_=command("ropetool", "export", model.path),
        )  # fmt: skip
    tell = progress or nobody
    description = described(model, as_type)
    texts, token_notes = tokenizer_files(model.values, description.family.model_type, model.where)
    card, card_notes = card_of(model.values)
    checkpoint = checkpoint_tensors(description.expected)
    stored = main_type(model) if dtype == AUTO else DTYPES[dtype]
    target = Path(output) if output is not None else _beside(model.path)
    texts |= {
        names.CONFIG_JSON: _config_text(description, stored),
        **({names.CARD: card} if card else {}),
    } | _generation(description)
    context, trained = int(description.view.config[description.family.context_key]), _trained_length(model)
    lengths = ModelLengths(min(context, trained or context), context)
    with transaction(
        target, model.path, force=force, directory=True, may_replace=listings.directory_rule(target)
    ) as transacted:
        stage = transacted.stage(target)
        stage.mkdir()
        for name, text in texts.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text, encoding="utf-8")
        written = write_tensors(model, checkpoint, stage, stored, tell)
        checks = _compared(model, stage, stored, target, lengths, tell) if check else ()
        record = _record(model, description, stored, trained, stage)
        provenance.write(record, stage / names.PROVENANCE_JSON, target / names.PROVENANCE_JSON)
    notes = (
        *description.notes,
        *token_notes,
        *card_notes,
        *_type_notes(model, checkpoint, stored, written.rounded),
        *transacted.notes,
    )
    return Imported(
        target, description.family.model_type, model.name, stored, written.tensors, written.nbytes,
        description.encoding, context, checks, notes,
    )  # fmt: skip


def _compared(
    model: GgufCheckpoint, stage: Path, dtype: str, target: Path, lengths: ModelLengths, tell: Progress
) -> tuple[Check, ...]:
    """Return the comparisons of the staged checkpoint with the file. Raises: VerificationFailed, LossyExport."""
    types = {each.dtype for each in model.stored.values() if len(each.shape) > 1}
    of_file = sorted({_rounding(dtype) for dtype in types})
    noises = (*of_file, *({dtype.lower()} - set(of_file)))
    tokenizer = {key: value for key, value in model.values.items() if key.startswith("tokenizer.")}
    try:
        tokens = check_tokens(stage, tokenizer, ())
        return (tokens, *compare(stage, model.path, noises, lengths, tell))
    except RopetoolError as error:
        error.where = str(target)
        raise


def _rounding(dtype: str) -> str:
    """Return the name of a type's rounding noise. For blocks, the weights are decoded, but llama.cpp rounds its
    inputs to 8 bits.
    """
    if dtype in STORAGE:
        return dtype.lower()
    return floors.INPUTS_BY_256 if GGML_TYPES[ggml_type(dtype)].block == 256 else "q8_0"


def _beside(file: Path) -> Path:
    place = hub.beside(file)
    return place.with_name(model_name(place).removesuffix(".gguf"))


def _config_text(description: Described, dtype: str) -> str:
    config = {**description.view.config, "dtype": _IN_CONFIG[dtype]}
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _generation(description: Described) -> dict[str, str]:
    kept = {key: value for key, value in description.view.config.items() if key.endswith("_token_id")}
    return {"generation_config.json": json.dumps(kept, indent=2) + "\n"} if kept else {}


def _record(model: GgufCheckpoint, description: Described, dtype: str, trained: int | None, stage: Path) -> Provenance:
    return Provenance(
        str(model.path.resolve()), provenance.fingerprint(model.path), trained, {},
        export={"outtype": dtype.lower(), "encoding": description.encoding},
        files=listings.of_directory(stage, [names.PROVENANCE_JSON]),
    )  # fmt: skip


def _trained_length(model: GgufCheckpoint) -> int | None:
    try:
        return (model.record or inspection.inspect_checkpoint(model)).trained_length
    except RopetoolError:
        return None


def _type_notes(
    model: GgufCheckpoint, checkpoint: tuple[CheckpointTensor, ...], dtype: str, rounded: int
) -> tuple[str, ...]:
    notes = []
    blocks = sorted({each.dtype for each in model.stored.values()} - STORAGE.keys())
    if blocks and dtype != "F32":
        notes.append(f"numbers in {', '.join(blocks)} blocks are rounded to {dtype}; --dtype f32 keeps them exact")
    if rounded:
        notes.append(f"{rounded} of {len(checkpoint)} tensors are rounded to {dtype}; --dtype f32 keeps them exact")
    return tuple(notes)
