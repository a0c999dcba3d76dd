"""Outputs whose weights the user has changed: `--force` keeps them and `restore` advises no deletion, whatever wrote them.

The changes lie between any samples, and leave size and time as they were. The oracle is hashlib over whole files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_model
from running import run, snapshot

import ropetool
from ropetool.checkpoint import provenance
from ropetool.files import digests, linking
from ropetool.files.shard_names import shard_paths

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
YARN = ("--method", "yarn", "--factor", "4")
LOSS = "deleting it may lose the only copy"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, the same with an attention factor to bake, and as GGUF models of one file and of two."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("m", "draft"):
        shutil.copytree(DEMO, folder / name)
    ropetool.export(folder / "m", folder / "m.gguf", check=False, sidecars=False)
    ropetool.apply(ropetool.plan(folder / "m", "yarn", factor=4), folder / "m", folder / "scaled")
    for command in (
        ("extend", folder / "m.gguf", *YARN, "-o", folder / "scaled.gguf"),
        ("gguf", "split", folder / "m.gguf", "--max-size", "4M", "-o", folder / "parts.gguf"),
        ("extend", folder / "m", *YARN, "--dry-run", "--plan-out", folder / "plan.json"),
    ):
        assert run(*command).code == 0
    return folder


@pytest.fixture
def here(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(sources, tmp_path / "in", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# By the writer: its command, and the file that is changed.
WRITERS: dict[str, tuple[tuple[str, ...], str]] = {
    "extend": (("extend", "in/m", *YARN, "--copy", "-o", "out"), "out/model.safetensors"),
    "apply": (("apply", "in/m", "in/plan.json", "--copy", "-o", "out"), "out/model.safetensors"),
    "bake": (("bake", "in/scaled", "attention-factor", "-o", "out"), "out/model.safetensors"),
    "import": (("import", "in/m.gguf", "--no-check", "-o", "out"), "out/model.safetensors"),
    "export": (("export", "in/m", "--no-check", "-o", "out.gguf"), "out.gguf"),
    "export in parts": (
        ("export", "in/m", "--no-check", "--split-max-size", "4M", "-o", "out.gguf"), "out-00002-of-00002.gguf",
    ),
    "extend GGUF": (("extend", "in/m.gguf", *YARN, "-o", "out.gguf"), "out.gguf"),
    "extend GGUF parts": (
        ("extend", "in/parts-00001-of-00002.gguf", *YARN, "--copy", "-o", "out.gguf"), "out-00002-of-00002.gguf",
    ),
    "bake GGUF": (("bake", "in/scaled.gguf", "attention-factor", "-o", "out.gguf"), "out.gguf"),
    "gguf set": (("gguf", "set", "in/m.gguf", "general.name", "b", "-o", "out.gguf"), "out.gguf"),
    "gguf split": (("gguf", "split", "in/m.gguf", "--max-size", "4M", "-o", "out.gguf"), "out-00002-of-00002.gguf"),
    "gguf merge": (("gguf", "merge", "in/parts-00001-of-00002.gguf", "-o", "out.gguf"), "out.gguf"),
    "companion": (("extend", "in/m", *YARN, "--copy", "-o", "model", "--companion", "in/draft"), "in/draft-yarn-4x/model.safetensors"),
}  # fmt: skip


def output_of(changed: str) -> str:
    """Return what a user names: the directory, or the first file of a model."""
    return os.path.dirname(changed) or changed.replace("-00002-of", "-00001-of")


def zero_a_matrix(file: Path) -> None:
    """Clear 64 KiB in the middle of a file, and give it the time that it had."""
    status, middle = file.stat(), file.stat().st_size // 2
    with file.open("r+b") as opened:
        opened.seek(middle)
        assert any(opened.read(1 << 16))
        opened.seek(middle)
        opened.write(bytes(1 << 16))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def listed_in(output: Path) -> dict[str, dict[str, Any]]:
    made = provenance.record(output)
    assert made is not None
    return {entry["name"]: dict(entry) for entry in made.files}


def rewrite_record(output: Path, change: Callable[[dict[str, Any]], None]) -> None:
    place = provenance.place(output)
    data = json.loads(place.read_text())
    change(data)
    place.write_text(json.dumps(data))


@pytest.mark.parametrize("writer", WRITERS)
def test_one_zeroed_matrix_is_never_overwritten_and_never_deleted(writer: str, here: Path) -> None:
    command, changed = WRITERS[writer]
    done = run(*command)
    assert done.code == 0, done.err
    output = output_of(changed)
    advised = run("restore", output)
    assert (advised.code, "\n  rm " in advised.out) == (0, True), advised.err
    zero_a_matrix(Path(changed))
    before = snapshot(here)
    done = run(*command, "--force")
    assert done.code == 1
    assert "its bytes have changed, but not its modification time" in done.err
    assert re.search(r"--force does not replace it\nTry: .*\bmove (it|the existing output) away", done.err)
    advised = run("restore", output)
    assert (advised.code, advised.out) == (1, "")
    assert LOSS in advised.err
    assert "Try: ropetool diff" in advised.err
    assert snapshot(here) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_digests_are_taken_while_the_weights_are_written(
    writer: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, changed = WRITERS[writer]
    read, real = [], digests.of_file
    monkeypatch.setattr(digests, "of_file", lambda path: read.append(Path(path)) or real(path))
    done = run(*command)
    assert done.code == 0, done.err
    assert not [path for path in read if path.suffix in linking.WEIGHTS]
    listed = listed_in(Path(output_of(changed)))
    weights = {name: entry for name, entry in listed.items() if Path(name).suffix in linking.WEIGHTS}
    assert Path(changed).name in weights
    for name, entry in weights.items():
        file = Path(changed).with_name(name)
        assert entry == {
            "name": name, "size": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }  # fmt: skip
    assert run(*command, "--force").code == 0  # what is as it was may go


# --- linked weights


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output whose two shards are those of `model` by another name."""
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model", configs.config("llama", "v4"))
    assert run("extend", "model", *YARN, "-o", "out").code == 0
    return model


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FORCED = ("extend", "model", *YARN, "-o", "out", "--force")


def test_of_linked_weights_the_record_has_the_inode_and_reads_nothing(
    linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SHARDS:
        status = (linked / name).stat()
        assert listed_in(Path("out"))[name] == {
            "name": name, "size": status.st_size, "device": status.st_dev, "inode": status.st_ino,
        }  # fmt: skip
    real = digests.of_file

    def unread(path: Path) -> str:
        assert path.suffix != ".safetensors"
        return real(path)

    monkeypatch.setattr(digests, "of_file", unread)
    assert run("restore", "out").out.endswith("\n  rm -r out\n")
    assert run(*FORCED).code == 0


def test_the_last_name_of_linked_weights_is_kept(linked: Path, tmp_path: Path) -> None:
    other = shutil.copytree(linked, "other")
    before = (linked / SHARDS[0]).read_bytes()
    shutil.rmtree(linked)
    forced = ("extend", other, *FORCED[2:])
    done = run(*forced)
    assert done.code == 1
    assert f"{', '.join(SHARDS)} (it was linked from the source, which now has different bytes)" in done.err
    assert (Path("out") / SHARDS[0]).read_bytes() == before
    for name in SHARDS:  # two names inside the output are still no name elsewhere
        os.link(Path("out") / name, Path("out") / "assets" / name)
        rewrite_record(
            Path("out"),
            lambda data, name=name: data["files"].append({**listed_in(Path("out"))[name], "name": f"assets/{name}"}),
        )
    assert run(*forced).code == 1
    for name in SHARDS:
        os.link(Path("out") / name, tmp_path / name)
    assert run(*forced).code == 0


def test_weights_in_place_of_linked_ones_are_kept_unless_the_source_has_the_same_bytes(linked: Path) -> None:
    shard = Path("out") / SHARDS[1]
    raw = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(raw)  # as after a copy to another disk
    assert run("restore", "out").code == 0
    shard.unlink()
    shard.write_bytes(raw[:-1] + b"\x07")
    before = snapshot(Path.cwd())
    assert run(*FORCED).code == 1
    assert LOSS in run("restore", "out").err
    assert snapshot(Path.cwd()) == before


def test_reflinked_weights_are_compared_with_those_of_the_source(linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reflink(reader: Any, destination: Path) -> bool:
        destination.write_bytes(reader.read())
        return True

    monkeypatch.setattr(linking, "_reflink", reflink)
    assert run(*FORCED[:-3], "-o", "out2").code == 0
    shard = Path("out2") / SHARDS[0]
    assert listed_in(Path("out2"))[SHARDS[0]] == {"name": SHARDS[0], "size": shard.stat().st_size, "reflinked": True}
    assert run("restore", "out2").code == 0
    status, raw = shard.stat(), shard.read_bytes()
    shard.write_bytes(raw[:-1] + b"\x07")
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run("restore", "out2").code == 1
    assert run(*FORCED[:-2], "out2", "--force").code == 1
    shard.write_bytes(raw)
    assert run(*FORCED[:-2], "out2", "--force").code == 0


# --- other files, and other records


def test_a_changed_config_is_work_as_well(linked: Path) -> None:
    config = Path("out/config.json")
    config.write_text(config.read_text().replace("{", '{"mine": 1,', 1))
    done = run(*FORCED)
    assert done.code == 1
    assert "contains files that do not match its record: config.json (it has " in done.err
    assert LOSS in run("restore", "out").err
    assert '"mine"' in config.read_text()


def test_force_keeps_a_changed_modelfile(here: Path) -> None:
    forced = ("extend", "in/m.gguf", *YARN, "-o", "out.gguf", "--force")
    assert run(*forced).code == 0
    place = Path("out.gguf.Modelfile")
    assert run(*forced).code == 0
    mine = place.read_text() + "SYSTEM be brief\n"
    place.write_text(mine)
    done = run(*forced)
    assert done.code == 0
    assert (
        f"Note: {place} is not replaced, because it does not match its record: it has {len(mine)} bytes instead of "
        in done.err
    )
    assert place.read_text() == mine


def test_force_replaces_no_card_that_is_not_a_file(linked: Path) -> None:
    Path("out/README.md").unlink()
    os.mkfifo("out/README.md")
    done = run(*FORCED)
    assert done.code == 1
    assert "README.md (it is no longer a regular file)" in done.err
    assert run("restore", "out").code == 1


def test_of_a_changed_card_restore_says_so(here: Path) -> None:
    assert run("extend", "in/m.gguf", *YARN, "-o", "out.gguf").code == 0
    card = Path("out.gguf.README.md")
    card.write_text(card.read_text() + "mine\n")
    done = run("restore", "out.gguf")
    assert done.out.endswith("\n  rm out.gguf out.gguf.Modelfile out.gguf.ropetool.json\n")
    assert f"Note: {card} is not deleted: it has " in done.err
    run("extend", "in/m", *YARN, "-o", "out")
    assert "Note: out/README.md is not compared" in run("restore", "out").err


@pytest.mark.parametrize("writer", ["extend", "extend GGUF", "gguf split", "import"])
def test_a_record_of_before_deletes_and_replaces_nothing(writer: str, here: Path) -> None:
    def older(data: dict[str, Any]) -> None:
        data["files"] = [{key: each[key] for key in ("name", "size") if key in each} for each in data["files"]]
        data["set"] = "ends:00"

    command, changed = WRITERS[writer]
    assert run(*command).code == 0
    output = output_of(changed)
    rewrite_record(Path(output), older)
    before = snapshot(here)
    done = run(*command, "--force")
    assert done.code == 1
    assert "its record does not contain a digest: an earlier version wrote the record" in done.err
    assert "Try: pass another -o, or move the existing output away" in done.err
    done = run("restore", output)
    assert (done.code, done.out) == (1, "")
    assert LOSS in done.err
    assert snapshot(here) == before
    assert run("inspect", output).code == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", 3), ("sha256", None), ("mtime_ns", "1"), ("mtime_ns", 1.5), ("device", True), ("inode", "5"),
        ("reflinked", 1),
    ],
)  # fmt: skip
def test_hostile_entries_are_refused(key: str, value: Any, linked: Path) -> None:
    rewrite_record(Path("out"), lambda data: data["files"][0].update({key: value}))
    for done in (run("restore", "out"), run(*FORCED)):
        assert (done.code, done.out) == (1, "")
        assert "ropetool.json" in done.err


@pytest.mark.parametrize("source", ["out", "./out/", "nowhere", "\0", "\ud800", "link"])
def test_an_output_is_no_source_of_itself(source: str, linked: Path) -> None:
    """A record that says so would let weights pass for a copy of what is elsewhere."""
    os.symlink("out", "link")
    for name in SHARDS:
        shard = Path("out") / name
        raw = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(raw)

    def itself(data: dict[str, Any]) -> None:
        data["source"] = str(Path.cwd() / source)
        data["source_fingerprint"] = provenance.fingerprint(Path("out"))
        data["files"] = [each if "inode" not in each else {**each, "reflinked": True} for each in data["files"]]

    rewrite_record(Path("out"), itself)
    before = snapshot(Path.cwd())
    for done in (run("restore", "out"), run(*FORCED)):
        assert (done.code, done.out) == (1, "")
    assert snapshot(Path.cwd()) == before


def test_a_file_that_was_edited_in_place_is_kept(here: Path) -> None:
    assert run(*WRITERS["extend GGUF"][0]).code == 0
    assert run("gguf", "set", "out.gguf", "general.name", "mine", "--in-place").code == 0
    raw = Path("out.gguf").read_bytes()
    done = run(*WRITERS["extend GGUF"][0], "--force")
    assert done.code == 1
    assert "or the file was edited in place" in done.err
    assert Path("out.gguf").read_bytes() == raw
    assert run("restore", "out.gguf").code == 0
    assert "does not contain a digest" in run("restore", "out.gguf").err


def test_a_missing_part_is_no_deletion(here: Path) -> None:
    assert run(*WRITERS["gguf split"][0]).code == 0
    first, second = shard_paths(Path("out.gguf"), 2)
    second.unlink()
    done = run("restore", first)
    assert (done.code, done.out) == (1, "")
