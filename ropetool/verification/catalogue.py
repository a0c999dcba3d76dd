"""What texts a verification read, said so that others can read the same: by the manifest of the catalogue, or by digest.

The manifest, ropetool/texts/manifest.json, names documents by the SHA-256 of their text; scripts/catalogue/text_catalogue.py fetches
them. Knows nothing of where a text lay or what its file was called.
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
    """Return what the texts were, as a result and a certificate state it beside the fingerprint of their contents.

    origin: `package` for the bundled ones, `catalogue` where the manifest has every one, `mixed` where it has some, `own`
    where it has none. documents: how many. manifest: the hash of the manifest, or None where it has none of them. names:
    those that the manifest has, in the order read; empty where that is the whole catalogue.
    """
    if bundled:
        return _stated(PACKAGE, documents)
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    known = {row["sha256"]: row["name"] for row in manifest["documents"]}
    digests = map(_digest, documents)
    names = [known[digest] for digest in digests if digest in known]
    if not names:
        return _stated(OWN, documents)
    origin = CATALOGUE if len(names) == len(documents) else MIXED
    return _stated(origin, documents, manifest["sha256"], [] if len(names) == len(known) else names)


def of_their_kinds(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with the kinds that the manifest has for those that state none."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    kinds = {row["sha256"]: row.get("kind", "") for row in manifest["documents"]}
    return [
        document if document.kind else replace(document, kind=kinds.get(_digest(document), ""))
        for document in documents
    ]


def _digest(document: Document) -> str:
    return hashlib.sha256(document.text.encode("utf-8")).hexdigest()


def _stated(
    origin: str, documents: Sequence[Document], manifest: str | None = None, names: Sequence[str] = ()
) -> dict[str, Any]:
    return {"origin": origin, "documents": len(documents), "manifest": manifest, "names": list(names)}
