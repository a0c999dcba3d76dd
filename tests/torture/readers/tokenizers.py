"""The readers of tokenizers: tokenizer.json, its settings, SentencePiece models."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import tokenizer_making as making

from torture.mutating import bytes_of, json_of
from torture.readers.base import Read, Reader, Slot, ignore


def tokenizers(folder: Path) -> Iterator[Reader]:
    from ropetool.gguf_model.tokenizer import tokenizer_values
    from ropetool.gguf_model.tokenizer.model_file import read_model_file

    settings = models.BY_HAND["llama"]
    pieces = [*making.CONTROLS, ("<0x0A>", 0.0, making.BYTE), ("▁a", -1.0, making.NORMAL), ("b", -2.0, making.NORMAL)]
    model_file = making.model_file(pieces, add_dummy_prefix=1, remove_extra_whitespaces=0)
    plain = making.by_hand()
    plain["model"]["vocab"] = dict(list(plain["model"]["vocab"].items())[:256]) | {"<|bos|>": 256, "<|eos|>": 257}
    words = [b"BPE", b"Unigram", b"WordPiece", b"ByteLevel", b"Split", b"<unk>", b"<0x0A>", "▁".encode(), b"Sequence"]
    file, beside = Slot(folder / "tokenizer" / "tokenizer.json"), Slot(folder / "tokenizer" / "tokenizer_config.json")

    def of(slot: Slot) -> Read:
        def read(data: bytes, rng: random.Random) -> None:
            slot(data)
            tokenizer_values(slot.path.parent, settings, models.ROWS)

        return read

    beside(json.dumps(making.TOKENIZER_CONFIG).encode())
    yield Reader(
        "tokenizer.json", [json.dumps(plain).encode(), json.dumps(_unigram()).encode()], json_of, of(file), words, 2
    )

    config_file = Slot(folder / "tokenizer-config" / "tokenizer_config.json")
    (config_file.path.parent / "tokenizer.json").write_text(json.dumps(plain))
    yield Reader(
        "tokenizer_config.json",
        [json.dumps(making.TOKENIZER_CONFIG).encode()],
        json_of,
        of(config_file),
        words,
        0.5,
    )

    model = Slot(folder / "pieces" / "tokenizer.model")
    yield Reader(
        "tokenizer.model", [model_file], bytes_of, lambda data, rng: ignore(read_model_file(model(data))), words
    )
    yield Reader("tokenizer.model, exported", [model_file], bytes_of, of(model), words)


def _unigram() -> dict[str, Any]:
    vocabulary = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["▁a", -1.0], ["b", -2.0], ["▁", -3.0]]
    return {
        "version": "1.0", "added_tokens": [making.added(number, text) for number, text in ((0, "<unk>"), (1, "<s>"), (2, "</s>"))],
        "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": None, "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False},
    }  # fmt: skip
