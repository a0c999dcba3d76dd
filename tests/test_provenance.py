"""The provenance file: what is believed of it, and what its fingerprint sees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import configs
import pytest
from making import write_model

from ropetool import provenance
from ropetool.errors import CorruptFile
from ropetool.provenance import Provenance

GOOD = {"schema": 1, "source": "/m", "source_fingerprint": "ab", "trained_length": 512, "plan": {"method": "yarn"}}


def put(directory: Path, content: Any) -> Path:
    (directory / "ropetool.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = Provenance("/models/größe", "ab", 512, {"method": "yarn"})
    assert provenance.read(put(tmp_path, made.to_json())) == made


EXPORT = {"outtype": "bf16", "encoding": "yarn keys"}


def test_an_export_is_told_from_an_extension(tmp_path: Path) -> None:
    extension = Provenance("/m", "ab", 512, {"method": "yarn"})
    export = Provenance("/m-yarn-4x", "cd", 512, {"method": "yarn"}, EXPORT)
    assert (extension.kind, export.kind) == ("extension", "export")
    assert "export" not in extension.to_json()
    for made in (extension, export):
        put(tmp_path, made.to_json())
        assert provenance.read(tmp_path) == provenance.record(tmp_path) == made


@pytest.mark.parametrize("trained", [512, None])
def test_an_export_of_a_checkpoint_as_it_came_has_no_plan(trained: int | None, tmp_path: Path) -> None:
    made = Provenance("/m", "ab", trained, {}, EXPORT)
    put(tmp_path, made.to_json())
    assert provenance.record(tmp_path) == made
    assert provenance.read(tmp_path) is None  # ropetool scaled nothing


def test_a_certificate_is_kept(tmp_path: Path) -> None:
    made = Provenance("/m", "ab", 512, {"method": "yarn"}, certificate={"verdict": "fail"})
    assert provenance.read(put(tmp_path, made.to_json())) == made
    assert "certificate" not in Provenance("/m", "ab", 512, {"method": "yarn"}).to_json()


def test_a_path_that_is_no_utf8_survives(tmp_path: Path) -> None:
    made = Provenance("/models/gr\udcf6\udcdfe", "ab", 512, {"method": "yarn"}, EXPORT)
    provenance.write(made, tmp_path / "ropetool.json")
    assert provenance.read(tmp_path) == made


def test_no_file_is_no_provenance(tmp_path: Path) -> None:
    assert provenance.read(tmp_path) is None
    assert provenance.record(tmp_path) is None


def test_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    assert provenance.read(put(tmp_path, {**GOOD, "later": 1})) == Provenance("/m", "ab", 512, {"method": "yarn"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"), ("{", "is not valid JSON"), ("[1]", "a JSON object is needed"), ("\0", "is not valid JSON"),
        ("[" * 100_000, "is nested more than"),
        ({}, "source is absent"), ({**GOOD, "source": 3}, "source is 3"), ({**GOOD, "plan": []}, r"plan is \[\]"),
        ({**GOOD, "source_fingerprint": None}, "source_fingerprint is null"),
        ({**GOOD, "trained_length": "512"}, 'trained_length is "512"'), ({**GOOD, "trained_length": 0}, "trained_length is 0"),
        ({**GOOD, "trained_length": True}, "trained_length is true"), ({**GOOD, "trained_length": 5.0}, "trained_length is 5.0"),
        ({**GOOD, "trained_length": None}, "trained_length is null"), ({**GOOD, "export": "bf16"}, 'export is "bf16"'),
        ({**GOOD, "export": EXPORT, "trained_length": False}, "trained_length is false"),
        ({**GOOD, "export": EXPORT, "trained_length": 0}, "trained_length is 0"),
        ({**GOOD, "export": EXPORT, "plan": None}, "plan is null"), ({**GOOD, "export": None}, "export is null"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_another_file_of_that_name_is_refused(content: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=reason) as refusal:
        provenance.read(put(tmp_path, content))
    assert refusal.value.where == str(tmp_path / "ropetool.json")


def test_the_fingerprint_sees_the_config_and_the_weights(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    shard = source / "model-00001-of-00002.safetensors"
    seen = [provenance.fingerprint(source)]
    for change in (
        lambda: (source / "config.json").write_text("{ }"),
        lambda: shard.write_bytes(shard.read_bytes() + b"x"),
        lambda: os.utime(shard, ns=(0, 0)),
        lambda: shard.rename(source / "model.safetensors"),
        lambda: (source / "model.safetensors").unlink(),
    ):
        change()
        seen.append(provenance.fingerprint(source))
    assert len(set(seen)) == 6


def test_the_fingerprint_ignores_what_does_not_make_the_model(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    before = provenance.fingerprint(source)
    (source / "README.md").write_text("changed")
    put(source, GOOD)
    assert provenance.fingerprint(source) == before
