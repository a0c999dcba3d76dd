"""Ranges copied between files, whatever the kernel offers."""

from __future__ import annotations

import errno
import os
import random
from io import FileIO

import pytest

from ropetool.errors import PlanMismatch
from ropetool.files import copying
from ropetool.files.copying import copy_range, write_all

RAW = random.Random(0).randbytes(3 * copying.CHUNK + 17)


def kernel_that(answer):
    """Return a copy_file_range that copies at most 1000 bytes a call, and then does what `answer` says."""
    calls = iter(range(2))

    def copy(source, target, count, start, at):
        if next(calls, None) is None:
            return answer()
        data = os.pread(source, min(count, 1000), start)
        return os.pwrite(target, data, at)

    return copy


def refuse(code):
    def answer():
        raise OSError(code, os.strerror(code))

    return answer


@pytest.mark.parametrize(
    "kernel", ["real", "absent", "stops", "EXDEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "EACCES", "ENOTTY"]
)
@pytest.mark.parametrize("window", [(0, len(RAW)), (5, 2 * copying.CHUNK), (len(RAW) - 1, 1), (7, 0)])
def test_a_range_arrives_at_its_place(tmp_path, monkeypatch, kernel, window):
    if kernel == "absent":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif kernel == "stops":
        monkeypatch.setattr(os, "copy_file_range", kernel_that(lambda: 0), raising=False)
    elif kernel != "real":
        monkeypatch.setattr(os, "copy_file_range", kernel_that(refuse(getattr(errno, kernel))), raising=False)
    (tmp_path / "a").write_bytes(RAW)
    (tmp_path / "b").write_bytes(b"#" * 10)
    start, nbytes = window
    with FileIO(tmp_path / "a") as source, FileIO(tmp_path / "b", "r+") as target:
        copy_range(source, target, start, 4, nbytes)
    rest = b"#" * max(0, 10 - 4 - nbytes)
    assert (tmp_path / "b").read_bytes() == b"####" + RAW[start : start + nbytes] + rest


def test_other_answers_of_the_kernel_are_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", kernel_that(refuse(errno.ENOSPC)), raising=False)
    (tmp_path / "a").write_bytes(RAW)
    with FileIO(tmp_path / "a") as source, FileIO(tmp_path / "b", "w") as target, pytest.raises(OSError, match="space"):
        copy_range(source, target, 0, 0, len(RAW))


def test_a_source_that_ends_early_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(RAW)
    with (
        FileIO(tmp_path / "a") as source,
        FileIO(tmp_path / "b", "w") as target,
        pytest.raises(PlanMismatch, match=f"became shorter than {len(RAW) + 1} bytes") as caught,
    ):
        copy_range(source, target, 1, 0, len(RAW))
    assert caught.value.where == str(tmp_path / "a")


def test_writes_that_take_less_are_repeated(tmp_path):
    class Slow(FileIO):
        def write(self, data):
            return super().write(bytes(data)[:3])

    with Slow(tmp_path / "b", "w") as target:
        write_all(target, 2, b"0123456789")
    assert (tmp_path / "b").read_bytes() == b"\0\0" + b"0123456789"
