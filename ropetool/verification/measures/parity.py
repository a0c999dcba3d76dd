"""Two files of one model in two runtimes: how far apart their next-token logits are on one passage."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropetool.errors import ConfigError
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.texts import Document


@dataclass(frozen=True)
class Parity:
    """The largest difference of two logits, as a part of the largest logit, over so many tokens."""

    difference: float
    tokens: int


def logit_parity(source: Path, exported: Path, passage: Document, tokens: int) -> Parity:
    """Return how far the logits of a GGUF file are from those of the checkpoint that it was exported from.

    The passage is cut to that many tokens, special ones in front included. Both compute in float32 on the CPU.
    Raises: MissingDependency before anything is computed, CheckpointError; ConfigError if the passage is too short.
    """
    with (
        closing(LlamaRunner(exported, device="cpu", dtype="float32")) as other,
        closing(TorchRunner(source, device="cpu", dtype="float32")) as runner,
    ):
        ids = [*runner.prefix, *runner.tokenize(passage.text)][:tokens]
        if len(ids) < tokens:
            raise ConfigError(f"the passage has {len(ids)} tokens, and the check needs {tokens}", where=passage.name)
        largest, apart = 0.0, 0.0
        for (_, wanted), (_, found) in zip(runner.logits(ids), other.logits(ids), strict=True):
            largest = max(largest, float(np.abs(wanted).max()))
            apart = max(apart, float(np.abs(found - wanted).max()))
    return Parity(apart / largest, tokens)
