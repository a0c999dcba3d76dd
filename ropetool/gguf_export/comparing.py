"""An exported file held against the checkpoint: the same rotary tables, and the same distribution over the next token.

Runs both and judges by the gate of a verification; where the file stands, and what becomes of it, is not its to know.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CheckpointError, RopetoolError, VerificationFailed
from ropetool.files.gguf import read_shards
from ropetool.gguf_export.container import Progress
from ropetool.verification import floors
from ropetool.verification.kl_gate import KL, kl_checks
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.readback.comparing import same_tables
from ropetool.verification.results import FAIL, NOT_RUN, Check
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Corpus
from ropetool.verification.texts import embedded_documents

OPERATIONS = 2e12  # multiplications and additions of each model: about a minute on two cores
COMPARING_LOGITS = "comparing the logits"  # the stage that counts tokens
FEWEST = 64  # tokens of a row
MOST = 4096  # tokens of all rows
ROWS = 4  # at most, each from a document of its own
FURTHER = 1.25  # times the trained length, at least, of rows that are to say something of what lies beyond it
SEED = 0
PACKAGES = ("llama_cpp", "torch", "transformers")
MEMORY_SHARE = 0.8  # of what the machine has, for both models
MEMORY_UNKNOWN = 8 << 30  # bytes, where the system does not say what it has


@dataclass(frozen=True)
class Lengths:
    """In tokens: the trained length, the context, and the window beyond which the file may compute something else."""

    trained: int
    context: int
    window: int | None = None


def compare(
    source: Path, file: Path, kinds: Sequence[str], lengths: Lengths, progress: Progress
) -> tuple[Check, ...]:  # fmt: skip
    """Return how the file compares with the checkpoint that it was exported from, or imported to, in tables and in logits.

    kinds: of the numbers between the two, as floors.limit has them.
    Raises: VerificationFailed where it computes something else; CheckpointError where llama.cpp does not load it.
    """
    progress("comparing the tables", 0, 0)
    tables = same_tables(file, source, windows=lengths.window is None)
    _judge([tables], file)
    tensors = [tensor for header in read_shards(file) for tensor in header.tensors]
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    reason = _lacking() or _too_large(4 * elements + sum(tensor.nbytes for tensor in tensors))
    if reason:
        return (tables, Check(KL, None, None, NOT_RUN, reason))
    progress("loading the checkpoint", 0, 0)
    length, count = rows_of(int(OPERATIONS / (2 * elements)), lengths)
    try:
        reference = TorchRunner(source, device="cpu", dtype="float32")
        corpus = _corpus(reference)
        longest = sorted(map(len, corpus.tokens))[-count] + len(corpus.prefix)
        rows, documents = divergence_rows(corpus, min(length, longest), count, SEED)
        list(reference.logits(rows[0][:1]))
        progress("loading the file", 0, 0)
    except RopetoolError as error:  # what keeps the checkpoint from being run says nothing of the file
        return (tables, Check(KL, None, None, NOT_RUN, error.message))
    compared = 0

    def done(more: int) -> None:
        nonlocal compared
        compared += more
        progress(COMPARING_LOGITS, compared, sum(map(len, rows)))

    with closing(reference), closing(LlamaRunner(file, device="cpu", dtype="float32")) as target:
        try:
            found = diverge(reference, target, rows, lengths.trained, documents, done, SEED)
        except CheckpointError as error:
            if error.where != reference.description:
                raise
            return (tables, Check(KL, None, None, NOT_RUN, error.message))  # its logits are NaN, as its weights may be
    # transformers computes with what stands for the numbers of a quantised checkpoint in a type of its own choice.
    own = ("bfloat16",) if "quantization_config" in HfCheckpoint.open(source).config else ()
    checks = kl_checks(found, None, floors.limit((*kinds, *own), floors.layers_of(tensor.name for tensor in tensors)))
    _judge(checks, file)
    return (tables, *checks)


def rows_of(tokens: int, lengths: Lengths) -> tuple[int, int]:
    """Return the length and the number of rows of about so many tokens: several, and beyond the trained length if they reach."""
    budget = min(MOST, max(2 * FEWEST, tokens))
    most = min(lengths.context, lengths.window or lengths.context)
    reach = min(math.ceil(FURTHER * lengths.trained), most)
    counts = [count for count in range(ROWS, 1, -1) if budget // count >= reach] or [min(ROWS, budget // FEWEST)]
    return min(budget // counts[0], most), counts[0]


def _corpus(runner: TorchRunner) -> Corpus:
    """Return the bundled documents as the checkpoint reads them."""
    documents = embedded_documents()
    tokens = tuple(np.array(runner.tokenize(document.text), dtype=np.int64) for document in documents)
    return Corpus(tuple(document.name for document in documents), tokens, (), runner.prefix)


def _judge(checks: Sequence[Check], file: Path) -> None:
    for check in checks:
        if check.verdict == FAIL:
            beyond = check.figure is not None and check.limit is not None and check.figure > check.limit
            figure = f" is {check.figure:.3g}, at most {check.limit:.3g} is allowed" if beyond else " differ"
            raise VerificationFailed(
                f"it does not compute what the checkpoint does, and was not kept: {check.name}{figure} ({check.detail})",
                where=str(file), try_="--no-check, which keeps it, then ropetool verify FILE --against SOURCE",
            )  # fmt: skip


def _lacking() -> str:
    lacking = [name for name in PACKAGES if find_spec(name) is None]
    return f"{' and '.join(lacking)} is not installed" if lacking else ""


def _too_large(need: int) -> str:
    """Return why both models cannot be held at once, the checkpoint in float32."""
    has = MEMORY_UNKNOWN
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        has = int(MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return f"both models take {need / 1e9:.0f} GB of memory, {has / 1e9:.0f} can be had" if need > has else ""
