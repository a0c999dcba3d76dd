"""--in-place of extend, apply and bake, and recover: what they print, refuse, and write beside the file."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
from gguf_files import FREQS, llama3_divisors, model, tensors, values, vector
from gguf_logits import llama_logits
from models import write_model
from running import COST_AT_8, run, snapshot

from ropetool.checkpoint import edit_log, provenance
from ropetool.errors import ConfigError
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.files.gguf.in_place import editing
from ropetool.files.gguf.journal import journal_of
from ropetool.files.hf.jsontext import JsonLimits
from ropetool.plans.in_place import edit_model, editable

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Linux is proved, and macOS has the same calls"),
    pytest.mark.usefixtures("here"),
]

YARN = ("--method", "yarn", "--factor", "8")
BESIDE = ["m.gguf", "m.gguf.ropetool-edits.json", "m.gguf.ropetool.json"]


def test_extend_changes_the_file_itself(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    before, inode = values(path), path.stat().st_ino
    weights = tensors(path)
    copied = run("extend", "m.gguf", *YARN, "-o", "copied.gguf", "--no-sidecars")
    assert copied.code == 0
    done = run("extend", "m.gguf", *YARN, "--in-place")
    assert (done.code, done.err) == (0, f"Note: {COST_AT_8}\n")
    assert re.search(r"^  edited    m\.gguf\n  in place  .+; [\d,]+ bytes written$", done.out, re.MULTILINE)
    assert path.stat().st_ino == inode
    assert sorted(name for name in os.listdir() if not name.startswith("copied")) == BESIDE
    now = {key: value for key, value in values(path).items() if key != "ropetool.filler"}
    assert now == values(Path("copied.gguf"))
    assert now != before
    assert tensors(path) == weights
    assert (llama_logits(path) == llama_logits(Path("copied.gguf"))).all()


def test_the_log_keeps_what_stood_there(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", divisors=llama3_divisors())
    before, divisors = values(path), vector(path)
    run("extend", "m.gguf", "--method", "llama3", "--factor", "4", "--from", "current", "--in-place")
    refused = run("extend", "m.gguf", *YARN, "--from", "original", "--original-length", "512", "--in-place")
    assert refused.err == (
        "Error: m.gguf: its original table is gone: llama3 replaced it in place\nTry: ropetool restore m.gguf\n"
    )
    edit_model(editable(path), Patch({"a.b": Value.of(ValueType.U32, 1)}, frozenset({"llama.context_length"})))
    edits = edit_log.read(path).edits
    assert len(edits) == 2
    keys: dict[str, Value | None] = {}
    for edit in reversed(edits):
        keys |= {key: old for key, (old, _) in edit.keys.items()}
    assert {key: old.decode() for key, old in keys.items() if old is not None} == {
        key: before[key][1] for key in keys if key in before
    }
    assert {key for key, old in keys.items() if old is None} == keys.keys() - before.keys()
    olds = [edit.tensors[FREQS][0] for edit in edits if FREQS in edit.tensors]
    assert olds
    assert olds[0] == divisors.tobytes()
    assert edits[-1].size == path.stat().st_size
    assert edits[0].command.startswith("ropetool extend m.gguf --method llama3")
    assert [edit.to_json() for edit in edits] == json.loads(edit_log.place(path).read_bytes())["edits"]


def test_the_record_says_what_the_file_is_now(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    run("extend", "m.gguf", *YARN, "--in-place")
    made = provenance.read(path)
    assert made is not None
    assert (made.plan["method"], made.trained_length) == ("yarn", 512)
    again = run("extend", "m.gguf", "--method", "yarn", "--factor", "4", "--from", "original", "--in-place")
    assert again.code == 0, again.err
    edit_model(editable(path), Patch({"general.name": Value.of(ValueType.STR, "x" * 90_000)}), copy_if_needed=True)
    made = provenance.read(path)  # another size, and it is not the record of another file
    assert made is not None
    assert made.plan["factor"] == 4.0
    assert run("inspect", "m.gguf").code == 0


def test_the_same_command_again_changes_nothing(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    run("extend", "m.gguf", *YARN, "--from", "original", "--in-place")
    raw = {name: Path(name).read_bytes() for name in BESIDE}
    done = run("extend", "m.gguf", *YARN, "--from", "original", "--in-place")
    assert "in place  nothing had to change; 0 bytes written" in done.out
    assert {name: Path(name).read_bytes() for name in BESIDE} == raw
    assert path.exists()


def test_a_dry_run_says_the_way_and_writes_nothing(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    raw = path.read_bytes()
    told = run("extend", "m.gguf", *YARN, "--in-place", "--dry-run")
    assert os.listdir() == ["m.gguf"]
    assert path.read_bytes() == raw
    said = re.search(r"output {4}m\.gguf itself: (.+; [\d,]+ bytes written)\n", told.out)
    assert said is not None, told.out
    planned = json.loads(run("extend", "m.gguf", *YARN, "--in-place", "--dry-run", "--json").out)
    assert path.read_bytes() == raw
    done = run("extend", "m.gguf", *YARN, "--in-place", "--json")
    found = json.loads(done.out)
    assert (planned["written"], planned["in_place"]) == (False, found["in_place"])
    assert found["in_place"]["size"] == path.stat().st_size
    assert f"{found['in_place']['bytes_written']:,} bytes written" in said[1]


def test_a_plan_is_applied_in_place(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    assert run("extend", "m.gguf", *YARN, "--dry-run", "--plan-out", "plan.json").code == 0
    done = run("apply", "m.gguf", "plan.json", "--in-place")
    assert done.code == 0, done.err
    assert values(path)["llama.rope.scaling.type"][1] == "yarn"
    raw = path.read_bytes()
    again = run("apply", "m.gguf", "plan.json", "--in-place")
    assert again.code == 1
    assert "has changed since the plan was made" in again.err
    assert path.read_bytes() == raw


def test_a_bake_of_keys_is_done_in_place_and_one_of_weights_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    run("extend", "m.gguf", *YARN, "--in-place")
    raw = path.read_bytes()
    done = run("bake", "m.gguf", "attention-factor", "--in-place")
    assert done.code == 1
    assert "an edit in place changes only keys and vectors" in done.err
    assert "Try: pass -o instead of --in-place to write a copy" in done.err
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--in-place", "-o", "x.gguf"), "--in-place edits the source itself and does not accept --output"),
        (("--in-place", "--copy"), "--in-place edits the source itself and does not accept --copy"),
        (("--in-place", "--force"), "--in-place edits the source itself and does not accept --force"),
        (("--in-place", "--companion", "m.gguf"), "--in-place edits the source itself and does not accept --companion"),
        (("--copy-if-needed",), "--copy-if-needed requires --in-place"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    path = model(tmp_path / "m.gguf")
    raw = path.read_bytes()
    done = run("extend", "m.gguf", *YARN, *options)
    assert done.code == 2
    assert message in done.err
    assert path.read_bytes() == raw


def test_a_directory_is_refused(tmp_path: Path) -> None:

    write_model(tmp_path / "model", configs.config("llama", "v4"))
    done = run("extend", "model", *YARN, "--in-place")
    assert done.code == 1
    assert "only GGUF files can be edited in place" in done.err


# --- recover


def test_an_edit_that_is_cut_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "m.gguf")
    raw = path.read_bytes()

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(editing, "forward", killed)
        patched.setattr(editing, "settle", killed)
        with pytest.raises(Killed):
            edit_model(editable(path), Patch({"a.b": Value.of(ValueType.STR, "x" * 5000)}))
    assert journal_of(path).exists()
    refused = run("inspect", "m.gguf")
    assert (refused.code, refused.err) == (
        1,
        "Error: m.gguf: an edit of this file in place was interrupted: its journal .m.gguf.ropetool-journal still exists\n"
        "Try: ropetool recover m.gguf\n",
    )
    done = run("recover", "m.gguf")
    assert (done.code, done.out) == (
        0,
        f"{path}\n  the interrupted edit is finished: this is the new file\n",
    )
    assert values(path)["a.b"][1] == "x" * 5000
    assert path.read_bytes() != raw
    assert edit_log.read(path).edits[0].keys.keys() == {"a.b"}
    assert json.loads(run("recover", "m.gguf", "--json").out) == {
        "schema": 1, "file": str(path), "rolled": "nothing", "way": None,
    }  # fmt: skip


def test_recover_of_what_is_not_there(tmp_path: Path) -> None:
    assert run("recover", "none.gguf").err == f"Error: {tmp_path}/none.gguf: does not exist\n"


LOGGED = {"command": "x", "way": "head", "size": 1, "keys": {}, "tensors": {}}


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (None, "edits is null; it must be a list"),
        ([{}], "command of edit 0 is absent; it must be text"),
        ([LOGGED, 7], "edit 1 is 7; it must be an object"),
        ([{**LOGGED, "size": "1"}], 'size of edit 0 is "1"; it must be a whole number from 0 to '),
        ([{**LOGGED, "record": 7}], "record of edit 0 is 7; it must be null or text"),
        ([{**LOGGED, "keys": {"{a}": {"old": None}}}], 'new of "{a}" in edit 0 is absent; it must be a value'),
        ([{**LOGGED, "keys": {"a": {"old": {"type": "f33", "raw": ""}, "new": None}}}], 'old of "a" in edit 0 is {"type": "f33"'),
        ([{**LOGGED, "keys": {"a": {"old": {"type": "f32", "raw": "!"}, "new": None}}}], 'old of "a" in edit 0 is {"type": "f32"'),
        ([{**LOGGED, "tensors": {"t": {"old": None, "new": None}}}], 'new of "t" in edit 0 is null; it must be bytes in base64'),
        ([{**LOGGED, "tensors": {"t": []}}], '"t" in edit 0 is []; it must be an object'),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_log_that_is_none_stops_an_edit_before_it_begins(edits: Any, reason: str, tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    raw = path.read_bytes()
    edit_log.place(path).write_text(json.dumps({"edits": edits}))
    done = run("extend", "m.gguf", *YARN, "--in-place")
    assert done.code == 1
    assert f"not a valid ropetool edit log ({reason}" in done.err
    assert "Try: move it away, then run again" in done.err
    assert path.read_bytes() == raw


def edit(path: Path, letter: str, count: int = 3000) -> None:
    edit_model(
        editable(path), Patch({"a.b": Value.of(ValueType.STR, letter * count)}), copy_if_needed=True, command=letter
    )


def test_an_edit_for_which_the_log_has_no_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path / "m.gguf")
    before = values(path)
    monkeypatch.setattr(edit_log, "LARGE", JsonLimits(20_000, 1000))
    for letter in "ab":
        edit(path, letter)
    held = snapshot(tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("something was written")

    with monkeypatch.context() as patch:
        for function in ("carry_out", "replace_by_copy"):
            patch.setattr(f"ropetool.files.gguf.in_place.editing.{function}", never)
        for count in (3000, 30_000):
            with pytest.raises(
                ConfigError, match=r"no room for it after 2 earlier edits \(the log has .* reads at most 20,000\)"
            ) as no:
                edit(path, "c", count)
            assert no.value.try_ == f"-o FILE to write a copy, or ropetool restore {path} to undo the last edit first"
        for last in ((), ("--dry-run",)):
            patch.setattr(edit_log, "LARGE", JsonLimits(edit_log.place(path).stat().st_size + 200, 1000))
            done = run("extend", "m.gguf", *YARN, "--in-place", *last)
            assert (done.code, done.out) == (1, "")
            assert "this edit could not be undone" in done.err
    assert snapshot(tmp_path) == held
    done = run("restore", "m.gguf", "--all")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"log +no edits remain\n", done.out)
    assert {key: value for key, value in values(path).items() if key != "ropetool.filler"} == before
    with pytest.raises(
        ConfigError, match=r"the edit log has no room for it \(the log has .* reads at most 20,000\)"
    ) as no:
        edit(path, "x", 30_000)
    assert no.value.try_ == "-o FILE to write a copy"


def test_an_edit_of_more_values_than_a_log_is_read_with_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commas within texts count too when a log is read."""
    path = model(tmp_path / "m.gguf")
    edit(path, "a")
    monkeypatch.setattr(edit_log, "LARGE", JsonLimits(10**6, 500))
    done = run("gguf", "set", "m.gguf", "general.description", "," * 600, "--in-place")
    assert done.code == 1
    assert "the log contains more than 500 values" in done.err
    assert run("restore", "m.gguf").code == 0


def test_a_log_that_may_lack_edits_never_says_that_all_are_undone(tmp_path: Path) -> None:
    """Earlier versions dropped the first edits of a long log, and their logs do not say so."""
    path = model(tmp_path / "m.gguf")
    before = values(path)
    for letter in "abcd":
        edit(path, letter)
    log = json.loads(edit_log.place(path).read_text())
    assert log.pop("complete") is True
    log["edits"] = log["edits"][2:]
    edit_log.place(path).write_text(json.dumps(log))
    edit(path, "e")
    assert not edit_log.read(path).complete
    assert json.loads(run("restore", "m.gguf", "--json").out)["complete"] is False
    done = run("restore", "m.gguf", "--all")
    assert done.code == 0
    assert "no edits remain in the log, which may lack the first edits" in done.out
    assert "dropped its first edits, which cannot be undone" in done.err
    after = values(path)
    assert after["a.b"] == ("STRING", "b" * 3000)
    assert after.keys() != before.keys()


@pytest.mark.parametrize("complete", [1, "true", None, []])
def test_a_log_is_complete_only_if_it_says_so(complete: object, tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    edit(path, "a")
    log = json.loads(edit_log.place(path).read_text())
    edit_log.place(path).write_text(json.dumps({**log, "complete": complete}))
    assert not edit_log.read(path).complete


def test_a_vector_that_is_added_is_logged_as_new(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    edit_model(editable(path), Patch(tensors={FREQS: np.ones(32, np.float32)}), command="x")
    assert edit_log.read(path).edits[0].tensors == {FREQS: (None, np.ones(32, "<f4").tobytes())}


def test_a_file_of_the_hubs_cache_is_left_to_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    path = model(folder / "m.gguf")
    raw = path.read_bytes()
    done = run("extend", path, *YARN, "--in-place")
    assert done.code == 1
    assert "is in the hub's local cache, which must not change" in done.err
    assert path.read_bytes() == raw


def test_a_link_into_the_hubs_cache_is_left_too(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--name" / "blobs"
    folder.mkdir(parents=True)
    blob = model(folder / "0123")
    (tmp_path / "m.gguf").symlink_to(blob)
    raw = blob.read_bytes()
    assert "is in the hub's local cache" in run("extend", "m.gguf", *YARN, "--in-place").err
    assert blob.read_bytes() == raw
