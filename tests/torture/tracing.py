"""Runs a function in a forked child and stops it before each step that changes files below a folder.

A step may be killed, refused with an error of the system, or met with a signal. Steps are system calls, seen from outside
through seccomp and ptrace: nothing depends on how the code under test makes them. Knows nothing of ropetool.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# x86_64: number -> (name, kind, where its paths are). `p`: a path, `d`: a directory and a path, `f`: a descriptor.
CALLS = {
    1: ("write", "f0"), 18: ("pwrite64", "f0"), 20: ("writev", "f0"), 296: ("pwritev", "f0"),
    2: ("open", "p0"), 257: ("openat", "d0"), 85: ("creat", "p0"),
    74: ("fsync", "f0"), 75: ("fdatasync", "f0"), 76: ("truncate", "p0"), 77: ("ftruncate", "f0"),
    82: ("rename", "p0 p1"), 264: ("renameat", "d0 d2"), 316: ("renameat2", "d0 d2"),
    83: ("mkdir", "p0"), 258: ("mkdirat", "d0"), 84: ("rmdir", "p0"),
    86: ("link", "p0 p1"), 265: ("linkat", "d0 d2"), 88: ("symlink", "p1"), 266: ("symlinkat", "d1"),
    87: ("unlink", "p0"), 263: ("unlinkat", "d0"),
    90: ("chmod", "p0"), 91: ("fchmod", "f0"), 268: ("fchmodat", "d0"), 280: ("utimensat", "d0"),
    16: ("ioctl", "f0"), 40: ("sendfile", "f0"), 326: ("copy_file_range", "f2"), 285: ("fallocate", "f0"),
}  # fmt: skip
# Those that a full or broken disk refuses; a file that cannot be removed is another matter.
REFUSABLE = frozenset(
    [
        "write",
        "pwrite64",
        "writev",
        "pwritev",
        "open",
        "openat",
        "creat",
        "fsync",
        "fdatasync",
        "truncate",
        "ftruncate",
        "rename",
        "renameat",
        "renameat2",
        "mkdir",
        "mkdirat",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "sendfile",
        "copy_file_range",
        "fallocate",
    ]
)
_FLAGS_AT = {"open": 1, "openat": 2}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FICLONE = 0x40049409
_AT_FDCWD = -100

_TRACEME, _CONT, _GETREGS, _SETREGS, _SETOPTIONS = 0, 7, 12, 13, 0x4200
_OPTIONS = 0x100000 | 0x80 | 0x8 | 0x4 | 0x2  # EXITKILL, TRACESECCOMP, TRACECLONE, TRACEVFORK, TRACEFORK
_EVENT_SECCOMP = 7
_REGISTERS = struct.Struct("<27Q")
_RAX, _ORIG_RAX = 10, 15
_ARGUMENTS = (14, 13, 12, 7, 9, 8)
_AUDIT_ARCH = 0xC000003E
_WALL = 0x40000000


@dataclass(frozen=True)
class Step:
    """One call about to be made: its name, and the paths that it changes, relative to the folder."""

    name: str
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {' -> '.join(self.paths)}"


@dataclass(frozen=True)
class Kill:
    """End the process before the step."""


@dataclass(frozen=True)
class Refuse:
    """Have the step fail with this error, and not happen."""

    number: int


@dataclass(frozen=True)
class Send:
    """Send a signal to the process; the step happens."""

    number: int


Decision = Kill | Refuse | Send | None
Decide = Callable[[int, Step], Decision]


@dataclass
class Traced:
    """How a run ended, as waitpid says it, and the steps that it came to."""

    status: int = 0
    steps: list[Step] = field(default_factory=list)


def go_on(number: int, step: Step) -> Decision:
    """Let every step happen."""
    return None


@cache
def available() -> str:
    """Return why steps cannot be watched here; empty where they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"needs Linux on x86_64, this is {sys.platform} on {platform.machine()}"
    try:
        done = traced(lambda: os._exit(7), Path("/nowhere"), go_on)
    except OSError as error:
        return f"ptrace and seccomp are not permitted: {error.strerror}"
    return "" if os.waitstatus_to_exitcode(done.status) == 7 else "ptrace and seccomp are not permitted"


def traced(work: Callable[[], None], folder: Path, decide: Decide) -> Traced:
    """Return what became of `work` in a forked child whose steps below the folder were decided on one by one.

    `work` has to end the process. Threads and processes that it starts are watched too.
    Raises: OSError where the system does not permit it.
    """
    child = os.fork()
    if child == 0:
        try:
            _ptrace(_TRACEME, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            _filter()
            work()
        finally:
            os._exit(99)
    found = Traced()
    try:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            raise OSError(errno.EPERM, "ptrace")
        _ptrace(_SETOPTIONS, child, _OPTIONS)
        _ptrace(_CONT, child, 0)
        _follow(child, str(folder), decide, found)
    except BaseException:
        _end(child)
        raise
    return found


def _follow(child: int, folder: str, decide: Decide, found: Traced) -> None:
    while True:
        thread, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if thread == child:
                found.status = status
                return
            continue
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP and status >> 16 == _EVENT_SECCOMP:
            step = _step(thread, folder)
            if step is not None:
                found.steps.append(step)
                _carry_out(decide(len(found.steps), step), thread, child)
            number = 0
        elif number in (signal.SIGTRAP, signal.SIGSTOP):  # a new thread, a new process
            number = 0
        _resume(thread, number)


def _carry_out(decision: Decision, thread: int, child: int) -> None:
    if isinstance(decision, Kill):
        os.kill(child, signal.SIGKILL)
    elif isinstance(decision, Send):
        os.kill(child, decision.number)
    elif isinstance(decision, Refuse):
        registers = list(_registers(thread))
        registers[_ORIG_RAX] = 2**64 - 1  # no call at all
        registers[_RAX] = 2**64 - decision.number
        _ptrace(_SETREGS, thread, ctypes.create_string_buffer(_REGISTERS.pack(*registers)))


def _resume(thread: int, number: int) -> None:
    try:
        _ptrace(_CONT, thread, number)
    except ProcessLookupError:  # killed meanwhile; waitpid tells
        return


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, _WALL)
    except (ProcessLookupError, ChildProcessError):
        return


# --- what a call is about


def _step(thread: int, folder: str) -> Step | None:
    """Return the call that the thread is about to make, or None where it changes nothing below the folder."""
    try:
        registers = _registers(thread)
        name, places = CALLS[registers[_ORIG_RAX]]
        arguments = [registers[index] for index in _ARGUMENTS]
        if name in _FLAGS_AT and not arguments[_FLAGS_AT[name]] & _WRITING:
            return None
        if name == "ioctl" and arguments[1] != _FICLONE:
            return None
        paths = [_path(thread, place[0], int(place[1]), arguments) for place in places.split()]
    except (OSError, ProcessLookupError):  # it ended meanwhile
        return None
    below = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
    return Step(name, tuple(below)) if below else None


def _path(thread: int, form: str, at: int, arguments: list[int]) -> str:
    if form == "f":
        return _link(thread, f"fd/{arguments[at] & 0xFFFFFFFF}")
    directory = struct.unpack("<i", struct.pack("<I", arguments[at] & 0xFFFFFFFF))[0] if form == "d" else _AT_FDCWD
    text = os.fsdecode(_text(thread, arguments[at + (form == "d")]))
    base = _link(thread, "cwd" if directory == _AT_FDCWD else f"fd/{directory}")
    return os.path.normpath(os.path.join(base, text))


def _link(thread: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{thread}/{name}")
    except FileNotFoundError:
        return ""


def _text(thread: int, address: int) -> bytes:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(4096).partition(b"\0")[0]


# --- the two calls that do it


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    library.ptrace.restype = ctypes.c_long
    return library


def _ptrace(request: int, pid: int, data: int | ctypes.Array[ctypes.c_char]) -> None:
    if _libc().ptrace(request, pid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _registers(thread: int) -> tuple[int, ...]:
    buffer = ctypes.create_string_buffer(_REGISTERS.size)
    _ptrace(_GETREGS, thread, buffer)
    return _REGISTERS.unpack(buffer.raw)


def _filter() -> None:
    """Have the kernel stop this process before the calls of the list, and before no other."""
    load, equal, give = (
        0x20,
        0x15,
        0x06,
    )  # linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
    trace, allow = 0x7FF00000, 0x7FFF0000  # linux/seccomp.h
    numbers = sorted(CALLS)
    code = [(load, 0, 0, 4), (equal, 0, len(numbers) + 1, _AUDIT_ARCH), (load, 0, 0, 0)]
    code += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(give, 0, 0, allow), (give, 0, 0, trace)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in code))
    head = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program)))
    prctl = _libc().prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    if prctl(38, 1, None, 0, 0) or prctl(22, 2, ctypes.addressof(head), 0, 0):  # NO_NEW_PRIVS; SECCOMP, a filter
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
