"""What was read is said by the manifest's hash where its documents were read, in results, certificates and cards."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from pathlib import Path

import pytest

import ropetool
from ropetool import machine
from ropetool.checkpoint import certificate
from ropetool.plans import model_card
from ropetool.verification import catalogue
from ropetool.verification.catalogue import described
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.texts import Document, embedded_documents, long_documents, read_documents

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
FOUR = embedded_documents()[:4]
HASH = "ab" * 32
CACHE = machine.cache()  # the user's, before the tests get one of their own


@pytest.fixture
def manifest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A catalogue of four documents that are at hand."""
    rows = [
        {"name": f"known-{number}", "sha256": hashlib.sha256(document.text.encode()).hexdigest()}
        for number, document in enumerate(FOUR)
    ]
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({"sha256": HASH, "documents": rows}))
    monkeypatch.setattr(catalogue, "MANIFEST", file)


OWN = Document("mine.txt", "written by myself")
CASES = {
    "all": (FOUR, {"origin": "catalogue", "documents": 4, "manifest": HASH, "names": []}),
    "a part": (
        FOUR[2:0:-1],
        {"origin": "catalogue", "documents": 2, "manifest": HASH, "names": ["known-2", "known-1"]},
    ),
    "renamed": (
        [Document("x", FOUR[3].text)],
        {"origin": "catalogue", "documents": 1, "manifest": HASH, "names": ["known-3"]},
    ),
    "changed": (
        [Document(FOUR[0].name, FOUR[0].text + " ")],
        {"origin": "own", "documents": 1, "manifest": None, "names": []},
    ),
    "mixed": ([OWN, FOUR[0]], {"origin": "mixed", "documents": 2, "manifest": HASH, "names": ["known-0"]}),
    "all and another": ([OWN, *FOUR], {"origin": "mixed", "documents": 5, "manifest": HASH, "names": []}),
    "own": ([OWN], {"origin": "own", "documents": 1, "manifest": None, "names": []}),
}


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("case", CASES)
def test_documents_are_known_by_their_text(case: str) -> None:
    documents, stated = CASES[case]
    assert described(documents, bundled=False) == stated


def test_the_bundled_texts_are_named_as_such() -> None:
    stated = {"origin": "package", "documents": 15, "manifest": None, "names": []}
    assert described(embedded_documents(), bundled=True) == stated
    assert described(long_documents(), bundled=True)["origin"] == "package"


@pytest.mark.usefixtures("manifest")
def test_result_certificate_and_card_name_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path(shutil.copytree(DEMO, "model"))
    target = ropetool.apply(ropetool.plan(source, "yarn", factor=2), source, Path("model-yarn-2x")).output
    folder = Path("texts")
    folder.mkdir()
    for document in FOUR:
        (folder / f"{document.name}.xz").write_bytes(lzma.compress(document.text.encode()))
    found = verify_checkpoint(
        target, texts=[folder], lengths=[128, 256], suite="quick", segments=8, limits=Limits(grade="research")
    )
    stated = {"origin": "catalogue", "documents": 4, "manifest": HASH, "names": []}
    assert found.to_json()["texts"] == stated
    held = certificate.read(target)
    assert held is not None
    assert (held.texts, held.text_fingerprint) == (stated, found.text_fingerprint)
    assert f"Measured on ropetool's text catalogue `{HASH[:16]}`." in (target / "README.md").read_text()


def test_the_card_says_which_part_was_read_and_whether_others_were() -> None:
    card = f"{model_card.START}\n\n{model_card.VERIFICATION}\n\n{model_card.SERVING}\n\n{model_card.END}\n"
    held = {"verdict": "pass", "suite": "quick", "longest": 8, "made": "2026-01-01", "checks": [], "command": ""}
    texts = {"origin": "mixed", "documents": 9, "manifest": HASH, "names": ["a", "b"]}
    sentence = f"(2026-01-01). Measured on 2 documents of ropetool's text catalogue `{HASH[:16]}` and others.\n"
    assert sentence in model_card.with_verification(card, {**held, "texts": texts})
    for silent in (held, {**held, "texts": {**texts, "manifest": None}}):
        made = model_card.with_verification(card, silent)
        assert "(2026-01-01).\n" in made
        assert "Measured on" not in made


def test_the_folder_of_the_script_is_the_whole_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = json.loads(catalogue.MANIFEST.read_text(encoding="utf-8"))
    folder = CACHE / "texts" / stated["sha256"][:16]
    if not folder.is_dir() or len(os.listdir(folder)) < len(stated["documents"]):
        pytest.skip("the catalogue is not in the cache; scripts/catalogue/text_catalogue.py fetches it")
    documents = read_documents([folder])
    assert described(documents, bundled=False) == {
        "origin": "catalogue", "documents": len(stated["documents"]), "manifest": stated["sha256"], "names": [],
    }  # fmt: skip
