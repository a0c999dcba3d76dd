"""The comparison of the logits of two checkpoints in about a minute, which `export` and `verify` do by default.

It always runs in float32 on the CPU, because the limits for float32 are the tightest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import CheckpointError, RopetoolError, lacking
from ropetool.files.counting import byte_size
from ropetool.verification.floors import has_experts
from ropetool.verification.measures.divergence import diverge, divergence_rows
from ropetool.verification.measures.noise import with_noise
from ropetool.verification.results import COMPARING_LOGITS, DivergenceResult, Noise
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.noisy import View, views
from ropetool.verification.runners.torch_library import without_class
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Corpus, Runner, ignore
from ropetool.verification.texts import embedded_documents

OPERATIONS = 2e12  # multiplications and additions of each model; about a minute on two cores
FEWEST = 64  # tokens of a row
MOST = 4096  # tokens of all rows
ROWS = 4  # the largest number of rows, each from a different document
FURTHER = 1.25  # rows that test positions beyond the trained length have at least this multiple of it
SEED = 0
PACKAGES = {"hf": ("torch", "transformers"), "gguf": ("llama_cpp",)}  # by format
MEMORY_SHARE = 0.8  # share of the machine's memory that both models may use
MEMORY_UNKNOWN = 8 << 30  # bytes, if the system does not report its memory


Progress = Callable[[str, int, int], None]
Enough = Callable[[DivergenceResult], bool]
Measure = Callable[[Runner, Runner], DivergenceResult]


@dataclass(frozen=True)
class ModelLengths:
    """The lengths of a model in tokens.

    trained: the trained length. context: the configured context length.
    window: beyond this length, the file may compute differently; None without such a limit.
    """

    trained: int
    context: int
    window: int | None = None


def short_divergence(
    reference: Checkpoint, target: Checkpoint, lengths: ModelLengths, progress: Progress, enough: Enough
) -> tuple[DivergenceResult, Noise | None] | str:
    """Return the divergence of the target and the noise of the reference, or the reason for skipping the comparison.

    The noise takes two more passes. Without it, the figures are `enough`, or the pair is not a directory and a GGUF
    file.
    enough: whether the divergence is small enough without the noise.
    Raises: CheckpointError if the target does not load, or has a logit that is not finite.
    """
    elements = max(
        1, *(sum(math.prod(tensor.shape) for tensor in each.stored.values()) for each in (reference, target))
    )
    reason = _lacking((reference, target)) or _too_large(sum(_memory(each, elements) for each in (reference, target)))
    if reason:
        return reason
    length, count = rows_of(int(OPERATIONS / (2 * elements)), lengths)
    with ExitStack() as stack:
        try:
            progress("loading the checkpoint", 0, 0)
            ours = stack.enter_context(closing(_runner(reference.path)))
            corpus = _corpus(ours)
            longest = sorted(map(len, corpus.tokens))[-count] + len(corpus.prefix)
            rows, documents = divergence_rows(corpus, min(length, longest), count, SEED)
            list(ours.logits(rows[0][:1]))
            progress("loading the file", 0, 0)
        except RopetoolError as error:  # the reference cannot run, which is not an error of the target
            return error.message
        compared = 0

        def done(more: int) -> None:
            nonlocal compared
            compared += more
            progress(COMPARING_LOGITS, compared, sum(map(len, rows)))

        theirs = stack.enter_context(closing(_runner(target.path)))
        try:
            divergence = diverge(ours, theirs, rows, lengths.trained, documents, done, SEED)
            if enough(divergence):
                return divergence, None
            progress("comparing the checkpoint with itself, rounded", 0, 0)
            again = partial(
                diverge, rows=rows, trained_length=lengths.trained, documents=documents, done=ignore, seed=SEED
            )
            return with_own_noise(divergence, ours, theirs, again, has_experts(target.stored))
        except CheckpointError as error:
            if error.where != ours.description:
                raise
            return error.message  # the logits of the reference are NaN, for example because its weights are


def with_own_noise(
    divergence: DivergenceResult, reference: Runner, target: Runner, measure: Measure, routed: bool
) -> tuple[DivergenceResult, Noise | None]:
    """Return the divergence, and the noise of the reference; None unless llama.cpp is compared with torch.

    measure: returns the divergence of its second runner from its first. routed: the model has experts. The divergence
      then leaves out the tokens that rounding sends to other experts.
    """
    noisy = views(reference, target)
    if noisy is None or not isinstance(reference, TorchRunner):
        return divergence, None
    kept = View(reference)
    divergence, noise = with_noise(partial(measure, kept), divergence, kept, target, noisy, routed)
    return divergence, replace(noise, gelu=reference.model.has_gelu)


def rows_of(tokens: int, lengths: ModelLengths) -> tuple[int, int]:
    """Return the length and the number of rows, which together have about this number of tokens.

    There are several rows, and fewer if that lets them reach beyond the trained length.
    """
    budget = min(MOST, max(2 * FEWEST, tokens))
    most = min(lengths.context, lengths.window or lengths.context)
    reach = min(math.ceil(FURTHER * lengths.trained), most)
    counts = [count for count in range(ROWS, 1, -1) if budget // count >= reach] or [min(ROWS, budget // FEWEST)]
    return min(budget // counts[0], most), counts[0]


def _runner(path: Path) -> Runner:
    opened: Callable[..., Runner] = TorchRunner if path.is_dir() else LlamaRunner
    return opened(path, device="cpu", dtype="float32")


def _corpus(runner: Runner) -> Corpus:
    """Return the bundled documents as ids of the checkpoint's tokenizer."""
    documents = embedded_documents()
    tokens = tuple(np.array(runner.tokenize(document.text), dtype=np.int64) for document in documents)
    return Corpus(tuple(document.name for document in documents), tokens, (), runner.prefix)


def _memory(checkpoint: Checkpoint, elements: int) -> int:
    """Return the bytes of a loaded checkpoint: as stored for a GGUF file, and in float32 for a directory."""
    is_file = isinstance(checkpoint, GgufCheckpoint)
    return sum(tensor.nbytes for tensor in checkpoint.stored.values()) if is_file else 4 * elements


def _lacking(sides: Sequence[Checkpoint]) -> str:
    """Return a message about the first missing package or class for these checkpoints, or ""."""
    packages = sorted({name for each in sides for name in PACKAGES[each.format]})
    classes = (without_class(each) for each in sides if isinstance(each, HfCheckpoint))
    return lacking(packages) or next(filter(None, classes), "")


def _too_large(need: int) -> str:
    """Return why both models do not fit into memory, or "" if they do. need: bytes."""
    has = MEMORY_UNKNOWN
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        has = int(MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return f"both models need {byte_size(need)} of memory, and {byte_size(has)} is available" if need > has else ""
