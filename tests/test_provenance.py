"""The provenance file: what is believed of it, and what its fingerprint sees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_model

from ropetool.checkpoint import provenance
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import CheckpointError, CorruptFile

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


def test_a_source_that_the_system_does_not_give_is_named(tmp_path: Path) -> None:
    """Of a record that somebody has written: this file is a regular one, and no byte of it at 0 can be read."""
    source = Path("/proc/self/mem")
    with pytest.raises(CheckpointError, match="cannot be read") as refused:
        provenance.fingerprint(source)
    assert refused.value.where == str(source)
    assert provenance.source_problem(Provenance(str(source), "ab", 512, {})) == "cannot be read"


def test_a_link_to_nowhere_among_the_weights_decides_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", configs.config("llama", "v4"))
    before = provenance.fingerprint(model)
    (model / "consolidated.safetensors").symlink_to("nowhere")
    assert provenance.fingerprint(model) == before
    (model / "consolidated.safetensors").unlink()
    (model / "consolidated.safetensors").write_bytes(b"here")
    assert provenance.fingerprint(model) != before


def test_a_path_that_is_no_utf8_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
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
        ("", "is empty"), ("{", "is not valid JSON"), ("[1]", "instead of a JSON object"), ("\0", "is not valid JSON"),
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


# --- the name of the source


def named(file: Path) -> str:
    """Return what a record calls its source, as the file says it."""
    found: str = json.loads(file.read_text())["source"]
    return found


def recorded(source: Path, file: Path) -> Path:
    """Write a record of an output from this source, and return its place."""
    file.parent.mkdir(parents=True, exist_ok=True)
    provenance.write(Provenance(str(source), provenance.fingerprint(source), 512, {"method": "yarn"}), file)
    return file


@pytest.mark.parametrize(
    ("source", "record", "name"),
    [
        ("model", "out/ropetool.json", "../model"), ("a/model", "b/out/ropetool.json", "../../a/model"),
        ("model", "x.gguf.ropetool.json", "model"), ("org/model@v1", "x.gguf.ropetool.json", "./org/model@v1"),
    ],
)  # fmt: skip
def test_a_source_is_named_from_the_record(source: str, record: str, name: str, tmp_path: Path) -> None:
    """So that the folder of both can be moved, and nobody is told where it was."""
    first = tmp_path / "first"
    model = write_model(first / source, configs.config("llama", "v4"))
    file = recorded(model, first / record)
    assert named(file) == name
    assert str(tmp_path) not in file.read_text()
    checkpoint = file.parent if file.name == "ropetool.json" else first / "x.gguf"
    found = provenance.record(checkpoint)
    assert found is not None
    assert (found.source, provenance.source_problem(found)) == (str(model), "")
    first.rename(tmp_path / "second")
    found = provenance.record(tmp_path / "second" / checkpoint.relative_to(first))
    assert found is not None
    assert (found.source, provenance.source_problem(found)) == (str(tmp_path / "second" / source), "")


def test_an_output_moved_alone_says_that_its_source_is_not_there(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", configs.config("llama", "v4"))
    recorded(model, tmp_path / "out" / "ropetool.json")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "out").rename(tmp_path / "deep" / "er" / "out")
    (found,) = provenance.lineage(tmp_path / "deep" / "er" / "out")
    assert provenance.source_problem(found) == "no longer exists"
    other = write_model(tmp_path / "deep" / "er" / "model", configs.config("qwen2", "v4"))
    assert found.source == str(other)
    assert provenance.source_problem(found) == "has changed"


def test_a_source_in_another_tree_is_a_name_and_found_by_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path from /home to /data would be the absolute one in other words."""
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    made = Provenance("/elsewhere/models/base", "ab", 512, {"method": "yarn"})
    (tmp_path / "out").mkdir()
    provenance.write(made, tmp_path / "out" / "ropetool.json")
    assert named(tmp_path / "out" / "ropetool.json") == "base"
    assert provenance.record(tmp_path / "out") == made
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "of another machine"))
    found = provenance.record(tmp_path / "out")
    assert found is not None
    assert found.source == str(tmp_path / "base")  # where people put the two
    assert provenance.source_problem(found) == "no longer exists"


def test_where_nothing_can_be_kept_the_record_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "file"))
    provenance.write(Provenance("/elsewhere/base", "ab", 512, {}, EXPORT), tmp_path / "x.gguf.ropetool.json")
    assert named(tmp_path / "x.gguf.ropetool.json") == "base"


def test_an_absolute_path_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", configs.config("llama", "v4"))
    (tmp_path / "out").mkdir()
    found = provenance.record(put(tmp_path / "out", {**GOOD, "source": str(model)}))
    assert found is not None
    assert found.source == str(model)


def test_a_commit_on_the_hub_that_is_not_in_the_cache_keeps_its_id(tmp_path: Path) -> None:
    name = f"acme/demo@{'0' * 40}"
    found = provenance.record(put(tmp_path, {**GOOD, "source": name}))
    assert found is not None
    assert (found.source, provenance.source_problem(found)) == (name, "no longer exists")


@pytest.mark.parametrize(
    "source", ["x" * 3000, "a/" * 3000, "\0", "", ".", "/", "org/name@1:../x.gguf", "a\nb", "\ud800"]
)
def test_a_source_of_any_text_ends_the_lineage(source: str, tmp_path: Path) -> None:
    """Somebody may have edited the file; it names no checkpoint then, or itself."""
    (made,) = provenance.lineage(put(tmp_path, {**GOOD, "source": source}))
    assert provenance.source_problem(made) == "no longer exists"
