"""Feeds mutated input to a reader in a forked child with limits: time, memory, and what it may raise.

A child that dies is a finding too: the number of the input that it was at lies in memory that both share.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import random
import resource
import signal
import struct
import threading
import time
import traceback
import warnings
from types import FrameType

from torture.findings import Bad, Report
from torture.readers import Reader

SECONDS = 2.0  # of the processor, for one input
MEMORY = 200 << 20  # bytes more than the process has before
_ARENAS = -8  # malloc.h: M_ARENA_MAX
_BACKSTOP = 20  # seconds of the processor without a word; code in C is not interrupted by a signal
AT_ONCE = 20_000
KEPT = 50  # bad inputs of a turn whose bytes are reported


class _TooLong(BaseException):
    """A reader is at one input for too long; not an Exception, which it might catch."""


def made(reader: Reader, number: int, seed: int) -> tuple[bytes, random.Random]:
    """Return the input of this number, and the generator that its reader gets."""
    rng = random.Random(f"{seed}/{reader.name}/{number}")
    return reader.mutate(rng.choice(reader.seeds), rng, reader.seeds, reader.words), rng


def complaint(reader: Reader, data: bytes, rng: random.Random) -> tuple[str, str]:
    """Return what is wrong with how the reader takes the input, and where in the code; empty texts if nothing is."""
    from ropetool.errors import RopetoolError

    begun = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        reader.read(data, rng)
    except RopetoolError as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        problem = unclear(error)
        if problem:
            return problem, _place(error)
    except _TooLong as error:
        return f"more than {SECONDS:g} s", _place(error)
    except MemoryError as error:
        return f"more than {MEMORY >> 20} MB", _place(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"{type(error).__name__}: {str(error)[:300]}", f"{type(error).__name__} {_place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent = time.process_time() - begun
    return (f"{spent:.1f} s", "time") if spent > SECONDS else ("", "")


def unclear(error: Exception) -> str:
    """Say what is wrong with a refusal: it has to be a sentence of some length that can be written."""
    text = error.sentence
    if len(text) > 4000:
        return f"a refusal of {len(text):,} characters"
    return "" if text.strip() else "a refusal without a word"


def _place(error: BaseException) -> str:
    """Return the innermost line of ropetool that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}ropetool{os.sep}" in frame.filename] or frames
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""


def feed(reader: Reader, start: int, stride: int, seed: int, *, most: int = AT_ONCE, seconds: float = 1e9) -> Report:
    """Feed the inputs start, start + stride and so on: at most so many, for so long, and none after one that is fatal.

    The report says how many it were, so that the next turn can go on behind them.
    """
    report = Report(reader.name)
    with mmap.mmap(-1, 8) as shared:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                numbers = range(start, start + stride * most, stride)
                _child(reader, numbers, seed, seconds, shared, writing)
            finally:
                os._exit(97)
        os.close(writing)
        with open(reading, "rb") as pipe:
            report.bad = [Bad.from_json(json.loads(line)) for line in pipe]
        _, status = os.waitpid(child, 0)
        (report.runs,) = struct.unpack("<Q", shared[:])
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        at = start + stride * report.runs
        report.runs += 1
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        report.bad.append(Bad(reader.name, at, f"its process ended with {ended}", ended, made(reader, at, seed)[0]))
    return report


def _child(reader: Reader, numbers: range, seed: int, seconds: float, shared: mmap.mmap, writing: int) -> None:
    """Take input after input; never returns."""
    limit_this_process()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    until, bads = time.monotonic() + seconds, 0
    for runs, number in enumerate(numbers):
        shared[:] = struct.pack("<Q", runs)
        if time.monotonic() > until:
            os._exit(0)
        if runs % 500 == 499:
            _more_time()
        data, rng = made(reader, number, seed)
        problem, place = complaint(reader, data, rng)
        if problem:
            bads += 1
            found = Bad(reader.name, number, problem, place, data if bads <= KEPT else b"")
            os.write(writing, json.dumps(found.to_json()).encode() + b"\n")
    shared[:] = struct.pack("<Q", len(numbers))
    os._exit(0)


def limit_this_process() -> None:
    """Set the limits under which input is read; a process does not get rid of them again."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    gc.freeze()
    # What is counted is addresses: glibc sets 128 MB of them aside for each new thread, and its stack takes another 8.
    getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)(_ARENAS, 1)
    threading.stack_size(1 << 20)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, too_long)
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _more_time()


def _more_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + _BACKSTOP
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
