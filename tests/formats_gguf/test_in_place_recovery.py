"""Edits in place that are killed or lose power at any call: after recovery the file is the old or the new one, byte for byte.

The disk is that of failing_disk.py, on which shifts are cut between any extents and what was not synced is lost in any order.
ROPETOOL_POWER_LOSSES says how many trials each way gets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from failing_disk import FailingDisk, File, Stopped
from gguf_files import packed, tensor, u32

from ropetool.errors import PlanMismatch
from ropetool.files.gguf import Patch, Value, ValueType, parse_header
from ropetool.files.gguf.in_place import editing, recovery
from ropetool.files.gguf.journal import MAGIC, journal_of

TRIALS = int(os.environ.get("ROPETOOL_POWER_LOSSES", "40"))
RECORD = "m.gguf.ropetool.json"
WAYS = ("overwrite", "filler", "insert", "move", "keys", "drop")  # keys: a file without tensors, which is rewritten


@dataclass(frozen=True)
class Case:
    """An edit of a file, with what the file holds before and after it."""

    disk: Callable[[], FailingDisk]
    patch: Patch
    before: bytes
    after: bytes
    calls: int


def model(rng: random.Random) -> bytes:
    """Return a file with tensors of odd sizes, some of zeros, which are holes, and perhaps no padding at its end."""
    sizes = [rng.choice([8, 24, 300, 2000, 5000]) for _ in range(rng.randint(3, 6))]
    infos, data = [], b""
    for number, size in enumerate(sizes):
        infos.append(tensor(f"t.{number}", [size], offset=len(data)))
        values = np.zeros(size, "<f4") if rng.random() < 0.3 else np.frombuffer(rng.randbytes(4 * size), "<f4")
        data += values.tobytes() + bytes(-4 * size % 32)
    keys = [u32("a.b", 7), *(u32(f"k.{number}", number) for number in range(rng.choice([1, 60])))]
    return packed(keys, infos, data[: len(data) - rng.choice([0, -4 * sizes[-1] % 32])])


def case(way: str, seed: int) -> Case:
    """Return an edit that takes this way."""
    for number in range(1000):
        rng = random.Random(f"{way} {seed} {number}")
        raw = model(rng)
        can_insert = way != "move"
        if way == "filler":
            first = FailingDisk(raw)
            edit(first, Patch({"a.c": text(20)}))
            raw = first.now.content()
        patch = Patch({"a.c": text(rng.choice([1, 500, 3000])), "a.b": Value.of(ValueType.U32, 5)})
        if way == "overwrite":
            patch = Patch({"a.b": Value.of(ValueType.U32, 5)})
        if rng.random() < 0.5:
            name, size = ("t.0", 24) if way == "overwrite" else ("rope_freqs.weight", 16)
            patch = Patch(patch.set, tensors={name: np.frombuffer(rng.randbytes(4 * size), "<f4").copy()})
        if way == "keys":
            raw = packed([u32(f"k.{number}", number) for number in range(rng.randint(2, 400))] + [u32("a.b", 7)])
            patch = Patch(patch.set) if rng.random() < 0.5 else Patch(remove=frozenset({"k.1"}))
        if way == "drop":  # the last tensor goes, and what takes a range may come
            last = parse_header(memoryview(raw), Path("m.gguf"), len(raw)).tensors[-1].name
            patch = Patch({"a.c": text(rng.choice([1, 5000]))}, drop=frozenset({last}))
        disk = FailingDisk(raw, can_insert=can_insert, beside={RECORD: b"old"})
        try:
            found = edit(disk, patch)
        except Exception:  # noqa: BLE001 - this file does not take this way
            continue
        if found == way or (found, way) == ("overwrite", "keys") or way == "drop":

            def fresh(raw: bytes = raw, can_insert: bool = can_insert) -> FailingDisk:
                return FailingDisk(raw, can_insert=can_insert, beside={RECORD: b"old"})

            return Case(fresh, patch, raw, disk.now.content(), disk.calls)
    raise AssertionError(f"no file takes the way {way}")


def text(length: int) -> Value:
    return Value.of(ValueType.STR, "x" * length)


def edit(disk: FailingDisk, patch: Patch) -> str:
    raw = disk.now.content()
    header = parse_header(memoryview(raw), disk.path, len(raw))
    return editing._edit(disk, header, patch, lambda way, size: {RECORD: b"new"}).way  # type: ignore[arg-type]


def cut(made: Case, at: int, rng: random.Random, ignored: frozenset[int] = frozenset()) -> FailingDisk:
    """Return the disk of an edit that was stopped at a call."""
    disk = made.disk()
    disk.stop_at, disk.rng, disk.ignored = at, rng, ignored
    with pytest.raises(Stopped):
        edit(disk, made.patch)
    return disk


def recovered(
    disk: FailingDisk, rng: random.Random, fails: float, next_disk: Callable[[FailingDisk], FailingDisk]
) -> FailingDisk:
    """Return the disk after a recovery that may be stopped too, several times."""
    while journal_of(disk.path).name in disk.names:
        if rng.random() < fails:
            disk.stop_at, disk.rng = rng.randrange(12), rng
        try:
            recovery.settle(disk)  # type: ignore[arg-type]
        except Stopped:
            disk = next_disk(disk)
    return disk


def judged(made: Case, disk: FailingDisk) -> str:
    """Return what became of the file: old, new, or what is wrong."""
    found, record = disk.now.content(), disk.names[RECORD].now if RECORD in disk.names else None
    state = "old" if found == made.before else "new" if found == made.after else "lost"
    if state != "lost" and record != state.encode():
        return f"{state}, and its record is {record!r}"
    left = sorted(disk.names.keys() - {RECORD, f".{RECORD}.ropetool-new"})
    return f"{state}, and {left} is left" if left else state


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_every_call(way: str) -> None:
    for seed in range(3):
        made = case(way, seed)
        states = Counter[str]()
        for at in range(made.calls):
            rng = random.Random(f"{way} {seed} {at}")
            disk = cut(made, at, rng).after_kill()
            states[judged(made, recovered(disk, rng, 0.3, FailingDisk.after_kill))] += 1
        assert states.keys() == {"old", "new"}, states


@pytest.mark.parametrize("way", WAYS)
def test_power_lost_at_every_call(way: str) -> None:
    states = power_losses(way, TRIALS)
    assert states.keys() == {"old", "new"}, states


def power_losses(
    way: str, trials: int, ignored: Callable[[Case], frozenset[int]] = lambda _: frozenset()
) -> Counter[str]:
    """Return what became of files whose edit lost power at some call, and whose recovery perhaps did too."""
    states = Counter[str]()
    made, skipped = case(way, 0), frozenset[int]()
    for number in range(trials):
        if number % 20 == 0:
            made = case(way, number // 20)
            skipped = ignored(made)
        rng = random.Random(f"{way} {number}")
        disk = cut(made, number % 20 * made.calls // 20 if number < 20 else rng.randrange(made.calls), rng, skipped)
        lose = lambda stopped, rng=rng: stopped.after_power_loss(rng)  # noqa: E731
        try:
            states[judged(made, recovered(lose(disk), rng, 0.3, lose))] += 1
        except PlanMismatch as refusal:
            states[refusal.message] += 1
    return states


@pytest.mark.parametrize("seed", range(4))
def test_an_insertion_that_is_cut_after_any_extent_is_taken_back(seed: int) -> None:
    made = case("insert", seed)
    insertion = next(at for at in range(made.calls) if _calls(made)[at] == "insert")
    for number in range(TRIALS):
        rng = random.Random(f"{seed} {number}")
        disk = cut(made, insertion + 1, rng).after_power_loss(rng)
        assert judged(made, recovered(disk, rng, 0.5, lambda stopped, rng=rng: stopped.after_power_loss(rng))) == "old"


def test_the_disk_cuts_insertions_in_between() -> None:
    """Or the tests above would show nothing."""
    made = case("insert", 1)
    insertion = next(at for at in range(made.calls) if _calls(made)[at] == "insert")
    contents = set()
    for number in range(40):
        rng = random.Random(number)
        contents.add(cut(made, insertion + 1, rng).after_power_loss(rng).now.content())
    assert len(contents) > 4


# --- planted defects


def _calls(made: Case) -> list[str]:
    """Return the calls of an undisturbed edit by name, those that change or sync something."""
    found: list[str] = []

    class Noting(FailingDisk):
        def __getattribute__(self, name: str) -> object:
            if name in ("write", "truncate", "reserve", "insert", "collapse", "sync") or name.endswith(
                ("_beside", "_folder")
            ):
                before, method = self.calls, object.__getattribute__(self, name)

                def noted(*arguments: object) -> object:
                    result = method(*arguments)
                    found.extend([name] * (self.calls - before))
                    return result

                return noted
            return object.__getattribute__(self, name)

    disk = made.disk()
    edit(Noting(disk.now, can_insert=disk.can_insert, beside={RECORD: b"old"}), made.patch)
    return found


def _syncs_of(kind: str, number: int) -> Callable[[Case], frozenset[int]]:
    def chosen(made: Case) -> frozenset[int]:
        places = [at for at, name in enumerate(_calls(made)) if name == kind]
        return frozenset(places[number : number + 1] if number >= 0 else places[number:][:1])

    return chosen


@pytest.mark.parametrize(
    ("way", "kind", "number"),
    [
        ("overwrite", "sync_beside", 0),  # the journal
        ("overwrite", "sync", -1),  # the writes, before the journal is removed
        ("move", "sync", 0),  # the copies, before the mark
        ("insert", "sync", 0),  # the insertion, before the room at the end and the mark, and what follows it
        ("overwrite", "sync_folder", 0),  # the journal's name
    ],
)
def test_a_sync_that_is_left_out_loses_files(way: str, kind: str, number: int) -> None:
    def ignored(made: Case) -> frozenset[int]:
        left_out = _syncs_of(kind, number)(made)
        return left_out | (_syncs_of(kind, 1)(made) if way == "insert" else frozenset())

    states = power_losses(way, 400, ignored)
    assert states.keys() - {"old", "new"}, states


def test_a_journal_that_is_removed_too_early_loses_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(disk: FailingDisk, journal: recovery.EditJournal) -> None:
        recovery.end(disk)  # type: ignore[arg-type]
        for write in journal.writes:
            disk.write(write.at, write.new)
        disk.sync()

    monkeypatch.setattr(editing, "forward", hasty)
    made = case("overwrite", 0)
    states = Counter(
        judged(
            made, recovered(cut(made, at, random.Random(at)).after_kill(), random.Random(at), 0, FailingDisk.after_kill)
        )
        for at in range(made.calls)
    )
    assert states["lost"] or any("record" in state for state in states), states


# --- what cannot be told is left as it is


def test_a_file_that_another_one_has_replaced_is_left_as_it_is() -> None:
    for way in WAYS:
        made = case(way, 0)
        for at in range(5, made.calls - 2):
            disk = cut(made, at, random.Random(at)).after_kill()
            raw = random.Random(1).randbytes(disk.size())
            replaced = FailingDisk(raw, beside={name: text.now for name, text in disk.names.items()})
            if journal_of(disk.path).name not in replaced.names:
                continue
            with pytest.raises(PlanMismatch, match="cannot be recovered, and is not changed"):
                recovery.settle(replaced)  # type: ignore[arg-type]
            assert replaced.now.content() == raw
            assert journal_of(disk.path).name in replaced.names


def test_a_shift_about_which_nothing_is_certain_is_left_as_it_is() -> None:
    made = case("insert", 0)
    insertion = next(at for at, name in enumerate(_calls(made)) if name == "insert")
    disk = cut(made, insertion + 1, random.Random(0)).after_kill()
    journal = recovery.EditJournal.decode(disk.read_beside(journal_of(disk.path).name))
    assert journal is not None
    assert journal.insertion is not None
    shifted = disk.now.content()
    full = bytearray(shifted)
    at = journal.insertion.at
    full[at : at + journal.insertion.nbytes] = (
        b"\x01" * journal.insertion.nbytes
    )  # no zeros there, and no hole anywhere
    other = FailingDisk(bytes(full), beside={name: text.now for name, text in disk.names.items()})
    with pytest.raises(PlanMismatch, match="and their place is unclear"):
        recovery.settle(other)  # type: ignore[arg-type]


def test_whatever_is_cut_of_a_journal_is_seen(tmp_path: Path) -> None:
    made = case("insert", 0)
    disk = cut(made, 4, random.Random(0)).after_kill()
    raw = disk.read_beside(journal_of(disk.path).name)
    whole = recovery.EditJournal.decode(raw)
    assert whole is not None
    assert whole.encode() == raw
    for length in range(0, len(raw), 97):
        assert recovery.EditJournal.decode(raw[:length]) is None
        assert recovery.EditJournal.decode(raw[:length].ljust(len(raw), b"\0")) is None
    assert not whole.marked
    marked = recovery.EditJournal.decode(raw + b"forward\n")
    assert marked is not None
    assert marked.marked
    torn = recovery.EditJournal.decode(raw + b"forwa")
    assert torn is not None
    assert not torn.marked


@pytest.mark.parametrize("name", ["../m.gguf.json", "/etc/m.gguf.json", "other.gguf", ".m.gguf.json", "m.gguf", ""])
def test_a_journal_of_others_writes_nothing_elsewhere(name: str) -> None:
    journal = recovery.EditJournal("overwrite", 600, 600, beside={name: b"text"}, marked=True)
    disk = FailingDisk(bytes(600), beside={journal_of(Path("/nowhere/m.gguf")).name: journal.encode()})
    with contextlib.suppress(PlanMismatch):
        recovery.settle(disk)  # type: ignore[arg-type]
    assert [text for text in disk.names if "journal" not in text] == []


@pytest.mark.parametrize("name", ["m.gguf.\0", "m.gguf.\ud800"])
def test_a_journal_with_a_name_of_no_file_is_none(name: str) -> None:
    journal = recovery.EditJournal("overwrite", 600, 600, beside={name: b""}, marked=True)
    assert recovery.EditJournal.decode(journal.encode()) is None


@pytest.mark.parametrize("change", [b'"size": -600', b'"size": 6e2', b'"size": null', b'"size": "6"'])
def test_a_journal_with_odd_numbers_is_none(change: bytes) -> None:
    raw = recovery.EditJournal("overwrite", 600, 700).encode()[:-32].replace(b'"size": 600', change, 1)
    text = raw[len(MAGIC) + 8 :]
    raw = MAGIC + len(text).to_bytes(8, "little") + text
    assert recovery.EditJournal.decode(raw + hashlib.sha256(raw).digest()) is None


def test_the_disk_is_a_disk() -> None:
    """Without a failure it holds what plain bytes would."""
    rng = random.Random(5)
    for _ in range(30):
        raw = bytearray(rng.randbytes(rng.randint(600, 9000)))
        disk = FailingDisk(bytes(raw))
        for _ in range(12):
            kind, at = rng.choice(["write", "insert", "collapse", "truncate"]), rng.randrange(len(raw))
            data = rng.randbytes(rng.randint(1, 2000))
            block = at // 512 * 512
            if kind == "write":
                disk.write(at, data)
                raw[at : at + len(data)] = data
            elif kind == "truncate":
                disk.truncate(at + 600)
                raw = raw[: at + 600].ljust(at + 600, b"\0")
            elif kind == "insert":
                disk.insert(block, 1024)
                raw[block:block] = bytes(1024)
            elif block + 512 < len(raw):
                disk.collapse(block, 512)
                del raw[block : block + 512]
            assert disk.now.content() == bytes(raw)
            assert disk.read(at, 700) == bytes(raw[at : at + 700])
        disk.sync()
        assert disk.after_power_loss(rng).now.content() == bytes(raw)
        assert File.of(bytes(raw), 512).content() == bytes(raw)
