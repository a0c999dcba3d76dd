"""The command of scripts/torture: starts workers, prints what is bad as it comes, and one table in the end."""

from __future__ import annotations

import argparse
import os
import re
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torture import commands
from torture.findings import Bad, Report, Table, together
from torture.kinds import GROUPS, IN_PLACE, KILLS, MUTATIONS, Kind, kinds

SMALL = {True: 60, False: 3}  # runs of each kind with --small, of mutations and of the others
MEMORY_DISK = Path("/dev/shm")


def main() -> int:
    """Return 1 if anything bad was found, else 0."""
    chosen = _arguments()
    groups = tuple(chosen.only) if chosen.only else GROUPS
    commands.load()
    with _folder() as folder:
        if chosen.repeat:
            return _repeat(folder, chosen.seed, groups, *chosen.repeat)
        table = Table([])
        began = time.monotonic()
        for report in _reports(folder, chosen, groups):
            for bad in table.add(report):
                _print_bad(bad, chosen.seed)
        minutes = (time.monotonic() - began) / 60
    print(f"seed {chosen.seed}, {minutes:.1f} minutes, {chosen.jobs} processes")
    print(table.text())
    kills = sum(together(table, f"{group}: SIGKILL")[0] for group in (KILLS, IN_PLACE))
    print(f"{kills:,} kills, {together(table, f'{MUTATIONS}:')[0]:,} mutated inputs")
    return 1 if table.bad.total() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description="Prove that nothing is lost, and that hostile input is refused."
    )
    parser.add_argument("--minutes", type=float, default=20, help="how long; default 20")
    parser.add_argument("--seed", type=int, default=0, help="what all chance follows from; default 0")
    parser.add_argument("--only", action="append", choices=GROUPS, help="one group; repeat for several")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; default 2")
    parser.add_argument("--small", action="store_true", help="a few of each kind, whatever the time")
    parser.add_argument(
        "--repeat", nargs=2, metavar=("KIND", "NUMBER"), help="hold one trial again, with its traceback"
    )
    return parser.parse_args()


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a temporary folder: in memory, unless TMPDIR names a place, because what is killed must not wait for a disk."""
    in_memory = "TMPDIR" not in os.environ and MEMORY_DISK.is_dir() and os.access(MEMORY_DISK, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="ropetool-torture-", dir=MEMORY_DISK if in_memory else None) as name:
        os.environ["ROPETOOL_CACHE"] = f"{name}/cache"
        yield Path(name).resolve()


def _repeat(folder: Path, seed: int, groups: tuple[str, ...], name: str, number: str) -> int:
    kind = next((one for one in kinds(folder, seed, groups, 0, 1) if one.name == name), None)
    if kind is None:
        print(f"there is no kind {name!r}", file=sys.stderr)
        return 2
    problem = kind.repeat(int(number))
    print(problem or "nothing is bad")
    return 1 if problem else 0


def _print_bad(bad: Bad, seed: int) -> None:
    print(f"BAD {bad.kind} {bad.number}: {bad.problem}", file=sys.stderr)
    if bad.data:
        place = Path(tempfile.gettempdir(), f"ropetool-torture-bad-{seed}")
        place.mkdir(exist_ok=True)
        file = place / f"{re.sub(r'[^A-Za-z0-9.]+', '-', bad.kind)}-{bad.number}"
        file.write_bytes(bad.data)
        print(f"  its input: {file}", file=sys.stderr)
    print(f"  again: scripts/torture --seed {seed} --repeat '{bad.kind}' {bad.number}", file=sys.stderr, flush=True)


# --- workers


def _reports(folder: Path, chosen: argparse.Namespace, groups: tuple[str, ...]) -> Iterator[Report]:
    """Yield the reports of all workers as they come."""
    workers: dict[int, int] = {}
    try:
        with selectors.DefaultSelector() as selector:
            for number in range(chosen.jobs):
                reading, writing = os.pipe()
                child = os.fork()
                if child == 0:
                    os.close(reading)
                    _work(folder / f"worker-{number}", chosen, groups, number, writing)
                os.close(writing)
                workers[child] = reading
                selector.register(reading, selectors.EVENT_READ, child)
            yield from _read(selector, workers)
    finally:
        for child in workers:  # those that are still at work, with what they started
            _end(child)


def _read(selector: selectors.BaseSelector, workers: dict[int, int]) -> Iterator[Report]:
    rests = dict.fromkeys(workers.values(), b"")
    while selector.get_map():
        for key, _ in selector.select():
            part = os.read(key.fd, 1 << 16)
            *lines, rests[key.fd] = (rests[key.fd] + part).split(b"\n")
            yield from map(Report.from_line, lines)
            if part:
                continue
            selector.unregister(key.fd)
            _, status = os.waitpid(key.data, 0)
            del workers[key.data]
            if status != 0:
                ended = os.waitstatus_to_exitcode(status)
                yield Report("workers", 1, [Bad("workers", key.data, f"a worker ended with {ended}")])


def _end(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _work(folder: Path, chosen: argparse.Namespace, groups: tuple[str, ...], number: int, writing: int) -> None:
    """Be a worker: hold trials of all kinds until the time is over; never returns."""
    os.setpgid(0, 0)
    code = 1
    try:
        folder.mkdir()
        until = time.monotonic() + chosen.minutes * 60
        found = kinds(folder, chosen.seed, groups, number, chosen.jobs)
        for report in _few(found, chosen.jobs) if chosen.small else _many(found, until):
            os.write(writing, report.to_line())
        code = 0
    except BaseException:  # noqa: BLE001 - a worker says why it ends
        traceback.print_exc()
    finally:
        os._exit(code)


def _few(found: list[Kind], jobs: int) -> Iterator[Report]:
    for kind in found:
        yield kind.turn(-(-SMALL[kind.group == MUTATIONS] // jobs))


def _many(found: list[Kind], until: float) -> Iterator[Report]:
    """Give the next turn to the kind that is furthest behind its share, until the time is over."""
    while time.monotonic() < until:
        open_ones = [kind for kind in found if not kind.done]
        if not open_ones:
            return
        kind = min(open_ones, key=lambda one: one.spent / one.share)
        begun = time.monotonic()
        yield kind.turn(1_000_000)
        kind.spent += time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
