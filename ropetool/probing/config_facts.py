"""How a config class uses its keys: each key changes in turn, and rotary modules are built from the changed config."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropetool.probing.changed_configs import (
    ONE,
    ROPE_TYPES,
    Maker,
    Tables,
    nested,
    of_type,
    part,
    rope_parameters,
    with_keys,
    without_base,
)
from ropetool.probing.rotation import Subject

BASE = 54321.0
HEAD_KEYS = r"(qk_rope_|global_|swa_|local_|attention_|rope_)?head_dim|kv_channels|head_size|d_kv|attention_head_size"
SHARE_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rotary_emb_fraction", "rotary_dim")
BASE_KEYS = (
    "rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta",
    "compress_rope_theta",
)  # fmt: skip
STRETCH = "alpha"
MSCALES = ("short_mscale", "long_mscale")


def facts(maker: Maker, default: Any, build: Callable[..., Subject]) -> dict[str, Any]:
    """Return the defaults of the class and the keys that it reads, under the names of a family's fields.

    default: the text config with the class's own defaults, at full size.
    build: builds a model from keys.
    """
    small = maker.config()
    base = maker.tables(small)
    inner = part(small, next(iter(maker.modules.values())))
    class_facts: dict[str, Any] = {}
    if inner is not small:
        key = next(key for key, value in vars(small).items() if value is inner)
        class_facts |= {"text_path": [key], "text_type": inner.model_type}  # the part with the keys of the rotation
        default = getattr(default, key)
    parameters = {label: value for label, value in rope_parameters(inner).items() if label in base}
    if not parameters:  # the rope keys have labels, but the class builds one table without a label
        parameters = dict.fromkeys(base, next(iter(rope_parameters(inner).values())))
    names = dict(getattr(default, "attribute_map", {}))
    labels = sorted(base)
    class_facts["layer_types"] = labels if nested(inner) else []
    class_facts["default_rope_theta"] = {
        one: float(parameters[one]["rope_theta"]) for one in labels if "rope_theta" in parameters[one]
    }
    types = sorted({str(one.get("rope_type", "default")) for one in parameters.values()})
    class_facts["default_rope_type"] = (
        types[0] if len(types) == 1 else {one: parameters[one]["rope_type"] for one in labels}
    )
    class_facts["default_max_position_embeddings"] = getattr(default, "max_position_embeddings", None)
    class_facts["default_original_max_position_embeddings"] = getattr(default, "original_max_position_embeddings", None)
    class_facts["default_rope_parameters"] = getattr(default, "rope_parameters", None) or {}
    class_facts["default_sizes"] = {
        key: getattr(default, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        if type(getattr(default, key, None)) is int and not (key == "num_key_value_heads" and _follows_heads(default, names))
    }  # fmt: skip
    renamed = ("max_position_embeddings", *class_facts["default_sizes"])
    if "max_position_embeddings" in names:
        class_facts["max_position_embeddings_key"] = names["max_position_embeddings"]
    class_facts["key_names"] = {key: names[key] for key in renamed if key in names}
    class_facts.update(_head_dim(maker, default, base, names))
    class_facts.update(_shares(maker, base, parameters, build))
    alone = {key: changed for key in BASE_KEYS if (changed := maker.changed(base, **{key: BASE}))}
    bare = without_base(small)
    beside = {key: changed for key in BASE_KEYS if (changed := _changed_beside(maker, bare, key))}
    class_facts["base_keys"] = {**beside, **alone}
    class_facts["base_keys_need_rope_parameters"] = bool(beside) and not alone
    class_facts["rope_theta_key"] = next(iter(class_facts["base_keys"]), "")
    class_facts.update(_rope_types(maker))
    class_facts.update(_stretch_key(maker))
    class_facts.update(_unusual(maker, base, class_facts))
    class_facts["mrope_section"] = _sections(maker)
    class_facts["layer_base_key"] = _layer_base_key(maker, build)
    class_facts["tables"] = {label: _table(base[label], parameters[label]) for label in labels}
    return class_facts


def _changed_beside(maker: Maker, bare: dict[str, Any], key: str) -> list[str]:
    """Return the labels whose tables change with a base key outside the rope parameters, which contain no base."""
    try:
        base = maker.tables(maker.config(rope_parameters=copy.deepcopy(bare)))
    except Exception:  # noqa: BLE001 - a class may require a base there
        base = {}
    return maker.changed(base, rope_parameters=copy.deepcopy(bare), **{key: BASE})


def _table(table: tuple[Any, float], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table in short form: its length, five frequencies, and whether it is the plain table of its base."""
    frequencies, factor = table
    count = len(frequencies)
    plain = None
    if "rope_theta" in parameters:
        exponents = frequencies.new_tensor([-2.0 * i / (2 * count) for i in range(count)])
        plain = bool(((float(parameters["rope_theta"]) ** exponents) / frequencies - 1).abs().max() < 3e-6)
    return {
        "rotary_dim": 2 * count,
        "attention_factor": float(f"{factor:.9g}"),
        "plain": plain,
        "inv_freq": {str(i): float(f"{float(frequencies[i]):.7g}") for i in sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})},
    }  # fmt: skip


def _sections(maker: Maker) -> list[int]:
    """Return the number of rotary pairs for each axis of images and video. Empty if one axis has all pairs."""
    for module in maker.modules.values():
        sections = getattr(module, "mrope_section", None)
        one = next(iter(sections.values()), None) if isinstance(sections, dict) else sections
        if one:
            return [int(pairs) for pairs in one]
    return []


def _layer_base_key(maker: Maker, build: Callable[..., Subject]) -> str:
    """Return the key of a list with one base per layer, if the layers then use different tables."""
    small = maker.config()
    count = getattr(small, "num_hidden_layers", 0)
    for key, value in small.to_dict().items():
        if re.search("theta", key) and isinstance(value, list) and len(value) == count:
            run = build(**{key: [BASE if number % 2 else value[number] for number in range(count)]}).run()
            if len(run.tables) > 1:
                return str(key)
    return ""


def _follows_heads(default: Any, names: Mapping[str, str]) -> bool:
    """Return whether the class sets the default number of key heads to the number of heads."""
    if not hasattr(default, "hidden_size"):
        return False
    heads, hidden = 2 * default.num_attention_heads, 2 * default.hidden_size
    more = {
        names.get("num_attention_heads", "num_attention_heads"): heads,
        names.get("hidden_size", "hidden_size"): hidden,
    }
    try:
        return bool(type(default)(**more).num_key_value_heads == heads)
    except Exception:  # noqa: BLE001 - a class may stop at a key with any error
        return False


def _head_dim(maker: Maker, default: Any, base: Tables, names: Mapping[str, str]) -> dict[str, Any]:
    native = {key for key in default.to_dict() if re.fullmatch(HEAD_KEYS, key)} | {"head_dim", "global_head_dim"}
    small = maker.config()
    if not hasattr(small, "hidden_size"):  # a class of parts with separate sizes
        return {"head_dim_key": "", "default_head_dim": None, "null_head_dim": []}
    ratio = small.hidden_size // small.num_attention_heads
    by_label: dict[str, list[str]] = {label: [] for label in base}
    for key in sorted(native, key=lambda one: (one != "qk_rope_head_dim", one != "head_dim", one)):
        value = getattr(small, key, None) or ratio
        times = _resized(maker, base, small, key, value)
        for label in times:
            if times[label] != 1.0:
                by_label[label].append(key)
    own = names.get("head_dim", "head_dim")  # the key in config.json for the code's head_dim
    first = {label: (keys[0] if keys[0] != "head_dim" else own) if keys else "" for label, keys in by_label.items()}
    key = next(iter(first.values()), "")
    wider = maker.shares(base, **{names.get("hidden_size", "hidden_size"): 2 * small.hidden_size})
    computed = any(times != 1.0 for times in wider.values())
    facts: dict[str, Any] = {
        "head_dim_key": key,
        "default_head_dim": None if computed or not key else getattr(default, key, None),
        "null_head_dim": ["transformers"] if key == own and _breaks(maker) else [],
        "stated_null_head_dim": "stops yarn" if key == own and _breaks(maker, head_dim=None) else "as absent",
    }
    if len(set(first.values())) > 1:
        facts["head_dim_keys"] = first
    return facts


def _resized(maker: Maker, base: Tables, small: Any, key: str, value: int) -> dict[str, float]:
    """Return by which factor a different head size changes the length of each table, by label.

    small: the tiny config. value: its head size, under this key.

    Some classes check that the sections of mrope cover the head, so these change with it.
    """
    parameters = getattr(small, "rope_parameters", None) or {}
    sections = parameters.get("mrope_section")
    for resized in (2 * value, value // 2):
        keys: dict[str, Any] = {key: resized}
        if sections:
            keys["rope_parameters"] = {**parameters, "mrope_section": [count * resized // value for count in sections]}
        if times := maker.shares(base, **keys):
            return times
    return {}


def _breaks(maker: Maker, **keys: Any) -> bool:
    """Return whether yarn raises an error because the head size is null."""
    values = of_type("yarn", maker.config())
    try:
        maker.tables(maker.config(rope_parameters=values, **keys))
    except TypeError:
        return True
    except Exception:  # noqa: BLE001 - a class may stop at a key with any error
        return False
    return False


def _shares(
    maker: Maker, base: Tables, parameters: Mapping[str, Mapping[str, Any]], build: Callable[..., Subject]
) -> dict[str, Any]:
    default = {label: float(one.get("partial_rotary_factor") or 1.0) for label, one in parameters.items()}
    first = next(iter(default.values()), 1.0)
    longest = 2 * max(len(table[0]) for table in base.values())
    keys = {one: longest // 2 if one == "rotary_dim" else first / 2 for one in SHARE_KEYS}
    key = next((one for one, value in keys.items() if _halves(maker, base, build, **{one: value})), "")
    halved = {label: {"partial_rotary_factor": default[label] / 2} for label in parameters}
    inner = {"rope_parameters": with_keys(maker.config(), halved)}
    facts: dict[str, Any] = {
        "partial_rotary_key": key,
        "default_partial_rotary_factor": first,
        "partial_in_rope_parameters": _halves(maker, base, build, **inner),
    }
    if len(set(default.values())) > 1:
        facts["partial_rotary_factors"] = default
    return facts


def _halves(maker: Maker, base: Tables, build: Callable[..., Subject], **keys: Any) -> bool:
    """Return whether half as many channels rotate with these keys, and the model runs."""
    if not any(times == 0.5 for times in maker.shares(base, **keys).values()):
        return False
    try:
        build(**keys).run()
    except Exception:  # noqa: BLE001 - the table is shorter, and the layers may not support that
        return False
    return True


def _rope_types(maker: Maker) -> dict[str, Any]:
    """Return the types that the rotary modules accept, and the errors for the others."""
    small = maker.config()
    tables = maker.tables(small)
    size = (
        {}
        if getattr(small, "head_dim", 0) is not None or not hasattr(small, "hidden_size")
        else {"head_dim": small.hidden_size // small.num_attention_heads}
    )
    taken, refused = ["default"], {}
    more: dict[str, float] = {}
    for rope_type in ROPE_TYPES:
        values = of_type(rope_type, small, tables)
        try:
            try:
                maker.tables(maker.config(rope_parameters={**values, **more}, **size))
            except Exception as error:
                if nested(small) or not any(key in str(error) for key in MSCALES):
                    raise
                more = dict.fromkeys(MSCALES, 1.0)  # this class requires them for every scaled type
                maker.tables(maker.config(rope_parameters={**values, **more}, **size))
        except Exception as error:  # noqa: BLE001 - a class may stop at a key with any error
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            refused[rope_type] = f"{type(error).__name__}: {_in_order(lines[-1]) if lines else ''}"[:160]
        else:
            taken.append(rope_type)
    facts = {"rope_types": taken if refused else [], "refused_rope_types": refused}
    return {**facts, "mscale_keys": sorted(more, reverse=True)} if more else facts


def _in_order(text: str) -> str:
    """Return a text with the names of each set in it sorted: their order differs from run to run."""
    return re.sub(r"\{([^{}:]*)\}", lambda names: "{" + ", ".join(sorted(names[1].split(", "))) + "}", text)


def _stretch_key(maker: Maker) -> dict[str, Any]:
    """Return the rope key whose number stretches the base of a `dynamic` table, if the class has one."""
    try:
        small = maker.config(head_dim=128)
        values = of_type("dynamic", small)
        base = maker.tables(maker.config(rope_parameters=values, head_dim=128))
    except Exception:  # noqa: BLE001 - a class may not accept the type
        return {}
    more = {label: {STRETCH: 1000.0} for label in (values if nested(small) else [ONE])}
    small.rope_parameters = values
    stretched = with_keys(small, more)
    return {"stretch_key": STRETCH} if maker.changed(base, rope_parameters=stretched, head_dim=128) else {}


NO_SCALING: tuple[Any, ...] = (False, 0, "", [])  # like null, most classes of transformers 5 read these as no scaling
NULLABLE = (
    "head_dim", "num_key_value_heads", "sliding_window", "rope_theta", "partial_rotary_factor", "no_rope_layer_interval",
)  # fmt: skip


def _unusual(maker: Maker, base: Tables, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a class reads older or odd spellings, for each spelling that most classes read differently."""
    facts: dict[str, Any] = {}
    if forbidden := [key for key in NULLABLE if _forbids_null(maker, key)]:
        facts["not_null"] = forbidden
    if _ignores_default(maker, known):
        facts["null_head_dim_computed"] = True
    longest = max(len(table[0]) for table in base.values())
    if any(times == 0.5 for times in maker.shares(base, rotary_dim=longest).values()):
        facts["rotary_dim_key"] = "rotary_dim"
    if "linear" in (known["rope_types"] or ["linear"]) and (
        scaled := _scaled_labels(maker, base, mscales=known.get("mscale_keys", ()))
    ) != [ONE]:
        facts["rope_scaling_reaches"] = scaled
    if stopping := [value for value in NO_SCALING if _stops_at_scaling(maker, value)]:
        facts["no_scaling_stops"] = stopping
    if known["layer_types"] and _scaled_labels(maker, base, "rope_type") != _scaled_labels(maker, base, "type"):
        facts["shadows_type"] = True
    try:
        bare = maker.tables(maker.config(rope_parameters=without_base(maker.config())))
    except Exception:  # noqa: BLE001 - a class may require more rope parameters
        return facts
    thetas = {label: _base_of(table[0]) for label, table in bare.items()}
    defaults = known["default_rope_theta"]
    plain = all(abs(float(table[0][1]) ** 2 / float(table[0][2]) - 1) < 1e-5 for table in bare.values())
    if plain and any(abs(thetas[label] / defaults[label] - 1) > 1e-3 for label in thetas.keys() & defaults.keys()):
        facts["base_of_stated_keys"] = {label: float(f"{theta:.4g}") for label, theta in sorted(thetas.items())}
    times = {label: len(bare[label][0]) / len(base[label][0]) for label in bare.keys() & base.keys()}
    if any(value != 1.0 for value in times.values()):
        facts["share_of_stated_keys"] = {
            label: value * known["default_partial_rotary_factor"] for label, value in sorted(times.items())
        }
    return facts


def _forbids_null(maker: Maker, key: str) -> bool:
    """Return whether a class that has this key rejects null for it."""
    if not hasattr(maker.config(), key):
        return False
    try:
        maker.config(**{key: None})
    except Exception as error:  # noqa: BLE001 - only the name identifies this error
        return "FieldValidation" in type(error).__name__
    return False


def _stops_at_scaling(maker: Maker, scaling: Any) -> bool:
    """Return whether a class stops at this rope_scaling, but not at null, when rope_parameters is null."""
    none = {"rope_parameters": None} if "rope_parameters" in maker.small else {}
    try:
        maker.config(**none, rope_scaling=None)
    except Exception:  # noqa: BLE001 - null stops the class too, so the value has no effect
        return False
    try:
        maker.config(**none, rope_scaling=scaling)
    except Exception:  # noqa: BLE001 - classes stop with any error, which is the fact
        return True
    return False


def _ignores_default(maker: Maker, known: Mapping[str, Any]) -> bool:
    """Return whether a null head_dim means hidden_size // heads, although the default of a missing one is a number."""
    if known["default_head_dim"] is None:
        return False
    small = maker.config()
    hidden = 6 * small.num_attention_heads * known["default_head_dim"]
    try:
        widths = {2 * len(table[0]) for table in maker.tables(maker.config(head_dim=None, hidden_size=hidden)).values()}
    except Exception:  # noqa: BLE001 - a class may not accept it
        return False
    return bool(max(widths) > 2 * known["default_head_dim"])


def _scaled_labels(maker: Maker, base: Tables, spelling: str = "rope_type", mscales: Iterable[str] = ()) -> list[str]:
    """Return the labels whose tables change with a rope_scaling and no rope parameters.

    Returns `stops` if the class raises an error.
    """
    none = {"rope_parameters": None} if "rope_parameters" in maker.small else {}
    scaling = {spelling: "linear", "factor": 4.0, **dict.fromkeys(mscales, 1.0)}
    try:
        other = maker.tables(maker.config(**none, rope_scaling=scaling))
    except Exception:  # noqa: BLE001 - a class may not accept it, which is the fact
        return ["stops"]
    return sorted(label for label in base.keys() & other.keys() if other[label][0][0] < 0.5 * base[label][0][0])


def _base_of(table: Any) -> float:
    """Return the base of a plain table."""
    return float(table[1]) ** -len(table)
