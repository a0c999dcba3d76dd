"""Compare the exported tokenizer with the original one: several hundred texts through llama.cpp and tokenizers.

Both are optional packages. Without them, the result is a check that did not run.
"""

from __future__ import annotations

import itertools
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ropetool import names
from ropetool.errors import LossyExport, lacking
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.writer import encode_head
from ropetool.verification.results import NOT_RUN, PASS, Check

# Each text is checked separately, and followed by each text.
TEXTS = (
    "Hello world", " I'm sure they'll say IT'S fine, don't you think?", "12345 and 3.14159, 1,000,000", "\n\n", "\t", "    ",
    "def f(x):\n    return x ** 2  # comment\r\n", "https://example.org/a?b=c&d=%20", "!!!???...;;-- (x) [y] {z}", "<|x|>",
    "caf\u00e9 na\u00efve stra\u00dfe", "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\u03b1\u03b2\u03b3 \u00bd \u00b2",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u2764\ufe0f\U0001f680\U0001f469\u200d\U0001f467",
    "\u041f\u0440\u0438\u0432\u0435\u0442\u041c\u0438\u0440 camelCase HTMLParser", "e\u0301\u0323", "\u3000x\u00a0y",
)  # fmt: skip
TOKENS, TOKENS_KEY = "tokens", "tokenizer.ggml.tokens"
MOST_ADDED = 1000
_SIZES = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")


def check_tokens(path: Path, values: Mapping[str, Value], notes: Sequence[str], *, compose: bool = True) -> Check:
    """Return a check that the tokens of all texts equal the original tokens, or a check that could not run.

    values: the keys from tokenizer_values for this checkpoint.
    notes: its notes. If there are any, texts that llama.cpp may treat differently are left out.
    compose: if the tokenizer composes text (NFC), give composed text to llama.cpp, because it does not compose text itself.
      An import compares the rest in this way, and its notes name the difference. An export has no such note.
    Raises: LossyExport with a text whose tokens differ.
    """
    file = path / names.TOKENIZER_JSON
    if not file.is_file():
        return Check(TOKENS, None, None, NOT_RUN, f"there is no {names.TOKENIZER_JSON} to compare with")
    if absent := lacking(("llama_cpp", "tokenizers")):
        return Check(TOKENS, None, None, NOT_RUN, absent)
    texts = [text for text in _texts() if not notes or _is_plain(text)]
    both, composed = _both(file, values, texts, compose)
    wrong = [text for text, theirs, llama_cpp in both if theirs != llama_cpp]
    if wrong:
        text = min(wrong, key=len)
        raise LossyExport(
            f"{len(wrong)} of {len(both)} texts get different tokens in llama.cpp, for example {text!r}", where=str(file),
            try_="--no-check, if the difference does not matter",
        )  # fmt: skip
    first = ", composed before" if composed else ""
    return Check(TOKENS, None, None, PASS, f"{len(both)} texts get the same tokens in tokenizers and llama.cpp{first}")


def _texts() -> Iterator[str]:
    yield from TEXTS
    yield from (a + b for a, b in itertools.product(TEXTS, repeat=2))


def _is_plain(text: str) -> bool:
    """Return whether the text is free of marks, spaces and cases that llama.cpp may split differently."""
    marked = any(unicodedata.category(letter).startswith("M") for letter in text)
    composed = unicodedata.is_normalized("NFKC", text)
    spaced = text[:1].isspace() or any(letter.isspace() and letter > "\x7f" for letter in text)
    cased = any(a > "\x7f" and a.islower() and b.isupper() for a, b in itertools.pairwise(text))
    return composed and not (marked or spaced or cased or "<|" in text)


def _both(
    file: Path, values: Mapping[str, Value], texts: Sequence[str], compose: bool
) -> tuple[list[tuple[str, list[int], list[int]]], bool]:
    """Return the texts and added tokens' texts, each with the tokens from the tokenizers library and llama.cpp.

    Also return whether llama.cpp got composed text.
    """
    from tokenizers import Tokenizer, normalizers

    from ropetool.verification.runners.llama_library import free, library, load, tokens_of

    tokenizer = Tokenizer.from_file(str(file))
    tokens = values[TOKENS_KEY].decode()  # without added tokens that have no row in the embedding
    assert isinstance(tokens, list)
    added = (token.content for number, token in tokenizer.get_added_tokens_decoder().items() if number < len(tokens))
    texts = [*texts, *itertools.islice(added, MOST_ADDED)]
    theirs = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    lib = library()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "vocabulary.gguf")
        target.write_bytes(_vocabulary_file(values))
        model = load(lib, target, gpu=False, vocabulary_only=True)
    try:
        vocabulary = lib.llama_model_get_vocab(model)
        composed = compose and isinstance(tokenizer.normalizer, normalizers.NFC)
        read = [tokenizer.normalizer.normalize_str(text) for text in texts] if composed else texts
        ours = [tokens_of(lib, vocabulary, text) for text in read]
    finally:
        free(lib, model)
    return list(zip(texts, theirs, ours, strict=True)), composed


def _vocabulary_file(values: Mapping[str, Value]) -> bytes:
    """Return a GGUF file without tensors, for a llama model with arbitrary sizes."""
    sizes = {f"llama.{name}": Value.of(ValueType.U32, 8) for name in _SIZES}
    everything = {
        "general.architecture": Value.of(ValueType.STR, "llama"), **sizes,
        "llama.attention.layer_norm_rms_epsilon": Value.of(ValueType.F32, 1e-5), **values,
    }  # fmt: skip
    return b"".join(encode_head(everything, tensors=0))
