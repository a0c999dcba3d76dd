"""Token ids of the files written of a GGUF file's tokenizer: as llama.cpp's, transformers' and the original tokenizer's.

ROPETOOL_REAL_FILES names a folder with vocabularies and tokenizers of published models.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizer_making as making
from settled import Comparison
from token_strings import strings
from tokenizer_making import CONTROL, NORMAL, PREFIX, USER_DEFINED, keyed, scored, value_of

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llama_cpp")

from exporting.test_tokenizer_parity import cased, marked, spaced  # noqa: E402

from ropetool.files.gguf import Value, read_header  # noqa: E402
from ropetool.gguf_import.tokenizer import tokenizer_files  # noqa: E402
from ropetool.gguf_model.tokenizer import tokenizer_values  # noqa: E402
from ropetool.gguf_model.tokenizer.pretokenizer_names import PRE_TOKENIZERS, PreTokenizer  # noqa: E402

REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"))
VOCABULARIES = sorted((REAL / "vocab-gguf").glob("*.gguf")) if REAL.is_dir() else []
ORIGINALS = sorted(path.name for path in (REAL / "tokenizers").glob("*/")) if REAL.is_dir() else []
Encode = Callable[[str], list[int]]
# Spaces behind an added token of Phi-3 are dropped: llama.cpp's are C's, the library's are Unicode's.
FAR_SPACES = re.compile(r"\|>[ \t\n\v\f\r]*[^\S \t\n\v\f\r]|</s>[ \t\n\v\f\r]*[^\S \t\n\v\f\r]")


@cache
def compose() -> Callable[[str], str]:
    """Return composition by the library's Unicode, which knows letters that Python's does not."""
    composing: Callable[[str], str] = tokenizers.normalizers.NFC().normalize_str
    return composing


def composed(text: str) -> bool:
    return compose()(text) == text


# By general.architecture: the texts that llama.cpp gives other tokens, which a note says for the first.
EXPECTED: Mapping[str, Callable[[str], bool]] = {
    "qwen2": lambda text: not composed(text),
    "phi3": lambda text: FAR_SPACES.search(text) is not None,
}


def encoder(files: Mapping[str, str]) -> tuple[Any, Encode]:
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    return tokenizer, lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def written(files: Mapping[str, str], folder: Path) -> Path:
    """Write the files into the folder, and return it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def added(tokenizer: Any) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def different(values: dict[str, Value], folder: Path, texts: Iterable[str], model_type: str = "llama") -> list[str]:
    """Return the texts to which the files written of these keys give other tokens than llama.cpp does by the keys."""
    encode = encoder(tokenizer_files(values, model_type, "x.gguf")[0])[1]
    with making.llama(values, folder / "x.gguf") as llama:
        return [text for text in texts if encode(text) != llama(text)]


# --- published vocabularies


def of_tokenizer(values: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in values.items() if key.startswith("tokenizer.") or key == "general.name"}


@cache
def real(path: Path) -> tuple[dict[str, Value], dict[str, str], tuple[str, ...]]:
    values = dict(read_header(path).values)
    files, notes = tokenizer_files(values, str(values["general.architecture"].decode()), str(path))
    return values, files, notes


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_a_published_vocabulary_gives_the_ids_of_llama_cpp(path: Path, tmp_path: Path) -> None:
    values, files, _ = real(path)
    tokenizer, encode = encoder(files)
    inputs = {"gguf": path, "files": files["tokenizer.json"].encode(), "strings": Path(strings.__code__.co_filename)}
    made = Comparison(f"import of {path.stem}", inputs, "tokenizers", "llama-cpp-python")
    texts = list(strings(500 if made.settled else 10_000, added(tokenizer)))
    with making.llama(of_tokenizer(values), tmp_path / "x.gguf") as llama:
        wrong = [text for text in texts if encode(text) != llama(text)]
        expected = EXPECTED.get(str(values["general.architecture"].decode()))
        assert [text for text in wrong if expected is None or not expected(text)] == []
        assert bool(wrong) == (expected is not None)
        if path.stem == "ggml-vocab-qwen2":  # and it is composing that makes the difference
            assert [text for text in wrong if encode(text) != llama(compose()(text))] == []
    made.passed()


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_another_vocabulary_of_its_kind_would_be_seen(path: Path, tmp_path: Path) -> None:
    values, files, _ = real(path)
    encode = encoder(files)[1]
    change: dict[str, Value] = {f"{PREFIX}add_space_prefix": value_of(False)}
    if values[f"{PREFIX}model"].decode() == "gpt2":
        pre = values[f"{PREFIX}pre"].decode()
        change = {f"{PREFIX}pre": value_of("smollm" if pre == "gpt-2" else "gpt-2")}
    with making.llama({**of_tokenizer(values), **change}, tmp_path / "x.gguf") as llama:
        assert any(encode(text) != llama(text) for text in strings(500, ["x"]) if composed(text))


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_transformers_loads_the_files(path: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    values, files, _ = real(path)
    tokenizer, encode = encoder(files)
    texts = list(strings(300, added(tokenizer)))
    types = {"gpt-2": ["starcoder2", "olmo2", "granite"], "llama-bpe": ["smollm3"], "qwen2": ["qwen2", "qwen3"],
             "llama-spm": ["llama", "mistral", "gemma2", "gemma3_text"], "phi-3": ["phi3"]}  # fmt: skip
    for model_type in types[path.stem.removeprefix("ggml-vocab-")]:
        folder = written({**files, "config.json": json.dumps({"model_type": model_type})}, tmp_path / model_type)
        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        assert [text for text in texts if loaded(text, add_special_tokens=False).input_ids != encode(text)] == []
        assert loaded("Hello").input_ids == tokenizer.encode("Hello").ids
        assert len(loaded) == tokenizer.get_vocab_size()
        assert loaded.chat_template == files.get("chat_template.jinja")
        for kind in ("bos", "eos"):
            assert getattr(loaded, f"{kind}_token_id") == values[f"{PREFIX}{kind}_token_id"].decode()


# --- there and back


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_published_tokenizer_comes_back(name: str, tmp_path: Path) -> None:
    folder = REAL / "tokenizers" / name
    original = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    values, _ = tokenizer_values(folder, {}, original.get_vocab_size() + 3)
    files, _ = tokenizer_files(values, "qwen2" if name == "qwen2" else "llama", "x.gguf")
    inputs = {"tokenizer": folder / "tokenizer.json", "files": files["tokenizer.json"].encode(),
              "strings": Path(strings.__code__.co_filename)}  # fmt: skip
    made = Comparison(f"import of an export of {name}", inputs, "tokenizers")
    back, _ = encoder(files)
    fillers = re.compile(r"\[PAD\d+\]")  # rows of the file that this copy was made from
    special = [token for token in added(original) if not fillers.fullmatch(token)]
    texts = list(strings(500 if made.settled else 10_000, special))
    wrong = [text for text in texts if back.encode(text).ids != original.encode(text).ids]
    # This copy of Qwen 2's does not compose; that of the published model does, and so do transformers' classes.
    assert [text for text in wrong if name != "qwen2" or composed(text)] == []
    assert back.decode(original.encode(texts[0]).ids) == original.decode(original.encode(texts[0]).ids)
    made.passed()
    again, _ = tokenizer_values(written(files, tmp_path), {}, original.get_vocab_size() + 3)
    changed = {key for key in values if values[key] != again.get(key)}
    assert changed == ({f"{PREFIX}token_type"} if name == "qwen2" else set())  # fillers are unused rows again


@pytest.mark.parametrize("published", making.PUBLISHED)
def test_a_tokenizer_of_each_structure_comes_back(published: str, tmp_path: Path) -> None:
    steps, ignore_merges, _ = making.PUBLISHED[published]
    original = making.byte_level_tokenizer(steps, ignore_merges)
    original.save(str(tmp_path / "tokenizer.json"))
    back, _ = encoder(tokenizer_files(tokenizer_values(tmp_path, {}, 3100)[0], "llama", "x.gguf")[0])
    texts = list(strings(500, making.SPECIAL))
    assert [text for text in texts if back.encode(text).ids != original.encode(text).ids] == []
    assert [
        text for text in texts if back.decode(back.encode(text).ids) != original.decode(back.encode(text).ids)
    ] == []


@pytest.mark.parametrize("style", ["llama", "gemma"])
def test_a_sentencepiece_tokenizer_comes_back(style: str, tmp_path: Path) -> None:
    original = making.bpe_tokenizer(making.bpe_pieces(), style)
    original.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}')
    values, _ = tokenizer_values(tmp_path, {}, 4000)
    files, _ = tokenizer_files(values, "llama", "x.gguf")
    back, _ = encoder(files)
    texts = list(strings(2000, added(original)))
    assert [text for text in texts if back.encode(text).ids != original.encode(text).ids] == []
    plain = list(strings(500, ["x"]))
    assert [text for text in plain if back.decode(back.encode(text).ids) != text] == []
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    again, _ = tokenizer_values(written(files, tmp_path), {}, 4000)
    assert {key for key in values if values[key] != again.get(key)} <= {f"{PREFIX}scores"}  # made of ranks, both


# --- names of pre-tokenizers


@cache
def trained(pre: PreTokenizer) -> dict[str, Value]:
    """Return the keys of a byte-level BPE whose merges are learned from words that these expressions give."""
    tokenizer = making.byte_level_tokenizer([*map(making.split, pre.splits), making.BYTES], pre.ignore_merges)
    data = json.loads(tokenizer.to_str())["model"]
    texts = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
    texts |= {number: text for text, number in data["vocab"].items()}
    types = dict.fromkeys(making.SPECIAL[:3], CONTROL) | {making.SPECIAL[3]: USER_DEFINED}
    tokens = [(texts[number], 0.0, types.get(texts[number], NORMAL)) for number in range(len(texts))]
    return keyed("gpt2", tokens, merges=[" ".join(pair) for pair in data["merges"]], bos_token_id=0, eos_token_id=1)


DIFFERENT: Mapping[str, Callable[[str], bool]] = {
    "": lambda text: False,
    "it keeps": cased,
    "it separa": lambda text: marked(text) or cased(text),
    "the token": spaced,
}


@cache
def encoded(tokenizer_json: str) -> list[tuple[str, list[int]]]:
    """Return some strings with the ids of this tokenizer.json, which is the same for many names."""
    encode = encoder({"tokenizer.json": tokenizer_json})[1]
    return [(text, encode(text)) for text in strings(300, making.SPECIAL)]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_name_stands_for_what_llama_cpp_does(name: str, tmp_path: Path) -> None:
    from ropetool.verification.runners.llama_library import free, library, load, tokens_of

    pre = PRE_TOKENIZERS[name]
    values = {**trained(pre), f"{PREFIX}pre": value_of(name)}
    files, notes = tokenizer_files(values, "llama", "x.gguf")
    lib = library()
    lib.llama_vocab_get_add_bos.restype = ctypes.c_bool
    making.write_vocabulary(values, tmp_path / "x.gguf")
    model = load(lib, tmp_path / "x.gguf", gpu=False, vocabulary_only=True)
    try:
        known = lib.llama_model_get_vocab(model)
        wrong = [text for text, ids in encoded(files["tokenizer.json"]) if tokens_of(lib, known, text) != ids]
        adds = bool(lib.llama_vocab_get_add_bos(ctypes.c_void_p(known)))
    finally:
        free(lib, model)
    assert [text for text in wrong if not DIFFERENT[pre.difference[:9].rstrip()](text)] == []
    assert any(pre.difference in note for note in notes if "llama.cpp splits some text differently" in note) == bool(
        pre.difference
    )
    assert json.loads(files["tokenizer_config.json"])["add_bos_token"] == adds == pre.add_bos


@pytest.mark.parametrize("name", {pre.splits: name for name, pre in PRE_TOKENIZERS.items()}.values())
def test_the_wrong_expressions_would_be_seen(name: str, tmp_path: Path) -> None:
    values = trained(PRE_TOKENIZERS[name])
    encode = encoder(tokenizer_files({**values, f"{PREFIX}pre": value_of(name)}, "llama", "x.gguf")[0])[1]
    other = "qwen2" if PRE_TOKENIZERS[name] == PRE_TOKENIZERS["gpt-2"] else "gpt-2"
    with making.llama({**values, f"{PREFIX}pre": value_of(other)}, tmp_path / "x.gguf") as llama:
        plain = (text for text in strings(3000, making.SPECIAL) if not (marked(text) or cased(text) or spaced(text)))
        assert any(encode(text) != llama(text) for text in plain)


# --- scores


@pytest.mark.parametrize("prefixed", [True, False])
def test_added_tokens_and_runs_of_spaces(prefixed: bool, tmp_path: Path) -> None:
    pieces = [
        *making.bpe_pieces()[259:],
        ("<|user|>", 0.0, CONTROL),
        ("<tool>", 0.0, USER_DEFINED),
        (" " * 5, 0.0, USER_DEFINED),
    ]
    values = scored(pieces, add_space_prefix=prefixed)
    texts = [
        *strings(2000, ["<|user|>", "<tool>", "</s>"]),
        *(f"{a}{' ' * n}{b}" for n in range(40) for a in "x." for b in "y "),
    ]
    assert different(values, tmp_path, texts) == []
    flat = {**values, f"{PREFIX}scores": keyed("", [("", -1.0, NORMAL)] * (259 + len(pieces)))[f"{PREFIX}scores"]}
    encode = encoder(tokenizer_files(values, "llama", "x.gguf")[0])[1]
    with making.llama(flat, tmp_path / "flat.gguf") as llama:
        assert any(encode(text) != llama(text) for text in texts)


def vocabulary(kind: str, rng: random.Random) -> list[tuple[str, float, int]]:
    """Return pieces of few letters, so that pairs overlap and one piece is made of several: scores by rank, or alike."""
    if kind == "runs":
        counts = [1, *rng.sample(range(2, 20), rng.randint(2, 10))]
        return [*((making.SPACE * count, 0.0, NORMAL) for count in counts), ("a", 0.0, NORMAL)]
    texts = ["a", "b", making.SPACE]
    while len(texts) < 28:
        text = rng.choice(texts) + rng.choice(texts)
        if len(text) < 9 and text not in texts:
            texts.append(text)
    ranks = list(range(len(texts)))
    if kind == "shuffled":
        rng.shuffle(ranks)
    return [
        (text, -float(rank % 6 if kind == "ties" else rank), NORMAL) for text, rank in zip(texts, ranks, strict=True)
    ]


@pytest.mark.parametrize("kind", ["ranks", "shuffled", "runs", "ties"])
def test_pairs_are_joined_in_the_order_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    noted = []
    for number in range(20):
        values = scored(vocabulary(kind, rng))
        (tmp_path / str(number)).mkdir()
        texts = [" " * count for count in range(60)] + [
            "".join(rng.choices("ab ", k=rng.randint(1, 30))) for _ in range(200)
        ]
        wrong = different(values, tmp_path / str(number), texts)
        notes = tokenizer_files(values, "llama", "x.gguf")[1]
        said = any("have the same score" in note for note in notes)
        assert said or wrong == []
        noted.append(said and wrong != [])
    assert any(noted) == (kind == "ties")


# --- Unigram


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("prefixed", [True, False])
def test_a_unigram(prefixed: bool, merged: bool, tmp_path: Path) -> None:
    pieces = [
        *making.unigram_pieces(),
        ("<|user|>", 0.0, CONTROL),
        ("[PAD2001]", -1e4, making.UNUSED),
    ]
    ids = {"unknown_token_id": 2, "eos_token_id": 1}
    values = keyed("t5", pieces, add_space_prefix=prefixed, remove_extra_whitespaces=merged, **ids)
    assert different(values, tmp_path, strings(2000, ["</s>", "<|user|>", "<unk>"])) == []
    other = {**values, f"{PREFIX}remove_extra_whitespaces": value_of(not merged)}
    encode = encoder(tokenizer_files(other, "t5", "x.gguf")[0])[1]
    with making.llama(values, tmp_path / "x.gguf") as llama:
        assert any(encode(text) != llama(text) for text in strings(100, ["</s>"]))


def test_a_unigram_with_the_characters_of_sentencepiece(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    from exporting.test_tokenizer_pieces import learned

    learned("unigram", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "unk_token": "<unk>"}')
    values, _ = tokenizer_values(tmp_path, {}, 2000)
    assert values[f"{PREFIX}precompiled_charsmap"].count > 1000
    wrong = different(values, tmp_path, strings(2000, ["</s>"]))
    assert [text for text in wrong if not marked(text)] == []
