"""What is put right of a converter's file, or refused, beside its positions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import LossyExport
from ropetool.gguf_export.converter import corrections

HEADS, CHANNELS = 4, 8


def stored(path: Path, rows: np.ndarray) -> StoredTensor:
    path.write_bytes(rows.astype(np.float32).tobytes())
    return StoredTensor(path, 0, rows.size * 4, "F32", rows.shape, 4, "values")


@pytest.mark.parametrize("part", ["q_norm.weight", "k_norm.bias"])
def test_a_norm_of_each_head_is_not_lost_in_silence(part: str, tmp_path: Path) -> None:
    own = np.arange(HEADS * CHANNELS).reshape(HEADS, CHANNELS)
    first = np.broadcast_to(own[0], own.shape)

    def check(theirs: np.ndarray, ours: np.ndarray) -> None:
        kind, _, suffix = part.partition("_norm.")
        file: Any = SimpleNamespace(stored={f"blk.2.attn_{kind}_norm.{suffix}": stored(tmp_path / "theirs", theirs)})
        held = {f"model.layers.2.self_attn.{part}": stored(tmp_path / "ours", ours)}
        checkpoint: Any = SimpleNamespace(stored=held, where="config.json")
        corrections.check_norms(file, checkpoint)

    with pytest.raises(
        LossyExport, match=f"the norm of the first head of model.layers.2.self_attn.{part} for all heads"
    ):
        check(first, own)
    check(own, own)
    check(first, first)
