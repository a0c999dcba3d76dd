"""Import of GGUF files: a Hugging Face checkpoint that computes the same as llama.cpp with the file.

The way back of an export, by the same tables: a file from which an export would not write these keys, tensors and
positions is refused. What a GGUF file does not hold is made up as said in the notes.
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
from ropetool.files.gguf import GGML_TYPES, ggml_type, model_name
from ropetool.files.transaction import transaction
from ropetool.gguf_export.comparing import compare
from ropetool.gguf_export.token_check import check_tokens
from ropetool.gguf_import.card import card_of
from ropetool.gguf_import.config import Described, described
from ropetool.gguf_import.tensors import Made, made_of, main_type, write_tensors
from ropetool.gguf_import.tokenizer import tokenizer_files
from ropetool.runtimes import inspection
from ropetool.verification import floors
from ropetool.verification.results import Check
from ropetool.verification.short_divergence import COMPARING_LOGITS, ModelLengths

__all__ = ["COMPARING_LOGITS", "DTYPES", "Imported", "import_gguf"]

AUTO = "auto"
DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
_IN_CONFIG = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Imported(Shown):
    """What was written. output: the directory. dtype: of its tensors, of `nbytes` bytes. encoding: how its rotation is stated.

    checks: how it compares with the file.
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
        """Return the facts as plain data."""
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
    """Write a GGUF file as a Hugging Face checkpoint, whole or not at all, and return what was written.

    Without an output it goes beside the source, under its name without .gguf. dtype: of the tensors, one of DTYPES, or auto for
    that of most of the file's numbers, bf16 where they stand in blocks. as_type: another model_type of the file's
    architecture than the one that bears its name. With `check` tokens, tables and logits are compared with the file's before
    the directory gets its name. `progress` is told the tensor, the bytes done, and those of the whole; in the stage
    COMPARING_LOGITS tokens.

    Raises: CheckpointError for broken files; ConfigError for broken values; LossyExport for what no class of transformers
    computes as the file says; VerificationFailed for a checkpoint that computes something else; OutputError.
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
    found = described(model, as_type)
    texts, token_notes = tokenizer_files(model.values, found.family.model_type, model.where)
    card, card_notes = card_of(model.values)
    made = made_of(found.wanted)
    stored = main_type(model) if dtype == AUTO else DTYPES[dtype]
    target = Path(output) if output is not None else _beside(model.path)
    texts |= {names.CONFIG_JSON: _config_text(found, stored), **({names.CARD: card} if card else {})} | _generation(
        found
    )
    context, trained = int(found.view.config[found.family.context_key]), _trained_length(model)
    lengths = ModelLengths(min(context, trained or context), context)
    with transaction(
        target, model.path, force=force, directory=True, may_replace=listings.directory_rule(target)
    ) as transacted:
        stage = transacted.stage(target)
        stage.mkdir()
        for name, text in texts.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text, encoding="utf-8")
        written = write_tensors(model, made, stage, stored, tell)
        checks = _compared(model, stage, stored, target, lengths, tell) if check else ()
        record = _record(model, found, stored, trained, stage)
        provenance.write(record, stage / names.PROVENANCE_JSON, target / names.PROVENANCE_JSON)
    notes = (
        *found.notes,
        *token_notes,
        *card_notes,
        *_type_notes(model, made, stored, written.rounded),
        *transacted.notes,
    )
    return Imported(
        target, found.family.model_type, model.name, stored, written.tensors, written.nbytes, found.encoding,
        context, checks, notes,
    )  # fmt: skip


def _compared(
    model: GgufCheckpoint, stage: Path, dtype: str, target: Path, lengths: ModelLengths, tell: Progress
) -> tuple[Check, ...]:
    """Return how the staged checkpoint compares with the file. Raises: VerificationFailed, LossyExport."""
    types = {each.dtype for each in model.stored.values() if len(each.shape) > 1}
    of_file = sorted({_rounding(dtype) for dtype in types})
    kinds = (*of_file, *({dtype.lower()} - set(of_file)))
    tokenizer = {key: value for key, value in model.values.items() if key.startswith("tokenizer.")}
    try:
        tokens = check_tokens(stage, tokenizer, ())
        return (tokens, *compare(stage, model.path, kinds, lengths, tell))
    except RopetoolError as error:
        error.where = str(target)
        raise


def _rounding(dtype: str) -> str:
    """Return the kind of noise of a type: what stands in blocks is decoded, and llama.cpp rounds its inputs to 8 bits."""
    if dtype in STORAGE:
        return dtype.lower()
    return floors.INPUTS_BY_256 if GGML_TYPES[ggml_type(dtype)].block == 256 else "q8_0"


def _beside(file: Path) -> Path:
    place = hub.beside(file)
    return place.with_name(model_name(place).removesuffix(".gguf"))


def _config_text(found: Described, dtype: str) -> str:
    config = {**found.view.config, "dtype": _IN_CONFIG[dtype]}
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _generation(found: Described) -> dict[str, str]:
    kept = {key: value for key, value in found.view.config.items() if key.endswith("_token_id")}
    return {"generation_config.json": json.dumps(kept, indent=2) + "\n"} if kept else {}


def _record(model: GgufCheckpoint, found: Described, dtype: str, trained: int | None, stage: Path) -> Provenance:
    return Provenance(
        str(model.path.resolve()), provenance.fingerprint(model.path), trained, {},
        export={"outtype": dtype.lower(), "encoding": found.encoding},
        files=listings.of_directory(stage, [names.PROVENANCE_JSON]),
    )  # fmt: skip


def _trained_length(model: GgufCheckpoint) -> int | None:
    try:
        return (model.record or inspection.inspect_checkpoint(model)).trained_length
    except RopetoolError:
        return None


def _type_notes(model: GgufCheckpoint, made: tuple[Made, ...], dtype: str, rounded: int) -> tuple[str, ...]:
    notes = []
    blocks = sorted({each.dtype for each in model.stored.values()} - STORAGE.keys())
    if blocks and dtype != "F32":
        notes.append(f"numbers in {', '.join(blocks)} blocks are rounded to {dtype}; --dtype f32 keeps them exact")
    if rounded:
        notes.append(f"{rounded} of {len(made)} tensors are rounded to {dtype}; --dtype f32 keeps them exact")
    return tuple(notes)
