#!/usr/bin/env python3
"""Measure edits of GGUF files where they lie beside programs that copy, by the size of the file; write docs/measurements.md and its plot.

Four rope keys are added to files of 0.1 to 16 GiB with 150,000 tokens, and one number is changed by the gguf package's
programs. Each command runs once on each file, until its output is on the disk. The file of 16 GiB is sparse, and only what writes
none of its data runs on it. Needs 10 GB of disk for a moment, on ext4 or xfs for the way that inserts a range.

    scripts/benchmarks/bench_in_place.py                      print the table
    scripts/benchmarks/bench_in_place.py --write              and put it and the plot into docs/
    scripts/benchmarks/bench_in_place.py --folder /mnt/disk   make the files there
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import ROPETOOL, TOOLS, machine, make_gguf

PAGE = ROOT / "docs" / "measurements.md"
PLOT = PAGE.with_name("benchmarks-in-place.svg")
MARKS = "<!-- in-place -->", "<!-- /in-place -->"
GIB = 1 << 30
REAL, SPARSE = (GIB // 10, GIB, 4 * GIB), 16 * GIB
# Its own process: what a process has written counts that of the children it has waited for.
MEASURE = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[2:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.run(["sync", sys.argv[1]], check=True)
spent = time.perf_counter() - start
written = next(line.split()[1] for line in open("/proc/self/io") if line.startswith("write_bytes"))
print(spent, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, written)
"""
EXTEND = [*ROPETOOL, "extend", "{file}", "--method", "yarn"]


@dataclass(frozen=True)
class Work:
    """A command on a file. whole: it writes all of the data."""

    name: str
    command: Sequence[str]
    whole: bool = False


WORKS = (
    Work("`extend --in-place`, the first edit", [*EXTEND, "--factor", "4", "--in-place"]),
    Work("`extend --in-place`, another", [*EXTEND, "--factor", "8", "--from", "original", "--in-place"]),
    Work("`gguf-set-metadata`, one number", [str(TOOLS / "gguf-set-metadata"), "--force", "{file}", "llama.rope.freq_base", "20000"]),
    Work("`extend`, a copy", [*EXTEND, "--factor", "16", "--from", "original", "-o", "{copy}"], whole=True),
    Work("`gguf-new-metadata`, a copy", [str(TOOLS / "gguf-new-metadata"), "--general-name", "renamed", "{file}", "{copy}"], whole=True),
    Work("`cp --reflink=never`", ["cp", "--reflink=never", "{file}", "{copy}"], whole=True),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What a command took. Units: seconds; bytes at most in memory; bytes written."""

    seconds: float
    memory: int
    written: int


def cost(work: Work, file: Path, folder: Path) -> Cost:
    """Return what a command takes on a file until all is on the disk; what it wrote beside the file is removed."""
    copies = folder / "copies"
    copies.mkdir()
    copy = copies / "copy.gguf"
    command = [part.format(file=file, copy=copy) for part in work.command]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, copy if work.whole else file, *command],
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(copies)
    subprocess.run(["sync"], check=True)
    seconds, memory, written = done.stdout.split()
    return Cost(float(seconds), int(memory), int(written))


def measured(folder: Path, say: Callable[[str], None]) -> dict[str, dict[int, Cost]]:
    """Return what each work takes by the size of the file, in bytes of tensors."""
    found: dict[str, dict[int, Cost]] = {work.name: {} for work in WORKS}
    for size in (*REAL, SPARSE):
        file = make_gguf(folder / "model.gguf", size, sparse=size == SPARSE)
        for work in WORKS:
            if size != SPARSE or not work.whole:
                found[work.name][size] = cost(work, file, folder)
                say(f"{size / GIB:g} GiB, {work.name}: {found[work.name][size]}")
        for path in folder.iterdir():
            path.unlink()
    return found


def table(found: dict[str, dict[int, Cost]]) -> str:
    """Return the costs as a table in Markdown."""
    sizes = [*REAL, SPARSE]
    names = [f"{size / GIB:.2g} GiB{', sparse' if size == SPARSE else ''}" for size in sizes]
    lines = [f"| work | {' | '.join(names)} |", f"| --- |{' --- |' * len(sizes)}"]
    for work, costs in found.items():
        cells = [_cell(costs.get(size)) for size in sizes]
        lines.append(f"| {work} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(cost: Cost | None) -> str:
    if cost is None:
        return "not run"
    return f"{cost.seconds:.2f} s, {cost.written / 1e6:,.1f} MB written, {cost.memory / 1e6:.0f} MB held"


def plot(found: dict[str, dict[int, Cost]]) -> bytes:
    """Return the seconds of every work by size as a drawing."""
    from ropetool import charts
    from ropetool.report import drawing

    colours = ("#0072b2", "#56b4e9", "#cc79a7", "#009e73", "#d55e00", "#666666")
    marks = []
    for (work, costs), colour, mark in zip(found.items(), colours, "oD^sv+", strict=True):
        sizes = sorted(costs)
        gibs, seconds = tuple(size / GIB for size in sizes), tuple(costs[size].seconds for size in sizes)
        marks.append(charts.Series(work.replace("`", ""), charts.Look(colour, mark), gibs, seconds))
    panel = charts.Panel(
        charts.Axis("file (GiB)", charts.LOGARITHMIC), charts.Axis("seconds", charts.LOGARITHMIC), tuple(marks)
    )
    return drawing.images(charts.Chart("in-place", "", "", "", (panel,)), "svg")[0]


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files go for a moment")
    parser.add_argument("--write", action="store_true", help="into docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ropetool-bench-", dir=options.folder) as made:
        found = measured(Path(made), lambda line: print(line, file=sys.stderr, flush=True))
    text = f"{machine()}:\n\n{table(found)}"
    print(text)
    if options.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        PAGE.write_text(
            f"{before}{MARKS[0]}\n\n{text}\n\n![Seconds by the size of the file]({PLOT.name})\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"
        )
        PLOT.write_bytes(plot(found))


if __name__ == "__main__":
    main()
