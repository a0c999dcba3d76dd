"""A description of the texts of a verification, so that other people can read the same texts.

The manifest ropetool/texts/manifest.json lists the documents of the catalogue by the SHA-256 of their text.
scripts/catalogue/text_catalogue.py downloads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool.verification.texts import Document

MANIFEST = Path(__file__).parent.parent / "texts" / "manifest.json"
PACKAGE, CATALOGUE, MIXED, OWN = "package", "catalogue", "mixed", "own"


def described(documents: Sequence[Document], *, bundled: bool) -> dict[str, Any]:
    """Return the description of the texts for a result and a certificate. bundled: they are the package's texts.

    The keys of the description:
    - origin: `package` for the bundled texts, `catalogue` if the manifest has all, `mixed` if it has some, `own` if
      none.
    - documents: the number of documents.
    - manifest: the hash of the manifest; None if it does not have any of the documents.
    - names: the documents that the manifest has, in the order of reading; empty for the whole catalogue.
    """
    if bundled:
        return _description(PACKAGE, documents)
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    known = {row["sha256"]: row["name"] for row in manifest["documents"]}
    digests = map(_digest, documents)
    names = [known[digest] for digest in digests if digest in known]
    if not names:
        return _description(OWN, documents)
    origin = CATALOGUE if len(names) == len(documents) else MIXED
    return _description(origin, documents, manifest["sha256"], [] if len(names) == len(known) else names)


def with_kinds(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with the kind of text from the manifest for each document that does not have a kind."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    kinds = {row["sha256"]: row.get("kind", "") for row in manifest["documents"]}
    return [
        document if document.kind else replace(document, kind=kinds.get(_digest(document), ""))
        for document in documents
    ]


def _digest(document: Document) -> str:
    return hashlib.sha256(document.text.encode("utf-8")).hexdigest()


def _description(
    origin: str, documents: Sequence[Document], manifest: str | None = None, names: Sequence[str] = ()
) -> dict[str, Any]:
    return {"origin": origin, "documents": len(documents), "manifest": manifest, "names": list(names)}
