"""A test whether llama.cpp uses the decoded table of a GGUF file.

A tiny model gets the rope keys of the file. llama.cpp runs it, and its logits are compared with a forward pass in
float64. The file's own weights are never loaded.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import CheckpointError
from ropetool.rope.tables import MAX_LENGTH, Array, LayerRope
from ropetool.runtimes.decoded import decoded
from ropetool.runtimes.llama_cpp.decoding import CONTEXT_STEP
from ropetool.verification.runners.llama_library import free, last_words, library, listening, load
from ropetool.verification.runners.probe_model import ARCHITECTURES, BLOCK, VOCABULARY, forward, tokens_of, write_probe
from ropetool.verification.scoring import Tokens

TOLERANCE = 2e-4  # share of the largest logit, for float32 over 1024 positions
PRECISE = 1024  # positions with this tolerance; angles have a relative error of 6e-8, so the error grows with them
BLOCKS = 7  # the number of blocks of tokens in a probe


@dataclass(frozen=True)
class Probed:
    """The result of a probe.

    difference: the difference of the logits, as a share of the largest logit; None if nothing was run.
    detail: a description of the run, or why nothing was run.
    """

    difference: float | None
    detail: str


def probe(target: Path) -> Probed:
    """Return the difference between llama.cpp's rotation and the decoded table of a GGUF file.

    There are several probes. Each has twice the span of the previous one, up to the context length. Short probes are
    precise, and long ones test the pairs that rotate slowly. Beyond 1024 tokens, the difference is divided by span /
    1024.
    Raises: MissingDependency without llama-cpp-python; CheckpointError or InvalidRope for a file that it would refuse.
    """
    lib = library()
    view = GgufCheckpoint.open(target)
    arch = view.name
    if arch not in ARCHITECTURES:
        return Probed(None, f"ropetool has no probe for {arch}, only for {', '.join(ARCHITECTURES)}")
    rope = decoded(view.runtime, view).understood(view.where, "file")
    entry, span = rope.entries[names.FULL_ATTENTION], rope.max_position_embeddings
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = write_probe(view, arch, entry, Path(folder) / "probe.gguf")
            figure = largest_difference(lib, path, arch, entry, span)
    except CheckpointError as error:
        raise CheckpointError(f"the probe with the RoPE keys of this file: {error.message}", where=view.where) from None
    return Probed(figure, f"llama-cpp-python {lib.__version__} with a probe of these keys, up to position {span - 1}")


def largest_difference(lib: Any, path: Path, arch: str, entry: LayerRope, span: int) -> float:
    """Return the largest difference over all spans. If a file has two factor lists, there is a context for each list."""
    assert entry.table is not None
    worst, before = 0.0, 0
    for regime in entry.table.regimes:
        with _opened(lib, path, before + CONTEXT_STEP) as opened:
            for reach in _spans(span):
                positions = _positions(reach)
                logits = _run(lib, opened, positions)
                expected = forward(arch, entry, regime, positions)
                difference = float(np.abs(logits - expected).max() / np.abs(expected).max())
                worst = max(worst, math.inf if math.isnan(difference) else difference / max(1.0, reach / PRECISE))
        before = regime.up_to or before
    return worst


def _spans(context: int) -> list[int]:
    """Return the spans to probe, the context length last. From 64 tokens on, the blocks do not overlap."""
    spans = [min(max(context, 16 * BLOCK), MAX_LENGTH)]
    while spans[0] > PRECISE:
        spans.insert(0, spans[0] // 2)
    return spans


def _positions(span: int) -> Tokens:
    """Return the positions of all tokens, in blocks over the span. llama.cpp needs the last two blocks to be adjacent."""
    starts = [0, span // 16, span // 4, span // 2, 3 * span // 4, span - 2 * BLOCK, span - BLOCK]
    return np.concatenate([np.arange(start, start + BLOCK) for start in starts])


# --- the run in the library


@contextmanager
def _opened(lib: Any, path: Path, context: int) -> Iterator[Any]:
    """Open the model with a float32 cache and without flash attention, on the CPU."""
    model = load(lib, path, gpu=False)
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = context, 64, 64, BLOCKS
    settings.n_threads = settings.n_threads_batch = 1
    settings.kv_unified, settings.offload_kqv, settings.op_offload = True, False, False
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with listening(lib) as errors:
        opened = lib.llama_init_from_model(model, settings)
    try:
        if not opened:
            raise CheckpointError(f"llama.cpp cannot create a context: {last_words(errors)}", where=str(path))
        yield opened
    finally:
        with listening(lib):
            lib.llama_free(opened)
        free(lib, model)


def _run(lib: Any, opened: Any, positions: Tokens) -> Array:
    """Return llama.cpp's logits of all tokens, in the shape of `forward`.

    Each block is first a separate sequence, because llama.cpp does not allow gaps in a sequence. Then all blocks are
    copied into the sequence of the last block.
    """
    memory = lib.llama_get_memory(opened)
    lib.llama_memory_clear(memory, True)
    last = len(positions) - BLOCK
    first = _decode(lib, opened, positions, range(last))
    for sequence in range(BLOCKS - 1):
        lib.llama_memory_seq_cp(memory, sequence, BLOCKS - 1, -1, -1)
    return np.concatenate([first, _decode(lib, opened, positions, range(last, len(positions)))])


def _decode(lib: Any, opened: Any, positions: Tokens, indices: range) -> Array:
    tokens, batch = tokens_of(positions), lib.llama_batch_init(len(indices), 0, 1)
    batch.n_tokens = len(indices)
    for row, index in enumerate(indices):
        batch.token[row], batch.pos[row] = int(tokens[index]), int(positions[index])
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, index // BLOCK, 1
    with listening(lib) as errors:
        code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    if code != 0:
        raise CheckpointError(f"llama.cpp fails at a probe of the rotation: {last_words(errors, f'code {code}')}")
    raw = lib.llama_get_logits(opened)
    return np.ctypeslib.as_array(raw, (len(indices), VOCABULARY)).astype(np.float64)
