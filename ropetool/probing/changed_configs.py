"""Tiny configs of one class with changed keys, and the tables of rotary modules built from them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ropetool.probing import tiny
from ropetool.probing.rotation import Subject

Tables = dict[str, tuple[Any, float]]  # by label: inverse frequencies in float64, and the factor on cos and sin
ONE = "full_attention"  # the label if a class has one table
ROPE_TYPES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "llama3": {
        "factor": 4.0, "original_max_position_embeddings": 1024, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
OF_TYPES = {
    *(key for keys in ROPE_TYPES.values() for key in keys), "type", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "attention_factor", "truncate", "short_factor", "long_factor", "short_mscale", "long_mscale",
} - {"partial_rotary_factor"}  # fmt: skip


class Maker:
    """Builds tiny configs of one class with given keys, and rotary modules from them."""

    def __init__(self, text: Any, subject: Subject, used: Iterable[str]) -> None:
        self.text, self.subject = text, subject
        self.small = tiny.overrides(text)
        self.small.pop("head_dim", None)
        self.modules = {name: subject.rotary[name] for name in sorted({one.partition(":")[0] for one in used})}

    def config(self, **keys: Any) -> Any:
        """Return a tiny config with additional keys."""
        config = type(self.text)(**copy.deepcopy({**self.small, **keys}))
        config.allow_global_per_layer_attribute_access = True
        return config

    def tables(self, config: Any) -> Tables:
        """Return the tables of the rotary modules for this config, by label."""
        tables: Tables = {}
        for module in self.modules.values():
            built = type(module)(part(config, module))
            for key, value in built.named_buffers(recurse=False):
                if key.endswith("inv_freq") and "original" not in key:
                    label = key.removesuffix("inv_freq").rstrip("_")
                    factor = getattr(built, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)
                    tables[label or ONE] = (value.double(), float(factor))
        return tables

    def changed(self, base: Tables, **keys: Any) -> list[str]:
        """Return the labels whose tables differ with these keys. Empty if the class does not accept the keys."""
        try:
            other = self.tables(self.config(**keys))
        except Exception:  # noqa: BLE001 - a class may stop at a key with any error
            return []
        return sorted(label for label in base.keys() & other.keys() if not _same(base[label], other[label]))

    def shares(self, base: Tables, **keys: Any) -> dict[str, float]:
        """Return the length of each table with these keys, relative to its length before, by label."""
        try:
            other = self.tables(self.config(**keys))
        except Exception:  # noqa: BLE001 - a class may stop at a key with any error
            return {}
        return {label: len(other[label][0]) / len(base[label][0]) for label in base.keys() & other.keys()}


def part(config: Any, module: Any) -> Any:
    """Return the config, or the part of it, from which a rotary module was built."""
    config_class = type(getattr(module, "config", config))
    parts = (one for one in vars(config).values() if type(one) is config_class)
    return config if type(config) is config_class else next(parts, config)


def _same(one: tuple[Any, float], other: tuple[Any, float]) -> bool:
    if one[0].shape != other[0].shape:
        return False
    return bool((one[0] - other[0]).abs().max() <= 1e-6 * one[0].abs().max()) and abs(one[1] - other[1]) < 1e-6


def rope_parameters(config: Any) -> dict[str, dict[str, Any]]:
    """Return the rope parameters of a config by label."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    return nested or {ONE: dict(parameters)}


def nested(config: Any) -> bool:
    """Return whether the rope parameters of a config are nested by label."""
    return any(isinstance(value, dict) for value in (getattr(config, "rope_parameters", None) or {}).values())


def with_keys(config: Any, more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rope parameters of a config with more keys under each label."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if not nested(config):
        return {**parameters, **next(iter(more.values()))}
    return {
        label: {**value, **more[label]} if isinstance(value, dict) and label in more else value
        for label, value in parameters.items()
    }


def of_type(rope_type: str, config: Any, tables: Tables | None = None) -> dict[str, Any]:
    """Return the rope parameters of a config with a different type, without the keys of other types."""

    def changed(label: str, one: Mapping[str, Any]) -> dict[str, Any]:
        more = {"rope_type": rope_type, **ROPE_TYPES[rope_type]}
        if rope_type == "longrope":
            pairs = len(tables[label][0]) if tables and label in tables else 0
            more |= {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs}
        share = {} if rope_type != "proportional" else {"partial_rotary_factor": 0.5}
        return {**{key: value for key, value in one.items() if key not in OF_TYPES}, **more, **share}

    parameters = getattr(config, "rope_parameters", None) or {}
    if nested(config):
        return {
            label: changed(label, value) if isinstance(value, dict) else value for label, value in parameters.items()
        }
    return changed(ONE, parameters)


def without_base(config: Any) -> dict[str, Any]:
    """Return rope parameters of the default type without a base."""
    kept = {"rope_type": "default"}
    parameters = getattr(config, "rope_parameters", None) or {}
    if nested(config):
        return {label: dict(kept) if isinstance(value, dict) else value for label, value in parameters.items()}
    return kept
