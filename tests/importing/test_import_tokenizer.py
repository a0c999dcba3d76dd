"""The files that are written of a GGUF file's tokenizer, what is said of them, and keys that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizer_making import BYTE_PIECES, CONTROLS, NORMAL, PREFIX, UNUSED, USER_DEFINED, bpe, keyed, scored, value_of

from ropetool.errors import CorruptFile, LossyExport, RopetoolError
from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_import.tokenizer import tokenizer_files

NO_POST_PROCESSOR = "a GGUF file has no post-processor; the new one adds"


def tokenizer_json(values: dict[str, Value], model_type: str = "llama") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(tokenizer_files(values, model_type, "x.gguf")[0]["tokenizer.json"])
    return data


def config(values: dict[str, Value]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(tokenizer_files(values, "llama", "x.gguf")[0]["tokenizer_config.json"])
    return data


# --- byte-level BPE


def test_a_byte_level_bpe() -> None:
    files, notes = tokenizer_files(bpe(), "llama", "x.gguf")
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    data = json.loads(files["tokenizer.json"])
    assert data["model"]["vocab"] == {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4, "abc": 5, "<|end|>": 6}
    assert data["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert [(token["id"], token["content"], token["special"]) for token in data["added_tokens"]] == [
        (6, "<|end|>", True)
    ]
    assert (data["normalizer"], data["pre_tokenizer"]["use_regex"]) == (None, True)
    assert notes == (
        f"{NO_POST_PROCESSOR} nothing around a text (add_bos_token, add_eos_token)",
        "a GGUF file does not store lstrip, rstrip and single_word of added tokens; ropetool sets none of these flags",
    )
    assert json.loads(files["tokenizer_config.json"]) == {
        "add_bos_token": False, "add_eos_token": False, "eos_token": "<|end|>", "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip


def test_the_first_of_two_merges_alike_counts() -> None:
    merges = ["a b", "b c", "ab c", "a b"]
    values = bpe(
        merges=merges, tokens=["a", "b", "c", "ab", "bc", "abc", "x"], token_type=types(7), scores=zeros(7), eos_token_id=6
    )  # fmt: skip
    assert tokenizer_json(values)["model"]["merges"] == [["a", "b"], ["b", "c"], ["ab", "c"]]


def test_words_that_are_tokens_skip_the_merges_by_name() -> None:
    assert tokenizer_json(bpe(pre="llama-bpe", bos_token_id=6))["model"]["ignore_merges"] is True
    assert tokenizer_json(bpe(pre="smaug-bpe"))["model"]["ignore_merges"] is False


@pytest.mark.parametrize(("pre", "model_type", "composes"), [
    ("qwen2", "qwen2", True), ("qwen2", "qwen3_moe", True), ("qwen2", "stablelm", False), ("qwen35", "qwen3_5", True),
    ("command-r", "cohere", True), ("gpt-2", "qwen2", False), ("llama-bpe", "llama", False),
])  # fmt: skip
def test_text_is_composed_for_the_models_that_do(pre: str, model_type: str, composes: bool) -> None:
    files, notes = tokenizer_files(bpe(pre=pre, bos_token_id=6), model_type, "x.gguf")
    assert (json.loads(files["tokenizer.json"])["normalizer"] == {"type": "NFC"}) == composes
    assert any("the tokenizer composes text first (NFC)" in note for note in notes) == composes


def test_what_llama_cpp_splits_otherwise_is_said() -> None:
    notes = tokenizer_files(bpe(pre="tekken", bos_token_id=6), "mistral", "x.gguf")[1]
    assert notes[0].startswith(
        "the tokenizer splits text as tekken tokenizers do. llama.cpp splits some text differently:"
    )


# --- around a text, special tokens, flags


@pytest.mark.parametrize(("bos", "eos", "single", "said"), [
    (True, False, ["<s>", "A"], "'<s>' before each text"), (False, True, ["A", "</s>"], "'</s>' after it"),
    (True, True, ["<s>", "A", "</s>"], "'<s>' before each text and '</s>' after it"),
    (False, False, None, "nothing around a text"),
])  # fmt: skip
def test_the_post_processor(bos: bool, eos: bool, single: list[str] | None, said: str) -> None:
    values = scored(add_bos_token=bos, add_eos_token=eos)
    files, notes = tokenizer_files(values, "llama", "x.gguf")
    made = json.loads(files["tokenizer.json"])["post_processor"]
    parts = made and [part[kind]["id"] for part in made["single"] for kind in part]
    assert parts == single
    assert f"{NO_POST_PROCESSOR} {said} (add_bos_token, add_eos_token)" in notes
    assert made is None or len(made["pair"]) == 2 * len(made["single"])


def test_what_the_file_does_not_say_is_as_in_llama_cpp() -> None:
    found = config(scored())
    assert (found["bos_token"], found["eos_token"], found["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)
    assert config(bpe(pre="llama-bpe", bos_token_id=6))["add_bos_token"] is True
    assert config(bpe(pre="glm4", bos_token_id=6))["add_bos_token"] is False
    assert (
        "the file does not set tokenizer.ggml.bos_token_id: the tokenizer uses '<s>', as llama.cpp does"
        in tokenizer_files(scored(), "llama", "")[1]
    )


def test_a_special_token_that_is_a_normal_word_is_said() -> None:
    notes = tokenizer_files(bpe(eos_token_id=0), "llama", "x.gguf")[1]
    assert "eos_token 'a' is a normal token: transformers matches it in text, llama.cpp does not" in notes
    assert [token["content"] for token in tokenizer_json(bpe(eos_token_id=0))["added_tokens"]] == ["a", "<|end|>"]


def test_a_padding_token_that_is_a_normal_word_is_not_named() -> None:
    notes = tokenizer_files(bpe(padding_token_id=0), "llama", "x.gguf")[1]
    assert any("padding_token_id is 'a', a normal token: left out" in note for note in notes)
    assert "pad_token" not in config(bpe(padding_token_id=0))
    assert [token["content"] for token in tokenizer_json(bpe(padding_token_id=0))["added_tokens"]] == ["<|end|>"]


def test_tokens_that_llama_cpp_knows_by_their_text_are_special() -> None:
    tokens = [("a", 0.0, NORMAL), ("<|im_end|>", 0.0, NORMAL), ("<tool>", 0.0, USER_DEFINED)]
    data = tokenizer_json(keyed("gpt2", tokens, pre="gpt-2", merges=Value.array(ValueType.STR, [])))
    assert [(token["content"], token["special"]) for token in data["added_tokens"]] == [
        ("<|im_end|>", True),
        ("<tool>", False),
    ]


def test_unused_rows_are_left_out() -> None:
    pieces = [
        ("a", -1.0, NORMAL),
        ("[PAD260]", -1.0, UNUSED),
        ("", 0.0, NORMAL),
        ("[PAD1]", -1.0, UNUSED),
        ("x", 0.0, UNUSED),
    ]
    values = scored(pieces)
    vocabulary = tokenizer_json(values)["model"]["vocab"]
    assert (vocabulary["a"], vocabulary["[PAD1]"], vocabulary["x"]) == (259, 262, 263)
    assert not {"[PAD260]", ""} & vocabulary.keys()
    assert "the tokenizer leaves out 2 rows without a token, the first 260" in tokenizer_files(values, "llama", "")[1]
    note = "tokenizer.ggml.padding_token_id is 260, a row without a token: left out"
    assert note in tokenizer_files(scored(pieces, padding_token_id=260), "llama", "")[1]


def test_spaces_behind_the_added_tokens_of_phi_3() -> None:
    values = {
        **scored([("<|user|>", 0.0, 3), ("a", -1.0, NORMAL)]),
        "general.name": Value.of(ValueType.STR, "Phi-3 mini"),
    }
    files, notes = tokenizer_files(values, "phi3", "x.gguf")
    added = json.loads(files["tokenizer.json"])["added_tokens"]
    assert {token["content"]: token["rstrip"] for token in added} == {
        "<unk>": False, "<s>": False, "</s>": True, "<|user|>": True,
    }  # fmt: skip
    assert any("ropetool sets rstrip, like llama.cpp for models with this name" in note for note in notes)


# --- SentencePiece


def test_a_bpe_by_scores() -> None:
    pieces = [
        (text, score, NORMAL) for text, score in (("a", -9.0), ("b", -9.0), ("ab", -2.0), ("aba", -1.0), ("ba", -3.0))
    ]
    data = tokenizer_json(scored(pieces))
    assert data["model"]["merges"] == [["ab", "a"], ["a", "ba"], ["a", "b"], ["b", "a"]]
    assert (data["model"]["byte_fallback"], data["model"]["unk_token"], data["pre_tokenizer"]) == (True, "<unk>", None)
    assert [step["type"] for step in data["normalizer"]["normalizers"]] == ["Prepend", "Replace"]
    plain = tokenizer_json(scored(pieces, add_space_prefix=False))
    assert plain["normalizer"] == {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    assert [step["type"] for step in plain["decoder"]["decoders"]] == ["Replace", "ByteFallback", "Fuse"]


def test_what_no_list_of_pairs_follows_is_said() -> None:
    tied = [(text, -1.0, NORMAL) for text in ("a", "b", "c", "ab", "bc")]
    assert tokenizer_files(scored(tied), "llama", "x.gguf")[1][0].startswith(
        "tokens 'ab' and 'bc', and maybe others, have the same score, -1"
    )
    runs = [(text, -1.0, NORMAL) for text in ("a", "aa", "aaa", "aaaa")]
    assert not any("score" in note for note in tokenizer_files(scored(runs), "llama", "x.gguf")[1])
    lacking = [("a", -1.0, NORMAL), ("a\u00e9", -1.0, NORMAL)]
    assert (
        "contains the letter '\u00e9', which has no token" in tokenizer_files(scored(lacking), "llama", "x.gguf")[1][0]
    )


# --- chat templates


def test_chat_templates() -> None:
    more = {"tokenizer.chat_template": value_of("{{ a }}"), "tokenizer.chat_template.tool_use": value_of("{{ b }}")}
    files, _ = tokenizer_files({**bpe(), **more}, "llama", "x.gguf")
    assert files["chat_template.jinja"] == "{{ a }}"
    assert files["additional_chat_templates/tool_use.jinja"] == "{{ b }}"
    assert len(files) == 4


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a.b", "x" * 65, "\u00e9"])
def test_a_template_whose_name_is_no_file_name(name: str) -> None:
    with pytest.raises(CorruptFile, match="is not a valid name of a chat template; names have 1 to 64 letters"):
        tokenizer_files({**bpe(), f"tokenizer.chat_template.{name}": value_of("x")}, "llama", "x.gguf")


# --- refused


def types(count: int) -> Value:
    return Value.array(ValueType.I32, [NORMAL] * count)


def zeros(count: int) -> Value:
    return Value.array(ValueType.F32, [0.0] * count)


def without(values: dict[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in values.items() if key != f"{PREFIX}{name}"}


NAN = Value.array(ValueType.F32, [float("nan")] * 262)
REFUSED: list[tuple[str, dict[str, Value], type[RopetoolError], str]] = [
    ("no model", without(bpe(), "model"), CorruptFile, "does not set tokenizer.ggml.model"),
    ("words", keyed("bert", CONTROLS), LossyExport, 'tokenizer.ggml.model is "bert"; ropetool writes a tokenizer.json only for gpt2'),
    ("a number for a model", bpe(model=3), CorruptFile, "tokenizer.ggml.model is 3; it must be text"),
    ("not UTF-8", bpe(model="\udcff"), CorruptFile, "tokenizer.ggml.model is text that is not UTF-8; it must be text"),
    ("no tokens", without(bpe(), "tokens"), CorruptFile, "does not set tokenizer.ggml.tokens"),
    ("tokens as numbers", bpe(tokens=zeros(7)), CorruptFile, "tokens is a list of 7 f32; it must be a list of at most"),
    ("one text", bpe(tokens="a"), CorruptFile, 'tokens is "a"; it must be a list'),
    ("two alike", bpe(tokens=[*"abca", "ab", "abc", "<|end|>"]), CorruptFile, 'tokens contains "a" twice, as 0 and 3'),
    ("half a letter", bpe(tokens=[*"abc\udcff", "ab", "abc", "<|end|>"]), CorruptFile, "which is not text"),
    ("a long token", bpe(tokens=[*"abc", "x" * 1025, "ab", "abc", "<|end|>"]), CorruptFile, "has a token of 1,025 letters"),
    ("types too few", bpe(token_type=types(6)), CorruptFile, "token_type is a list of 6 i32; it must be 7 of i32, one for each"),
    ("types too many", bpe(token_type=types(8)), CorruptFile, "token_type is a list of 8 i32"),
    ("types as floats", bpe(token_type=zeros(7)), CorruptFile, "token_type is a list of 7 f32"),
    ("a type", bpe(token_type=Value.array(ValueType.I32, [NORMAL] * 6 + [7])), CorruptFile, r"token_type\[6\] is 7; types must be 1 to 6"),
    ("no merges", without(bpe(), "merges"), CorruptFile, "does not set tokenizer.ggml.merges"),
    ("a merge of one", bpe(tokens=[*"abc ", "<|end|>"], merges=["ab"], token_type=types(5), scores=zeros(5), eos_token_id=4),
     CorruptFile, r'merges\[0\] is "ab"; it must be two tokens separated by a space'),
    ("a merge of strangers", bpe(tokens=[*"abc ", "ab", "<|end|>", "x"]), CorruptFile,
     r'merges\[1\] is "ab c", but there is no token "abc"'),
    ("no name", without(bpe(), "pre"), LossyExport, "does not set tokenizer.ggml.pre, so the split of text"),
    ("default", bpe(pre="default"), LossyExport, 'tokenizer.ggml.pre is "default".*; ropetool can write a .* only for llama-bpe'),
    ("a name misspelt", bpe(pre="qwen-2"), LossyExport, r'tokenizer.ggml.pre is "qwen-2" \(did you mean qwen2'),
    ("an id beyond", bpe(eos_token_id=7), CorruptFile, "eos_token_id is 7; it must be a token's id, 0 to 6"),
    ("a negative id", bpe(eos_token_id=Value.of(ValueType.I32, -1)), CorruptFile, "eos_token_id is -1; it must be"),
    ("an id as text", bpe(eos_token_id="x"), CorruptFile, 'eos_token_id is "x"; it must be'),
    ("a switch as a number", bpe(add_bos_token=1), CorruptFile, "add_bos_token is 1; it must be true or false"),
    ("nothing to add", bpe(add_bos_token=True), LossyExport, "add_bos_token is true, .*bos_token_id does not set a token"),
    ("nothing to add by default", bpe(pre="llama-bpe"), LossyExport, "add_bos_token is true, in the file or by llama.cpp's default"),
    ("no scores", without(scored(), "scores"), CorruptFile, "does not set tokenizer.ggml.scores"),
    ("scores too few", scored(scores=zeros(3)), CorruptFile, "scores is a list of 3 f32; it must be 262 of f32 or i32"),
    ("no number", scored(scores=NAN), CorruptFile, r"scores\[0\] is nan; scores must be finite"),
    ("a byte less", keyed("llama", [*CONTROLS, *BYTE_PIECES[:-1]]), LossyExport, "has no token <0xFF>; .* one for each byte"),
    ("no unknown", keyed("t5", [("a", 0.0, NORMAL)], add_eos_token=False), LossyExport, "does not set tokenizer.ggml.unknown_token_id"),
    ("a charsmap of text", keyed("t5", CONTROLS, unknown_token_id=0, add_eos_token=False, precompiled_charsmap=["a"]),
     CorruptFile, 'precompiled_charsmap is "arr of str" of 1; it must be 5 to'),
    ("a template", bpe() | {"tokenizer.chat_template": value_of(3)}, CorruptFile, "tokenizer.chat_template is 3; it must be text"),
    ("a long template", bpe() | {"tokenizer.chat_template": value_of("x" * (1 << 20) + "x")}, CorruptFile, "more than 1,048,576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "error", "text"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_keys_that_are_refused(values: dict[str, Value], error: type[RopetoolError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        tokenizer_files(values, "llama", "x.gguf")
    assert caught.value.where == "x.gguf"
    assert "\n" not in caught.value.sentence


def test_hostile_sizes_are_refused_soon() -> None:
    # A run of every length up to 1,024, in many letters: pairs by the million, each of two long texts.
    pieces = [(letter * count, -1.0, NORMAL) for letter in "abcdefgh" for count in range(1, 1025)]
    with pytest.raises(LossyExport, match="too long to list the merges"):
        tokenizer_files(
            scored([piece for piece in pieces if len(piece[0]) > 700 or len(piece[0]) == 1]), "llama", "x.gguf"
        )
    many = Value(ValueType.ARR, b"\x08\0\0\0" + (1 << 40).to_bytes(8, "little"))  # a count without texts
    with pytest.raises(CorruptFile, match="at most 1,048,576 texts"):
        tokenizer_files({**bpe(), f"{PREFIX}tokens": many}, "llama", "x.gguf")
