"""The byte-level BPE of a GGUF file (tokenizer.ggml.model gpt2) as tokenizer.json.

tokenizer.ggml.pre determines the split of text, by the same table as in export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ropetool.errors import CorruptFile, LossyExport, did_you_mean
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import is_text, shown
from ropetool.gguf_import.tokenizer.core import Component, Core, bpe, sequence
from ropetool.gguf_import.tokenizer.vocabulary import AGAIN, MAX_MERGES, MERGES, PRE, Vocabulary, read_text, read_texts
from ropetool.gguf_model.tokenizer.pretokenizer_names import DIGIT, GPT2, PRE_TOKENIZERS, PreTokenizer, composes

ORIGINAL = "copy tokenizer.json and tokenizer_config.json of the original model into the output"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def read_pre_tokenizer(values: Mapping[str, Value], where: str) -> tuple[str, PreTokenizer]:
    """Return the name in tokenizer.ggml.pre and its pre-tokenizer.

    Raises: LossyExport if the name is missing or unknown.
    """
    name = read_text(values, PRE, where)
    if name is None:
        raise LossyExport(
            f"does not set {PRE}, so the split of text into words is unknown; llama.cpp then uses a special split",
            where=where, try_=f"{AGAIN}, or {ORIGINAL}",
        )  # fmt: skip
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise LossyExport(
            f"{PRE} is {shown(name)}{did_you_mean(name, PRE_TOKENIZERS)}; ropetool can write a tokenizer.json only for "
            f"{', '.join(PRE_TOKENIZERS)}", where=where, try_=ORIGINAL,
        )  # fmt: skip
    return name, known


def byte_level(values: Mapping[str, Value], vocabulary: Vocabulary, model_type: str, where: str) -> Core:
    """Return the parts of a byte-level BPE.

    Raises: LossyExport for an unknown split of text; CorruptFile for invalid merges.
    """
    name, pre = read_pre_tokenizer(values, where)
    model = bpe(vocabulary.ids, _merges(values, vocabulary, where), ignore_merges=pre.ignore_merges)
    notes: tuple[str, ...] = ()
    if pre.difference:
        notes += (
            f"the tokenizer splits text as {name} tokenizers do. llama.cpp splits some text differently: {pre.difference}",
        )
    composing = composes(name, model_type)
    if composing:
        notes += (
            f"the tokenizer composes text first (NFC), as {model_type} tokenizers do. llama.cpp does not: decomposed letters, "
            "such as e with a combining accent, get different tokens in llama.cpp",
        )
    return Core(
        model, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "NFC"} if composing else None, _pre_tokenizer(pre.splits), _BYTE_LEVEL, notes,
    )  # fmt: skip


def _pre_tokenizer(splits: tuple[str, ...]) -> Component | None:
    last = splits[-1] == GPT2  # ByteLevel contains this expression
    parts: list[Component] = [
        {"type": "Digits", "individual_digits": True}
        if split == DIGIT
        else {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits[: len(splits) - last]
    ]
    return sequence("pretokenizers", [*parts, {**_BYTE_LEVEL, "trim_offsets": True, "use_regex": last}])


def _merges(values: Mapping[str, Value], vocabulary: Vocabulary, where: str) -> Sequence[tuple[str, str]]:
    listed = read_texts(values, MERGES, MAX_MERGES, where)
    if listed is None:
        raise CorruptFile(f"does not set {MERGES}, which byte-level BPE requires", where=where, try_=AGAIN)
    merges: dict[tuple[str, str], None] = {}  # of equal merges, llama.cpp uses the first, but tokenizers the last
    ids = vocabulary.ids
    for number, merge in enumerate(listed):
        left, _, right = merge.partition(" ")
        if not (left and right) or not is_text(merge):
            shows = shown(merge) if is_text(merge) else "not UTF-8"
            raise CorruptFile(
                f"{MERGES}[{number}] is {shows}; it must be two tokens separated by a space", where=where, try_=AGAIN
            )
        missing = next((text for text in (left, right, left + right) if text not in ids), None)
        if missing is not None:
            raise CorruptFile(
                f"{MERGES}[{number}] is {shown(merge)}, but there is no token {shown(missing)}", where=where, try_=AGAIN
            )
        merges[left, right] = None
    return list(merges)
