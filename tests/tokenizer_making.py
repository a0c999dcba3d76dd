"""Tokenizers of tests: files by hand, trained BPE and Unigram, SentencePiece models, and keys of a GGUF file.

Byte-level BPEs have the structure that published models have. llama.cpp reads the keys back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from token_strings import strings

from ropetool.files.gguf import Value, ValueType

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"
Scored = Sequence[tuple[str, float, int]]  # text, score and type of each piece
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # tiktoken's, with which Llama 3, phi-4, GLM-4 and OLMo 2 split
QWEN2 = CL100K.replace("{1,3}", "")
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(CONTRACTIONS + "?", "").replace("{1,3}", "")
LATIN = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
V3_WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
DIGITS = {"type": "Digits", "individual_digits": True}


SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<tool_call>")


# --- tokenizer.json by hand


def byte_letters() -> list[str]:
    """Return the letters that stand for the bytes, in the order of the bytes: GPT-2's table."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]


def split(expression: str, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def added(number: int, text: str, **more: Any) -> dict[str, Any]:
    habits = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": text, **habits, **more}


def template(*pieces: str, ids: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """Return a post-processor that puts special tokens around A."""
    ids = ids or {"<|bos|>": [256], "<|eos|>": [257]}
    single = [{"Sequence" if piece == "A" else "SpecialToken": {"id": piece, "type_id": 0}} for piece in pieces]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": numbers, "tokens": [text]} for text, numbers in ids.items()},
    }


def by_hand() -> dict[str, Any]:
    """Return a tokenizer of 256 bytes, three merges and three added tokens."""
    vocabulary = {letter: at for at, letter in enumerate(byte_letters())}
    # With the added tokens, as published ones have it: where the vocabulary lacks them, tokenizers numbers them anew.
    vocabulary |= {"<|bos|>": 256, "<|eos|>": 257, "he": 258, "Ġt": 259, "Ġthe": 260, "word": 261}
    return {
        "version": "1.0",
        "added_tokens": [added(256, "<|bos|>"), added(257, "<|eos|>"), added(261, "word", special=False)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(CL100K), BYTES]},
        "post_processor": template("<|bos|>", "A"),
        "decoder": BYTES,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": True,
            "vocab": vocabulary, "merges": [["h", "e"], ["Ġ", "t"], ["Ġt", "he"]],
        },
    }  # fmt: skip


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"},
    "chat_template": "{{ messages }}",
}  # fmt: skip


def write(folder: Path) -> None:
    """Write the tokenizer of `by_hand` into a checkpoint."""
    (folder / "tokenizer.json").write_text(json.dumps(by_hand()), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG), encoding="utf-8")


# --- trained byte-level BPE


BYTES, WORDS = byte_level(use_regex=False), byte_level(use_regex=True)
# The pre-tokenizer of each, with ignore_merges, as the model behind llama.cpp's name publishes them, and our name.
# Sources: llama-vocab.cpp ("original regex from tokenizer.json"); github.com/ggml-org/llama.cpp/pull/7033 for
# deepseek-llm, deepseek-coder and command-r; convert_hf_to_gguf_update.py for which model has which name.
PUBLISHED: dict[str, tuple[list[dict[str, Any]], bool, str]] = {
    "gpt-2": ([WORDS], False, "gpt-2"),
    "llama-bpe": ([split(CL100K), BYTES], True, "llama-bpe"),
    "glm4": ([split(CL100K), BYTES], True, "llama-bpe"),
    "dbrx": ([split(CL100K, "Removed", invert=True), BYTES], False, "smaug-bpe"),
    "qwen2": ([split(QWEN2), BYTES], False, "qwen2"),
    "stablelm2": ([split(QWEN2, "Removed", invert=True), BYTES], False, "qwen2"),
    "qwen35": ([split(QWEN35), BYTES], False, "qwen35"),
    "starcoder": ([DIGITS, WORDS], False, "smollm"),
    "command-r": ([DIGITS, WORDS], False, "smollm"),
    "gpt-4o": ([split(O200K), BYTES], False, "granite-embed-multi-97m"),
    "llama4": ([split(O200K), BYTES], True, "granite-embed-multi-97m"),
    "tekken": ([split(TEKKEN), BYTES], True, "tekken"),
    "deepseek-llm": (
        [split("[\r\n]"), split(LATIN), split(SIGNS), split("\\s+$"), split(CJK), DIGITS, BYTES], False, "deepseek-llm",
    ),
    "deepseek-coder": (
        [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(CJK), DIGITS, BYTES], False,
        "deepseek-coder",
    ),
    "deepseek-v3": (
        [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(V3_WORDS), BYTES], False,
        "deepseek-v3",
    ),
}  # fmt: skip


def trained(
    pre_tokenizer: Any, texts: Iterable[str], size: int, special: Sequence[str], *, ignore_merges: bool = False
) -> Tokenizer:
    """Return a byte-level BPE with merges of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def trained_on_strings(pre_tokenizer: Any, ignore_merges: bool) -> Tokenizer:
    """Return a tokenizer that is trained on other strings of the kind that it is tested with; the first token begins."""
    from tokenizers import processors

    tokenizer = trained(
        pre_tokenizer, strings(4000, [" ", "the"], seed=1), 3000, SPECIAL[:2], ignore_merges=ignore_merges
    )
    tokenizer.add_special_tokens([*SPECIAL[2:3]])
    tokenizer.add_tokens([*SPECIAL[3:]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)]
    )
    return tokenizer


def byte_level_tokenizer(steps: Sequence[dict[str, Any]], ignore_merges: bool) -> Tokenizer:
    """Return such a tokenizer with the pre-tokenizer of these steps."""
    from tokenizers import pre_tokenizers

    return trained_on_strings(pre_tokenizers.Sequence([_step(step) for step in steps]), ignore_merges)


def _step(step: dict[str, Any]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if step["type"] == "Digits":
        return pre_tokenizers.Digits(individual_digits=True)
    if step["type"] == "ByteLevel":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=step["use_regex"])
    return pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), step["behavior"].lower(), step["invert"])


# --- SentencePiece

CONTROLS = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTE_PIECES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
PIECES = [*CONTROLS, *BYTE_PIECES]


@cache
def bpe_pieces() -> Scored:
    """Return pieces as a SentencePiece BPE has them: control, bytes, pairs by rank, letters, each with score and type."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trainer_of = Tokenizer(models.BPE())
    trainer_of.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=2500, limit_alphabet=300, show_progress=False)
    trainer_of.train_from_iterator(strings(4000, ["the", "and"], seed=2), trainer)
    texts = [text for text, _ in sorted(trainer_of.get_vocab().items(), key=lambda item: item[1])]
    pairs = [text for text in texts if len(text) > 1]
    letters = [text for text in texts if len(text) == 1]
    pairs += [SPACE * n for n in (2, 3, 4, 8)]
    pairs = list(dict.fromkeys(pairs))
    return [*PIECES, *((text, -float(rank), NORMAL) for rank, text in enumerate([*pairs, *letters]))]


@cache
def unigram_pieces() -> Scored:
    """Return pieces as a Unigram has them: unknown and control, then by their logarithmic probability."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=2000, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    known = ("".join(letter for letter in text if letter < "\u0500") for text in strings(4000, ["the", "and"], seed=3))
    tokenizer.train_from_iterator(known, trainer)  # a Unigram has a piece for every letter that it is trained with
    listed = json.loads(tokenizer.to_str())["model"]["vocab"]
    types = {"<unk>": UNKNOWN, "<pad>": CONTROL, "</s>": CONTROL}
    return [(text, struct.unpack("f", struct.pack("f", score))[0], types.get(text, NORMAL)) for text, score in listed]


def merges_of(pieces: Scored) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE as published tokenizer.json files have them: each pair of a piece."""
    from transformers.convert_slow_tokenizer import generate_merges

    vocabulary = {text: number for number, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, type_ in pieces if type_ == NORMAL}
    skipped = {text for text, _, type_ in pieces if type_ != NORMAL}
    merges: list[tuple[str, str]] = generate_merges(vocabulary, scores, skipped)
    return merges


def bpe_tokenizer(pieces: Scored, style: str) -> Tokenizer:
    """Return a BPE with byte fallback, its spaces as in llama (Llama 2), metaspace (later Mistral) or gemma."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {text: number for number, (text, _, _) in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=merges_of(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spelled = normalizers.Replace(" ", SPACE)
    if style == "llama":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spelled])
    elif style == "gemma":
        tokenizer.normalizer = spelled
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|user|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram_tokenizer(pieces: Scored, charsmap: bytes = b"", unknown: int = 2) -> Tokenizer:
    """Return a Unigram as T5's is; with a charsmap runs of spaces count as one, too."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram([(text, score) for text, score, _ in pieces], unknown, byte_fallback=False))
    if charsmap:
        squeezed = normalizers.Replace(Regex(" {2,}"), SPACE)
        steps = [normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True), squeezed]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    tokenizer.add_special_tokens(["</s>", pieces[unknown][0]])
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return tokenizer


def model_file(pieces: Iterable[tuple[str, float, int]], model_type: int = 2, **normalizer: int | bytes) -> bytes:
    """Return a tokenizer.model: a protobuf with the pieces, the kind of model (1 Unigram, 2 BPE), and normalizer fields."""
    numbers = {"precompiled_charsmap": 2, "add_dummy_prefix": 3, "remove_extra_whitespaces": 4}
    known = list(pieces)
    listed = b"".join(
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, type_))
        for text, score, type_ in known
    )
    settings = b"".join(field(numbers[name], value) for name, value in normalizer.items())
    trainer = field(3, model_type) + field(4, len(known)) + field(35, int(any(type_ == BYTE for _, _, type_ in known)))
    return listed + field(2, trainer) + field(3, field(1, b"identity") + settings)


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protobuf message: its number and kind, and the value."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


# --- keys of a GGUF file

PREFIX = "tokenizer.ggml."


def keyed(model: str, tokens: Scored, /, **more: Any) -> dict[str, Value]:
    """Return the keys of a vocabulary; `more` by their names without the prefix: flags, ids, text and lists of text."""
    values = {
        "model": Value.of(ValueType.STR, model),
        "tokens": Value.array(ValueType.STR, [text for text, _, _ in tokens]),
        "scores": Value.array(ValueType.F32, [score for _, score, _ in tokens]),
        "token_type": Value.array(ValueType.I32, [type_ for _, _, type_ in tokens]),
        **{name: value_of(value) for name, value in more.items()},
    }
    return {f"{PREFIX}{name}": value for name, value in values.items()}


def value_of(value: Any) -> Value:
    if isinstance(value, list):
        return Value.array(ValueType.STR, value)
    kinds = {bool: ValueType.BOOL, int: ValueType.U32, str: ValueType.STR}
    return value if isinstance(value, Value) else Value.of(kinds[type(value)], value)


def bpe(letters: str = "abc ", merges: Iterable[str] = ("a b", "ab c"), **more: Any) -> dict[str, Value]:
    """Return the keys of a small byte-level BPE: letters, what merges make, and one control token."""
    listed = list(merges)
    texts = [*letters.replace(" ", "\u0120"), *(merge.replace(" ", "") for merge in listed), "<|end|>"]
    tokens = [(text, 0.0, CONTROL if text == "<|end|>" else NORMAL) for text in texts]
    return keyed("gpt2", tokens, **{"pre": "gpt-2", "merges": listed, "eos_token_id": len(texts) - 1, **more})


def scored(
    pieces: Scored = (("a", -1.0, NORMAL), ("b", -2.0, NORMAL), ("ab", 0.0, NORMAL)), **more: Any
) -> dict[str, Value]:
    """Return the keys of a SentencePiece BPE: special tokens, bytes, and these pieces."""
    return keyed("llama", [*PIECES, *pieces], **more)


# --- llama.cpp

Tokenise = Callable[[str], list[int]]


@contextmanager
def llama(values: dict[str, Any], path: Path) -> Iterator[Tokenise]:
    """Give a function that tokenises as llama.cpp does by these keys, which are written as a file without tensors."""
    from ropetool.verification.runners.llama_library import free, library, load, tokens_of

    write_vocabulary(values, path)
    lib = library()
    model = load(lib, path, gpu=False, vocabulary_only=True)
    vocabulary = lib.llama_model_get_vocab(model)
    try:
        yield lambda text: tokens_of(lib, vocabulary, text)
    finally:
        free(lib, model)


def write_vocabulary(values: dict[str, Any], path: Path) -> None:
    """Write a GGUF file of these keys and of the sizes that llama.cpp reads before it comes to the vocabulary."""
    from gguf_files import write

    sizes = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
    write(path, "llama", {**dict.fromkeys(sizes, 8), "attention.layer_norm_rms_epsilon": 1e-5})
    raw = path.read_bytes()
    extra = b"".join(
        struct.pack("<Q", len(key.encode())) + key.encode() + struct.pack("<I", int(value.type)) + bytes(value.raw)
        for key, value in values.items()
    )
    (count,) = struct.unpack_from("<Q", raw, 16)
    path.write_bytes(raw[:16] + struct.pack("<Q", count + len(values)) + raw[24:] + extra)
