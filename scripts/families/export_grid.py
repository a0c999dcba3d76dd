"""What the export of each family can hold, worked out from small configs: the table of docs/export.md.

Nothing is run here; tests/exporting/test_export_families.py compares logits for the same cells.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ropetool
from ropetool import families, names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.families.family import Family
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp.exported import exported

FACTOR, TRAINED, HEAD, LAYERS = 4, 512, 64, 6
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "yarn": ("yarn", {}),
    "yarn, factor 1": ("yarn", {"attention_factor": 1.0}),
    "yarn, beta_fast 8": ("yarn", {"params": {"beta_fast": 8}}),
    "llama3": ("llama3", {}),
    "longrope": ("longrope", {}),
}
SCALED = ("mistral4",)  # whose class computes no table without a scaling
BY_KEYS, BY_VECTOR, BY_LISTS, NOT = "keys", "vector", "lists", "-"


@cache
def grid() -> dict[str, tuple[str, list[str]]]:
    """Return each exported family's name in GGUF, and how its file holds each cell."""
    found = {}
    for family in map(families.get, families.names()):
        if family.gguf_architecture:
            found[family.model_type] = family.gguf_architecture, [_cell(family, cell) for cell in CELLS]
    return found


def _cell(family: Family, cell: str) -> str:
    method, options = CELLS[cell]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        (source / names.CONFIG_JSON).write_text(json.dumps(_config(family)))
        if method == "longrope":
            options = {"params": {"long_factor": [1 + pair / 9 for pair in range(_pairs(source))]}}
            options["params"]["short_factor"] = [1 + pair / 40 for pair in range(_pairs(source))]
        try:
            reading = "original" if family.model_type in SCALED else None
            checkpoint = HfCheckpoint.open(source)
            plan = ropetool.plan(checkpoint, method, factor=FACTOR, reading=reading, **options)
        except LossyExport:
            return NOT  # norms behind the rotation take any factor on cos and sin away
        return _held(family, checkpoint.edited(plan.edits).config)


def _held(family: Family, config: Mapping[str, Any]) -> str:
    try:
        _, view = exported(HfCheckpoint(config, family))
    except Refuses:
        return NOT
    if keys.ROPE_FREQS in view.tensors:
        return BY_VECTOR
    return BY_LISTS if view.tensors else BY_KEYS


def _pairs(source: Path) -> int:
    rope = ropetool.inspect(source).rope
    assert rope is not None
    return rope.entries[names.FULL_ATTENTION].rotary_dim // 2


def _of_kind(family: Family, kind: str, rope: dict[str, Any]) -> dict[str, Any]:
    """Return the rope keys of a kind of layer: of the family's own type, with half of each head where a part rotates."""
    usual = family.default_rope_keys.get(kind, {})
    share = {names.PARTIAL_ROTARY_FACTOR: 0.5} if names.PARTIAL_ROTARY_FACTOR in usual else {}
    return {**rope, **{key: value for key, value in usual.items() if key == names.ROPE_TYPE}, **share}


def _config(family: Family) -> dict[str, Any]:
    """Return an unscaled config of some layers, whose sliding layers, if it has any, look back less than it was trained."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if family.temperature_key:
        rope |= {family.temperature_key: 0.1, names.ORIGINAL_MAX_POSITION_EMBEDDINGS: TRAINED}
    if family.model_type in SCALED:
        rope |= {names.ROPE_TYPE: "yarn", names.FACTOR: 2.0}
    sliding = keys.get(family.gguf_architecture).sliding
    window = TRAINED // 2 if sliding is not None and sliding.layer_count is None else None
    config = {
        names.NUM_HIDDEN_LAYERS: LAYERS, names.HIDDEN_SIZE: 4 * HEAD,
        names.NUM_ATTENTION_HEADS: 4, names.NUM_KEY_VALUE_HEADS: 2, family.head_dim_key: HEAD,
        names.MAX_POSITION_EMBEDDINGS: TRAINED * int(rope.get(names.FACTOR, 1)), names.SLIDING_WINDOW: window,
        names.ROPE_PARAMETERS: {kind: _of_kind(family, kind, rope) for kind in family.layer_types} if family.nested else rope,
        **dict.fromkeys(family.head_dim_keys.values(), HEAD),
    }  # fmt: skip
    if family.nested:
        config[names.LAYER_TYPES] = [*[names.SLIDING_ATTENTION] * (LAYERS - 1), names.FULL_ATTENTION]
    for key in reversed(family.text_path):
        config = {key: config}
    return {names.MODEL_TYPE: family.model_type, **config}
