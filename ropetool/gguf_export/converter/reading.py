"""Check a converter's file: its format, its own consistency, and its sizes against the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CorruptFile, LossyExport, RopetoolError
from ropetool.files.gguf import ValueType
from ropetool.gguf_export.converter.finding import OPTION, Converter
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.folding import TWO_STACKS

EMBEDDING, TOKENS = "token_embd.weight", "tokenizer.ggml.tokens"


# Architectures whose graph skips the attention of a layer without a feed-forward (deci.cpp:147).
LOSES_ATTENTION = frozenset({"deci"})


def check_computed(file: GgufCheckpoint, where: str) -> None:
    """Raise LossyExport for a layer that llama.cpp skips."""
    heads, inner = listed(file, archs.HEAD_COUNT), listed(file, archs.FEED_FORWARD_LENGTH)
    lost = next(
        (layer for layer, (count, size) in enumerate(zip(heads, inner, strict=False)) if count and not size), None
    )
    if file.name in LOSES_ATTENTION and lost is not None:
        raise LossyExport(
            f"layer {lost} has attention but no feed-forward; llama.cpp skips the whole layer in {file.name} models",
            where=where,
        )


def checked(path: Path, checkpoint: HfCheckpoint, converter: Converter) -> GgufCheckpoint:
    """Return the converter's file.

    Raises: CorruptFile if the file is unreadable, or if its sizes differ from the config or from its own tensors.
    """
    where = f"{OPTION} {converter.script}"
    try:
        file = GgufCheckpoint.open(path)
        _ = file.name
        faults = list(_faults(file, checkpoint.section))
    except RopetoolError as error:
        raise CorruptFile(f"the converter wrote an unreadable file: {error.message}", where=where) from None
    if faults:
        raise CorruptFile(f"the converter wrote a file that contradicts the checkpoint: {faults[0]}", where=where)
    return file


def _faults(file: GgufCheckpoint, config: Mapping[str, Any]) -> Iterator[str]:
    drafts = _number(file, archs.NEXTN_LAYERS) or 0
    layers = config.get(names.NUM_HIDDEN_LAYERS)
    for suffix, required in (
        (archs.BLOCK_COUNT, None if layers is None else layers + drafts),
        (archs.EMBEDDING_LENGTH, config.get(names.HIDDEN_SIZE)),
        (archs.HEAD_COUNT, config.get(names.NUM_ATTENTION_HEADS)),
    ):
        number = _number(file, suffix)
        if number is not None and isinstance(required, int) and number != required:
            yield f"{file.name}.{suffix} is {number}, but {required} in {names.CONFIG_JSON}"
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        yield f"it has no {EMBEDDING} matrix"
        return
    columns, rows = embedding.shape
    if columns != _number(file, archs.EMBEDDING_LENGTH):
        yield f"{EMBEDDING} has rows of {columns} numbers, but {file.name}.{archs.EMBEDDING_LENGTH} differs"
    tokens = file.values.get(TOKENS)
    if tokens is not None and tokens.count != rows:
        yield f"{EMBEDDING} has {rows} rows for {tokens.count} tokens"
    heads, inner = listed(file, archs.HEAD_COUNT), listed(file, archs.FEED_FORWARD_LENGTH)
    empty = {layer for layer, sizes in enumerate(zip(heads, inner, strict=False)) if not any(sizes)}
    blocks = {
        int(name.split(".")[1]) for name in file.tensors if name.startswith("blk.") and name[4:5].isdigit()
    } | empty
    if blocks and blocks != {*range(max(blocks) + 1)}:
        yield f"it has no tensors of layer {min({*range(max(blocks))} - blocks)}"
    block_count = _number(file, archs.BLOCK_COUNT)
    stack = _number(file, TWO_STACKS[file.name]) if file.name in TWO_STACKS else None
    possible = {2 * stack} if stack is not None else {block_count, (block_count or 0) - drafts}
    if block_count is not None and max(blocks, default=-1) + 1 not in possible:
        yield f"it has tensors of {len(blocks)} layers, but {file.name}.{archs.BLOCK_COUNT} is {block_count}"


def _number(file: GgufCheckpoint, suffix: str) -> int | None:
    """Return a whole number that applies to all layers, or None if the key is missing or has a number per layer."""
    value = file.values.get(f"{file.name}.{suffix}")
    return int(str(value.decode())) if value is not None and value.type is ValueType.U32 else None


def listed(file: GgufCheckpoint, suffix: str) -> list[int]:
    """Return the numbers per layer of a key; an empty list if the key is missing or has one number for all layers."""
    value = file.values.get(f"{file.name}.{suffix}")
    numbers = None if value is None else value.decode()
    return [int(one) for one in numbers] if isinstance(numbers, list | np.ndarray) else []
