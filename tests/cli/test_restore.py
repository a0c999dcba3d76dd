"""ropetool gguf set --in-place, and restore: what was edited in place becomes what it was, by the log beside the file."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import configs
import gguf
import numpy as np
import pytest
from gguf_files import FREQS, llama3_divisors, model, tensors, values, vector
from gguf_logits import llama_logits
from models import write_model
from running import run

from ropetool.checkpoint import edit_log, provenance
from ropetool.errors import OutputError
from ropetool.files.gguf import GgufHeader, Patch, read_vector
from ropetool.files.gguf.entries import TensorInfo
from ropetool.files.gguf.in_place import editing
from ropetool.files.gguf.in_place.disk import Disk, NotHere
from ropetool.plans.in_place import edit_model, editable

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Linux is proved, and macOS has the same calls"),
    pytest.mark.usefixtures("here"),
]
YARN = ("--method", "yarn", "--factor", "8")


def keys(path: Path) -> dict[str, object]:
    """Return the keys without the room that edits in place keep."""
    return {key: value for key, value in values(path).items() if key != "ropetool.filler"}


def test_a_key_is_set_where_the_file_lies_and_restored(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    before, weights, inode = keys(path), tensors(path), path.stat().st_ino
    done = run("gguf", "set", "m.gguf", "tokenizer.chat_template", "{{ messages }}" * 9, "--in-place")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^in place +.+; [\d,]+ bytes written$", done.out, re.MULTILINE)
    assert keys(path)["tokenizer.chat_template"] == ("STRING", "{{ messages }}" * 9)
    done = run("restore", "m.gguf")
    assert (done.code, done.err) == (0, "")
    assert f"tokenizer.chat_template  str {('{{ messages }}' * 9)[:48]}... 126 characters -> absent" in done.out
    assert "content                  as before; the bytes differ if an edit added room" in done.out
    assert "log                      no edits remain" in done.out
    assert keys(path) == before
    assert tensors(path) == weights
    assert path.stat().st_ino == inode
    assert os.listdir() == ["m.gguf"]
    assert run("restore", "m.gguf").err.startswith(
        "Error: m.gguf: nothing to undo: it has no ropetool edit log or record"
    )


def test_edits_are_undone_one_by_one_or_all_at_once(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    states = [keys(path)]
    for words in (("general.name", "a"), ("llama.context_length", "2048"), ("general.name", "b")):
        assert run("gguf", "set", "m.gguf", *words, "--in-place").code == 0
        states.append(keys(path))
    assert run("gguf", "unset", "m.gguf", "llama.rope.freq_base", "--in-place").code == 0
    for state in (states[3], states[2]):
        assert run("restore", "m.gguf").code == 0
        assert keys(path) == state
    assert len(edit_log.read(path).edits) == 2
    found = json.loads(run("restore", "m.gguf", "--all", "--json").out)
    assert (found["left"], [list(entry["keys"]) for entry in found["undone"]]) == (
        0, [["llama.context_length"], ["general.name"]]
    )  # fmt: skip
    assert keys(path) == states[0]


def test_an_extension_in_place_is_undone_with_its_record(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    before, logits = keys(path), llama_logits(path)
    assert run("extend", "m.gguf", *YARN, "--in-place").code == 0
    assert (llama_logits(path) != logits).any()
    assert run("restore", "m.gguf").code == 0
    assert keys(path) == before
    assert (llama_logits(path) == logits).all()
    assert os.listdir() == ["m.gguf"]
    assert run("extend", "m.gguf", *YARN, "--in-place").code == 0  # as if nothing had been


def test_the_record_of_a_copy_stands_again(tmp_path: Path) -> None:
    model(tmp_path / "source.gguf")
    assert run("extend", "source.gguf", *YARN, "-o", "m.gguf", "--no-sidecars").code == 0
    before = json.loads(Path("m.gguf.ropetool.json").read_text())
    assert (
        run("extend", "m.gguf", "--method", "length", "--target-length", "8192", "--from", "current", "--in-place").code
        == 0
    )
    assert json.loads(Path("m.gguf.ropetool.json").read_text())["plan"] != before["plan"]
    assert run("restore", "m.gguf").code == 0
    after = json.loads(Path("m.gguf.ropetool.json").read_text())
    assert {**after, "files": 0} == {**before, "files": 0}
    assert after["files"][0] == {"name": "m.gguf", "size": Path("m.gguf").stat().st_size}
    assert run("inspect", "m.gguf").code == 0


def test_a_vector_has_its_old_numbers_again(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", divisors=llama3_divisors())
    before, divisors = keys(path), vector(path)
    done = run("extend", "m.gguf", "--method", "llama3", "--factor", "4", "--from", "current", "--in-place")
    assert done.code == 0
    assert (vector(path) != divisors).any()
    assert run("restore", "m.gguf").code == 0
    assert (vector(path) == divisors).all()
    assert keys(path) == before


def test_a_vector_that_was_added_goes_again(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    before, weights, logits, inode = keys(path), tensors(path), llama_logits(path), path.stat().st_ino
    done = run("extend", "m.gguf", "--method", "llama3", "--factor", "4", "--original-length", "512", "--in-place")
    assert done.code == 0
    assert FREQS in tensors(path)
    assert run("restore", "m.gguf").code == 0
    assert (keys(path), tensors(path)) == (before, weights)
    assert (llama_logits(path) == logits).all()
    assert os.listdir() == ["m.gguf"]
    assert path.stat().st_ino == inode


def test_a_vector_behind_which_others_went_goes_with_a_copy_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotHere

    path = model(tmp_path / "m.gguf")
    before, weights, logits = keys(path), tensors(path), llama_logits(path)
    extend = ("extend", "m.gguf", "--method", "llama3", "--factor", "4", "--original-length", "512", "--in-place")
    assert run(*extend).code == 0
    monkeypatch.setattr(Disk, "insert", refuse)
    assert run("gguf", "set", "m.gguf", "general.name", "x" * 60_000, "--in-place").code == 0
    assert list(tensors(path))[-1] != FREQS
    content = path.read_bytes()
    done = run("restore", "m.gguf", "--all")
    assert "only the last tensors of a file can be removed" in done.err
    assert "Try: pass --copy-if-needed to rewrite the whole file" in done.err
    assert path.read_bytes() == content
    assert run("restore", "m.gguf", "--all", "--copy-if-needed").code == 0
    assert (keys(path), tensors(path)) == (before, weights)
    assert (llama_logits(path) == logits).all()
    assert os.listdir() == ["m.gguf"]


@pytest.mark.parametrize("way", ["key", "size", "removed"])
def test_a_file_that_others_have_written_since_is_left_alone(way: str, tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    assert run("gguf", "set", "m.gguf", "general.name", "abc", "--in-place").code == 0
    content = path.read_bytes()
    if way == "key":
        content = content.replace(b"abc", b"abd", 1)
    else:
        content += b"x"
    path.write_bytes(content)
    done = run("restore", "m.gguf")
    assert (done.code, done.out) == (1, "")
    says = "'general.name' has changed since the last edit" if way == "key" else "bytes, but its log lists"
    assert says in done.err
    assert "a different program has written the file" in done.err
    assert path.read_bytes() == content


def test_of_a_copy_it_says_what_to_delete(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    assert run("extend", "model", *YARN, "-o", "longer").code == 0
    done = run("restore", "longer")
    card = "longer/README.md is not compared, because verify writes into it; keep a copy if you edited it"
    assert (done.code, done.err) == (0, f"Note: {card}\n")
    assert done.out == (
        f"longer is a copy, and its source {source} is unchanged. To undo the edit, delete the copy:\n  rm -r longer\n"
    )
    (tmp_path / "longer" / "notes.txt").write_text("mine")
    done = run("restore", "longer")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "Error: longer: contains files that its record does not list: notes.txt: deleting it may lose the only copy\n"
        f"Try: ropetool diff {source} longer, which shows all differences from its source\n"
    )
    (tmp_path / "longer" / "notes.txt").unlink()
    (source / "config.json").write_text((source / "config.json").read_text() + " ")
    done = run("restore", "longer")
    assert done.code == 1
    assert "which has changed: deleting it may lose the only copy" in done.err


def test_of_a_gguf_copy_it_names_every_file(tmp_path: Path) -> None:
    model(tmp_path / "source.gguf")
    assert run("gguf", "set", "source.gguf", "general.name", "b", "-o", "copy.gguf").code == 0
    assert run("restore", "copy.gguf").out.endswith("\n  rm copy.gguf copy.gguf.ropetool.json\n")
    found = json.loads(run("restore", "copy.gguf", "--json").out)
    assert found["delete"] == ["copy.gguf", "copy.gguf.ropetool.json"]


def test_the_same_edit_again_writes_nothing(tmp_path: Path) -> None:
    model(tmp_path / "m.gguf")
    assert run("gguf", "set", "m.gguf", "general.name", "b", "--in-place").code == 0
    done = run("gguf", "set", "m.gguf", "general.name", "b", "--in-place")
    assert done.out == "general.name  str b already\nin place      nothing had to change; 0 bytes written\n"
    assert len(edit_log.read(tmp_path / "m.gguf").edits) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "requires -o FILE for a copy, or --in-place."),
        (("--in-place", "-o", "x.gguf"), "--in-place edits the source itself and does not accept --output"),
        (("--copy-if-needed", "-o", "x.gguf"), "--copy-if-needed requires --in-place"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    model(tmp_path / "m.gguf")
    done = run("gguf", "set", "m.gguf", "general.name", "b", *options)
    assert done.code == 2
    assert says in done.err


def test_a_split_model_is_edited_in_its_first_file_and_restored(tmp_path: Path) -> None:
    first = model(tmp_path / "m.gguf", shards=2)
    second = tmp_path / "m-00002-of-00002.gguf"
    before, other = keys(first), second.read_bytes()
    assert run("gguf", "set", second.name, "llama.context_length", "4096", "--in-place").code == 0
    assert keys(first)["llama.context_length"] == ("UINT32", 4096)
    assert second.read_bytes() == other
    assert run("restore", second.name).code == 0
    assert keys(first) == before


def test_a_record_that_no_longer_holds_is_told(tmp_path: Path) -> None:
    model(tmp_path / "m.gguf")
    assert run("extend", "m.gguf", *YARN, "--in-place").code == 0
    done = run("gguf", "set", "m.gguf", "general.name", "b", "--in-place")
    assert (done.code, done.err) == (0, "")
    done = run("gguf", "set", "m.gguf", "llama.rope.scaling.factor", "4", "--in-place")
    assert done.code == 0
    assert done.err.startswith(
        "Note: its record still describes the old table, so `ropetool verify` reports a difference"
    )


def test_a_record_of_another_file_does_not_become_this_ones(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    assert run("extend", "m.gguf", *YARN, "--in-place").code == 0
    edit_log.place(path).unlink()
    record = provenance.beside(path)
    old = record.read_bytes()
    model(path, keys={"general.description": (gguf.GGUFValueType.STRING, "x" * 90_000)})
    done = run("gguf", "set", "m.gguf", "general.name", "a" * 2000, "--in-place")
    assert done.code == 0, done.err
    assert record.read_bytes() == old
    assert run("restore", "m.gguf").code == 0
    assert record.read_bytes() == old
    assert "is the record of a different file with this name" in run("inspect", "m.gguf").err
    done = run("extend", "m.gguf", *YARN, "--in-place")
    assert done.code == 1
    assert "is the record of a different file with this name" in done.err
    assert record.read_bytes() == old


@pytest.mark.parametrize("text", [b'{"\xc3', b"[1]", b'{"source": 1}'])
def test_a_record_that_is_none_stops_the_undoing_before_it_begins(text: bytes, tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    assert run("gguf", "set", "m.gguf", "general.name", "a", "--in-place").code == 0
    raw = path.read_bytes()
    provenance.beside(path).write_bytes(text)
    done = run("restore", "m.gguf")
    assert done.code == 1
    assert "m.gguf.ropetool.json" in done.err
    assert path.read_bytes() == raw
    provenance.beside(path).unlink()
    log = json.loads(edit_log.place(path).read_bytes())
    for old, reason in (
        (text.decode("latin-1") * 2, ""), ('{"source": 1}', "source is 1; it must be text"), ("[" * 100_000, ""),
        ('{"a": 1, "a": 2}', "contains the key 'a' twice"), ("[1]", "contains [1] instead of a JSON object"),
    ):  # fmt: skip
        log["edits"][0]["record"] = old
        edit_log.place(path).write_text(json.dumps(log))
        done = run("restore", "m.gguf")
        assert done.code == 1
        assert f"m.gguf.ropetool-edits.json: contains an old record that is not valid ({reason}" in done.err
        assert path.read_bytes() == raw


def test_a_file_edited_in_place_is_never_said_to_be_deleted(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    shutil.copy2(path, "before.gguf")
    assert run("extend", "m.gguf", *YARN, "--in-place").code == 0
    edit_log.place(path).unlink()
    shutil.copy2("before.gguf", path)  # by hand, with its time: it is the source that its record names
    provenance.beside(path).write_text(provenance.beside(path).read_text().replace('"size"', '"bytes"'))
    for again in range(2):
        done = run("restore", "m.gguf")
        assert done.code == 1
        assert done.out == "", again
        assert "its record lists an edit in place, but the log m.gguf.ropetool-edits.json is missing" in done.err
        os.utime(path)


def test_a_vector_of_a_later_file_keeps_record_and_recovery_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model(tmp_path / "whole.gguf")
    assert run("gguf", "split", whole.name, "--max-tensors", "3", "-o", "m.gguf").code == 0
    first, *others = sorted(tmp_path.glob("m-0*.gguf"))
    listed = provenance.beside(first).read_text()
    headers = editable(first)
    tensor, second = next(
        (info, header) for header in headers[1:] for info in header.tensors if info.type_name == "F32" and len(info.shape) == 1
    )  # fmt: skip
    vector, raw = read_vector(second, tensor) * 2, second.path.read_bytes()
    patch = Patch(tensors={tensor.name: vector.astype(np.float32)})

    def stop(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(editing, "forward", stop)
        broken.setattr(editing, "settle", stop)
        with pytest.raises(OutputError, match="the edit is not finished"):
            edit_model(headers, patch)
    assert run("recover", second.path).code == 0
    assert read_vector(*_placed(editable(first), tensor.name)).tobytes() == vector.astype(np.float32).tobytes()
    edited = {"name": second.path.name, "size": second.path.stat().st_size}
    before = json.loads(listed)
    before["files"] = [edited if each["name"] == edited["name"] else each for each in before["files"]]
    assert json.loads(provenance.beside(first).read_text()) == before
    assert run("restore", first.name).code == 0
    assert second.path.read_bytes() == raw
    assert {each["name"]: each.get("size") for each in json.loads(provenance.beside(first).read_text())["files"][:-1]} == {
        path.name: path.stat().st_size for path in (first, *others)
    }  # fmt: skip


def _placed(headers: Sequence[GgufHeader], name: str) -> tuple[GgufHeader, TensorInfo]:
    return next((header, info) for header in headers for info in header.tensors if info.name == name)
