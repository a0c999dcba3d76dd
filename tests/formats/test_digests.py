"""Digests of new files, against hashlib over the whole file."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from ropetool.files import digests
from ropetool.files.copying import copy_range, write_all


def test_a_new_file_has_the_digest_of_its_bytes_in_whatever_order_they_were_written(tmp_path: Path) -> None:
    random_ = random.Random(7)
    for number in range(60):
        file, size = tmp_path / str(number), random_.choice([0, 100, 9 << 20, 20 << 20])
        with digests.taken():
            with digests.new_file(file) as opened:
                opened.truncate(size)
                at = 0
                while at < size:
                    step = min(size - at, random_.choice([1, 1000, 3 << 20]))
                    if random_.random() < 0.8:  # else a hole
                        write_all(opened, at, random_.randbytes(step))
                    at += step
                for _ in range(random_.choice([0, 0, 2]) if size else 0):
                    write_all(opened, random_.randrange(size), b"x")
            assert digests.of_new(file) == hashlib.sha256(file.read_bytes()).hexdigest()
            file.write_bytes(b"another")
            assert digests.of_new(file) == hashlib.sha256(b"another").hexdigest()


@pytest.mark.parametrize("kernel", [True, False])
def test_copied_ranges_count(kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    raw = random.Random(8).randbytes(19 << 20)
    (tmp_path / "a").write_bytes(raw)
    with digests.taken():
        with digests.new_file(tmp_path / "b") as target, open(tmp_path / "a", "rb", buffering=0) as source:
            copy_range(source, target, 5, 0, len(raw) - 5)
        monkeypatch.setattr(digests, "of_file", None)
        assert digests.of_new(tmp_path / "b") == hashlib.sha256(raw[5:]).hexdigest()


def test_nothing_is_read_behind_a_writer_for_whom_nobody_asks(tmp_path: Path) -> None:
    with digests.new_file(tmp_path / "a") as file:
        assert not isinstance(file, digests.NewFile)


def test_a_file_that_is_there_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with digests.taken(), pytest.raises(FileExistsError), digests.new_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_text() == "mine"


def test_an_error_while_writing_ends_the_thread_and_passes(tmp_path: Path) -> None:
    def fail() -> None:
        with digests.taken(), digests.new_file(tmp_path / "a") as file:
            for at in range(0, 32 << 20, 1 << 20):
                write_all(file, at, bytes(1 << 20))
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_file_at_rest_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    status, now = file.stat(), digests.time.time_ns()
    monkeypatch.setattr(digests.time, "time_ns", lambda: now + 10**10)
    first = digests.of_file(file)
    with monkeypatch.context() as patch:
        patch.setattr(digests, "open_regular", None)
        assert digests.of_file(file) == first
    while file.stat().st_ctime_ns == status.st_ctime_ns:  # the clock of the file system has ticks
        file.write_bytes(b"two")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.of_file(file) == hashlib.sha256(b"two").hexdigest()
