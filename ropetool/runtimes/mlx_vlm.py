"""mlx-vlm: separate model files. Many read only the base or only `linear`, and ignore other scaling without a warning.

Source: mlx_vlm/models/rope_utils.py of the release in VERSIONS. families/engine_files has the keys that each model file
reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.rope.tables import Array, RopeSet, RopeTable
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import mlx_files, mlx_lm
from ropetool.runtimes.base import Refuses

NAME = "mlx-vlm"
FORMATS = ("hf",)
VERSIONS = "0.7.10"
SUMMARY = "mlx-vlm: each model file reads different keys; many read only the base and silently ignore any scaling"


def decode(view: HfCheckpoint) -> RopeSet:
    """Return the tables that mlx-vlm computes from a config.

    Raises: Refuses if the program stops with an error.
    """
    return mlx_files.decode(view, NAME, table)


def table(keys: Mapping[str, Any], base: Array, part: Mapping[str, Any], context: int) -> RopeTable:
    """Return the table of a layer type. Source: initialize_rope. It differs from mlx-lm in two types.

    Raises: Refuses if the program stops with an error.
    """
    rope_type = keys[names.ROPE_TYPE]
    if rope_type == "dynamic":
        raise Refuses("ValueError: Unsupported RoPE type dynamic")
    if rope_type == "longrope":
        # A call that goes beyond the trained length uses the long list.
        return engine.longrope_table(
            keys, base, context, int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS))
        )
    return mlx_lm.table(keys, base, part, context, mlx_lm.NEWER)
