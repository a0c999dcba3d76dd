"""The identity of a checkpoint, to detect changes since a plan.

It has a digest of each setting, and one digest of samples of the weights. It omits keys of positions, because decoded
tables are compared instead.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool import names
from ropetool.files.hf import Directory, data_start
from ropetool.files.regular import open_regular, unreadable

if TYPE_CHECKING:
    from ropetool.files.gguf import GgufHeader, Value

BLOCK = 64 << 10  # bytes
FEW = 8  # blocks between the first and the last: training changes every tensor
_CHUNK = 1 << 20
_DIGITS = 16  # digits of a setting's digest
_NAMED = 4  # settings that a message lists
# Keys on the origin, the training or the running of a model, which do not change the computation.
_WITHOUT_MEANING = frozenset({
    "architectures", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache",
    "initializer_range", "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "auto_map", "model_type", names.QUANTIZATION_CONFIG,
    "output_attentions", "output_hidden_states", "return_dict", "_attn_implementation", "pretraining_tp",
    "router_aux_loss_coef", "gradient_checkpointing", "text_config",
})  # fmt: skip
# Keys that the decoded tables cover.
_DECODED = frozenset({names.LAYER_TYPES, names.HEAD_DIM, names.MAX_POSITION_EMBEDDINGS, "use_sliding_window",
                      "max_window_layers", "no_rope_layers"})  # fmt: skip
_DECODED_WORDS = ("rope", "rotary", "max_position", "sliding_window", "context_length", "attention.temperature")


@dataclass(frozen=True)
class Identity:
    """The digests of a checkpoint.

    settings: a digest of each setting, by key.
    weights: one digest of all weights; empty for a checkpoint without weights.
    """

    settings: Mapping[str, str]
    weights: str

    def change(self, now: Identity) -> str:
        """Return the names of changed settings, or "weights", to start a message; empty if no known change."""
        keys = {**self.settings, **now.settings}
        changed = sorted(key for key in keys if self.settings.get(key) != now.settings.get(key))
        if changed:
            more = len(changed) - _NAMED
            return ", ".join(changed[:_NAMED]) + (f" and {more} more settings" if more > 0 else "")
        return "weights" if self.weights and now.weights and self.weights != now.weights else ""


def of_checkpoint(checkpoint: Directory) -> Identity:
    """Return the identity of a Hugging Face checkpoint, with or without weights.

    Raises: CheckpointError.
    """
    settings = {
        key: json.dumps(value, sort_keys=True).encode() for key, value in settings_of_config(checkpoint.config).items()
    }
    digest = hashlib.sha256()
    for file in checkpoint.weights:
        feed(digest, file, data_start(file), FEW, label=file.name)
    return _identity(settings, digest.hexdigest() if checkpoint.weights else "")


def of_gguf(headers: Sequence[GgufHeader], values: Mapping[str, Value], architecture: str) -> Identity:
    """Return the identity of a GGUF model, with or without tensors.

    Raises: CheckpointError.
    """
    settings = {
        key: value.label.encode() + bytes(value.raw) for key, value in settings_of_gguf(values, architecture).items()
    }
    digest = hashlib.sha256()
    for header in headers:
        digest.update(bytes(header.infos))  # not the keys, because keys without meaning may change
        feed(digest, header.path, header.data_start, FEW, begin=header.data_start)
    return _identity(settings, digest.hexdigest() if any(header.tensors for header in headers) else "")


def _identity(settings: Mapping[str, bytes], weights: str) -> Identity:
    return Identity({key: hashlib.sha256(text).hexdigest()[:_DIGITS] for key, text in settings.items()}, weights)


def settings_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config, and of the text model in it, that change the computation apart from positions."""
    settings = dict(config)
    for inner in (config.get(key) for key in names.TEXT_CONFIGS):
        settings |= inner if isinstance(inner, Mapping) else {}
    return {key: value for key, value in settings.items() if not _is_left_out(key)}


def is_of_positions(key: str) -> bool:
    """Return whether the decoded tables cover this key."""
    return key in _DECODED or any(word in key for word in _DECODED_WORDS)


def settings_of_gguf(values: Mapping[str, Value], architecture: str) -> dict[str, Value]:
    """Return the keys of an architecture, without its prefix, that change the computation apart from positions."""
    prefix = f"{architecture}."
    settings = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    return {key: value for key, value in settings.items() if not _is_left_out(key)}


def _is_left_out(key: str) -> bool:
    return key in _WITHOUT_MEANING or is_of_positions(key)


# --- bytes


def feed(
    digest: Any, file: Path, data_start: int | None, blocks: int, *, label: str = "", begin: int = 0, block: int = BLOCK
) -> None:
    """Add a file to a digest: the bytes from `begin` to `data_start`, and blocks at equal distances in the data.

    Adds the whole file if the data is short, or without `data_start`.

    data_start: the offset of the data, in bytes.
    blocks: the number of blocks between the first and the last.
    label: a name to add first, with the size of the file.
    block: the size of a block, in bytes.
    Raises: CheckpointError if the file cannot be read.
    """
    try:
        with open_regular(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if label:
                digest.update(os.fsencode(f"{label}\0{size}\0"))
            for start, end in _spans(size, data_start, blocks, begin, block):
                opened.seek(start)
                for at in range(start, end, _CHUNK):
                    digest.update(opened.read(min(_CHUNK, end - at)))
    except OSError as error:
        raise unreadable(error, str(file)) from error


def _spans(size: int, data_start: int | None, blocks: int, begin: int, block: int) -> list[tuple[int, int]]:
    """Return the byte ranges to add: both ends of the data, and `blocks` blocks between them."""
    if data_start is None or size - data_start <= (blocks + 2) * block:
        return [(begin, size)]
    last = size - block
    starts = [data_start + (last - data_start) * number // (blocks + 1) for number in range(blocks + 2)]
    return [(begin, data_start), *((start, start + block) for start in starts)]
