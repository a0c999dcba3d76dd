"""mlx-vlm: model files of its own, beside those of mlx-lm: many take the base alone, or only `linear`, without a word.

Source: mlx_vlm/models/rope_utils.py of the release named; what each model file reads is in families/engine_files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.rope.tables import Array, Regime, RopeSet, RopeTable
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import mlx_files, mlx_lm
from ropetool.runtimes.base import Refuses

NAME = "mlx-vlm"
FORMATS = ("hf",)
VERSIONS = "0.7.10"
SUMMARY = "mlx-vlm: each model file with keys of its own; many take the base and drop any scaling without a word"


def decode(view: HfCheckpoint) -> RopeSet:
    """Return what mlx-vlm computes from this config.

    Raises: Refuses where it stops with an error.
    """
    return mlx_files.decode(view, NAME, table)


def table(keys: Mapping[str, Any], base: Array, part: Mapping[str, Any], context: int, first: str = "") -> RopeTable:
    """Return the table. Source: initialize_rope; it differs from that of mlx-lm in two types.

    Raises: Refuses where it stops with an error.
    """
    rope_type = keys[names.ROPE_TYPE]
    if rope_type == "dynamic":
        raise Refuses("ValueError: Unsupported RoPE type dynamic")
    if rope_type == "longrope":
        return _longrope(keys, base, context)
    return mlx_lm.table(keys, base, part, context, mlx_lm.NEWER)


def _longrope(keys: Mapping[str, Any], base: Array, context: int) -> RopeTable:
    """Return both lists: the long one as soon as a call reaches beyond the trained length."""
    length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS))
    scale = engine.longrope_scale(context, length)
    scales = (keys.get("short_mscale"), keys.get("long_mscale"))
    short, long = (scale if own is None else float(own) for own in scales)
    return engine.two_lists(
        Regime(engine.divided(base, keys, names.SHORT_FACTOR), short, up_to=length),
        Regime(engine.divided(base, keys, names.LONG_FACTOR), long),
    )
