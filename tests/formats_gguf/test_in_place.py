"""Edits in place, held against the gguf package's reader and llama.cpp: what was asked has changed, nothing else."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf_files
import numpy as np
import pytest
from gguf_files import contents, mixed, packed, tensor, u32, vocabulary
from gguf_logits import llama_logits

from ropetool.errors import ConfigError, NotACheckpoint, OutputError, PlanMismatch, RopetoolError
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.files.gguf.header import read_unmapped
from ropetool.files.gguf.in_place import Edited, edit_in_place, guard, recover, way_in_place
from ropetool.files.gguf.in_place.disk import Disk, NotHere
from ropetool.files.gguf.journal import journal_of
from ropetool.files.gguf.shards import read_shards

from .test_writer import plain

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Linux is proved, and macOS has the same calls")

STR, U32, F32 = ValueType.STR, ValueType.U32, ValueType.F32
FILLER = "ropetool.filler"
BASE = "llama.rope.freq_base"


def text(length: int) -> Value:
    return Value.of(STR, "x" * length)


def edited(path: Path, patch: Patch, **options: bool) -> Edited:
    return edit_in_place([read_unmapped(path)], patch, **options)


def held(path: Path) -> dict:
    """Return what a file holds by the gguf package, without the filler, which must be all of the u8 kind."""
    found = contents(path)
    types, value = found["values"].pop(FILLER, ([0], 0))
    assert types in ([0], [9, 0]), types
    assert value is not None
    return found


def assert_is(path: Path, before: Mapping, patch: Patch, *, order: bool = True) -> None:
    """Compare a file with what it held before and the patch, worked out independently."""
    values, tensors = dict(before["values"]), dict(before["tensors"])
    for key in patch.remove:
        del values[key]
    values |= {key: plain(value) for key, value in patch.set.items()}
    tensors |= {name: ("F32", [len(data)], data.tobytes()) for name, data in patch.tensors.items()}
    found = held(path)
    assert found["values"] == values
    assert found["tensors"] == tensors
    assert list(found["values"]) == list(values)
    assert not order or list(found["tensors"]) == list(tensors)
    assert os.listdir(path.parent) == [path.name]


@pytest.fixture
def no_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise NotHere

    monkeypatch.setattr(Disk, "insert", refuse)


@pytest.fixture
def insertion(tmp_path: Path) -> None:
    """Skip where the file system of the tests inserts no ranges."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(1 << 16))
    with open(probe, "r+b", buffering=0) as file:
        try:
            Disk(probe, file).insert(0, 1 << 16)
        except NotHere:
            pytest.skip("the file system inserts no ranges")
        finally:
            probe.unlink()


# --- the ways


def test_a_key_of_the_same_size_is_overwritten_where_it_lies(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    size, before = path.stat(), held(path)
    patch = Patch({BASE: Value.of(F32, 5e5)})
    found = edited(path, patch)
    assert (found.way, found.size) == ("overwrite", size.st_size)
    assert found.bytes_written <= 4096
    assert path.stat().st_ino == size.st_ino
    assert_is(path, before, patch)


def test_the_same_edit_again_writes_nothing(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    patch = Patch({"a.key": text(100)}, tensors={"rope_freqs.weight": np.ones(5, np.float32)})
    edited(path, patch)
    raw, status = path.read_bytes(), path.stat()
    found = edited(path, patch)
    assert (found.way, found.bytes_written) == ("nothing", 0)
    assert path.read_bytes() == raw
    assert path.stat().st_mtime_ns == status.st_mtime_ns


@pytest.mark.usefixtures("insertion")
def test_a_longer_header_gets_a_range_and_the_next_edits_use_its_room(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    before = held(path)
    one = Patch({"a.one": text(3000)})
    first = edited(path, one)
    assert first.way == "insert"
    assert first.size % 4096 == (tmp_path / "m.gguf").stat().st_size % 4096
    assert_is(path, before, one)
    two = Patch({"a.two": text(9000)}, tensors={"late.weight": np.arange(7, dtype=np.float32)})
    second = edited(path, two)
    assert (second.way, second.size) == ("filler", first.size + 32)
    assert_is(path, before, Patch({**one.set, **two.set}, tensors=two.tensors))
    third = edited(path, Patch(remove=frozenset(["a.one", "a.two"])))
    assert (third.way, third.size) == ("filler", second.size)
    assert_is(path, before, Patch(tensors=two.tensors))
    assert b"xxxx" not in path.read_bytes()  # what was taken out of the header is not kept in the filler


@pytest.mark.usefixtures("no_insertion")
def test_without_insertion_the_first_tensors_go_to_the_end(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    before = held(path)
    patch = Patch({"a.key": text(40)})
    found = edited(path, patch)
    assert (found.way, found.words) == ("move", "the first tensors moved to the end, to make room for a longer header")
    assert_is(path, before, patch, order=False)
    assert list(held(path)["tensors"]) == [*list(before["tensors"])[1:], "token_embd.weight"]
    again = Patch({"a.key": text(90)}, tensors={"token_embd.bias": np.ones(3, np.float32)})
    assert edited(path, again).way == "move"
    assert_is(path, before, again, order=False)


@pytest.mark.usefixtures("no_insertion")
def test_a_whole_copy_is_made_only_where_it_was_asked_for(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    before, raw = held(path), path.read_bytes()
    path.chmod(0o640)
    patch = Patch({"a.key": text(90_000)})
    with pytest.raises(
        OutputError, match=r"its header needs 90,\d+ more bytes, and moving its tensors does not free them"
    ):
        edited(path, patch)
    assert path.read_bytes() == raw
    found = edited(path, patch, copy_if_needed=True)
    assert (found.way, found.bytes_written) == ("copy", path.stat().st_size)
    assert_is(path, before, patch)
    assert path.stat().st_mode & 0o777 == 0o640
    assert edited(path, Patch({"a.more": text(1000)})).way == "filler"


def test_a_file_of_keys_alone_is_written_from_the_change_on(tmp_path: Path) -> None:
    path = vocabulary(tmp_path / "v.gguf")
    before = held(path)
    patch = Patch({"tokenizer.chat_template": text(5000), "a.last": text(3)})
    found = edited(path, patch)
    assert found.way == "overwrite"
    assert_is(path, before, patch)
    shorter = Patch({"a.last": text(3)}, frozenset(["tokenizer.chat_template"]))
    edited(path, shorter)
    assert_is(path, before, shorter)
    added = Patch({"a.last": text(3)}, tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    edited(path, added)
    assert_is(path, before, Patch(added.set, shorter.remove, added.tensors))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("way", ["insert", "move"])
def test_llama_cpp_computes_the_same_after_an_edit(
    tmp_path: Path, arch: str, way: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("insertion" if way == "insert" else "no_insertion")
    path = gguf_files.model(tmp_path / "m.gguf", arch)
    logits, tensors = llama_logits(path), gguf_files.tensors(path)
    assert edited(path, Patch({"a.key": text(500)})).way == way
    assert gguf_files.tensors(path) == tensors
    assert (llama_logits(path) == logits).all()
    edited(path, Patch({f"{arch}.rope.freq_base": Value.of(F32, 5e5)}))
    assert not np.allclose(llama_logits(path), logits, rtol=1e-3)


def test_a_new_vector_goes_to_the_end_and_llama_cpp_rotates_by_it(tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "m.gguf")
    divisors = gguf_files.llama3_divisors()
    copied = tmp_path / "other" / "copied.gguf"
    copied.parent.mkdir()
    write_patched(read_header(path), Patch(tensors={gguf_files.FREQS: divisors}), copied)
    edited(path, Patch(tensors={gguf_files.FREQS: divisors}))
    assert list(gguf_files.tensors(path))[-1] == gguf_files.FREQS
    assert (llama_logits(path) == llama_logits(copied)).all()


def test_a_vector_that_was_added_is_taken_out_again(tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "m.gguf")
    before, logits, size = held(path), llama_logits(path), path.stat().st_size
    edited(path, Patch({"a.b": text(9)}, tensors={gguf_files.FREQS: gguf_files.llama3_divisors()}))
    grown = path.stat().st_size
    with pytest.raises(PlanMismatch, match=r"does not have a tensor none\.weight to remove"):
        edited(path, Patch(drop=frozenset({"none.weight"})))
    with pytest.raises(
        OutputError, match=r"only the last tensors of a file can be removed, and its last tensor is rope_freqs"
    ):
        edited(path, Patch(drop=frozenset({"token_embd.weight"})))
    edited(path, Patch({}, frozenset({"a.b"}), drop=frozenset({gguf_files.FREQS})))
    assert held(path) == before
    assert size <= path.stat().st_size < grown
    assert (llama_logits(path) == logits).all()


# --- nobody else counts the filler


@pytest.mark.usefixtures("insertion")
def test_the_filler_is_no_key_of_the_model(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    keys = set(read_header(path).values)
    edited(path, Patch({"a.key": text(3000)}))
    assert set(read_header(path).values) == keys | {"a.key"}
    copied = tmp_path / "copied.gguf"
    write_patched(read_header(path), Patch(), copied)
    assert FILLER not in contents(copied)["values"]
    with pytest.raises(ConfigError, match="is the space that ropetool reserves"):
        edited(path, Patch({FILLER: text(1)}))


def test_a_filler_behind_which_another_program_wrote_is_used_up(tmp_path: Path) -> None:
    filler = b"\x09\0\0\0" + np.array([0], "<i4").tobytes() + np.array([500], "<u8").tobytes() + b"\x07" * 500
    keys = [u32("a.b", 1), np.array([len(FILLER)], "<u8").tobytes() + FILLER.encode() + filler, u32("a.c", 2)]
    path = tmp_path / "m.gguf"
    path.write_bytes(packed(keys, [tensor("t", [8])], bytes(32)))
    assert edited(path, Patch({"a.d": text(300)})).way == "filler"
    found = contents(path)
    assert list(found["values"]) == ["a.b", "a.c", "a.d", FILLER]
    assert set(found["values"][FILLER][1]) == {0}


# --- odd files


def test_bytes_behind_the_last_tensor_are_kept_or_refused(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    with path.open("ab") as file:
        file.write(b"of others" * 10)
    patch = Patch({BASE: Value.of(F32, 3e4)})
    edited(path, patch)
    assert path.read_bytes().endswith(b"of others" * 10)
    with pytest.raises(OutputError, match="90 bytes after its last tensor do not belong to a tensor"):
        edited(path, Patch(tensors={"new": np.ones(3, np.float32)}))


@pytest.mark.usefixtures("no_insertion")
def test_a_missing_last_padding_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = np.arange(40, dtype="<f4")
    infos = [tensor("big", [24]), tensor("small", [3], offset=96)]
    path.write_bytes(packed([u32("a.b", 1)], infos, data[:27].tobytes()))
    before = held(path)
    for patch in (Patch({"a.c": text(20)}), Patch(tensors={"new": np.ones(3, np.float32)})):
        before = held(path)
        edited(path, patch, copy_if_needed=True)
        assert_is(path, before, patch, order=False)


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096, 65536])
@pytest.mark.parametrize("can_insert", [True, False])
def test_any_alignment(tmp_path: Path, alignment: int | None, can_insert: bool, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("insertion" if can_insert else "no_insertion")
    path = mixed(tmp_path / "m.gguf", alignment=alignment)
    before = held(path)
    done: dict[str, Value] = {}
    for number, length in enumerate((1, 27, 60, 5000)):
        patch = Patch({f"a.{number}": text(length)})
        edited(path, patch, copy_if_needed=True)
        done |= patch.set
        assert_is(path, before, Patch(done), order=False)


def test_any_edits_come_out_as_a_copy_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are edited several times by whatever way serves, beside copies that have the same edits."""
    rng = random.Random(11)
    insert, ways = Disk.insert, set()
    for number in range(int(os.environ.get("ROPETOOL_EDITED_FILES", "12"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        make = rng.choice([mixed, mixed, mixed, vocabulary])
        more = {"alignment": rng.choice([None, 16, 256])} if make is mixed else {}
        path = make(folder / "m.gguf", **more)
        copied = Path(shutil.copy(path, tmp_path / f"{number}.gguf"))
        monkeypatch.setattr(Disk, "insert", insert if rng.random() < 0.5 else _refusing)
        for step in range(rng.randint(1, 4)):
            patch = _any_patch(rng, path)
            before = held(path)
            header, next_copy = read_header(copied), tmp_path / f"{number}-{step}.gguf"
            write_patched(header, patch, next_copy)
            ways.add(edited(path, patch, copy_if_needed=True).way)
            assert_is(path, before, patch, order=False)
            found, wanted = held(path), contents(next_copy)
            assert found == wanted
            assert list(found["values"]) == list(wanted["values"])
            copied = next_copy
    assert len(ways) >= 4, ways


def _refusing(*_: object) -> None:
    raise NotHere


def _any_patch(rng: random.Random, path: Path) -> Patch:
    keys = [key for key in read_header(path).values if key.startswith(("test.", "a.", "tokenizer.ggml.token_type"))]
    changed = {
        f"a.{rng.randrange(6)}": text(rng.choice([0, 1, 20, 100, 1000, 40_000])) for _ in range(rng.randrange(3))
    }
    removed = {key for key in rng.sample(keys, min(len(keys), rng.randrange(3))) if key not in changed}
    names = {"rope_freqs.weight": 5, "one.weight": 3, "two.weight": 40}
    present = {info.name for info in read_header(path).tensors}
    if "rope_freqs.weight" not in present:
        names["rope_freqs.weight"] = rng.choice([5, 8])
        del names["rope_freqs.weight"]
    chosen = rng.sample(sorted(names), rng.randrange(len(names))) if rng.random() < 0.5 else []
    vectors = {name: np.array([rng.random() for _ in range(names[name])], np.float32) for name in chosen}
    return Patch(changed, frozenset(removed), vectors)


# --- what is refused


def refusal(path: Path, patch: Patch | None = None) -> RopetoolError:
    raw = path.read_bytes()
    with pytest.raises(RopetoolError) as caught:
        edited(path, patch or Patch({BASE: Value.of(F32, 5e5)}))
    assert path.read_bytes() == raw
    assert not journal_of(path).exists()
    return caught.value


def test_other_hard_links_are_refused(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    os.link(path, tmp_path / "other.gguf")
    assert "has a second name (a hard link): an edit would change it there too" in refusal(path).message
    os.link(path, tmp_path / "third.gguf")
    assert "has 2 other names (hard links)" in refusal(path).message


def test_read_only_files_are_refused(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    path.chmod(0o444)
    found = refusal(path)
    assert (found.message, found.try_) == ("is read-only", f"chmod u+w {path}")


def test_a_link_is_followed_and_said(tmp_path: Path) -> None:
    path, link = mixed(tmp_path / "m.gguf"), tmp_path / "links" / "named.gguf"
    link.parent.mkdir()
    link.symlink_to(path)
    before = held(path)
    patch = Patch({BASE: Value.of(F32, 5e5)})
    found = edited(link, patch)
    assert found.path == path.resolve()
    assert "is a link" in found.notes[0]
    assert link.is_symlink()
    assert held(path)["values"][BASE] != before["values"][BASE]


@pytest.mark.skipif(sys.platform != "linux", reason="leases")
@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_file_that_another_process_reads_is_refused(tmp_path: Path, how: str) -> None:
    path = mixed(tmp_path / "m.gguf")
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb')\n"
        "if sys.argv[2] == 'mapped': view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); file.close()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"ready\n"
        found = refusal(path)
        assert "is in use by python" in found.message
        assert f"(process {reader.pid})" in found.message
        assert reader.stdin is not None
        reader.stdin.close()
    edited(path, Patch({BASE: Value.of(F32, 5e5)}))


@pytest.mark.skipif(sys.platform != "linux", reason="leases")
def test_a_mapping_of_our_own_is_a_reader_too(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    mapped = read_header(path)
    assert "by this process itself" in refusal(path).message
    del mapped
    edited(path, Patch({BASE: Value.of(F32, 5e5)}))


def test_what_cannot_be_checked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_fcntl = fcntl.fcntl

    def without_leases(descriptor: int, command: int, *more: int) -> int:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "")
        return plain_fcntl(descriptor, command, *more)

    path = mixed(tmp_path / "m.gguf")
    monkeypatch.setattr(fcntl, "fcntl", without_leases)
    found = edited(path, Patch({BASE: Value.of(F32, 5e5)}))
    assert found.notes == (
        "ropetool could not check whether another program has the file open: its file system has no leases",
    )


def test_a_second_editor_is_refused(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    with path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process has it locked, or is editing it" in refusal(path).message


def test_a_file_that_changed_since_it_was_read_is_refused(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    header = read_unmapped(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(PlanMismatch, match="has changed since its header was read"):
        edit_in_place([header], Patch({BASE: Value.of(F32, 5e5)}))


def test_of_a_split_model_the_first_file_changes(tmp_path: Path) -> None:
    first = gguf_files.model(tmp_path / "m.gguf", shards=2)
    others = {path: path.read_bytes() for path in tmp_path.iterdir() if path != first}
    headers = read_shards(first, read_unmapped)
    assert len(headers) > 1
    freqs = np.ones(16, np.float32)
    edit_in_place(headers, Patch({BASE: Value.of(F32, 5e5)}, tensors={gguf_files.FREQS: freqs}))
    assert {path: path.read_bytes() for path in others} == others
    assert gguf_files.values(first)["split.tensors.count"][1] == sum(len(header.tensors) for header in headers) + 1
    assert gguf_files.values(first)[BASE][1] == 5e5
    assert (gguf_files.vector(first) == freqs).all()


def test_of_a_split_model_no_two_files_change(tmp_path: Path) -> None:
    first = gguf_files.model(tmp_path / "m.gguf", shards=2)
    headers = read_shards(first, read_unmapped)
    vector = next(info for info in headers[1].tensors if len(info.shape) == 1)
    patch = Patch({BASE: Value.of(F32, 5e5)}, tensors={vector.name: np.ones(vector.shape[0], np.float32)})
    with pytest.raises(OutputError, match="changes 2 files of the model"):
        edit_in_place(headers, patch)


# --- said beforehand


@pytest.mark.usefixtures("insertion")
def test_the_way_is_told_without_a_step(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    raw = path.read_bytes()
    for patch in (Patch({"a.b": text(3)}), Patch({BASE: Value.of(F32, 5e5)}), Patch()):
        told = way_in_place([read_unmapped(path)], patch)
        assert path.read_bytes() == raw
        done = edited(path, patch)
        assert (told.way, told.bytes_written, told.size) == (done.way, done.bytes_written, done.size)
        path.write_bytes(raw)


def test_without_a_journal_there_is_nothing_to_recover(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    raw = path.read_bytes()
    assert recover(path).direction == "nothing"
    assert path.read_bytes() == raw


def test_a_pending_edit_is_named_by_whatever_opens_the_file(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    journal_of(path).write_bytes(b"ropetool-jou")
    with pytest.raises(PlanMismatch, match="was interrupted") as caught:
        read_header(path)
    assert caught.value.try_ == f"ropetool recover {path}"
    raw = path.read_bytes()
    assert recover(path).direction == "back"
    assert path.read_bytes() == raw
    read_header(path)


CHANGES = ("write_beside", "sync_beside", "sync_folder", "rename_beside", "remove_beside")


def killed_copy(path: Path, patch: Patch, at: int) -> bool:
    """Write the file again in a process that is killed in front of its change number `at`; return whether it was."""
    child = os.fork()
    if child == 0:
        calls = iter(range(1000))

        def counted(change: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: object) -> None:
                if next(calls) == at:
                    os._exit(9)
                change(*arguments)

            return call

        for name in CHANGES:
            setattr(Disk, name, counted(getattr(Disk, name)))
        edit_in_place(
            [read_unmapped(path)], patch, copy_if_needed=True,
            beside=lambda way, size: {f"{path.name}.a": f"{way} {size}".encode(), f"{path.name}.b": b""},
        )  # fmt: skip
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.usefixtures("no_insertion")
def test_a_copy_that_is_cut_leaves_the_file_and_what_stands_beside_it_together(tmp_path: Path) -> None:
    path, beside = tmp_path / "m.gguf", [tmp_path / "m.gguf.a", tmp_path / "m.gguf.b"]
    patch, at, seen = Patch({"a.key": text(90_000)}), 0, set()
    while True:
        mixed(path)
        raw = path.read_bytes()
        for each in beside:
            each.write_bytes(b"old")
        killed = killed_copy(path, patch, at)
        if journal_of(path).exists():
            with pytest.raises(PlanMismatch, match="was interrupted"):
                read_header(path)
        recover(path)
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".") and not name.endswith("-new")]
        is_old = path.read_bytes() == raw
        assert is_old or read_header(path).values["a.key"] == text(90_000)
        texts = [each.read_bytes() if each.exists() else None for each in beside]
        assert texts == ([b"old", b"old"] if is_old else [f"copy {path.stat().st_size}".encode(), None])
        seen.add(is_old)
        if not killed:
            break
        at += 1
    assert at > 8
    assert seen == {True, False}


@pytest.mark.usefixtures("no_insertion")
def test_nobody_else_edits_a_file_while_its_copy_is_written(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    tried = []

    def beside(way: str, size: int) -> Mapping[str, bytes]:
        if way == "copy":
            with pytest.raises(OutputError, match="another process has it locked, or is editing it"):
                edited(path, Patch({"general.name": text(3)}))
            tried.append(read_header(path).file_size < size)  # and it can be read
        return {}

    edit_in_place([read_unmapped(path)], Patch({"a.key": text(90_000)}), copy_if_needed=True, beside=beside)
    assert tried == [True]


@pytest.mark.usefixtures("no_insertion")
def test_a_copy_that_cannot_take_the_name_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mixed(tmp_path / "m.gguf")
    raw = path.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Disk, "rename_beside", refuse)
    with pytest.raises(OutputError, match="ermission"):
        edited(path, Patch({"a.key": text(90_000)}), copy_if_needed=True)
    assert path.read_bytes() == raw
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_who_opens_a_file_that_is_edited_is_told_so(tmp_path: Path) -> None:
    path = mixed(tmp_path / "m.gguf")
    with guard.held(path) as holding:
        if holding.notes:
            pytest.skip("this file system has no leases")
        with pytest.raises(NotACheckpoint, match="another process is editing it and has locked it") as refused:
            read_header(path)
    assert refused.value.try_ == "run again later"
    read_header(path)
