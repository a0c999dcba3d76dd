"""The documents that a verification reads: files, folders, and the ones embedded in the package.

Knows nothing of tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import ConfigError

EMBEDDED = Path(__file__).parent.parent / "demo" / "text"
MAX_BYTES = 32 * 2**20  # of one document; about 8M tokens, and reading it stays under 200 MB


@dataclass(frozen=True)
class Document:
    """A text that was written in one piece; the unit that standard errors are clustered by."""

    name: str
    text: str


def embedded_documents() -> list[Document]:
    """Return the held-out documents of the demo checkpoint."""
    return read_documents([EMBEDDED])


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Return one document for each file, and for each file of a folder in order of its name.

    Raises: ConfigError if a path is missing, a folder has no files, or a file is empty, binary, not UTF-8, over
    `MAX_BYTES`, or a copy of another one.
    """
    documents = [_read(file) for path in paths for file in _files(Path(path))]
    first_with: dict[str, str] = {}
    for document in documents:
        if document.text in first_with:
            # Intervals are clustered by document: a copy would make them too narrow.
            raise ConfigError(
                f"holds the same text as {first_with[document.text]}; each document counts as independent evidence",
                where=document.name,
                try_="give each text once",
            )
        first_with[document.text] = document.name
    return documents


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError("there is no such file or folder", where=str(path))
    # Dot files are the desktop's and the editor's, not the user's texts.
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise ConfigError("the folder holds no files; each file of a text folder is a document", where=str(path))
    return files


def _read(path: Path) -> Document:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    zero = data.find(b"\0")
    if zero >= 0:
        raise ConfigError(f"is binary, not text: byte {zero} is NUL", where=str(path))
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"is {path.stat().st_size} bytes long; a document has at most {MAX_BYTES}",
            where=str(path),
            try_=f"split --bytes={MAX_BYTES // 2} {path}",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", where=str(path)) from error
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise ConfigError("is empty; a document needs text", where=str(path))
    return Document(path.name, text)
