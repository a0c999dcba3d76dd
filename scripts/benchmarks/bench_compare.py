#!/usr/bin/env python3
"""Measure what a candidate of `ropetool compare` costs beside bare forward passes over the same batches, and print the row.

Both sides run in turn, five times after a round that does not count: a candidate's losses of the demo checkpoint, its table put in and
taken out and its rows kept in a journal; and the model of transformers alone, which keeps the same logits and does nothing with
them. Seconds of the processor count, so that other work on the machine does not.

    scripts/benchmarks/bench_compare.py            the row
    scripts/benchmarks/bench_compare.py --whole    and how long 5 methods at 3 factors take
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
DEMO = ROOT / "ropetool" / "demo" / "model"
LENGTHS, SEGMENTS, ROUNDS = [64, 128, 256, 512, 1024, 2048], 16, 5


def main() -> None:
    import os

    import torch
    from transformers import AutoModelForCausalLM

    import ropetool
    from ropetool.checkpoint.hf import HfCheckpoint
    from ropetool.choosing.candidates import candidates_of
    from ropetool.choosing.measuring import views
    from ropetool.choosing.options import CandidateOptions
    from ropetool.verification.corpus import read_corpus
    from ropetool.verification.journal import Journal, JournaledRunner
    from ropetool.verification.measures.loss import prepare_last_segment, row
    from ropetool.verification.runners.torch_runner import TorchRunner
    from ropetool.verification.scoring import TARGET, ignore
    from ropetool.verification.texts import embedded_documents

    source, runner = HfCheckpoint.open(DEMO), TorchRunner(DEMO, device="cpu", dtype="float32")
    meant = ropetool.inspect(DEMO).rope
    assert meant is not None
    candidates, _ = candidates_of(source, CandidateOptions(methods=["yarn"], factors=[8]))
    trials, _ = views(runner, candidates, source, meant, LENGTHS, everywhere=False)
    corpus = read_corpus(embedded_documents(), {TARGET: runner}, {})
    losses = prepare_last_segment(corpus, LENGTHS, 256, context_length=2048, margin=0.1, segments=SEGMENTS, seed=0)
    rows = {length: [row(corpus, segment, length) for segment in losses.chosen[length]] for length in LENGTHS}
    sizes: dict[int, list[int]] = {length: [] for length in rows}
    for length in rows:
        runner.score(rows[length], losses.scored, sizes[length].append)  # loads the model, and tells the batches
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()

    def ours() -> None:
        journal = Journal("bench", resume=False)
        losses.run(JournaledRunner(trials[0].runner, journal, trials[0].candidate.digest), TARGET, ignore)
        journal.close(remove=True)

    def bare() -> None:
        with torch.inference_mode():
            for length, batches in sizes.items():
                for batch in torch.tensor(rows[length]).split([size // length for size in batches]):
                    model(input_ids=batch, use_cache=False, logits_to_keep=losses.scored + 1)

    with tempfile.TemporaryDirectory() as cache:
        os.environ["ROPETOOL_CACHE"] = cache
        pairs = [(seconds(ours), seconds(bare)) for _ in range(ROUNDS + 1)][1:]
        count = sum(length * len(of_length) for length, of_length in rows.items())
        spent, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"{count} tokens: {spent:.2f} s, forward passes {plain:.2f} s, ratio {ratio:.2f}")
        if "--whole" in sys.argv[1:]:
            start, used = time.perf_counter(), time.process_time()
            methods = ("yarn", "llama3", "ntk-by-parts", "linear", "ntk")
            ropetool.compare(DEMO, methods=methods, factors=[2, 4, 8])
            wall, used = time.perf_counter() - start, time.process_time() - used
            print(
                f"{len(methods)} methods at 3 factors: {wall:.0f} s, of the processor {used:.0f} s; load {os.getloadavg()[0]:.1f}"
            )


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
