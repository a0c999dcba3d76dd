"""Several processes of torchrun as one run: each computes its share of the rows, and all get all figures.

Wraps a runner; knows nothing of what is measured with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropetool.errors import ConfigError
from ropetool.verification.runners.torch_library import library
from ropetool.verification.scoring import Done, Predictions, Runner, Scores, Wrapped, ignore

DATA, TENSOR = "data", "tensor"


def rank() -> int:
    """Return the number of this process, 0 for the one that shows results."""
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return how many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join() -> None:
    """Meet the other processes. Raises: ConfigError without what torchrun sets."""
    distributed = library("torch").distributed
    if "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"WORLD_SIZE is {size()}, but MASTER_ADDR is not set", where="torchrun",
            try_="torchrun --nproc-per-node 2 -m ropetool verify MODEL",
        )  # fmt: skip
    if not distributed.is_initialized():
        cuda = library("torch").cuda
        if cuda.is_available():
            cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        distributed.init_process_group("nccl" if cuda.is_available() else "gloo")


def leave() -> None:
    """Part from the other processes."""
    distributed = library("torch").distributed
    if distributed.is_initialized():
        distributed.destroy_process_group()


class SharedRunner(Wrapped):
    """A runner that computes every size-th row and gets the others' figures. `done` counts the rows of all."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._rank, self._size = rank(), size()

    @property
    def description(self) -> str:
        """That of the runner, and how many processes share the rows."""
        return f"{self._runner.description}, {self._size} processes"

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return what the last tokens of every row cost."""
        mine = rows[self._rank :: self._size]
        found = self._runner.score(mine, scored, self._counted(done)) if mine else None
        parts = self._gathered(found)
        losses, hits = np.empty((len(rows), scored)), np.empty((len(rows), scored), dtype=np.bool_)
        for index, part in enumerate(parts):
            if part is not None:
                losses[index :: self._size], hits[index :: self._size] = part.losses, part.hits
        return Scores(losses, hits)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return what comes after every row."""
        mine, few = rows[self._rank :: self._size], candidates[self._rank :: self._size]
        found = self._runner.predict(mine, few, self._counted(done)) if mine else None
        parts = self._gathered(found)
        log_probs, top = np.empty(np.shape(candidates)), np.empty(len(rows), dtype=np.int64)
        for index, part in enumerate(parts):
            if part is not None:
                log_probs[index :: self._size], top[index :: self._size] = part.log_probs, part.top
        return Predictions(log_probs, top)

    def _counted(self, done: Done) -> Done:
        return lambda tokens: done(tokens * self._size)

    def _gathered(self, found: Any) -> list[Any]:
        parts: list[Any] = [None] * self._size
        library("torch").distributed.all_gather_object(parts, found)
        return parts
