"""Recognise which of llama.cpp's pre-tokenizers a tokenizer.json needs, from the structure of the file.

llama.cpp identifies pre-tokenizers by name. A name also determines whether words in the vocabulary skip the merges. If
no name fits exactly, the error contains the regular expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ropetool.errors import LossyExport
from ropetool.files.hf.jsontext import shown
from ropetool.files.json_types import LIST, STRING, check_members, taken
from ropetool.gguf_model.tokenizer.merges import merges_make_every_token
from ropetool.gguf_model.tokenizer.pretokenizer_names import DIGIT, GPT2, NAMES, PRE_TOKENIZERS

NFC_NOTE = (
    "the tokenizer composes text first (NFC), llama.cpp does not: decomposed letters, such as e with a combining accent, "
    "get different tokens in llama.cpp"
)


def recognise(tokenizer: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """Return llama.cpp's name for the normaliser, pre-tokenizer and merging of a byte-level BPE, and notes.

    Raises: LossyExport if no name of llama.cpp fits; CorruptFile if the structure is invalid.
    """
    notes = _normaliser_notes(tokenizer.get("normalizer"), where)
    splits = tuple(_splits(tokenizer.get("pre_tokenizer"), where))
    name = _name(splits, tokenizer, where)
    difference = PRE_TOKENIZERS[name].difference
    if difference:
        notes += (f"llama.cpp splits some text differently: {difference}",)
    return name, notes


def _name(splits: tuple[str, ...], tokenizer: Mapping[str, Any], where: str) -> str:
    ignore_merges = tokenizer["model"].get("ignore_merges", False) is True
    if (splits, ignore_merges) in NAMES:
        return NAMES[splits, ignore_merges]
    known = NAMES.get((splits, not ignore_merges))
    if known is not None and merges_make_every_token(tokenizer):
        return known
    if known is not None:
        raise LossyExport(
            f"splits text like {known}, but has ignore_merges {str(ignore_merges).lower()}; llama.cpp sets the opposite for "
            f"{known}, and the merges do not produce every token", where=where,
        )  # fmt: skip
    spelled = " then ".join(splits) or "no regular expression"
    raise LossyExport(
        f"its pre-tokenizer is unknown: it splits text by {spelled}; known: {', '.join(NAMES.values())}", where=where
    )


def _normaliser_notes(normaliser: Any, where: str) -> tuple[str, ...]:
    types = [step["type"] for step in steps_of(normaliser, "normalizers", where)]
    others = [step_type for step_type in types if step_type != "NFC"]
    if others:
        raise LossyExport(
            f"normalises text by {others[0]}, which llama.cpp does not do for byte-level BPE", where=where
        )
    return (NFC_NOTE,) if types else ()


def _splits(pre_tokenizer: Any, where: str) -> Iterator[str]:
    """Yield the regular expressions that split the text, in order. ByteLevel must be the last step."""
    steps = list(steps_of(pre_tokenizer, "pretokenizers", where))
    if not steps or steps[-1]["type"] != "ByteLevel":
        raise LossyExport("does not encode text as bytes: its last pre-tokenizer is not ByteLevel", where=where)
    for step in steps[:-1]:
        yield _expression(step, where)
    if steps[-1].get("add_prefix_space", True) is True:
        raise LossyExport("adds a space before each text (add_prefix_space); llama.cpp does not", where=where)
    if steps[-1].get("use_regex", True) is True:
        yield GPT2


def _expression(step: Mapping[str, Any], where: str) -> str:
    """Return the regular expression of a step that splits text and keeps every character, each match separate."""
    step_type, pattern = step["type"], step.get("pattern")
    if step_type == "Digits" and step.get("individual_digits") is True:
        return DIGIT
    expression = pattern.get("Regex") if step_type == "Split" and isinstance(pattern, Mapping) else None
    if not isinstance(expression, str):
        raise LossyExport(f"llama.cpp does not support its pre-tokenizer {shown(dict(step))}", where=where)
    expression = expression.replace("\r", r"\r").replace("\n", r"\n")  # DeepSeek's files contain the raw characters
    # All known expressions except DIGIT match every character, so that keeping only the matches keeps everything.
    ways = [("Isolated", False)] + ([("Removed", True)] if expression != DIGIT else [])
    if (step.get("behavior"), step.get("invert", False)) not in ways:
        raise LossyExport(
            f"splits text by {expression} with behavior {shown(step.get('behavior'))} and invert "
            f"{shown(step.get('invert'))}, which drops or joins parts; llama.cpp keeps each match separate",
            where=where,
        )
    return expression


def steps_of(part: Any, inner: str, where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normaliser or pre-tokenizer, and the steps inside sequences. Each step has a type."""
    if part is None:
        return
    check_members(part, {"type": STRING}, place="a tokenizer step", where=where)
    if part["type"] != "Sequence":
        yield part
        return
    for step in taken(part, inner, LIST, where):
        yield from steps_of(step, inner, where)
