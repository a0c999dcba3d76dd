"""A tiny model with the rope keys of a GGUF, run by llama.cpp: whether the library rotates by our table.

Compares logits with those of probe_model.py; never runs the target itself.
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
from ropetool.verification.runners.probe_model import (
    ARCHITECTURES,
    BLOCK,
    VOCABULARY,
    forward,
    tokens_of,
    write_probe,
)
from ropetool.verification.scoring import Tokens

TOLERANCE = 2e-4  # of the largest logit; float32 over 1024 positions
PRECISE = 1024  # positions up to which that holds: an angle is off by 6e-8 of itself, so the error grows with it
BLOCKS = 7  # in a probe


@dataclass(frozen=True)
class Probed:
    """The difference of the logits as a part of the largest; None if nothing was run. detail: what was run, or why not."""

    difference: float | None
    detail: str


def probe(target: Path) -> Probed:
    """Return how far llama.cpp is from the decoded table of a GGUF.

    Several probes, each of twice the span of the one before up to the context: the near ones are precise, the far ones
    reach the slow pairs. Beyond 1024 tokens a difference is divided by the span over 1024.
    Raises: MissingDependency without llama-cpp-python; CheckpointError or InvalidRope for a file that it would refuse.
    """
    lib = library()
    view = GgufCheckpoint.open(target)
    arch = view.name
    if arch not in ARCHITECTURES:
        return Probed(None, f"ropetool has no probe for {arch}, only for {', '.join(ARCHITECTURES)}")
    found = decoded(view.runtime, view).understood(view.where, "file")
    entry, span = found.entries[names.FULL_ATTENTION], found.max_position_embeddings
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = write_probe(view, arch, entry, Path(folder) / "probe.gguf")
            figure = largest_difference(lib, path, arch, entry, span)
    except CheckpointError as error:
        raise CheckpointError(f"the probe with the RoPE keys of this file: {error.message}", where=view.where) from None
    return Probed(figure, f"llama-cpp-python {lib.__version__} with a probe of these keys, up to position {span - 1}")


def largest_difference(lib: Any, path: Path, arch: str, entry: LayerRope, span: int) -> float:
    """Return the largest difference over all spans and, where a file holds two lists, over a context for either."""
    assert entry.table is not None
    worst, before = 0.0, 0
    for regime in entry.table.regimes:
        with _opened(lib, path, before + CONTEXT_STEP) as opened:
            for reach in _spans(span):
                positions = _positions(reach)
                found = _run(lib, opened, positions)
                wanted = forward(arch, entry, regime, positions)
                apart = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                worst = max(worst, math.inf if math.isnan(apart) else apart / max(1.0, reach / PRECISE))
        before = regime.up_to or before
    return worst


def _spans(context: int) -> list[int]:
    """Return the lengths to probe, the context last; 64 tokens at least, over which the blocks do not overlap."""
    spans = [min(max(context, 16 * BLOCK), MAX_LENGTH)]
    while spans[0] > PRECISE:
        spans.insert(0, spans[0] // 2)
    return spans


def _positions(span: int) -> Tokens:
    """Return the positions of all tokens: blocks over the span, of which the last two touch, as llama.cpp demands."""
    starts = [0, span // 16, span // 4, span // 2, 3 * span // 4, span - 2 * BLOCK, span - BLOCK]
    return np.concatenate([np.arange(start, start + BLOCK) for start in starts])


# --- the run in the library


@contextmanager
def _opened(lib: Any, path: Path, context: int) -> Iterator[Any]:
    """Open the model with a float32 cache and no flash attention; nothing else differs from the defaults."""
    model = load(lib, path, gpu=False)
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = context, 64, 64, BLOCKS
    settings.n_threads = settings.n_threads_batch = 1
    settings.kv_unified, settings.offload_kqv, settings.op_offload = True, False, False
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with listening(lib) as said:
        opened = lib.llama_init_from_model(model, settings)
    try:
        if not opened:
            raise CheckpointError(f"llama.cpp cannot create a context: {last_words(said)}", where=str(path))
        yield opened
    finally:
        with listening(lib):
            lib.llama_free(opened)
        free(lib, model)


def _run(lib: Any, opened: Any, positions: Tokens) -> Array:
    """Return llama.cpp's logits of all tokens, as `forward` gives them.

    Blocks are sequences of their own, then joined into that of the last one: llama.cpp takes no gaps within one.
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
    with listening(lib) as said:
        code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    if code != 0:
        raise CheckpointError(f"llama.cpp fails at a probe of the rotation: {last_words(said, f'code {code}')}")
    raw = lib.llama_get_logits(opened)
    return np.ctypeslib.as_array(raw, (len(indices), VOCABULARY)).astype(np.float64)
