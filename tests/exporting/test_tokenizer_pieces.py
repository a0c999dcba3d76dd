"""SentencePiece vocabularies, from tokenizer.json and from tokenizer.model: keys, refusals, and the same token ids.

ROPETOOL_REAL_FILES names a folder with the vocabulary of Llama 2 as llama.cpp's own repository has it.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizer_making as making
from token_strings import strings
from tokenizer_making import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llama_cpp")
pytest.importorskip("transformers")

from ropetool.errors import CorruptFile, LossyExport, RopetoolError  # noqa: E402
from ropetool.files.gguf import Value, ValueType  # noqa: E402
from ropetool.gguf_export.token_check import check_tokens  # noqa: E402
from ropetool.gguf_model.tokenizer import tokenizer_values  # noqa: E402
from ropetool.gguf_model.tokenizer.model_file import read_model_file  # noqa: E402
from ropetool.gguf_model.tokenizer.pieces import CHARSMAP_NOTE  # noqa: E402
from ropetool.verification.results import PASS  # noqa: E402

LLAMA2 = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "vocab-gguf", "ggml-vocab-llama-spm.gguf")
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
PREFIX = "tokenizer.ggml."
SPACES = [
    "llama.cpp also adds a space before a text that begins with a space; the tokenizer does not",
    "llama.cpp adds a space after every special token, the tokenizer only before the whole text",
]


def exported(folder: Path, rows: int = 0, **files: Any) -> tuple[dict[str, Any], tuple[str, ...], dict[str, Value]]:
    """Return the decoded keys without their prefix, the notes, and the keys; files by name without dots."""
    known = {"tokenizer_json": "tokenizer.json", "tokenizer_model": "tokenizer.model"}
    for name, content in {"tokenizer_config": CONFIG, **files}.items():
        file = folder / known.get(name, f"{name}.json")
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(json.dumps(content) if isinstance(content, dict) else content.to_str())
    values, notes = tokenizer_values(folder, {}, rows or 4000)
    decoded = {key.removeprefix(PREFIX): value.decode() for key, value in values.items()}
    lists = {key: list(value) if hasattr(value, "tolist") else value for key, value in decoded.items()}
    return lists, notes, values


def different(tokenizer: Any, values: dict[str, Value], folder: Path, special: list[str], count: int) -> list[str]:
    with making.llama(values, folder / "x.gguf") as llama:
        encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
        return [text for text in strings(count, special) if encode(text) != llama(text)]


# --- BPE


@pytest.mark.parametrize("style", ["llama", "gemma", "metaspace"])
def test_ten_thousand_strings_give_the_same_tokens(style: str, tmp_path: Path) -> None:
    tokenizer = making.bpe_tokenizer(making.bpe_pieces(), style)
    keys, notes, values = exported(tmp_path, tokenizer_json=tokenizer)
    assert (keys["model"], keys["add_space_prefix"]) == ("llama", style != "gemma")
    assert list(notes) == (SPACES if style == "metaspace" else [])
    assert check_tokens(tmp_path, values, notes).verdict == PASS
    special = ["<|user|>", "<tool>", "</s>"]
    wrong = different(tokenizer, values, tmp_path, special, 10_000)
    if style != "metaspace":
        assert wrong == []
    assert wrong == [text for text in wrong if text.startswith((" ", SPACE)) or any(token in text for token in special)]
    assert bool(wrong) == (style == "metaspace")


def test_scores_without_ranks_would_be_seen(tmp_path: Path) -> None:
    tokenizer = making.bpe_tokenizer(making.bpe_pieces(), "llama")
    keys, _, values = exported(tmp_path, tokenizer_json=tokenizer)
    flat = {**values, f"{PREFIX}scores": Value.array(ValueType.F32, [-1000.0] * len(keys["tokens"]))}
    assert different(tokenizer, flat, tmp_path, ["</s>"], 100)
    with pytest.raises(LossyExport, match="get different tokens"):
        check_tokens(tmp_path, flat, ())


def test_what_is_put_before_a_text_is_the_same(tmp_path: Path) -> None:
    keys, _, _ = exported(tmp_path, tokenizer_json=making.bpe_tokenizer(making.bpe_pieces(), "llama"))
    assert (keys["bos_token_id"], keys["eos_token_id"], keys["unknown_token_id"]) == (1, 2, 0)
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (True, False)


def test_types_and_padding(tmp_path: Path) -> None:
    pieces = making.bpe_pieces()
    keys, _, _ = exported(tmp_path, len(pieces) + 5, tokenizer_json=making.bpe_tokenizer(pieces, "llama"))
    count = len(pieces)
    assert keys["tokens"][count:] == ["<|user|>", "<tool>", *(f"[PAD{count + n}]" for n in (2, 3, 4))]
    assert keys["token_type"][:4] == [CONTROL, CONTROL, CONTROL, BYTE]
    assert keys["token_type"][259:count] == [NORMAL] * (count - 259)
    assert keys["token_type"][count:] == [CONTROL, USER_DEFINED, UNUSED, UNUSED, UNUSED]
    assert keys["scores"][count:] == [-1000.0, -1000.0, -10000.0, -10000.0, -10000.0]
    with pytest.raises(LossyExport, match="vocab_size is too small"):
        tokenizer_values(tmp_path, {}, count - 1)
    assert tokenizer_values(tmp_path, {}, count + 1)[1] == (
        f"token '<tool>' is left out: the embedding has only {count + 1} rows",
    )


def test_user_defined_runs_of_spaces_are_spelled_as_spaces(tmp_path: Path) -> None:
    tokenizer = making.bpe_tokenizer(making.bpe_pieces(), "gemma")
    tokenizer.add_tokens([tokenizers.AddedToken(SPACE * 5, normalized=False)])
    keys, _, _ = exported(tmp_path, tokenizer_json=tokenizer)
    assert keys["tokens"][tokenizer.get_vocab_size() - 1] == " " * 5


def test_the_scores_of_a_model_file_with_the_same_pieces_are_taken(tmp_path: Path) -> None:
    pieces = [(text, score - 0.5, kind) for text, score, kind in making.bpe_pieces()]
    tokenizer = making.bpe_tokenizer(pieces, "llama")
    keys, _, values = exported(
        tmp_path,
        tokenizer_json=tokenizer,
        tokenizer_model=making.model_file(pieces, remove_extra_whitespaces=0),
    )
    assert keys["scores"][259 : len(pieces)] == [score for _, score, _ in pieces][259:]
    assert different(tokenizer, values, tmp_path, ["</s>"], 500) == []
    other = making.model_file([*pieces[:-2], pieces[-1]], remove_extra_whitespaces=0)
    keys, _, _ = exported(tmp_path, tokenizer_json=tokenizer, tokenizer_model=other)
    assert keys["scores"][259] == 0.0  # made of the merges: this is the first of them


# --- tokenizer.model alone


def test_a_model_file_alone(tmp_path: Path) -> None:
    pieces = making.bpe_pieces()
    decoder = {str(len(pieces)): {"content": "<|user|>", "special": True}, str(len(pieces) + 1): {"content": "<tool>"}}
    keys, notes, values = exported(
        tmp_path, tokenizer_model=making.model_file(pieces, remove_extra_whitespaces=0),
        tokenizer_config={**CONFIG, "added_tokens_decoder": decoder}, added_tokens={"<|user|>": len(pieces)},
    )  # fmt: skip
    assert keys["token_type"][:4] == [UNKNOWN, CONTROL, CONTROL, BYTE]
    assert keys["token_type"][len(pieces) : len(pieces) + 3] == [CONTROL, USER_DEFINED, UNUSED]
    assert keys["scores"][: len(pieces)] == [score for _, score, _ in pieces]
    assert (keys["add_bos_token"], keys["add_eos_token"], keys["add_space_prefix"], notes) == (True, False, True, ())
    tokenizer = making.bpe_tokenizer(pieces, "llama")
    assert different(tokenizer, values, tmp_path, ["<|user|>", "<tool>", "</s>"], 10_000) == []


def test_no_space_in_front(tmp_path: Path) -> None:
    raw = making.model_file(making.bpe_pieces(), remove_extra_whitespaces=0, add_dummy_prefix=0)
    keys, _, _ = exported(tmp_path, tokenizer_model=raw, tokenizer_config={**CONFIG, "add_bos_token": False})
    assert (keys["add_space_prefix"], keys["add_bos_token"]) == (False, False)


@pytest.mark.parametrize("names", [("<s>", "</s>"), ("<bos>", "<eos>")])
def test_a_model_file_with_nothing_beside_it_has_the_ends_of_its_class(names: tuple[str, str], tmp_path: Path) -> None:
    renamed = dict(zip(("<s>", "</s>"), names, strict=True))
    pieces = [(renamed.get(text, text), score, kind) for text, score, kind in making.bpe_pieces()]
    raw = making.model_file(pieces, remove_extra_whitespaces=0)
    keys, _, _ = exported(tmp_path, tokenizer_model=raw, tokenizer_config={})
    assert (keys["bos_token_id"], keys["eos_token_id"]) == (1, 2)
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (True, False)
    keys, _, _ = exported(tmp_path, tokenizer_model=raw, tokenizer_config={"bos_token": names[1]})
    assert keys["bos_token_id"] == 2


def test_a_unigram_model_file(tmp_path: Path) -> None:
    raw = making.model_file(making.unigram_pieces(), 1, remove_extra_whitespaces=1, precompiled_charsmap=b"map")
    keys, _, _ = exported(tmp_path, tokenizer_model=raw)
    assert (keys["model"], keys["remove_extra_whitespaces"], bytes(keys["precompiled_charsmap"])) == (
        "t5",
        True,
        b"map",
    )


@pytest.mark.skipif(not LLAMA2.is_file(), reason="ROPETOOL_REAL_FILES names no vocabulary of Llama 2")
def test_llama_2(tmp_path: Path) -> None:
    import gguf

    fields = gguf.GGUFReader(LLAMA2).fields
    texts, scores, types = (fields[f"{PREFIX}{key}"].contents() for key in ("tokens", "scores", "token_type"))
    pieces = list(zip(texts, scores, types, strict=True))
    raw = making.model_file(pieces, remove_extra_whitespaces=0)
    keys, notes, values = exported(tmp_path, len(pieces), tokenizer_model=raw)
    assert (keys["tokens"], keys["scores"], keys["token_type"]) == (texts, scores, types)
    stock = {key.removeprefix(PREFIX): field.contents() for key, field in fields.items() if key.startswith(PREFIX)}
    assert {key: value for key, value in keys.items() if key != "add_space_prefix"} == stock
    tokenizer = making.bpe_tokenizer(pieces, "llama")
    assert different(tokenizer, values, tmp_path, ["</s>", "<s>"], 10_000) == []
    (tmp_path / "tokenizer.model").unlink()
    _, notes, values = exported(tmp_path, len(pieces) + 2, tokenizer_json=tokenizer)  # scores made of the merges
    assert notes == ()
    assert different(tokenizer, values, tmp_path, ["</s>", "<|user|>", "<tool>"], 10_000) == []


# --- sentencepiece, where it is installed


def learned(kind: str, folder: Path) -> Any:
    """Return a model that sentencepiece itself has trained, and leave its tokenizer.model in the folder."""
    sentencepiece = pytest.importorskip("sentencepiece")
    known = ("".join(letter for letter in text if letter < "\u0500") for text in strings(4000, ["the", "and"], seed=4))
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in known for line in text.splitlines()), vocab_size=2000, model_type=kind,
        model_prefix=str(folder / "tokenizer"), minloglevel=2, **(plain if kind == "bpe" else {}),
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_itself(kind: str, tmp_path: Path) -> None:
    oracle = learned(kind, tmp_path)
    keys, notes, values = exported(tmp_path)
    assert notes == ()
    assert keys["tokens"][:2000] == [oracle.id_to_piece(number) for number in range(2000)]
    assert keys["scores"][:2000] == [oracle.get_score(number) for number in range(2000)]
    with making.llama(values, tmp_path / "x.gguf") as llama:
        texts = [text for text in strings(10_000, [" "], seed=5) if "\0" not in text]
        assert [text for text in texts if oracle.encode(text) != llama(text)] == []


def test_a_unigram_with_sentencepieces_characters(tmp_path: Path) -> None:
    oracle = learned("unigram", tmp_path)
    pieces = [(oracle.id_to_piece(n), oracle.get_score(n), NORMAL) for n in range(2000)]
    charsmap = read_model_file(tmp_path / "tokenizer.model").charsmap
    tokenizer = making.unigram_tokenizer(pieces, charsmap, unknown=0)
    keys, notes, values = exported(tmp_path, tokenizer_json=tokenizer)
    assert (keys["model"], keys["add_space_prefix"], keys["remove_extra_whitespaces"]) == ("t5", True, True)
    assert (keys["add_bos_token"], keys["add_eos_token"], notes) == (False, True, (CHARSMAP_NOTE,))
    assert check_tokens(tmp_path, values, notes).verdict == PASS
    wrong = different(tokenizer, values, tmp_path, [" "], 10_000)
    assert wrong
    marked = [text for text in wrong if any(unicodedata.category(letter).startswith("M") for letter in text)]
    # The tokenizer drops all of Unicode's spaces at the end, llama.cpp those that the charsmap makes spaces of.
    ended = [text for text in wrong if text.rstrip(" \t\n\r\u3000\xa0\u2028") != text.rstrip()]
    assert set(wrong) == {*marked, *ended}


# --- Unigram


def test_a_unigram_that_keeps_spaces(tmp_path: Path) -> None:
    tokenizer = making.unigram_tokenizer(making.unigram_pieces())
    keys, notes, values = exported(tmp_path, tokenizer_json=tokenizer, tokenizer_config={"eos_token": "</s>"})
    assert (keys["remove_extra_whitespaces"], list(notes)) == (False, SPACES[:1])
    wrong = different(tokenizer, values, tmp_path, ["</s>"], 10_000)
    assert wrong
    assert [text for text in wrong if not text.startswith(" ") and "</s> " not in text] == []


# --- refused


Change = Callable[[dict[str, Any]], object]
BPE_REFUSED: list[tuple[str, Change, type[RopetoolError], str]] = [
    ("an object", lambda d: d["model"].update(unk_token={"a": 1}), CorruptFile, "unk_token is .*; it must be text"),
    ("lower case", lambda d: d.update(normalizer={"type": "Lowercase"}), LossyExport, "normalises text by"),
    ("words", lambda d: d.update(pre_tokenizer={"type": "Whitespace"}), LossyExport, "splits text by"),
    ("joined spaces", lambda d: d.update(normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
     LossyExport, "joins spaces"),
    ("skipped merges", lambda d: d["model"].update(ignore_merges=True), LossyExport, "ignore_merges"),
    ("a byte less", lambda d: d["model"]["vocab"].pop("<0x41>"), LossyExport, "lacks tokens for some bytes"),
    ("no merges", lambda d: d["model"].pop("merges"), CorruptFile, "merges is absent; it must be a list"),
    ("words of several", lambda d: (d["model"]["vocab"].update({f"a{SPACE}b": 3000}),
     d.update(pre_tokenizer={"type": "Metaspace", "replacement": SPACE, "split": True})), LossyExport, "several words"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "text"), [c[1:] for c in BPE_REFUSED], ids=[c[0] for c in BPE_REFUSED])
def test_a_bpe_that_is_refused(change: Change, error: type[RopetoolError], text: str, tmp_path: Path) -> None:
    data = json.loads(making.bpe_tokenizer(making.bpe_pieces(), "llama").to_str())
    change(data)
    with pytest.raises(error, match=text) as caught:
        exported(tmp_path, tokenizer_json=data)
    assert caught.value.where == str(tmp_path / "tokenizer.json")


def test_a_pair_that_only_llama_cpp_joins_is_noted(tmp_path: Path) -> None:
    data = json.loads(making.bpe_tokenizer(making.bpe_pieces(), "llama").to_str())
    product = "".join(data["model"]["merges"][-1])
    data["model"]["merges"] = [pair for pair in data["model"]["merges"] if "".join(pair) != product]
    _, notes, _ = exported(tmp_path, tokenizer_json=data)
    assert notes[0].startswith("llama.cpp joins ")


def test_tokens_that_are_matched_behind_a_space_are_noted(tmp_path: Path) -> None:
    tokenizer = making.bpe_tokenizer(making.bpe_pieces(), "llama")
    tokenizer.add_tokens(["<late>"])
    _, notes, _ = exported(tmp_path, tokenizer_json=tokenizer)
    assert notes == ("the tokenizer matches token '<late>' only after a space (normalized), llama.cpp anywhere",)


UNIGRAM_REFUSED: list[tuple[str, Change, type[RopetoolError], str]] = [
    ("bytes", lambda d: d["model"].update(byte_fallback=True), LossyExport, "with byte_fallback"),
    ("no unknown", lambda d: d["model"].update(unk_id=None), LossyExport, "has no unknown token"),
    ("a score too large", lambda d: d["model"]["vocab"][0].__setitem__(1, 10**400), CorruptFile, "vocab contains"),
    ("a score that is none", lambda d: d["model"]["vocab"][0].__setitem__(1, float("nan")), CorruptFile, "vocab contains"),
    ("no scores", lambda d: d["model"].update(vocab=["a"]), CorruptFile, "an entry must be a text and a finite number"),
    ("twice", lambda d: d["model"]["vocab"].append(["a", -1.0]), CorruptFile, "two tokens with the same text"),
    ("tabs", lambda d: d.update(pre_tokenizer={"type": "WhitespaceSplit"}), LossyExport, "has no charsmap"),
    ("the end", lambda d: d.update(normalizer={"type": "Strip", "strip_right": True}), LossyExport, "but has no charsmap"),
    ("joined alone", lambda d: d.update(normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
     LossyExport, "but not both"),
    ("no map", lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), CorruptFile, "base64"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "text"), [c[1:] for c in UNIGRAM_REFUSED], ids=[c[0] for c in UNIGRAM_REFUSED]
)
def test_a_unigram_that_is_refused(change: Change, error: type[RopetoolError], text: str, tmp_path: Path) -> None:
    data = json.loads(making.unigram_tokenizer(making.unigram_pieces()).to_str())
    change(data)
    with pytest.raises(error, match=text):
        exported(tmp_path, tokenizer_json=data)


def test_a_charsmap_is_carried_over(tmp_path: Path) -> None:
    data = json.loads(making.unigram_tokenizer(making.unigram_pieces()).to_str())
    stated = base64.b64encode(b"\x04\0\0\0abcdefgh").decode()
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": stated}
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": SPACE, "split": True}],
    }
    keys, notes, _ = exported(tmp_path, tokenizer_json=data, tokenizer_config={})
    assert (bytes(keys["precompiled_charsmap"]), keys["remove_extra_whitespaces"]) == (b"\x04\0\0\0abcdefgh", True)
    assert notes == (CHARSMAP_NOTE,)


PIECES = making.bpe_pieces()
PLAIN = making.model_file(PIECES, remove_extra_whitespaces=0)
FILES_REFUSED: list[tuple[str, bytes, type[RopetoolError], str]] = [
    ("words", making.model_file(PIECES, 3), LossyExport, "must be BPE or Unigram"),
    ("joined spaces", making.model_file(PIECES), LossyExport, "joins spaces"),
    ("characters", making.model_file(PIECES, remove_extra_whitespaces=0, precompiled_charsmap=b"x"), LossyExport, "characters"),
    ("bytes", making.model_file(PIECES, 1), LossyExport, "with byte_fallback"),
    ("twice", making.model_file([*PIECES, PIECES[-1]], remove_extra_whitespaces=0), CorruptFile, "two pieces with the same text"),
    ("cut off", PLAIN[:-3], CorruptFile, "it ends within"),
    ("empty", b"", CorruptFile, "it has no pieces"),
    ("text", b"{}", CorruptFile, "is not a SentencePiece model"),
    ("a number", making.field(1, 7), CorruptFile, "a number instead of text"),
    ("a long number", b"\x08" + b"\xff" * 12, CorruptFile, "ends within a number"),
    ("latin-1", making.field(1, making.field(1, b"\xff")), CorruptFile, "is not a SentencePiece model"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "error", "text"), [c[1:] for c in FILES_REFUSED], ids=[c[0] for c in FILES_REFUSED])
def test_a_model_file_that_is_refused(raw: bytes, error: type[RopetoolError], text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=text) as caught:
        exported(tmp_path, tokenizer_model=raw)
    assert caught.value.where == str(tmp_path / "tokenizer.model")


@pytest.mark.parametrize("number", [[1], {}, None, True, -1, 1.5, "7", 10**400])
def test_an_added_token_without_an_id_is_refused(number: Any, tmp_path: Path) -> None:
    pieces = making.model_file(making.bpe_pieces(), remove_extra_whitespaces=0)
    with pytest.raises(CorruptFile, match=r"<a> is .*; it must be a whole number from 0 to 2147483647") as caught:
        exported(tmp_path, tokenizer_model=pieces, added_tokens={"<a>": number})
    assert caught.value.where == str(tmp_path / "added_tokens.json")


def test_fields_that_do_not_matter_are_passed_over(tmp_path: Path) -> None:
    extra = making.varint(9 << 3 | 1) + struct.pack("<d", 1.0) + making.field(4, b"self test") + making.field(77, 3)
    file = tmp_path / "tokenizer.model"
    file.write_bytes(extra + PLAIN + extra)
    made = read_model_file(file)
    assert [(piece.text, piece.score, piece.type) for piece in made.pieces] == PIECES
    assert (made.add_dummy_prefix, made.remove_extra_whitespaces, made.charsmap) == (True, False, b"")
