"""The merges of a byte-level BPE, and errors for settings that llama.cpp does not support.

pretokenizer.py has the splitting of text before the merges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.hf.jsontext import shown
from ropetool.files.json_types import LIST, OBJECT, check_members


def check_byte_level(tokenizer: Mapping[str, Any], where: str) -> None:
    """Raise LossyExport unless a tokenizer.json with a BPE model is byte-level."""
    model, decoder = tokenizer["model"], tokenizer.get("decoder")
    if not isinstance(decoder, Mapping) or decoder.get("type") != "ByteLevel":
        raise LossyExport(f"is not byte-level: its decoder is {shown(decoder)}, not ByteLevel", where=where)
    if model.get("unk_token") and not _byte_letters() <= model["vocab"].keys():
        raise LossyExport("uses unk_token for bytes without a token; llama.cpp drops such bytes", where=where)


def check_bpe(model: Mapping[str, Any], where: str) -> None:
    """Raise an error unless llama.cpp supports this BPE.

    Raises: CorruptFile if vocab or merges are missing or invalid; LossyExport for a setting that llama.cpp ignores.
    """
    check_members(model, {"vocab": OBJECT, "merges": LIST}, where=where)
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise LossyExport(f"sets {key} {shown(model[key])}, which llama.cpp does not support", where=where)
    for merge in model["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        left, right = parts if isinstance(parts, list) and len(parts) == 2 else ("", "")
        if not (isinstance(left, str) and isinstance(right, str) and left and right):
            raise CorruptFile(f"the merge {shown(merge)} must be a pair of tokens", where=where)
        if " " in left or " " in right:
            raise CorruptFile(
                f"the merge {shown(merge)} contains a space inside a token, which byte-level BPE does not allow",
                where=where,
            )


def _byte_letters() -> set[str]:
    """Return byte-level BPE's letters for the 256 bytes: visible bytes stay, the others are letters from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return {chr(byte) for byte in seen} | {chr(256 + at) for at in range(256 - len(seen))}
