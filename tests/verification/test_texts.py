"""Documents: files and folders in, bad ones refused with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropetool.errors import ConfigError
from ropetool.verification import texts
from ropetool.verification.texts import Document, embedded_documents, read_documents


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
    with pytest.raises(ConfigError, match="is 500 bytes long; a document has at most 499"):
        read_documents([file])


def test_missing_paths_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_documents([tmp_path / "none.txt"])
    with pytest.raises(ConfigError, match="holds no files"):
        read_documents([tmp_path])


def test_a_copy_is_no_second_document(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same")
    with pytest.raises(ConfigError, match=r"same text as a\.txt") as caught:
        read_documents([tmp_path])
    assert caught.value.where == "b.txt"


def test_the_embedded_documents_are_the_files_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts.EMBEDDED.parts[-3:] == ("ropetool", "demo", "text")
    (tmp_path / "a.txt").write_text("held out")
    monkeypatch.setattr(texts, "EMBEDDED", tmp_path)
    assert embedded_documents() == [Document("a.txt", "held out")]
