"""tokenizer.json as GGUF keys: what is carried over, and every structure that llama.cpp would not follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_files
import models
import pytest
import tokenizer_making as making

from ropetool.errors import CorruptFile, LossyExport, MissingFile, RopetoolError
from ropetool.gguf_model.tokenizer import tokenizer_values
from ropetool.gguf_model.tokenizer.pretokenizer import NFC_NOTE, recognise
from ropetool.gguf_model.tokenizer.pretokenizer_names import GPT2, LLAMA3, QWEN2
from ropetool.verification.runners.llama_library import free, load

tokenizers = pytest.importorskip("tokenizers")

ChangeJson = Callable[[dict[str, Any]], None]
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
TEXTS = {257: "<|eos|>", 258: "he", 259: "Ġt", 261: "word"}


def exported(tmp_path: Path, change: ChangeJson | None = None, **files: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys and notes of an export; `change` edits tokenizer.json, `files` adds others by name."""
    source = models.checkpoint(tmp_path / "model")
    data = making.by_hand()
    if change is not None:
        change(data)
    models.save(source / "tokenizer.json", data)
    for name, content in files.items():
        models.save(source / f"{name}.json", content)
    result = models.export(source, tmp_path / "x.gguf")
    return gguf_files.keys(result.output), result.notes


# --- tokens and merges


def test_the_maker_is_a_real_tokenizer() -> None:
    ids = tokenizers.Tokenizer.from_str(json.dumps(making.by_hand())).encode(" the word\n").ids
    assert ids == [256, 260, 220 - 188, 261, 10]


def test_every_row_of_the_embedding_has_a_token(tmp_path: Path) -> None:
    keys, notes = exported(tmp_path)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == models.ROWS
    assert tokens[:256] == making.byte_letters()
    assert tokens[256:263] == ["<|bos|>", "<|eos|>", "he", "Ġt", "Ġthe", "word", "[PAD262]"]
    assert types[:256] == [NORMAL] * 256
    assert types[256:263] == [CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, USER_DEFINED, UNUSED]
    assert set(types[262:]) == {UNUSED}
    assert keys["tokenizer.ggml.model"] == "gpt2"
    assert keys["tokenizer.ggml.pre"] == "llama-bpe"
    assert notes == ()


def test_merges_in_both_forms(tmp_path: Path) -> None:
    pairs, _ = exported(tmp_path / "pairs")

    def as_strings(data: dict[str, Any]) -> None:
        data["model"]["merges"] = ["h e", "Ġ t", "Ġt he"]

    strings, _ = exported(tmp_path / "strings", as_strings)
    assert pairs["tokenizer.ggml.merges"] == strings["tokenizer.ggml.merges"] == ["h e", "Ġ t", "Ġt he"]


def test_tokens_that_look_special_are_control_tokens(tmp_path: Path) -> None:
    looks = ["<|im_start|>", "<\uff5cuser\uff5c>", "<unused7>", "<pad>"]

    def add(data: dict[str, Any]) -> None:
        data["added_tokens"] += [making.added(262 + at, text, special=False) for at, text in enumerate(looks)]
        data["added_tokens"].append(making.added(270, "<tool>", special=False))

    types = exported(tmp_path, add)[0]["tokenizer.ggml.token_type"]
    assert types[262:271] == [CONTROL] * 4 + [UNUSED] * 4 + [USER_DEFINED]


def test_habits_that_llama_cpp_does_not_follow_are_noted(tmp_path: Path) -> None:
    _, notes = exported(tmp_path, lambda data: data["added_tokens"][2].update(lstrip=True, single_word=True))
    assert notes == ("token 'word' has lstrip and single_word, which llama.cpp ignores",)


def test_many_tokens_of_one_habit_are_one_note(tmp_path: Path) -> None:
    def add(data: dict[str, Any]) -> None:
        data["added_tokens"] += [making.added(262 + at, f"<t{at}>", rstrip=True) for at in range(3)]

    _, notes = exported(tmp_path, add)
    assert notes == ("3 tokens, the first '<t0>', have rstrip, which llama.cpp ignores",)


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LossyExport, match="'extra' has id 300, but the embedding has 300 rows"):
        exported(tmp_path, lambda data: data["model"]["vocab"].update(extra=models.ROWS))
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(("more", "said"), [(1, "token '<extra0>' is"), (2, "2 tokens, the first '<extra0>', are")])
def test_tokens_added_beyond_the_embedding_are_left_out(more: int, said: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    data = making.by_hand()
    data["added_tokens"] += [making.added(models.ROWS + at, f"<extra{at}>") for at in range(more)]
    models.save(source / "tokenizer.json", data)
    values, notes = tokenizer_values(source, models.BY_HAND["llama"], models.ROWS)
    tokens = values["tokenizer.ggml.tokens"].decode()
    assert (len(tokens), tokens[-1]) == (models.ROWS, "[PAD299]")
    assert notes == (f"{said} left out: the embedding has only 300 rows",)


def test_a_model_without_a_type_is_a_bpe(tmp_path: Path) -> None:
    data = making.by_hand()
    del data["model"]["type"]
    library = tokenizers.Tokenizer.from_str(json.dumps(data))  # as older releases of the library wrote it
    assert json.loads(library.to_str())["model"]["type"] == "BPE"
    before, _ = exported(tmp_path / "with")
    assert exported(tmp_path / "without", lambda data: data["model"].pop("type"))[0] == before


# --- pre-tokenizers

BYTES = making.BYTES
DIGITS = {"type": "Digits", "individual_digits": True}
WHOLE = {**BYTES, "use_regex": True}
KNOWN: list[tuple[str, Any, bool, str]] = [
    ("llama 3", [making.split(LLAMA3), BYTES], True, "llama-bpe"),
    ("llama 3, other spelling", [making.split(LLAMA3, "Removed", invert=True), BYTES], True, "llama-bpe"),
    ("llama 3, all words merged", [making.split(LLAMA3), BYTES], False, "smaug-bpe"),
    ("qwen 2", [making.split(QWEN2), BYTES], False, "qwen2"),
    ("gpt-2", [WHOLE], False, "gpt-2"),
    ("gpt-2, spelled out", [making.split(GPT2), BYTES], False, "gpt-2"),
    ("digits", [DIGITS, WHOLE], False, "smollm"),
    ("digits, spelled out", [making.split(r"\p{N}"), WHOLE], False, "smollm"),
]


def with_steps(steps: Any, ignore_merges: bool) -> dict[str, Any]:
    data = making.by_hand()
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    data["model"]["ignore_merges"] = ignore_merges
    return data


@pytest.mark.parametrize(("steps", "ignore_merges", "name"), [c[1:] for c in KNOWN], ids=[c[0] for c in KNOWN])
def test_the_structure_gives_the_name(steps: Any, ignore_merges: bool, name: str) -> None:
    data = with_steps(steps, ignore_merges)
    tokenizers.Tokenizer.from_str(json.dumps(data))  # a structure that the library takes
    assert recognise(data, "here") == (name, ())
    nested = {**data, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [data["pre_tokenizer"]]}}
    assert recognise(nested, "here") == (name, ())


def test_words_that_skip_the_merges_matter_only_where_merges_do_not_make_them() -> None:
    steps = [making.split(QWEN2), BYTES]
    assert recognise(with_steps(steps, True), "here")[0] == "qwen2"  # the merges make all of its tokens
    data = with_steps(steps, True)
    data["model"]["vocab"]["Ġtea"] = 262  # no merges lead there, so a word of that text is one token or four
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    assert library.encode(" tea", add_special_tokens=False).ids == [262]
    with pytest.raises(LossyExport, match="like qwen2, but has ignore_merges true"):
        recognise(data, "here")


def test_a_single_step_needs_no_sequence() -> None:
    data = with_steps([], False) | {"pre_tokenizer": WHOLE}
    assert recognise(data, "here")[0] == "gpt-2"


def test_the_expressions_are_the_published_ones() -> None:
    assert (LLAMA3, QWEN2) == (making.CL100K, making.QWEN2)


UNKNOWN: list[tuple[str, Any, str]] = [
    ("another expression", [making.split(r"\w+|[^\w]"), BYTES], r"splits text by \\w\+\|\[\^\\w\]; known: llama-bpe"),
    ("two of them", [making.split(LLAMA3), making.split(QWEN2), BYTES], "then"),
    ("joined digits", [{**DIGITS, "individual_digits": False}, WHOLE], "llama.cpp does not support its pre-tokenizer"),
    ("dropped spaces", [making.split(r"\s+", "Removed"), BYTES], "drops or joins parts"),
    ("digits alone kept", [making.split(r"\p{N}", "Removed", invert=True), WHOLE], "drops or joins parts"),
    ("plain text", [making.split(LLAMA3)], "its last pre-tokenizer is not ByteLevel"),
    ("words", [{"type": "Whitespace"}, BYTES], "llama.cpp does not support its pre-tokenizer"),
    ("a leading space", [{**WHOLE, "add_prefix_space": True}], "add_prefix_space"),
    ("nothing", [], "its last pre-tokenizer is not ByteLevel"),
    ("no expression", [BYTES], "splits text by no regular expression"),
    (
        "a plain pattern",
        [{**making.split("x"), "pattern": {"String": " "}}, BYTES],
        "llama.cpp does not support its pre-tokenizer",
    ),
]


@pytest.mark.parametrize(("steps", "text"), [c[1:] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_an_unknown_structure_is_refused_with_its_expression(steps: Any, text: str) -> None:
    with pytest.raises(LossyExport, match=text):
        recognise(with_steps(steps, True), "here")


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [(None, ()), ({"type": "NFC"}, (NFC_NOTE,)), ({"type": "Sequence", "normalizers": [{"type": "NFC"}]}, (NFC_NOTE,)),
     ({"type": "Sequence", "normalizers": []}, ())],
)  # fmt: skip
def test_composing_text_is_noted(normaliser: Any, expected: tuple[str, ...]) -> None:
    assert recognise({**making.by_hand(), "normalizer": normaliser}, "here") == ("llama-bpe", expected)


@pytest.mark.parametrize("kind", ["NFKC", "Lowercase", "Prepend"])
def test_other_normalisers_are_refused(kind: str) -> None:
    steps = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": kind}]}
    with pytest.raises(LossyExport, match=f"normalises text by {kind}"):
        recognise({**making.by_hand(), "normalizer": steps}, "here")


# --- special tokens


def special(keys: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("tokenizer.ggml."): v for key, v in keys.items() if key.endswith(("token", "token_id"))}


def test_special_tokens_and_what_is_put_around_a_text(tmp_path: Path) -> None:
    keys, _ = exported(tmp_path)
    assert special(keys) == {"bos_token_id": 256, "eos_token_id": 257, "add_bos_token": True, "add_eos_token": False}


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (None, (False, False)),
        (BYTES, (False, False)),
        (making.template("<|bos|>", "A", "<|eos|>"), (True, True)),
        (making.template("A", "<|eos|>"), (False, True)),
        ({"type": "Sequence", "processors": [BYTES, making.template("<|bos|>", "A")]}, (True, False)),
    ],
    ids=["none", "bytes", "both", "end", "sequence"],
)
def test_the_post_processor_decides(processor: Any, expected: tuple[bool, bool], tmp_path: Path) -> None:
    keys, _ = exported(tmp_path, lambda data: data.update(post_processor=processor))
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == expected
    library = tokenizers.Tokenizer.from_str(json.dumps({**making.by_hand(), "post_processor": processor}))
    assert (library.encode("he").ids[0] == 256, library.encode("he").ids[-1] == 257) == expected


def test_a_wish_that_transformers_does_not_grant_is_noted(tmp_path: Path) -> None:
    _, notes = exported(tmp_path, tokenizer_config={**making.TOKENIZER_CONFIG, "add_bos_token": False})
    assert notes == ("add_bos_token is false, but the post-processor adds one; the file follows the post-processor",)


REFUSED_PROCESSORS: list[tuple[str, Any, type[RopetoolError], str]] = [
    ("no text", making.template("<|bos|>"), LossyExport, "inserts a text 0 times"),
    ("twice", making.template("A", "A"), LossyExport, "inserts a text 2 times"),
    ("another one", making.template("<|eos|>", "A"), LossyExport, "adds token 257, but llama.cpp adds only its bos token, 256"),
    ("bert's", {"type": "BertProcessing"}, LossyExport, "unknown post-processor \"BertProcessing\""),
    ("no token", making.template("<|x|>", "A", ids={"<|x|>": [280]}), LossyExport, "adds token 280, which the vocabulary"),
    ("unknown token", making.template("<|x|>", "A"), CorruptFile, "is absent; it must be an object"),
    ("no template", {"type": "TemplateProcessing"}, CorruptFile, "single is absent; it must be a list"),
    ("an endless id", making.template("<|x|>", "A", ids={"<|x|>": [float("inf")]}), CorruptFile, "ids is .Infinity.; it must be"),
    ("a number", 3, CorruptFile, "post_processor is 3; it must be an object"),
    ("no list", {"type": "Sequence", "processors": {}}, CorruptFile, "processors is {}; it must be a list"),
    ("no steps", {"type": "Sequence", "processors": [3]}, CorruptFile, "processors is .3.; it must be a list .* each an object"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("processor", "error", "text"), [c[1:] for c in REFUSED_PROCESSORS], ids=[c[0] for c in REFUSED_PROCESSORS]
)
def test_a_post_processor_that_cannot_be_followed(
    processor: Any, error: type[RopetoolError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        exported(tmp_path, lambda data: data.update(post_processor=processor))


def test_where_special_tokens_are_named(tmp_path: Path) -> None:
    bare = {"tokenizer_class": "PreTrainedTokenizerFast"}
    plain: ChangeJson = lambda data: data.update(post_processor=None)  # noqa: E731
    keys, _ = exported(tmp_path / "config", plain, tokenizer_config=bare)
    assert (special(keys)["bos_token_id"], special(keys)["eos_token_id"]) == (256, 257)  # from config.json
    mapped = {"eos_token": {"content": "word"}, "pad_token": "he", "mask_token": None}
    keys, _ = exported(tmp_path / "map", plain, tokenizer_config=bare, special_tokens_map=mapped)
    assert (special(keys)["bos_token_id"], special(keys)["eos_token_id"]) == (256, 261)
    assert special(keys)["padding_token_id"] == 258
    stated = {**bare, "eos_token": "Ġthe", "unk_token": "<unk>"}
    keys, notes = exported(tmp_path / "stated", plain, tokenizer_config=stated, special_tokens_map=mapped)
    assert special(keys)["eos_token_id"] == 260
    assert notes == ("unk_token '<unk>' is left out: the vocabulary does not have it",)


def test_two_tokens_in_front_are_left_to_the_prompt(tmp_path: Path) -> None:
    processor = making.template("<|bos|>", "<|eos|>", "A")
    keys, notes = exported(tmp_path, lambda data: data.update(post_processor=processor))
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == (False, False)
    assert notes[0].startswith("its post-processor adds tokens [256, 257] before a text and [] after it")


@pytest.mark.parametrize("place", ["config.json", "generation_config.json"])
def test_several_end_tokens(place: str, tmp_path: Path) -> None:
    ends = [261, 257, 258, 259]
    source = models.checkpoint(tmp_path / "model", eos_token_id=ends if place == "config.json" else 257)
    models.save(source / "tokenizer_config.json", {})
    if place != "config.json":
        models.save(source / place, {"eos_token_id": ends})
    keys, notes = tokenizer_values(source, json.loads((source / "config.json").read_text()), models.ROWS)
    found = {key.split(".")[-1]: keys[key].decode() for key in keys if key.endswith("token_id")}
    rest = [n for n in ends if n != found["eos_token_id"]]
    assert found["eos_token_id"] == (261 if place == "config.json" else 257)
    assert [found["eot_token_id"], found["eom_token_id"]] == rest[:2]
    assert notes == (f"token {TEXTS[rest[2]]!r} also ends a text, but a GGUF file has no more keys for such tokens",)


def test_an_end_token_that_llama_cpp_knows_by_its_text_needs_no_key(tmp_path: Path) -> None:
    def add(data: dict[str, Any]) -> None:
        data["added_tokens"] += [making.added(262, "<|eot_id|>"), making.added(263, "<|user|>")]

    keys, _ = exported(tmp_path, add, generation_config={"eos_token_id": [257, 262, 263]})
    assert (special(keys)["eos_token_id"], special(keys)["eot_token_id"]) == (257, 263)
    assert "eom_token_id" not in special(keys)
    lib = pytest.importorskip("llama_cpp")
    model = load(lib, tmp_path / "x.gguf", gpu=False, vocabulary_only=True)
    vocabulary = lib.llama_model_get_vocab(model)
    assert [n for n in range(256, 264) if lib.llama_vocab_is_eog(vocabulary, n)] == [257, 262, 263]
    free(lib, model)


# --- chat templates


def test_one_template_and_several(tmp_path: Path) -> None:
    keys, _ = exported(tmp_path / "one")
    assert keys["tokenizer.chat_template"] == "{{ messages }}"
    several = [{"name": "tool use", "template": "T"}, {"name": "default", "template": "D"}]
    keys, _ = exported(tmp_path / "two", tokenizer_config={**making.TOKENIZER_CONFIG, "chat_template": several})
    assert keys["tokenizer.chat_template"] == "D"
    assert keys["tokenizer.chat_template.tool_use"] == "T"
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    keys, _ = exported(tmp_path / "none", tokenizer_config={"bos_token": "<|bos|>"})
    assert not [key for key in keys if "chat" in key]


def test_a_template_in_a_file_wins(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "chat_template.jinja").write_text("from the file")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "rag.jinja").write_text("R")
    models.export(source, tmp_path / "x.gguf")
    keys = gguf_files.keys(tmp_path / "x.gguf")
    assert keys["tokenizer.chat_template"] == "from the file"
    assert keys["tokenizer.chat_template.rag"] == "R"


@pytest.mark.parametrize("stated", [True, False])
def test_a_processors_template_counts_where_the_tokenizer_has_none(stated: bool, tmp_path: Path) -> None:
    config = {**making.TOKENIZER_CONFIG, "eos_token": "<|eos|>", "chat_template": "{{ messages }}" if stated else None}
    more = {"tokenizer_config": config, "chat_template": {"chat_template": "the processor's"}}
    keys, _ = exported(tmp_path, **more)
    assert keys["tokenizer.chat_template"] == ("{{ messages }}" if stated else "the processor's")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == ("{{ messages }}" if stated else None)


def test_the_names_of_templates_stand_in_one_order(tmp_path: Path) -> None:
    listed = [{"name": name, "template": name} for name in "hgfedcba"]
    keys, _ = exported(tmp_path, tokenizer_config={**making.TOKENIZER_CONFIG, "chat_template": listed})
    assert keys["tokenizer.chat_templates"] == list("abcdefgh")


@pytest.mark.parametrize(
    "names", [("tool-use", "tool_use"), ("rag", "rag"), ("größe", "gr__e"), ("default", "default")]
)
def test_templates_that_would_overwrite_each_other_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    """In a key, any sign is an underscore."""
    listed = [{"name": name, "template": f"T{number}"} for number, name in enumerate(names)]
    with pytest.raises(LossyExport, match=r"both would become tokenizer\.chat_template") as refused:
        exported(tmp_path / "two", tokenizer_config={**making.TOKENIZER_CONFIG, "chat_template": listed})
    assert f"{names[0]!r} and {names[1]!r}" in refused.value.message
    assert refused.value.try_.startswith("rename or remove one of them")
    alike = [{"name": name, "template": "T"} for name in names]
    keys, _ = exported(tmp_path / "alike", tokenizer_config={**making.TOKENIZER_CONFIG, "chat_template": alike})
    assert "T" in keys.values()


def test_templates_of_files_that_would_overwrite_each_other_are_refused(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "chat_template.jinja").write_text("D")
    (source / "additional_chat_templates").mkdir()
    for name in ("tool-use", "tool.use"):
        (source / "additional_chat_templates" / f"{name}.jinja").write_text(name)
    with pytest.raises(
        LossyExport,
        match=r"'tool-use' and 'tool\.use' differ, but both would become tokenizer\.chat_template\.tool_use",
    ):
        models.export(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (7, "template of a chat template is 7; it must be text"),
        ([{"name": "default"}], "template of a chat template is absent"),
        ([{"name": None, "template": "x"}], "name of a chat template is null"),
        (["x"], 'a chat template is "x"; it must be an object'),
    ],
)
def test_a_template_that_is_none_is_refused(template: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=words):
        exported(tmp_path, tokenizer_config={**making.TOKENIZER_CONFIG, "chat_template": template})


# --- broken and foreign tokenizers

BROKEN: list[tuple[str, ChangeJson, type[RopetoolError], str]] = [
    ("word pieces", lambda d: d["model"].update(type="WordPiece"), LossyExport, 'has the tokenizer type "WordPiece"; supported: BPE and'),
    ("unigram", lambda d: d["model"].update(type="Unigram"), CorruptFile, "vocab is .*; it must be a list"),
    ("no bytes", lambda d: d["model"].update(byte_fallback=True, ignore_merges=False), LossyExport, "lacks tokens for some bytes"),
    ("other decoder", lambda d: d.update(decoder={"type": "Metaspace"}), LossyExport, "is not byte-level"),
    ("suffix", lambda d: d["model"].update(end_of_word_suffix="</w>"), LossyExport, "end_of_word_suffix"),
    ("no model", lambda d: d.pop("model"), CorruptFile, "model is absent; it must be an object"),
    ("no vocab", lambda d: d["model"].pop("vocab"), CorruptFile, "vocab is absent; it must be an object"),
    ("no merges", lambda d: d["model"].pop("merges"), CorruptFile, "merges is absent; it must be a list"),
    ("half a merge", lambda d: d["model"]["merges"].append(["h"]), CorruptFile, "must be a pair of tokens"),
    ("no merge", lambda d: d["model"]["merges"].append("h e l"), CorruptFile, "must be a pair of tokens"),
    ("a space", lambda d: d["model"]["merges"].append([" ", "h"]), CorruptFile, "contains a space inside a token"),
    ("negative", lambda d: d["model"]["vocab"].update(h=-1), CorruptFile, "ids must be whole numbers"),
    ("same id", lambda d: d["model"]["vocab"].update(extra=5), CorruptFile, "the same id 5"),
    ("two ids", lambda d: d["added_tokens"].append(making.added(280, "he")), CorruptFile, "two ids, 258 and 280"),
    ("no token", lambda d: d["added_tokens"].append({"id": 270}), CorruptFile, "the added token"),
    ("half a token", lambda d: d["added_tokens"].append({"id": 270, "content": "\ud800"}), CorruptFile, "the added token"),
    ("no list", lambda d: d.update(added_tokens=7), CorruptFile, "added_tokens is 7; it must be a list"),
    ("half a letter", lambda d: d["model"]["vocab"].update({"\ud800": 270}), CorruptFile, "half of a surrogate pair"),
    ("a long token", lambda d: d["model"]["vocab"].update({"x" * 1025: 270}), CorruptFile, "a token of 1,025 letters"),
    ("a padded name", lambda d: d["model"]["vocab"].update({"[PAD299]": 270}), CorruptFile, r"\[PADn\]"),
    ("unknown bytes", lambda d: (d["model"].update(unk_token="he"), d["model"]["vocab"].pop("ÿ")), LossyExport, "unk_token"),
    ("odd step", lambda d: d.update(pre_tokenizer="x"), CorruptFile, 'a tokenizer step is "x"; it must be an object'),
    ("no type", lambda d: d.update(pre_tokenizer={"type": ["x"]}), CorruptFile, "type of a tokenizer step is"),
    ("odd sequence", lambda d: d.update(normalizer={"type": "Sequence"}), CorruptFile, "normalizers is absent; it must be a list"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "text"), [c[1:] for c in BROKEN], ids=[c[0] for c in BROKEN])
def test_a_tokenizer_that_cannot_be_exported(
    change: ChangeJson, error: type[RopetoolError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text) as caught:
        exported(tmp_path, change)
    assert caught.value.where == str(tmp_path / "model" / "tokenizer.json")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_an_unknown_token_that_cannot_occur_is_no_matter(tmp_path: Path) -> None:
    keys, _ = exported(tmp_path, lambda data: data["model"].update(unk_token="he"))
    assert keys["tokenizer.ggml.pre"] == "llama-bpe"


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "tokenizer.json").unlink()
    with pytest.raises(MissingFile, match="a GGUF file needs a tokenizer"):
        models.export(source, tmp_path / "x.gguf")


def test_a_tokenizer_that_is_no_json(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (source / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptFile, match="not valid JSON"):
        models.export(source, tmp_path / "x.gguf")
