"""Default outputs: in the current folder for a model of Ollama's store, under the name in its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropetool.files.hub import beside

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a blob of a store with two models, of which the second one lists it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    blob = tmp_path / "models" / "blobs" / f"sha256-{DIGEST}"
    for model, digest in (("gemma3", "f" * 64), ("smollm2", DIGEST)):
        manifest = tmp_path / "models" / "manifests" / "registry.ollama.ai" / "library" / model / "135m"
        manifest.parent.mkdir(parents=True)
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 4}
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    blob.parent.mkdir()
    blob.write_bytes(b"GGUF")
    return blob


def test_a_blob_gets_the_name_in_its_manifest(blob: Path) -> None:
    assert beside(blob) == Path.cwd() / "smollm2-135m.gguf"


def test_a_blob_without_a_manifest_gets_a_short_name(blob: Path) -> None:
    other = blob.with_name(f"sha256-{'ab' * 32}")
    assert beside(other) == Path.cwd() / "sha256-abababab.gguf"


@pytest.mark.parametrize("name", ["sha256-short", f"md5-{DIGEST}", "model.gguf"])
def test_other_files_keep_their_place(blob: Path, name: str) -> None:
    assert beside(blob.with_name(name)) == blob.with_name(name)
    assert beside(blob.parents[1] / blob.name) == blob.parents[1] / blob.name
