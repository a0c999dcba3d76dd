"""The documents that a verification reads: files, folders, JSONL, and the documents in the package."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from ropetool.errors import CheckpointError, ConfigError
from ropetool.escaping import command, word
from ropetool.files.regular import open_regular

EMBEDDED = Path(__file__).parent.parent / "demo" / "text"
LONG = Path(__file__).parent.parent / "texts"
MEDIUM = LONG / "medium"
# Each embedded document has 4404 tokens or more with the tokenizers of Llama 3, Qwen2, GPT-2 and the demo.
SHORT_TOKENS = 4096
# Each document in MEDIUM has 33269 tokens or more with the tokenizers of Llama 3, Qwen2, Gemma 3, SmolLM2 and GPT-2.
MEDIUM_TOKENS = 32768
MAX_BYTES = 32 * 2**20  # of one document; about 8M tokens, and reading it stays under 200 MB
MAX_JSONL_BYTES = 8 * MAX_BYTES
MAX_JSONL_DOCUMENTS = 100_000  # a line of 20 bytes costs 300 as a document
EMPTY = "is empty; a document needs text"
NOT_TEXT = re.compile("[\\0\\ud800-\\udfff]")
MAX_NAME = 100  # characters of a document's name, because tables show it


@dataclass(frozen=True)
class Document:
    """A text that was written in one piece. Suites cluster their standard errors by document, a verdict by author.

    name: the name in tables and errors.
    kind: the kind of text, for example prose or code; "" if it is unknown.
    author: the name of the author; "" for an author of only this document.
    """

    name: str
    text: str
    kind: str = ""
    author: str = ""


# For the bundled texts, by the first part of their names. The catalogue's kinds are in its manifest.
KINDS = {
    "kjv": "prose", "python": "code", "austen": "prose", "roosevelt": "prose", "bash": "reference",
    "jargon": "reference", "rust": "reference",
}  # fmt: skip
AUTHORS = {
    "austen": "Jane Austen", "roosevelt": "Theodore Roosevelt", "bash": "Mendel Cooper", "jargon": "Eric S. Raymond",
    "rust": "The Rust project",
}  # fmt: skip


def too_short(length: int, need: int, longest: int) -> ConfigError:
    """Return the error for texts that do not fill a row. Units: tokens, of the row, the document and the longest document."""
    return ConfigError(
        f"the texts are too short: a length of {length} tokens needs a document of {need}, and the longest has {longest}",
        where="--text",
        try_="longer texts, or shorter --lengths",
    )


def embedded_documents() -> list[Document]:
    """Return the held-out documents of the demo checkpoint: 15 of about 22000 characters."""
    return _with_kinds(read_documents([EMBEDDED]))


def long_documents() -> list[Document]:
    """Return the bundled books: at least 131072 tokens each with the tokenizers in use."""
    return _with_kinds(read_documents(sorted(LONG.glob("*.xz"))))


def medium_documents() -> list[Document]:
    """Return the bundled documents of other authors: more than MEDIUM_TOKENS each with the tokenizers in use."""
    rows = json.loads((MEDIUM / "manifest.json").read_text(encoding="utf-8"))["documents"]
    documents = read_documents([MEDIUM / f"{row['name']}.txt.xz" for row in rows])
    return [
        replace(document, kind=row["kind"], author=row["author"]) for document, row in zip(documents, rows, strict=True)
    ]


def _with_kinds(documents: Sequence[Document]) -> list[Document]:
    """Return the bundled documents with their kinds and authors."""
    names = [document.name.partition("-")[0] for document in documents]
    return [
        replace(document, kind=KINDS.get(name, ""), author=AUTHORS.get(name, ""))
        for document, name in zip(documents, names, strict=True)
    ]


def default_documents(longest: int) -> list[Document]:
    """Return the bundled documents for a suite. longest: the longest length in tokens."""
    return embedded_documents() if longest <= SHORT_TOKENS else long_documents()


def verdict_documents(length: int) -> list[Document]:
    """Return the bundled documents for a default verification. length: the context length in tokens."""
    medium = medium_documents() if SHORT_TOKENS < length <= MEDIUM_TOKENS else []
    return [*default_documents(length), *medium]


def fingerprint(documents: Sequence[Document]) -> str:
    """Return the SHA-256 of the texts in their order. The names do not affect it, but the borders between texts do."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.text.encode("utf-8")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Return the documents of files and of folders, in order; the files of a folder in order of their names.

    A file is one document. Each line of a `.jsonl` file is one document: an object with the string "text", and
    optionally a "name" or "id", and a "kind". Files with the suffix `.gz` or `.xz` are unpacked.

    Raises: ConfigError if a path is missing, a folder is empty, a text occurs twice, or a file or line is empty,
    binary, not UTF-8, broken or larger than its limit.
    """
    documents = [document for path in paths for file in _files(Path(path)) for document in _documents(file)]
    first_with: dict[str, str] = {}
    for document in documents:
        if document.text in first_with:
            # Intervals are clustered by document, so a copy would make them too narrow.
            raise ConfigError(
                f"contains the same text as {first_with[document.text]}; each document counts as independent evidence",
                where=document.name,
                try_="pass each text once",
            )
        first_with[document.text] = document.name
    return documents


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError("no such file or folder", where=str(path))
    if not path.is_dir():
        return [path]
    # Hidden files belong to the desktop or an editor, so they are not texts of the user.
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise ConfigError("the folder contains no files; each file is a document", where=str(path))
    return files


def _documents(path: Path) -> Iterator[Document]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes[-1:] in ([".gz"], [".xz"]) else ""
    if suffixes[-1:] == [".jsonl"]:
        yield from _jsonl(path, _read(path, packed, MAX_JSONL_BYTES, "a JSONL file"))
    else:
        text = _decoded(_read(path, packed, MAX_BYTES, "a document"), str(path))
        yield Document(path.name, _checked(text, str(path)))


def _read(path: Path, packed: str, limit: int, file_type: str) -> bytes:
    """Return the unpacked bytes of a file. It never reads more than the limit into memory.

    packed: the suffix of the compression, or "". file_type: the words for an error message.
    """
    try:
        with open_regular(path) as file, _unpacked(file, packed) as stream:
            data = stream.read(limit + 1)
    except CheckpointError as error:
        raise ConfigError(error.message, where=error.where) from error
    except (EOFError, MemoryError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        # MemoryError: an xz header may ask for a dictionary of 4 GiB.
        reason = str(error) or type(error).__name__
        raise ConfigError(f"cannot be unpacked as {packed}: {reason}", where=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    zero = data.find(b"\0")
    if zero >= 0:
        raise ConfigError(f"is binary, not text: byte {zero} is NUL", where=str(path))
    if len(data) > limit:
        size = f"unpacks to more than {limit} bytes" if packed else f"is {path.stat().st_size} bytes long"
        raise ConfigError(
            f"{size}; the limit for {file_type} is {limit}", where=str(path), try_=_split(path, packed, limit)
        )
    return data


def _split(path: Path, packed: str, limit: int) -> str:
    """Return the commands that cut a file into smaller ones, with a comment on the pieces to pass."""
    program = {".gz": "gunzip", ".xz": "unxz"}.get(packed)
    unpack = f"{command(program, '--keep', path)} && " if program else ""
    plain = path.with_suffix("") if packed else path
    split = unpack + command("split", f"--line-bytes={limit // 2}", f"--additional-suffix={plain.suffix}", plain)
    if plain.suffix.lower() == ".jsonl":
        return split
    return f"{split} # then pass only {word(f'xaa{plain.suffix}')}, because the pieces count as one document"


def _unpacked(file: BinaryIO, packed: str) -> BinaryIO:
    if packed == ".gz":
        return cast(BinaryIO, gzip.open(file))
    return cast(BinaryIO, lzma.open(file)) if packed else file


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", where=where) from error


def _checked(text: str, where: str) -> str:
    if not text.strip():
        raise ConfigError(EMPTY, where=where)
    return text


def _jsonl(path: Path, data: bytes) -> Iterator[Document]:
    if not data.strip():
        raise ConfigError(EMPTY, where=str(path))
    blank = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise ConfigError("is a blank line; only the end of the file may have blank lines", where=f"{path}:{blank}")
        if number > MAX_JSONL_DOCUMENTS:
            raise ConfigError(
                f"contains more than {MAX_JSONL_DOCUMENTS} documents",
                where=str(path),
                try_=f"pass a file with its first {MAX_JSONL_DOCUMENTS} lines",
            )
        entry = _entry(line, f"{path}:{number}")
        yield Document(_name(entry) or f"{path.name}:{number}", entry["text"], _label(entry, "kind"))


def _entry(line: bytes, where: str) -> dict[str, Any]:
    """Return the object on a JSONL line. Raises: ConfigError if it does not have a valid "text"."""
    if len(line) > MAX_BYTES:
        raise ConfigError(f"is {len(line)} bytes long; the limit for a line is {MAX_BYTES}", where=where)
    entry = _parsed(_decoded(line, where), where)
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        raise ConfigError('must be an object with a string "text"', where=where, try_='a line such as {"text": "..."}')
    text = _checked(entry["text"], where)
    if NOT_TEXT.search(text):
        raise ConfigError('the string "text" must not contain NUL or half of a surrogate pair', where=where)
    return entry


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not JSON: {error.msg}, at character {error.pos + 1}", where=where) from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or deeply nested brackets
        raise ConfigError(f"cannot be parsed as JSON: {error}", where=where) from error


def _name(entry: dict[str, Any]) -> str:
    """Return the entry's name or id if it fits into a table, else ""."""
    return _label(entry, "name") or _label(entry, "id")


def _label(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    label = str(value).strip() if isinstance(value, str | int) else ""
    return label if len(label) <= MAX_NAME and label.isprintable() else ""
