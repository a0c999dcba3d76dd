"""Placing unchanged files: links where they are possible, copies where not, nothing where it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropetool.errors import CheckpointError, OutputError
from ropetool.files import copying
from ropetool.files.linking import place, share

CONTENT = bytes(range(256)) * 41 + b"end"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(CONTENT)
    path.chmod(0o640)
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "copy.bin"


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """Yield a file system of 64 KiB, or None where this user may not mount one."""
    with tempfile.TemporaryDirectory() as folder:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
        try:
            yield Path(folder) if mount.returncode == 0 else None
        finally:
            if mount.returncode == 0:
                subprocess.run(["umount", folder], check=True)


def answering(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_without_reflinks_a_file_is_hard_linked_and_left_alone(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source.stat()
    monkeypatch.setattr(fcntl, "ioctl", answering(errno.EOPNOTSUPP))
    assert place(source, destination) == "hard-linked"
    assert destination.samefile(source)
    after = source.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)


def test_the_answer_says_what_the_file_system_did(source: Path, destination: Path) -> None:
    how = place(source, destination)
    assert how in ("reflinked", "hard-linked")  # the same file system has one or the other
    assert (how == "hard-linked") == destination.samefile(source)
    assert destination.read_bytes() == CONTENT


def test_a_reflink_is_asked_for_first(source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(target: int, request: int, origin: int) -> int:
        assert request == 0x40049409  # FICLONE of linux/fs.h
        os.write(target, os.pread(origin, 1 << 20, 0))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    assert place(source, destination) == "reflinked"
    assert destination.read_bytes() == CONTENT
    assert not destination.samefile(source)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_nothing_can_be_linked_it_is_copied(
    code: int, source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", answering(errno.ENOTTY))
    monkeypatch.setattr(os, "link", answering(code))
    assert place(source, destination) == "copied"
    assert destination.read_bytes() == CONTENT
    assert not destination.samefile(source)


def test_a_copy_that_is_asked_for_is_a_file_of_its_own(source: Path, destination: Path) -> None:
    assert place(source, destination, copy=True) == "copied"
    destination.write_bytes(b"other")
    assert source.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 100])
def test_a_copy_in_steps_is_whole(size: int, source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "RANGE", 7)
    source.write_bytes(CONTENT[:size])
    assert place(source, destination, copy=True) == "copied"
    assert destination.read_bytes() == CONTENT[:size]


def stops_after(steps: int, last: Callable[..., int]) -> Callable[..., int]:
    """Return a copy_file_range that carries five bytes at a time, then does what `last` does."""
    real, left = os.copy_file_range, [steps]

    def copy_file_range(source: int, destination: int, count: int, *offsets: int) -> int:
        left[0] -= 1
        return real(source, destination, 5, *offsets) if left[0] >= 0 else last()

    return copy_file_range


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(
    "last", [lambda: 0, answering(errno.EXDEV), answering(errno.ENOSYS)], ids=["stop", "xdev", "nosys"]
)
def test_a_kernel_that_copies_nothing_or_stops_early_is_helped_out(
    steps: int, last: Callable[..., int], source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", stops_after(steps, last))
    assert place(source, destination, copy=True) == "copied"
    assert destination.read_bytes() == CONTENT


def test_a_system_without_copy_file_range_copies(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    assert place(source, destination, copy=True) == "copied"
    assert destination.read_bytes() == CONTENT


def test_links_in_the_source_are_followed_first(source: Path, destination: Path) -> None:
    link = source.with_name("link")
    link.symlink_to(source.name)
    place(link, destination)
    assert not destination.is_symlink()
    assert destination.read_bytes() == CONTENT


def test_a_real_second_file_system_gets_a_copy(source: Path) -> None:
    with small_disk() as disk:
        folder = disk or Path("/dev/shm")  # a file system of its own on Linux
        destination = folder / f"ropetool-test-{os.getpid()}"
        try:
            how = place(source, destination)
            assert destination.read_bytes() == CONTENT
            assert how == ("copied" if folder.stat().st_dev != source.stat().st_dev else "hard-linked")
        finally:
            destination.unlink()


# --- failures


def test_an_existing_file_is_not_touched(source: Path, destination: Path) -> None:
    destination.write_bytes(b"mine")
    for copy in (False, True):
        with pytest.raises(OutputError) as refused:
            place(source, destination, copy=copy)
        assert refused.value.sentence == f"{destination}: exists already"
        assert destination.read_bytes() == b"mine"


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
def test_a_copy_that_fails_leaves_nothing(
    steps: int, failure: BaseException, source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        assert destination.exists()
        raise failure

    monkeypatch.setattr(os, "copy_file_range", stops_after(steps, fail))
    with pytest.raises(OutputError if isinstance(failure, OSError) else type(failure)):
        place(source, destination, copy=True)
    assert not destination.exists()
    assert source.read_bytes() == CONTENT


def test_no_space_names_the_file_and_the_need(source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", answering(errno.ENOSPC))
    with pytest.raises(OutputError) as refused:
        place(source, destination, copy=True)
    assert refused.value.where == str(destination)
    assert refused.value.message.startswith("no space left: 10,499 bytes are needed, ")
    assert refused.value.try_


def test_a_full_disk_or_a_limit_on_file_size_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """The disk is a real one of 64 KiB where this user may mount it; the limit is RLIMIT_FSIZE everywhere."""
    source = tmp_path / "large"
    source.write_bytes(bytes(200_000))
    with small_disk() as disk:
        if disk is not None:
            with pytest.raises(OutputError, match="no space left: 200,000 bytes are needed"):
                place(source, disk / "copy")
            assert list(disk.iterdir()) == []
    program = (
        "import sys; from pathlib import Path; from ropetool.files.linking import place, share\n"
        "from ropetool.errors import OutputError\n"
        "try: place(Path(sys.argv[1]), Path(sys.argv[2]), copy=True)\n"
        "except OutputError as error: print(error.where, error.message, sep='|')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(source), str(tmp_path / "copy")],
        capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536)),
    )  # fmt: skip
    assert run.stdout == f"{tmp_path / 'copy'}|file too large\n"
    assert not (tmp_path / "copy").exists()


def test_a_source_that_changes_meanwhile_is_refused(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrink() -> int:
        os.truncate(source, 3)
        return 0

    monkeypatch.setattr(os, "copy_file_range", stops_after(1, shrink))
    with pytest.raises(CheckpointError, match="is no longer 10,499 bytes long"):
        place(source, destination, copy=True)
    assert not destination.exists()


def test_what_is_no_readable_file_is_refused_by_name(tmp_path: Path, destination: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for source in (pipe, loop, tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError) as refused:
            place(source, destination)
        assert refused.value.where == str(source)
        assert not destination.exists()


def test_a_missing_folder_is_an_output_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError) as refused:
        place(source, tmp_path / "none" / "copy")
    assert refused.value.where == str(tmp_path / "none" / "copy")


# --- sharing the blocks of two files


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """Yield a small file system that shares blocks. Skip the test if this user cannot mount it."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    image.write_bytes(b"")
    os.truncate(image, 128 << 20)
    folder.mkdir()
    try:
        subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no btrfs: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def two_files(folder: Path) -> tuple[Path, Path, int]:
    """Return files that differ in their first bytes, with an end inside a block, and the size of their equal parts."""
    step, data = 1 << 20, os.urandom(1 << 20)
    first, second = folder / "first", folder / "second"
    first.write_bytes(b"A" + data + data + b"end")
    second.write_bytes(b"B" + data + data + b"end")
    return first, second, step + 4


def test_equal_blocks_are_shared_and_both_files_stay_the_same(btrfs: Path) -> None:
    first, second, equal = two_files(btrfs)
    before = first.read_bytes(), second.read_bytes()
    assert share(first, second) == equal
    assert (first.read_bytes(), second.read_bytes()) == before
    subprocess.run(["sync", "-f", btrfs], check=True)
    used = subprocess.run(["btrfs", "filesystem", "du", "-s", "--raw", second], check=True, capture_output=True)
    _, exclusive, shared = used.stdout.split()[-4:-1]
    assert int(exclusive) <= 1 << 20
    assert int(shared) >= 1 << 20


def test_a_kernel_that_compares_is_asked_for_each_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, equal = two_files(tmp_path)

    def dedupe(source: int, request: int, argument: bytearray) -> int:
        """As linux/fs.h: struct file_dedupe_range, followed by one struct file_dedupe_range_info."""
        assert request == 0xC0189436  # FIDEDUPERANGE
        assert len(argument) == 24 + 32
        start, nbytes, count = struct.unpack_from("=QQH", argument)
        target, target_start = struct.unpack_from("=qQ", argument, 24)
        assert count == 1
        alike = os.pread(source, nbytes, start) == os.pread(target, nbytes, target_start)
        struct.pack_into("=Qi", argument, 40, nbytes if alike else 0, 0 if alike else 1)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", dedupe)
    assert share(first, second) == equal


@pytest.mark.parametrize("status", [None, -errno.EINVAL, -errno.EOPNOTSUPP])
def test_where_blocks_cannot_be_shared_nothing_happens(
    status: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: int, request: int, argument: bytearray) -> int:
        if status is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        struct.pack_into("=Qi", argument, 40, 0, status)
        return 0

    first, second, _ = two_files(tmp_path)
    before = first.read_bytes(), second.read_bytes()
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert share(first, second) == 0
    assert (first.read_bytes(), second.read_bytes()) == before
