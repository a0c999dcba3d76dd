"""The difference of the logits of a directory in transformers and of its GGUF file in llama.cpp, on one passage."""

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
    """The result of a comparison of logits.

    difference: the largest difference of two logits, divided by the largest logit.
    tokens: the number of compared tokens.
    """

    difference: float
    tokens: int


def logit_parity(source: Path, exported: Path, passage: Document, tokens: int) -> Parity:
    """Return the difference between the logits of a GGUF file and of the checkpoint that it was exported from.

    Both compute in float32 on the CPU.
    tokens: the passage is cut to this number of tokens, including special tokens in front.
    Raises: MissingDependency before the computation; CheckpointError; ConfigError if the passage is too short.
    """
    with (
        closing(LlamaRunner(exported, device="cpu", dtype="float32")) as other,
        closing(TorchRunner(source, device="cpu", dtype="float32")) as runner,
    ):
        ids = [*runner.prefix, *runner.tokenize(passage.text)][:tokens]
        if len(ids) < tokens:
            raise ConfigError(f"the passage has {len(ids)} tokens, and the check needs {tokens}", where=passage.name)
        largest, difference = 0.0, 0.0
        for (_, ours), (_, theirs) in zip(runner.logits(ids), other.logits(ids), strict=True):
            largest = max(largest, float(np.abs(ours).max()))
            difference = max(difference, float(np.abs(theirs - ours).max()))
    return Parity(difference / largest, tokens)
