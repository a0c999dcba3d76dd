"""The keys of a class that change how a whole model rotates: each key changes in turn, and the model runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropetool.probing import rotating, rotation
from ropetool.probing.changed_configs import ONE, Maker, nested, of_type, with_keys
from ropetool.probing.rotation import Subject

TEMPERATURES = r".*(scaling_beta|attn_temperature_tuning|log_scaling_alpha)"


def interleave_key(default: Any, layout: str, build: Callable[..., Subject]) -> str:
    """Return the boolean key that changes the layout when it is inverted, or an empty text."""
    for key, value in default.to_dict().items():
        if isinstance(value, bool) and re.search(r"interleave", key):
            subject = build(**{key: not value})
            if layout_of(rotating.layers(subject, [])) not in ("", layout):
                return str(key)
    return ""


def off_key(default: Any, build: Callable[..., Subject]) -> str:
    """Return the boolean key that switches the rotation off when it is inverted, or an empty text."""
    for key, value in default.to_dict().items():
        if isinstance(value, bool) and re.search(r"alibi|rope|rotary|nope|mem_rope", key) and "interleave" not in key:
            try:
                subject = build(**{key: not value})
                gone = not subject.rotary or not any(one["rotates"] for one in rotating.layers(subject, []))
            except Exception:  # noqa: BLE001 - a class may require more keys with the switch
                continue
            if gone:
                return str(key)
    return ""


def layout_of(layers: Iterable[Mapping[str, Any]]) -> str:
    """Return the layout of the attention's channels, or an empty text if no single layout was observed."""
    seen = {one["layout"] for layer in layers for one in layer.get("rotations", []) if "in" not in one}
    return seen.pop() if len(seen) == 1 else ""


def temperature_key(maker: Maker, build: Callable[..., Subject]) -> str:
    """Return the key without which no score depends on the position, or an empty text."""
    small = maker.config()
    for key, value in small.to_dict().items():
        if re.fullmatch(TEMPERATURES, key) and value:
            subject = build(**{key: False if value is True else 0.0})
            if not rotating.temperatures(subject, subject.run()):
                return str(key)
    parameters = dict(getattr(small, "rope_parameters", None) or {})
    for key in parameters:
        if re.fullmatch(TEMPERATURES, str(key)):
            subject = build(rope_parameters={**parameters, key: 0.0})
            if not rotating.temperatures(subject, subject.run()):
                return str(key)
    return ""


def follows_mscale(maker: Maker, build: Callable[..., Subject]) -> bool:
    """Return whether mscale_all_dim changes the scores although the table stays the same.

    The table stays the same if mscale and mscale_all_dim are equal.
    """
    runs = []
    for keys in ({"attention_factor": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}):
        config = maker.config()
        config.rope_parameters = of_type("yarn", config)
        more = dict.fromkeys(config.rope_parameters if nested(config) else [ONE], keys)
        subject = build(rope_parameters=with_keys(config, more))
        runs.append(subject.run(lambda _, output: rotation.unrotated(output)))
    return rotation.score_change(runs[0], runs[1]) > rotation.MOVES
