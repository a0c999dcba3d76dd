"""The regular expressions that published models use to split text, and llama.cpp's names for them.

Export and import use this data. pretokenizer.py has the spelling of such a split in tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Contractions, words with one sign before them, digits, signs with one space before them, line ends, other spaces.
# Source: llama.cpp 0.3.36 (llama-cpp-python's sources), src/llama-vocab.cpp, llm_tokenizer_bpe, "original regex".
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST
QWEN2 = _CONTRACTIONS + _WORDS + r"\p{N}" + _REST
QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The regular expression of GPT-2, which ByteLevel uses if use_regex is true.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"

# Words in camel case are split: uppercase letters, then lowercase ones.
_LARGE, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGN = r"[^\r\n\p{L}\p{N}]?"
_CAMEL_REST = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
GPT4O = (
    f"{_SIGN}{_LARGE}*{_SMALL}+{_CONTRACTIONS}?|{_SIGN}{_LARGE}+{_SMALL}*{_CONTRACTIONS}?|"
    + r"\p{N}{1,3}"
    + _CAMEL_REST
)
TEKKEN = f"{_SIGN}{_LARGE}*{_SMALL}+|{_SIGN}{_LARGE}+{_SMALL}*|" + r"\p{N}" + _CAMEL_REST

# DeepSeek's: one class of letters after the other.
# Source: github.com/ggml-org/llama.cpp/pull/7033 prints the first two tokenizer.json, llama-vocab.cpp has the third.
LINE_END = r"[\r\n]"
LATIN = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
    "]+"
)
MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LLM = (LINE_END, LATIN, MARKS, r"\s+$", CJK, DIGIT)
DEEPSEEK_CODER = (LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    '[!"#$%&'
    r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# Export does not write these names, because their tokenizers have not been compared with llama.cpp's names yet.
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)" + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = _CONTRACTIONS + _WORDS + r"\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = (r"\p{N}{1,3}", _CONTRACTIONS + _WORDS + r"\p{N}+" + _REST)
_JAIS2 = (
    _CONTRACTIONS + _WORDS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}"
)  # fmt: skip
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    GPT4O.replace("{1,3}", ""),
)
_UFAKZEKA = QWEN2.removeprefix(_CONTRACTIONS + "|")


class PreTokenizer(NamedTuple):
    """The pre-tokenizer behind a name of llama.cpp.

    splits: the regular expressions that split the text in turn, from the tokenizers of models with this name.
    ignore_merges: whether words in the vocabulary skip the merges.
    add_bos: whether a text gets a bos token if the file lacks tokenizer.ggml.add_bos_token.
    difference: text that llama.cpp splits differently from these expressions; empty for no difference.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    difference: str = ""


_CASE = "it keeps a non-ASCII lowercase letter and a following uppercase letter in one word"
_MARKS = f"it separates combining marks from their letters, and {_CASE}"
_SPACES = "the tokenizer treats non-ASCII spaces, such as U+3000, as signs or letters"

# By llama.cpp's name, tokenizer.ggml.pre. Source: src/llama-vocab.cpp of llama.cpp, load and llm_tokenizer_bpe.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), PreTokenizer((LLAMA3,))),
    **dict.fromkeys(
        ("qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open", "grok-2"),
        PreTokenizer((QWEN2,)),
    ),
    "qwen35": PreTokenizer((QWEN35,)),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"),
        PreTokenizer((GPT2,)),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        PreTokenizer((DIGIT, GPT2)),
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((GPT4O,), difference=_MARKS)),
    "granite-embed-multi-97m": PreTokenizer((GPT4O,), ignore_merges=True, difference=_CASE),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True, difference=_MARKS),
    "deepseek-llm": PreTokenizer(DEEPSEEK_LLM, difference=_SPACES),
    "deepseek-coder": PreTokenizer(DEEPSEEK_CODER, difference=_SPACES),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), PreTokenizer(DEEPSEEK_V3)),
    "falcon": PreTokenizer(_FALCON),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((_BAILING,))),
    "seed-coder": PreTokenizer((_SEED,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "minicpm5": PreTokenizer(_MINICPM5, ignore_merges=True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "youtu": PreTokenizer(_YOUTU, ignore_merges=True, difference=_CASE),
    "ufakzeka": PreTokenizer((_UFAKZEKA,)),
}  # fmt: skip

# The name that an export writes, by splits and ignore_merges. Among equal splits, prefer a name whose decoding keeps
# spaces (clean_spaces). GPT4O does not use the name gpt-4o, for which llama.cpp separates marks from letters.
NAMES: Mapping[tuple[tuple[str, ...], bool], str] = {
    (PRE_TOKENIZERS[name].splits, PRE_TOKENIZERS[name].ignore_merges): name
    for name in (
        "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "gpt-2", "smollm", "granite-embed-multi-97m", "tekken",
        "deepseek-llm", "deepseek-coder", "deepseek-v3",
    )
}  # fmt: skip

# The model types whose tokenizers compose text (NFC), by the name of the pre-tokenizer. llama.cpp never composes text.
# Source: transformers 5.23.0, models/qwen2, qwen3_5, cohere and gpt_neox, tokenization_*.py, and the model types of
# these classes in models/auto/tokenization_auto.py.
_GPT_NEOX = frozenset({"gpt_neox", "olmo", "olmoe", "mpt"})
_COMPOSING: Mapping[str, frozenset[str]] = {
    "qwen2": frozenset({
        "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
        "qwen3_next", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text",
    }),
    "qwen35": frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}),
    "command-r": frozenset({"cohere", "cohere2"}),
    "olmo": _GPT_NEOX,
    "mpt": _GPT_NEOX,
    "gpt-2": _GPT_NEOX,
}  # fmt: skip


def composes(name: str, model_type: str) -> bool:
    """Return whether the tokenizer behind a name composes text (NFC) for a model of this type."""
    return model_type in _COMPOSING.get(name, ())
