"""The folder that the converter reads instead of the checkpoint: links to weights and tokenizer, and a plain config.

It has no Python file, no pickle and no auto_map, so the checkpoint cannot make the converter run its code. The config
has no rope scaling either, so that the converter writes an unscaled file. ropetool then adds the scaling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.family import Family
from ropetool.files.hf import read_object
from ropetool.files.hf.jsontext import JsonLimits
from ropetool.files.linking import check_within

AUTO_MAP = "auto_map"
# Files that are linked unchanged: data in formats without code.
_LINKED = (
    names.TOKENIZER_JSON, "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt",
    "chat_template.jinja", "README.md", "LICENSE",
)  # fmt: skip
_LINKED_SUFFIXES = (".tiktoken",)
# Files that may name code. They are copied without the names.
_COPIED = (
    names.TOKENIZER_CONFIG_JSON, "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "preprocessor_config.json", "processor_config.json", "chat_template.json",
)  # fmt: skip
_LIMITS = JsonLimits(16 << 20, 1_000_000)  # of a copied file; a tokenizer_config.json lists each added token
# Types whose scaling ropetool adds. `proportional` is not a scaling: it selects the rotating channels.
_SCALED = frozenset({"linear", "dynamic", "yarn", "longrope", "su", "llama3"})
_SCALING = frozenset({
    "factor", "short_factor", "long_factor", "short_mscale", "long_mscale", "low_freq_factor", "high_freq_factor",
    "alpha", names.LEGACY_TYPE, *names.ROPE_TYPE_KEYS,
}) - {names.ROPE_TYPE}  # fmt: skip
# The converters' names of layer types by model_type, if transformers 5 saves different names.
_PUBLISHED_LAYER_TYPES = {
    "granitemoehybrid": {"full_attention": "attention", "linear_attention": "mamba"},
    "qwen4_exp_text": {"indexed_attention": "full_attention"},
}


def stage(checkpoint: HfCheckpoint, folder: Path, architecture: str, rotary: tuple[int, int]) -> None:
    """Fill an empty folder with the files of the checkpoint that the converter may read.

    architecture: the class name for a config without one.
    rotary: the rotating channels and all channels of a head. Some converters need keys with these numbers, which
      transformers 5 no longer writes.
    Raises: CheckpointError for a link that leads out of the checkpoint, or a file that cannot be read.
    """
    config = unscaled(dict(checkpoint.config))
    if not config.get("architectures"):
        config["architectures"] = [architecture]
    part = config
    for name in checkpoint.family.text_path:
        part = part[name]
    part.setdefault("rotary_pct", rotary[0] / rotary[1])
    part.setdefault("rotary_dim", rotary[0])
    if isinstance(part.get(names.ROPE_PARAMETERS), dict):
        part[names.ROPE_PARAMETERS].setdefault(names.PARTIAL_ROTARY_FACTOR, rotary[0] / rotary[1])
    if not checkpoint.family.mla:
        part.setdefault("head_dim", rotary[1])
        _set_key_heads(part, checkpoint.family)
    published = _PUBLISHED_LAYER_TYPES.get(checkpoint.name, {})
    if published and isinstance(part.get(names.LAYER_TYPES), list):
        part[names.LAYER_TYPES] = [published.get(one, one) for one in part[names.LAYER_TYPES]]
    _save(folder / names.CONFIG_JSON, config)
    root = checkpoint.path
    for name in _COPIED:
        if (root / name).is_file():
            check_within(root / name, root)
            _save(folder / name, read_object(root / name, _LIMITS)[1])
    tokens = [path for suffix in _LINKED_SUFFIXES for path in sorted(root.glob(f"*{suffix}"))]
    for path in [*(root / name for name in _LINKED), *tokens, *checkpoint.directory.weights]:
        if path.is_file():
            check_within(path, root)
            (folder / path.name).symlink_to(path.resolve())
    if checkpoint.directory.index is not None:
        _save(folder / names.SAFETENSORS_INDEX_JSON, {"metadata": {}, "weight_map": dict(checkpoint.directory.index)})


def _set_key_heads(part: dict[str, Any], family: Family) -> None:
    """Use the number of heads for key heads, if the class has no grouped heads but the converter reads the key."""
    key = names.NUM_KEY_VALUE_HEADS
    heads = part.get(names.NUM_ATTENTION_HEADS)
    if family.remote and heads is not None and key not in {*part, *family.size_keys, *family.default_sizes}:
        part[key] = heads


def unscaled(value: Any) -> Any:
    """Return a part of a config without auto_map and rope scaling, in both transformers 4 and 5 style, at any depth."""
    if isinstance(value, list):
        return [unscaled(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    kept = {key: unscaled(one) for key, one in value.items() if key != AUTO_MAP}
    for key in (names.ROPE_SCALING, names.ROPE_PARAMETERS):
        if isinstance(kept.get(key), dict):
            kept[key] = _plain(kept[key])
    return kept


def _plain(keys: dict[str, Any]) -> dict[str, Any] | None:
    """Return rope keys without a scaling. Keys by layer type lose the scaling of each type."""
    if any(isinstance(value, dict) for value in keys.values()):
        return {key: _plain(value) if isinstance(value, dict) else value for key, value in keys.items()}
    rope_type = keys.get(names.ROPE_TYPE, keys.get(names.LEGACY_TYPE))
    if rope_type not in _SCALED:
        return keys
    kept = {key: value for key, value in keys.items() if key not in _SCALING}
    kept[names.ROPE_TYPE] = "default"
    return kept


def _save(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(unscaled(data) if path.name != names.CONFIG_JSON else data), encoding="utf-8")
