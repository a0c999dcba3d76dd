#!/usr/bin/env python3
"""Measure what ropetool promises about speed, each time beside the plain thing that it is compared with.

Both sides of a ratio run in turn within one run, five times each; the table has medians. Needs the extra `verify`, two
cores to itself and 7 GB of disk for a moment.

    scripts/bench.py                      print a Markdown table
    scripts/bench.py --folder /mnt/disk   make the large files there instead of in the system's temporary folder
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 5
SHARDS, SHARD_BYTES = 4, 1 << 29
LENGTHS = (256, 512, 1024, 2048)
SEGMENTS = 32
DEMO = Path(__file__).resolve().parents[1] / "ropetool" / "demo" / "model"
ROPETOOL = [sys.executable, "-m", "ropetool"]
HEAVY = ("numpy", "torch", "transformers", "gguf")


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def in_turn(*sides: Callable[[], float]) -> list[float]:
    """Return the median seconds of each side, the sides taking turns after a round that does not count."""
    rounds = [[side() for side in sides] for _ in range(ROUNDS + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


# --- --help


def help_row() -> list[str]:
    """Return the row of `ropetool --help`, beside an interpreter that does nothing."""
    code = (
        "import sys, ropetool.cli\n"
        "try: ropetool.cli.main(['--help'])\n"
        f"except SystemExit: sys.exit(bool({set(HEAVY)} & set(sys.modules)))"
    )
    run(sys.executable, "-c", code)  # fails if the help loads a heavy package
    ours, bare = in_turn(
        lambda: seconds(lambda: run(*ROPETOOL, "--help")), lambda: seconds(lambda: run(sys.executable, "-c", "pass"))
    )
    return ["`ropetool --help`", f"{ours:.3f} s, no numpy", f"python -c pass: {bare:.3f} s", "-", "0.15 s, no numpy"]


# --- extend


def make_checkpoint(folder: Path) -> Path:
    """Return a Llama directory of 2 GiB in four shards, with real bytes."""
    source = folder / "model"
    source.mkdir()
    shutil.copy(DEMO / "config.json", source)
    block = np.random.default_rng(0).bytes(1 << 24)
    weight_map = {}
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        entry = {f"weight.{number}": {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": [0, SHARD_BYTES]}}
        header = json.dumps(entry).encode()
        with (source / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(SHARD_BYTES // len(block)):
                file.write(block)
        weight_map[f"weight.{number}"] = name
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    os.sync()
    return source


def extend_rows(folder: Path) -> list[list[str]]:
    """Return the rows of extend: with links, and with --copy beside cp."""
    source = make_checkpoint(folder)
    target = folder / "output"

    def timed(work: Callable[[], None]) -> float:
        spent = seconds(work)
        shutil.rmtree(target)
        os.sync()  # what one side left unwritten is not the other's to write
        return spent

    def extend(*options: str) -> Callable[[], float]:
        command = (*ROPETOOL, "extend", source, "--method", "yarn", "--factor", "8", "-o", target, *options)
        return lambda: timed(lambda: run(*command))

    def copied() -> None:
        run("cp", "-r", "--reflink=never", source, target)
        run("sync", *target.iterdir())

    linked, whole, plain = in_turn(extend(), extend("--copy"), lambda: timed(copied))
    size = f"{SHARDS * SHARD_BYTES / 2**30:g} GiB, {SHARDS} shards"
    return [
        [f"`extend`, {size}, links", f"{linked:.2f} s", "-", "-", "0.5 s"],
        [f"`extend --copy`, {size}", f"{whole:.2f} s", f"cp --reflink=never, sync: {plain:.2f} s", f"{whole / plain:.2f}", "-"],
    ]  # fmt: skip


# --- verify


def verify_row() -> list[str]:
    """Return the row of verify's losses, beside a forward pass over the same batches that keeps the same logits."""
    import torch
    from transformers import AutoModelForCausalLM

    from ropetool.verification import TorchRunner, embedded_documents
    from ropetool.verification.segments import choose_segments, scored_tokens

    runner = TorchRunner(DEMO, device="cpu", dtype="float32")
    tokens = [runner.tokenize(document.text) for document in embedded_documents()]
    scored = scored_tokens(LENGTHS[0], LENGTHS)
    chosen = choose_segments([len(ids) for ids in tokens], LENGTHS, scored, SEGMENTS, 0, len(runner.prefix))
    rows = {
        length: [[*runner.prefix, *tokens[s.document][s.end - length + len(runner.prefix) : s.end]] for s in segments]
        for length, segments in chosen.items()
    }
    sizes: dict[int, list[int]] = {length: [] for length in rows}
    for length in rows:
        runner.losses(rows[length], scored, sizes[length].append)  # loads the model, and tells the batches
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()

    def ours() -> None:
        for length in rows:
            runner.losses(rows[length], scored)

    def bare() -> None:
        with torch.inference_mode():
            for length, batches in sizes.items():
                ids = torch.tensor(rows[length])
                for batch in ids.split([size // length for size in batches]):
                    model(input_ids=batch, use_cache=False, logits_to_keep=scored + 1)

    spent, plain = in_turn(lambda: seconds(ours), lambda: seconds(bare))
    count = sum(len(of_length) * length for length, of_length in rows.items())
    return [
        f"`verify`, {count} tokens, demo model", f"{count / spent:.0f} tokens/s", f"forward pass: {count / plain:.0f} tokens/s",
        f"{plain / spent:.2f}", "at least 0.95",
    ]  # fmt: skip


# --- the table


def machine() -> str:
    """Return the machine and the versions in one line."""
    found = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "transformers"))
    cpu = found[0] if found else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({cpu}), {memory:.0f} GiB, Linux; Python {platform.python_version()}, {packages}"


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ["work", "ropetool", "compared with", "ratio", "budget"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the large files go for a moment")
    folder = parser.parse_args().folder
    rows = [help_row()]
    with tempfile.TemporaryDirectory(prefix="ropetool-bench-", dir=folder) as made:
        rows += extend_rows(Path(made))
    rows.append(verify_row())
    print(f"{machine()}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
