"""Documents: files, folders and JSONL in, bad ones refused with their place; the bundled texts are what they say."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ropetool.errors import ConfigError
from ropetool.verification import texts
from ropetool.verification.session import documents_of
from ropetool.verification.texts import (
    Document,
    default_documents,
    embedded_documents,
    fingerprint,
    long_documents,
    medium_documents,
    read_documents,
    verdict_documents,
)

DEMO_TOKENIZER = texts.EMBEDDED.parent / "model" / "tokenizer.json"


def refusal(path: Path) -> ConfigError:
    """Return the error that reading the path raises."""
    with pytest.raises(ConfigError) as caught:
        read_documents([path])
    return caught.value


def write_lines(file: Path, *lines: str) -> Path:
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return file


# --- files and folders


def test_files_and_the_files_of_folders_are_documents_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    (folder / "b.md").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / ".DS_Store").write_bytes(b"\0\1")
    (tmp_path / "z.py").write_text("third")
    found = read_documents([tmp_path / "z.py", folder])
    assert found == [Document("z.py", "third"), Document("a.txt", "first"), Document("b.md", "second")]


def test_the_text_is_kept_as_it_is_but_for_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffné\r\n\n läng ".encode())
    assert read_documents([file])[0].text == "né\r\n\n läng "


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc\0def", "byte 3 is NUL"),
        (b"abcd\xff\xfe", "byte 4 is 0xff"),
        ("é".encode("latin-1"), "byte 0 is 0xe9"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
    ],
)
def test_bad_files_are_refused_with_name_and_place(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=message) as caught:
        read_documents([file])
    assert caught.value.where == str(file)


def test_too_long_a_file_is_refused_without_reading_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "long.txt"
    file.write_text("word " * 100)
    monkeypatch.setattr(texts, "MAX_BYTES", 500)
    assert len(read_documents([file])) == 1
    monkeypatch.setattr(texts, "MAX_BYTES", 499)
    with pytest.raises(ConfigError, match="is 500 bytes long; the limit for a document is 499"):
        read_documents([file])


def test_missing_paths_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_documents([tmp_path / "none.txt"])
    with pytest.raises(ConfigError, match="contains no files"):
        read_documents([tmp_path])


def test_a_copy_is_no_second_document(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same")
    with pytest.raises(ConfigError, match=r"same text as a\.txt") as caught:
        read_documents([tmp_path])
    assert caught.value.where == "b.txt"


# --- packed files


def test_packed_files_are_read_as_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("né\r\n".encode()))
    (tmp_path / "b.md.XZ").write_bytes(lzma.compress(b"first stream, ") + lzma.compress(b"second stream"))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert read_documents([tmp_path]) == [
        Document("a.txt.gz", "né\r\n"),
        Document("b.md.XZ", "first stream, second stream"),
        Document("c.jsonl.xz:1", "one"),
        Document("c.jsonl.xz:2", "two"),
    ]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_broken_packed_file_is_refused(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(b"some words " * 100)
    broken = {
        "short": whole[:-9],
        "changed": whole[:30] + bytes([whole[30] ^ 0xFF]) + whole[31:],
        "block": whole[:10] + b"\xff" + whole[11:],  # in a .gz the kind of the first block, one that does not exist
        "plain": b"not packed at all, whatever the name says",
    }
    for name, data in broken.items():
        file = tmp_path / f"{name}.txt{suffix}"
        file.write_bytes(data)
        error = refusal(file)
        assert error.message.startswith(f"cannot be unpacked as {suffix}: ")
        assert error.where == str(file)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / f"bomb.txt{suffix}"
    file.write_bytes(pack(b"word " * 1000))
    monkeypatch.setattr(texts, "MAX_BYTES", 5000)
    assert len(read_documents([file])[0].text) == 5000
    monkeypatch.setattr(texts, "MAX_BYTES", 4999)
    assert file.stat().st_size < 200
    error = refusal(file)
    assert error.message == "unpacks to more than 4999 bytes; the limit for a document is 4999"
    assert (
        f"split --line-bytes=2499 --additional-suffix=.txt {tmp_path / 'bomb.txt'} # then pass only xaa.txt, because "
        in error.try_
    )


def test_an_xz_header_that_asks_for_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    data = bytearray(lzma.compress(b"word " * 1000, preset=0))
    size = 4 * (data[12] + 1)  # of the block header: its size, flags, filter 0x21, length 1, dictionary, padding, CRC
    assert data[14:16] == bytes([0x21, 1])
    data[16] = 40  # a dictionary of 4 GiB
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(bytes(data[12 : 12 + size - 4])))
    (tmp_path / "a.txt.xz").write_bytes(data)
    program = (
        "import resource, sys; from pathlib import Path; from ropetool.verification.texts import read_documents\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "try: read_documents([Path(sys.argv[1])])\n"
        "except Exception as error: print(type(error).__name__, error.message)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.txt.xz")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "ConfigError cannot be unpacked as .xz: MemoryError\n"


# --- JSONL


def test_each_line_of_a_jsonl_file_is_a_document(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "set.jsonl",
        '\ufeff{"text": "first", "id": 7, "split": "test"}',
        '{"id": "b", "name": " second one ", "text": "se\\u00e9\\ncond "}\r',
        '{"text": "third\u2028still third", "name": null, "id": ""}',
        '{"text": "fourth", "name": "\\u001b[31mred"}',
        json.dumps({"text": "fifth", "id": "x" * 101}),
        "",
        "  ",
    )
    assert read_documents([file]) == [
        Document("7", "first"),
        Document("second one", "seé\ncond "),
        Document("set.jsonl:3", "third\u2028still third"),
        Document("set.jsonl:4", "fourth"),
        Document("set.jsonl:5", "fifth"),
    ]


GOOD = '{"text": "good"}'


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ([GOOD, "", '{"text": "b"}'], 2, "is a blank line"),
        (["", GOOD], 1, "is a blank line"),
        ([GOOD, "  ", "", '{"text": "b"}'], 2, "is a blank line"),
        ([GOOD, '{"text": "b"'], 2, "is not JSON: Expecting ',' delimiter, at character 14"),
        ([GOOD, "plain words"], 2, "is not JSON: Expecting value, at character 1"),
        ([GOOD, "[" * 100_000], 2, "cannot be parsed as JSON"),
        (['{"text": ' + "9" * 5000 + "}"], 1, "cannot be parsed as JSON"),
        ([GOOD, '["text"]'], 2, 'must be an object with a string "text"'),
        ([GOOD, '{"content": "b"}'], 2, 'must be an object with a string "text"'),
        ([GOOD, '{"text": null}'], 2, 'must be an object with a string "text"'),
        ([GOOD, '{"text": ["b"]}'], 2, 'must be an object with a string "text"'),
        ([GOOD, '{"text": ""}'], 2, "is empty"),
        ([GOOD, '{"text": " \\n"}'], 2, "is empty"),
        ([GOOD, '{"text": "a\\u0000b"}'], 2, "must not contain NUL or half of a surrogate pair"),
        ([GOOD, '{"text": "a\\ud800b"}'], 2, "must not contain NUL or half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, lines: list[str], number: int, message: str) -> None:
    file = write_lines(tmp_path / "set.jsonl", *lines)
    error = refusal(file)
    assert message in error.message
    assert error.where == f"{file}:{number}"


def test_a_jsonl_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    for data, message in [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (GOOD.encode("utf-16"), "byte 3 is NUL"),
    ]:
        file.write_bytes(data)
        error = refusal(file)
        assert (message in error.message, error.where) == (True, str(file))
    file.write_bytes(GOOD.encode() + b'\n{"text": "\xe9"}\n')
    error = refusal(file)
    assert (error.message, error.where) == ("is not UTF-8: byte 10 is 0xe9", f"{file}:2")


def test_a_jsonl_file_is_bounded_in_bytes_lines_and_the_length_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "set.jsonl", GOOD, '{"text": "another"}')
    for name, enough, message in [
        ("MAX_BYTES", 20, "is 20 bytes long; the limit for a line is 19"),
        ("MAX_JSONL_DOCUMENTS", 2, "contains more than 1 documents"),
        ("MAX_JSONL_BYTES", 37, "is 37 bytes long; the limit for a JSONL file is 36"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(texts, name, enough)
            assert len(read_documents([file])) == 2
            patch.setattr(texts, name, enough - 1)
            assert refusal(file).message == message


def test_a_copy_within_a_jsonl_file_is_no_second_document(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "set.jsonl", GOOD, '{"text": "other"}', '{"text": "good", "id": "again"}')
    error = refusal(file)
    assert (error.where, error.message.split(";")[0]) == ("again", "contains the same text as set.jsonl:1")


# --- the fingerprint


def test_the_fingerprint_is_of_the_texts_their_order_and_their_borders() -> None:
    pair = [Document("a", "né"), Document("b", "c")]
    by_hand = b"\3" + bytes(7) + b"n\xc3\xa9" + b"\1" + bytes(7) + b"c"
    assert fingerprint(pair) == hashlib.sha256(by_hand).hexdigest()
    assert fingerprint([Document("other", "né"), Document("names", "c")]) == fingerprint(pair)
    others = [pair[::-1], pair[:1], [Document("a", "n"), Document("b", "éc")], [Document("a", "néc")], []]
    assert len({fingerprint(other) for other in [pair, *others]}) == 6


# --- what the package brings along


def test_the_embedded_documents_are_the_files_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts.EMBEDDED.parts[-3:] == ("ropetool", "demo", "text")
    (tmp_path / "a.txt").write_text("held out")
    monkeypatch.setattr(texts, "EMBEDDED", tmp_path)
    assert embedded_documents() == [Document("a.txt", "held out")]


def test_the_default_is_the_short_documents_up_to_4096_tokens_and_the_long_ones_beyond() -> None:
    assert default_documents(64) == default_documents(4096) == embedded_documents()
    assert default_documents(4097) == default_documents(131072) == long_documents()


def test_the_long_documents_are_six_books_of_under_2_mb_on_disk() -> None:
    documents = long_documents()
    assert len(documents) == 6
    # 131072 tokens at 5.6 characters each; the texts have 3.7 to 5.2 with the tokenizers of Llama 3 and Qwen2.
    assert min(len(document.text) for document in documents) > 740_000
    assert sum(file.stat().st_size for file in texts.LONG.iterdir()) < 2_000_000


@pytest.mark.parametrize("document", long_documents(), ids=lambda document: document.name)
def test_a_long_document_is_readable_text(document: Document) -> None:
    assert not re.search(
        r"</?\w+[^<>]*>\s*</|&(amp|lt|gt|nbsp|#\d+);|[\x00-\x08\x0b-\x1f\x7f-\xa0\ufffd]", document.text
    )
    words = re.findall(r"[A-Za-z']+", document.text)
    assert len(words) > 90_000
    assert "\n\n\n" not in document.text
    # No page is there twice: long lines are sentences, and nearly all stand once.
    lines = [line for line in document.text.split("\n") if len(line) > 100]
    assert len(set(lines)) > 0.99 * len(lines) > 0


def test_the_readme_of_the_long_documents_names_each_with_its_size_and_sum() -> None:
    rows = [line.split(" | ") for line in (texts.LONG / "README.md").read_text().splitlines() if ".xz | " in line]
    listed = {row[0].removeprefix("| "): (int(row[5]), row[6].removesuffix(" |")) for row in rows}
    held = {
        document.name: (len(document.text.encode()), hashlib.sha256(document.text.encode()).hexdigest())
        for document in long_documents()
    }
    assert listed == held


def test_nothing_bundled_was_trained_on_by_the_demo() -> None:
    for document in long_documents():
        assert "in the beginning god created" not in document.text.lower()
        assert "def __init__(self" not in document.text


# --- the documents of other authors

MANIFEST = json.loads((texts.MEDIUM / "manifest.json").read_text(encoding="utf-8"))["documents"]
FREE = {"public domain", "BSD-3-Clause", "MIT", "Apache-2.0", "Zsh (MIT-style)"}


def test_medium_documents_are_those_of_their_manifest_in_1_mb() -> None:
    found = medium_documents()
    assert [(each.name, each.kind, each.author) for each in found] == [
        (f"{row['name']}.txt.xz", row["kind"], row["author"]) for row in MANIFEST
    ]
    assert [(len(each.text), hashlib.sha256(each.text.encode()).hexdigest()) for each in found] == [
        (row["characters"], row["sha256"]) for row in MANIFEST
    ]
    assert {file.name for file in texts.MEDIUM.glob("*.xz")} == {each.name for each in found}
    assert sum(file.stat().st_size for file in texts.MEDIUM.iterdir()) < 1_000_000


def test_medium_documents_are_free_and_their_notices_are_kept() -> None:
    assert {row["licence"] for row in MANIFEST} == FREE
    notices = (texts.MEDIUM / "LICENSES.txt").read_text(encoding="utf-8")
    for row in MANIFEST:
        assert all(row[key] for key in ("title", "date", "registry", "package", "version")), row["name"]
        assert (f"{row['name']}.txt.xz" in notices) == (row["licence"] != "public domain")


def test_the_readme_of_the_medium_documents_has_the_rows_of_the_manifest() -> None:
    rows = [line.split(" | ") for line in (texts.MEDIUM / "README.md").read_text().splitlines() if ".xz | " in line]
    assert [(row[0].removeprefix("| "), row[5], row[7].removesuffix(" |")) for row in rows] == [
        (f"{row['name']}.txt.xz", row["licence"], row["sha256"]) for row in MANIFEST
    ]


def test_every_medium_document_has_another_author_and_kinds_are_in_balance() -> None:
    written = [document.author for document in medium_documents()]
    assert len({*written}) == len(written) == 21
    assert "" not in written
    books = {document.author for document in long_documents()}
    assert len(books) == 5
    assert not books & {*written}
    kinds = [document.kind for document in [*long_documents(), *medium_documents()]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"prose": 7, "reference": 8, "transcripts": 6, "code": 6}


def test_a_verdict_reads_medium_documents_too_between_4096_and_32768_tokens() -> None:
    assert verdict_documents(4096) == embedded_documents()
    assert verdict_documents(4097) == verdict_documents(32768) == [*long_documents(), *medium_documents()]
    assert verdict_documents(32769) == long_documents()
    assert documents_of((), 16384, [], verdict_documents) == verdict_documents(16384)
    assert documents_of((), 16384, []) == long_documents()


def counts(tokenizer: Path, documents: list[Document]) -> list[int]:
    encode = Tokenizer.from_file(str(tokenizer)).encode_batch_fast  # without the places of tokens in the text
    return [len(encode([document.text], add_special_tokens=False)[0]) for document in documents]


def test_the_embedded_documents_have_4096_tokens_and_the_long_ones_131072_with_the_demo_tokenizer() -> None:
    assert min(counts(DEMO_TOKENIZER, embedded_documents())) > 4096
    assert min(counts(DEMO_TOKENIZER, long_documents())) > 131072
    assert min(counts(DEMO_TOKENIZER, medium_documents())) > 32768


@pytest.mark.skipif("ROPETOOL_REAL_FILES" not in os.environ, reason="needs the tokenizers of real models")
@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_with_the_tokenizers_of_real_models_too(name: str) -> None:
    tokenizer = Path(os.environ["ROPETOOL_REAL_FILES"]) / "tokenizers" / name / "tokenizer.json"
    assert min(counts(tokenizer, embedded_documents())) > 4096
    assert min(counts(tokenizer, long_documents())) > 131072
    assert min(counts(tokenizer, medium_documents())) > 33000
