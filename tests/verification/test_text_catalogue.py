"""The manifest of long texts: enough of them, of every kind, none over its share, and bound by its hash."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path

import pytest

MANIFEST = Path(__file__).parents[2] / "ropetool" / "texts" / "manifest.json"


@pytest.fixture(scope="module")
def manifest() -> dict:
    return json.loads(MANIFEST.read_text(encoding="utf-8"))


def test_there_are_enough_documents_of_every_kind(manifest):
    rows = manifest["documents"]
    assert len(rows) >= 150
    # 5.8 characters a token is more than any tokenizer in use gives such text
    assert all(row["characters"] >= 4096 * 5.8 for row in rows)
    assert sum(row["characters"] >= 32768 * 5.79 for row in rows) >= 60
    assert {row["kind"] for row in rows} == {"prose", "code", "reference", "transcripts"}


def test_no_document_has_more_than_its_share(manifest):
    sizes = defaultdict(list)
    for row in manifest["documents"]:
        sizes[row["kind"]].append(row["characters"])
    for kind, each in sizes.items():
        assert max(each) <= sum(each) / 10, kind


def test_every_document_says_where_it_comes_from(manifest):
    for row in manifest["documents"]:
        assert all(row[key] for key in ("title", "date", "registry", "package", "version", "licence")), row["name"]


def test_the_hash_is_that_of_names_and_texts_and_no_text_is_there_twice(manifest):
    rows = manifest["documents"]
    digest = hashlib.sha256("".join(f"{row['name']} {row['sha256']}\n" for row in rows).encode())
    assert digest.hexdigest() == manifest["sha256"]
    assert len({row["sha256"] for row in rows}) == len(rows) == len({row["name"] for row in rows})
