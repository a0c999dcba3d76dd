"""The regular expressions that published models split text by, and llama.cpp's name for each.

Data alone: how a tokenizer.json spells such a split is for pretokenizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping

# Contractions, words with one sign in front, digits, signs with one space in front, line ends, other spaces.
# Source: llama.cpp 0.3.36 (llama-cpp-python's sources), src/llama-vocab.cpp, llm_tokenizer_bpe, "original regex".
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST
QWEN2 = _CONTRACTIONS + _WORDS + r"\p{N}" + _REST
QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What ByteLevel splits by where use_regex is true: the regular expression of GPT-2.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"

# Words in camel case come apart: large letters, then small ones.
_LARGE, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGN = r"[^\r\n\p{L}\p{N}]?"
_CAMEL_REST = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
GPT4O = (
    f"{_SIGN}{_LARGE}*{_SMALL}+{_CONTRACTIONS}?|{_SIGN}{_LARGE}+{_SMALL}*{_CONTRACTIONS}?|"
    + r"\p{N}{1,3}"
    + _CAMEL_REST
)
TEKKEN = f"{_SIGN}{_LARGE}*{_SMALL}+|{_SIGN}{_LARGE}+{_SMALL}*|" + r"\p{N}" + _CAMEL_REST

# DeepSeek's: one kind of letters after the other.
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

# llama.cpp's name by the expressions that text is split by, one after the other, and by ignore_merges.
# Source: llama.cpp src/llama-vocab.cpp, llm_tokenizer_bpe and load. The names behind a line split the same there; of
# such names the one is taken that leaves spaces alone where tokens become text again (clean_spaces), if there is one.
NAMES: Mapping[tuple[tuple[str, ...], bool], str] = {
    ((LLAMA3,), True): "llama-bpe",  # glm4
    ((LLAMA3,), False): "smaug-bpe",  # dbrx (phi-4, olmo 2, granite 4), chatglm-bpe
    ((QWEN2,), False): "qwen2",  # stablelm2
    ((QWEN35,), False): "qwen35",
    ((GPT2,), False): "gpt-2",  # olmo, mpt, gpt-neox, exaone4
    ((DIGIT, GPT2), False): "smollm",  # starcoder, refact (granite), command-r, exaone, minerva-7b
    ((GPT4O,), True): "granite-embed-multi-97m",  # llama 4, gpt-oss; gpt-4o, their own name, parts marks from letters
    ((TEKKEN,), True): "tekken",
    (DEEPSEEK_LLM, False): "deepseek-llm",
    (DEEPSEEK_CODER, False): "deepseek-coder",
    (DEEPSEEK_V3, False): "deepseek-v3",
}

# What a name still does otherwise, by the expressions.
_CASE = "a small letter beyond ASCII with a large one behind it, which stay one word there"
_SPACES = "spaces beyond ASCII, such as U+3000, which the expressions class with signs or letters"
DIFFERENCES: Mapping[tuple[str, ...], str] = {
    (GPT4O,): _CASE,
    (TEKKEN,): f"combining marks, which are parted from their letters there, and {_CASE}",
    DEEPSEEK_LLM: _SPACES,
    DEEPSEEK_CODER: _SPACES,
}
