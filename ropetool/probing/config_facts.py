"""What a config class does with its keys: each is changed in turn, and the rotary modules built from it are asked."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropetool.probing import rotating, rotation, tiny
from ropetool.probing.rotation import Subject

Tables = dict[str, tuple[Any, float]]  # by label: inverse frequencies in float64, the factor on cos and sin
ONE = "full_attention"  # the label where a class has one table
BASE = 54321.0
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
HEAD_KEYS = r"(qk_rope_|global_|swa_|local_|attention_|rope_)?head_dim|kv_channels|head_size|d_kv|attention_head_size"
SHARE_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rotary_emb_fraction", "rotary_dim")
BASE_KEYS = (
    "rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta",
    "compress_rope_theta",
)  # fmt: skip
TEMPERATURES = r".*(scaling_beta|attn_temperature_tuning|log_scaling_alpha)"
WINDOWS = r"sliding_window(_size)?|attention_window_size|attention_chunk_size|local_attention"
SWITCH = "use_sliding_window"
STRETCH = "alpha"
MSCALES = ("short_mscale", "long_mscale")


class Maker:
    """Builds tiny configs of one class with keys of choice, and rotary modules of them."""

    def __init__(self, text: Any, subject: Subject, used: Iterable[str]) -> None:
        self.text, self.subject = text, subject
        self.small = tiny.overrides(text)
        self.small.pop("head_dim", None)
        self.modules = {name: subject.rotary[name] for name in sorted({one.partition(":")[0] for one in used})}

    def config(self, **keys: Any) -> Any:
        """Return a tiny config with more keys stated."""
        config = type(self.text)(**copy.deepcopy({**self.small, **keys}))
        config.allow_global_per_layer_attribute_access = True
        return config

    def tables(self, config: Any) -> Tables:
        """Return the tables of the rotary modules that this config would make."""
        found: Tables = {}
        for module in self.modules.values():
            built = type(module)(part(config, module))
            for key, value in built.named_buffers(recurse=False):
                if key.endswith("inv_freq") and "original" not in key:
                    label = key.removesuffix("inv_freq").rstrip("_")
                    factor = getattr(built, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)
                    found[label or ONE] = (value.double(), float(factor))
        return found

    def changed(self, base: Tables, **keys: Any) -> list[str]:
        """Return the labels whose tables differ with these keys, none where the class does not take them."""
        try:
            other = self.tables(self.config(**keys))
        except Exception:  # noqa: BLE001 - a class may stop at a key with any error
            return []
        return sorted(label for label in base.keys() & other.keys() if not _same(base[label], other[label]))

    def shares(self, base: Tables, **keys: Any) -> dict[str, float]:
        """Return by label how many times longer the table gets with these keys."""
        try:
            other = self.tables(self.config(**keys))
        except Exception:  # noqa: BLE001 - a class may stop at a key with any error
            return {}
        return {label: len(other[label][0]) / len(base[label][0]) for label in base.keys() & other.keys()}


def part(config: Any, module: Any) -> Any:
    """Return the config, or the part of it, that a rotary module was built from."""
    kind = type(getattr(module, "config", config))
    parts = (one for one in vars(config).values() if type(one) is kind)
    return config if type(config) is kind else next(parts, config)


def _same(one: tuple[Any, float], other: tuple[Any, float]) -> bool:
    if one[0].shape != other[0].shape:
        return False
    return bool((one[0] - other[0]).abs().max() <= 1e-6 * one[0].abs().max()) and abs(one[1] - other[1]) < 1e-6


def rope_parameters(config: Any) -> dict[str, dict[str, Any]]:
    """Return the rope parameters of a config by label."""
    stated = getattr(config, "rope_parameters", None) or {}
    nested = {key: value for key, value in stated.items() if isinstance(value, dict)}
    return nested or {ONE: dict(stated)}


def facts(maker: Maker, default: Any, build: Callable[..., Subject]) -> dict[str, Any]:
    """Return what the class assumes and where it looks, under the names of a family's fields.

    default: the text config of the class's own defaults, at full size. build: a model from keys.
    """
    small = maker.config()
    base = maker.tables(small)
    inner = part(small, next(iter(maker.modules.values())))
    found: dict[str, Any] = {}
    if inner is not small:
        key = next(key for key, value in vars(small).items() if value is inner)
        found |= {"text_path": [key], "text_type": inner.model_type}  # the part whose keys decide
        default = getattr(default, key)
    stated = {label: value for label, value in rope_parameters(inner).items() if label in base}
    if not stated:  # one table from rope keys that have labels nothing uses
        stated = dict.fromkeys(base, next(iter(rope_parameters(inner).values())))
    names = dict(getattr(default, "attribute_map", {}))
    labels = sorted(base)
    found["layer_types"] = labels if nested(inner) else []
    found["default_rope_theta"] = {
        one: float(stated[one]["rope_theta"]) for one in labels if "rope_theta" in stated[one]
    }
    types = sorted({str(one.get("rope_type", "default")) for one in stated.values()})
    found["default_rope_type"] = types[0] if len(types) == 1 else {one: stated[one]["rope_type"] for one in labels}
    found["default_max_position_embeddings"] = getattr(default, "max_position_embeddings", None)
    found["default_original_max_position_embeddings"] = getattr(default, "original_max_position_embeddings", None)
    found["default_rope_parameters"] = getattr(default, "rope_parameters", None) or {}
    found["default_sizes"] = {
        key: getattr(default, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        if type(getattr(default, key, None)) is int and not (key == "num_key_value_heads" and _follows_heads(default, names))
    }  # fmt: skip
    renamed = ("max_position_embeddings", *found["default_sizes"])
    if "max_position_embeddings" in names:
        found["max_position_embeddings_key"] = names["max_position_embeddings"]
    found["key_names"] = {key: names[key] for key in renamed if key in names}
    found.update(_head_dim(maker, default, base, names))
    found.update(_shares(maker, base, stated, build))
    alone = {key: changed for key in BASE_KEYS if (changed := maker.changed(base, **{key: BASE}))}
    bare = _bare(small)
    beside = {key: changed for key in BASE_KEYS if (changed := _changed_beside(maker, bare, key))}
    found["base_keys"] = {**beside, **alone}
    found["base_keys_need_rope_parameters"] = bool(beside) and not alone
    found["rope_theta_key"] = next(iter(found["base_keys"]), "")
    found.update(_rope_types(maker))
    found.update(_stretch_key(maker))
    found.update(_unusual(maker, base, found))
    found["mrope_section"] = _sections(maker)
    found["layer_base_key"] = _layer_base_key(maker, build)
    found["tables"] = {label: _table(base[label], stated[label]) for label in labels}
    return found


def _changed_beside(maker: Maker, bare: dict[str, Any], key: str) -> list[str]:
    """Return the labels whose tables a base key changes beside rope parameters that state none."""
    try:
        base = maker.tables(maker.config(rope_parameters=copy.deepcopy(bare)))
    except Exception:  # noqa: BLE001 - a class may want a base there
        base = {}
    return maker.changed(base, rope_parameters=copy.deepcopy(bare), **{key: BASE})


def _bare(config: Any) -> dict[str, Any]:
    """Return rope parameters of the default type that state no base."""
    kept = {"rope_type": "default"}
    stated = getattr(config, "rope_parameters", None) or {}
    if nested(config):
        return {label: dict(kept) if isinstance(value, dict) else value for label, value in stated.items()}
    return kept


def _table(table: tuple[Any, float], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table in short: its length, five of its frequencies, whether it is the plain one of its base."""
    frequencies, factor = table
    count = len(frequencies)
    plain = None
    if "rope_theta" in stated:
        exponents = frequencies.new_tensor([-2.0 * i / (2 * count) for i in range(count)])
        plain = bool(((float(stated["rope_theta"]) ** exponents) / frequencies - 1).abs().max() < 3e-6)
    return {
        "rotary_dim": 2 * count,
        "attention_factor": float(f"{factor:.9g}"),
        "plain": plain,
        "inv_freq": {str(i): float(f"{float(frequencies[i]):.7g}") for i in sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})},
    }  # fmt: skip


def _sections(maker: Maker) -> list[int]:
    """Return how the rotary pairs are shared out among the axes of images and video; empty where one axis has all."""
    for module in maker.modules.values():
        stated = getattr(module, "mrope_section", None)
        one = next(iter(stated.values()), None) if isinstance(stated, dict) else stated
        if one:
            return [int(pairs) for pairs in one]
    return []


def _layer_base_key(maker: Maker, build: Callable[..., Subject]) -> str:
    """Return the key that lists a base for each layer, and has the layers follow different tables."""
    small = maker.config()
    count = getattr(small, "num_hidden_layers", 0)
    for key, value in small.to_dict().items():
        if re.search("theta", key) and isinstance(value, list) and len(value) == count:
            run = build(**{key: [BASE if number % 2 else value[number] for number in range(count)]}).run()
            if len(run.tables) > 1:
                return str(key)
    return ""


def _follows_heads(default: Any, names: Mapping[str, str]) -> bool:
    """Return whether a class that is told no number of key heads takes that of the heads."""
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
    if not hasattr(small, "hidden_size"):  # a class of parts, each with sizes of its own
        return {"head_dim_key": "", "default_head_dim": None, "null_head_dim": []}
    ratio = small.hidden_size // small.num_attention_heads
    by_label: dict[str, list[str]] = {label: [] for label in base}
    for key in sorted(native, key=lambda one: (one != "qk_rope_head_dim", one != "head_dim", one)):
        value = getattr(small, key, None) or ratio
        times = maker.shares(base, **{key: 2 * value}) or maker.shares(base, **{key: value // 2})
        for label in times:
            if times[label] != 1.0:
                by_label[label].append(key)
    own = names.get("head_dim", "head_dim")  # the name in config.json of what code calls head_dim
    first = {label: (keys[0] if keys[0] != "head_dim" else own) if keys else "" for label, keys in by_label.items()}
    key = next(iter(first.values()), "")
    wider = maker.shares(base, **{names.get("hidden_size", "hidden_size"): 2 * small.hidden_size})
    computed = any(times != 1.0 for times in wider.values())
    found: dict[str, Any] = {
        "head_dim_key": key,
        "default_head_dim": None if computed or not key else getattr(default, key, None),
        "null_head_dim": ["transformers"] if key == own and _breaks(maker) else [],
        "stated_null_head_dim": "stops yarn" if key == own and _breaks(maker, head_dim=None) else "as absent",
    }
    if len(set(first.values())) > 1:
        found["head_dim_keys"] = first
    return found


def _breaks(maker: Maker, **keys: Any) -> bool:
    """Return whether yarn stops without a head size, for one that stays null."""
    values = _of_type("yarn", maker.config())
    try:
        maker.tables(maker.config(rope_parameters=values, **keys))
    except TypeError:
        return True
    except Exception:  # noqa: BLE001 - a class may stop at a key with any error
        return False
    return False


def _shares(
    maker: Maker, base: Tables, stated: Mapping[str, Mapping[str, Any]], build: Callable[..., Subject]
) -> dict[str, Any]:
    default = {label: float(one.get("partial_rotary_factor") or 1.0) for label, one in stated.items()}
    first = next(iter(default.values()), 1.0)
    longest = 2 * max(len(table[0]) for table in base.values())
    keys = {one: longest // 2 if one == "rotary_dim" else first / 2 for one in SHARE_KEYS}
    key = next((one for one, value in keys.items() if _halves(maker, base, build, **{one: value})), "")
    halved = {label: {"partial_rotary_factor": default[label] / 2} for label in stated}
    inner = {"rope_parameters": _with(maker.config(), halved)}
    found: dict[str, Any] = {
        "partial_rotary_key": key,
        "default_partial_rotary_factor": first,
        "partial_in_rope_parameters": _halves(maker, base, build, **inner),
    }
    if len(set(default.values())) > 1:
        found["partial_rotary_factors"] = default
    return found


def _halves(maker: Maker, base: Tables, build: Callable[..., Subject], **keys: Any) -> bool:
    """Return whether half as many channels rotate with these keys, and the model runs."""
    if not any(times == 0.5 for times in maker.shares(base, **keys).values()):
        return False
    try:
        build(**keys).run()
    except Exception:  # noqa: BLE001 - the table is cut, and the layers may not know it
        return False
    return True


def nested(config: Any) -> bool:
    """Return whether the rope parameters of a config are nested by label."""
    return any(isinstance(value, dict) for value in (getattr(config, "rope_parameters", None) or {}).values())


def _with(config: Any, more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rope parameters of a config with more keys under each label, in the shape that they have."""
    stated = getattr(config, "rope_parameters", None) or {}
    if not nested(config):
        return {**stated, **next(iter(more.values()))}
    return {
        label: {**value, **more[label]} if isinstance(value, dict) and label in more else value
        for label, value in stated.items()
    }


def _of_type(rope_type: str, config: Any, tables: Tables | None = None) -> dict[str, Any]:
    """Return the rope parameters of a config with another type and no keys of its own."""

    def changed(label: str, one: Mapping[str, Any]) -> dict[str, Any]:
        more = {"rope_type": rope_type, **ROPE_TYPES[rope_type]}
        if rope_type == "longrope":
            pairs = len(tables[label][0]) if tables and label in tables else 0
            more |= {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs}
        share = {} if rope_type != "proportional" else {"partial_rotary_factor": 0.5}
        return {**{key: value for key, value in one.items() if key not in OF_TYPES}, **more, **share}

    stated = getattr(config, "rope_parameters", None) or {}
    if nested(config):
        return {label: changed(label, value) if isinstance(value, dict) else value for label, value in stated.items()}
    return changed(ONE, stated)


def _rope_types(maker: Maker) -> dict[str, Any]:
    """Return which types the rotary modules take, and what they say of those that they do not."""
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
        values = _of_type(rope_type, small, tables)
        try:
            try:
                maker.tables(maker.config(rope_parameters={**values, **more}, **size))
            except Exception as error:
                if nested(small) or not any(key in str(error) for key in MSCALES):
                    raise
                more = dict.fromkeys(MSCALES, 1.0)  # which every scaled type must state here
                maker.tables(maker.config(rope_parameters={**values, **more}, **size))
        except Exception as error:  # noqa: BLE001 - a class may stop at a key with any error
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            refused[rope_type] = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]
        else:
            taken.append(rope_type)
    found = {"rope_types": taken if refused else [], "refused_rope_types": refused}
    return {**found, "mscale_keys": sorted(more, reverse=True)} if more else found


def _stretch_key(maker: Maker) -> dict[str, Any]:
    """Return the rope key by whose number the class stretches the base of a `dynamic` table, where it has one."""
    try:
        small = maker.config(head_dim=128)
        values = _of_type("dynamic", small)
        base = maker.tables(maker.config(rope_parameters=values, head_dim=128))
    except Exception:  # noqa: BLE001 - a class may not take the type
        return {}
    more = {label: {STRETCH: 1000.0} for label in (values if nested(small) else [ONE])}
    small.rope_parameters = values
    stretched = _with(small, more)
    return {"stretch_key": STRETCH} if maker.changed(base, rope_parameters=stretched, head_dim=128) else {}


NO_SCALING: tuple[Any, ...] = (False, 0, "", [])  # what transformers 5 takes for no scaling in most classes, as null
NULLABLE = ("head_dim", "num_key_value_heads", "sliding_window", "rope_theta", "partial_rotary_factor")


def _unusual(maker: Maker, base: Tables, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a class reads older or odd spellings, each only where most classes do otherwise."""
    found: dict[str, Any] = {}
    if forbidden := [key for key in NULLABLE if _forbids_null(maker, key)]:
        found["not_null"] = forbidden
    if _ignores_default(maker, known):
        found["null_head_dim_computed"] = True
    longest = max(len(table[0]) for table in base.values())
    if any(times == 0.5 for times in maker.shares(base, rotary_dim=longest).values()):
        found["rotary_dim_key"] = "rotary_dim"
    if "linear" in (known["rope_types"] or ["linear"]) and (
        scaled := _scaled_labels(maker, base, mscales=known.get("mscale_keys", ()))
    ) != [ONE]:
        found["rope_scaling_reaches"] = scaled
    if stopping := [value for value in NO_SCALING if _stops_at_scaling(maker, value)]:
        found["no_scaling_stops"] = stopping
    if known["layer_types"] and _scaled_labels(maker, base, "rope_type") != _scaled_labels(maker, base, "type"):
        found["shadows_type"] = True
    try:
        bare = maker.tables(maker.config(rope_parameters=_bare(maker.config())))
    except Exception:  # noqa: BLE001 - a class may want more of rope parameters that are stated
        return found
    thetas = {label: _base_of(table[0]) for label, table in bare.items()}
    defaults = known["default_rope_theta"]
    plain = all(abs(float(table[0][1]) ** 2 / float(table[0][2]) - 1) < 1e-5 for table in bare.values())
    if plain and any(abs(thetas[label] / defaults[label] - 1) > 1e-3 for label in thetas.keys() & defaults.keys()):
        found["base_of_stated_keys"] = {label: float(f"{theta:.4g}") for label, theta in sorted(thetas.items())}
    times = {label: len(bare[label][0]) / len(base[label][0]) for label in bare.keys() & base.keys()}
    if any(value != 1.0 for value in times.values()):
        found["share_of_stated_keys"] = {
            label: value * known["default_partial_rotary_factor"] for label, value in sorted(times.items())
        }
    return found


def _forbids_null(maker: Maker, key: str) -> bool:
    """Return whether a class that has this key takes no null for it."""
    if not hasattr(maker.config(), key):
        return False
    try:
        maker.config(**{key: None})
    except Exception as error:  # noqa: BLE001 - told from others by its name
        return "FieldValidation" in type(error).__name__
    return False


def _stops_at_scaling(maker: Maker, scaling: Any) -> bool:
    """Return whether a class stops at this rope_scaling, but not at null, when rope_parameters is null."""
    none = {"rope_parameters": None} if "rope_parameters" in maker.small else {}
    try:
        maker.config(**none, rope_scaling=None)
    except Exception:  # noqa: BLE001 - then null stops it too, and the value says nothing
        return False
    try:
        maker.config(**none, rope_scaling=scaling)
    except Exception:  # noqa: BLE001 - classes stop with any error, which is the fact
        return True
    return False


def _ignores_default(maker: Maker, known: Mapping[str, Any]) -> bool:
    """Return whether a head_dim of null means hidden_size // heads where an absent one means a number."""
    if known["default_head_dim"] is None:
        return False
    small = maker.config()
    hidden = 6 * small.num_attention_heads * known["default_head_dim"]
    try:
        widths = {2 * len(table[0]) for table in maker.tables(maker.config(head_dim=None, hidden_size=hidden)).values()}
    except Exception:  # noqa: BLE001 - a class may not take it
        return False
    return bool(max(widths) > 2 * known["default_head_dim"])


def _scaled_labels(maker: Maker, base: Tables, spelling: str = "rope_type", mscales: Iterable[str] = ()) -> list[str]:
    """Return the labels whose tables a rope_scaling beside no rope parameters changes; `stops` where the class does."""
    none = {"rope_parameters": None} if "rope_parameters" in maker.small else {}
    scaling = {spelling: "linear", "factor": 4.0, **dict.fromkeys(mscales, 1.0)}
    try:
        other = maker.tables(maker.config(**none, rope_scaling=scaling))
    except Exception:  # noqa: BLE001 - a class may not take it, which is the fact
        return ["stops"]
    return sorted(label for label in base.keys() & other.keys() if other[label][0][0] < 0.5 * base[label][0][0])


def _base_of(table: Any) -> float:
    """Return the base of a plain table."""
    return float(table[1]) ** -len(table)


# --- facts that need a model


def interleave_key(default: Any, layout: str, build: Callable[..., Subject]) -> str:
    """Return the boolean key that, when turned round, makes another layout."""
    for key, value in default.to_dict().items():
        if isinstance(value, bool) and re.search(r"interleave", key):
            subject = build(**{key: not value})
            if layout_of(rotating.layers(subject, [])) not in ("", layout):
                return str(key)
    return ""


def off_key(default: Any, build: Callable[..., Subject]) -> str:
    """Return the boolean key under which nothing rotates."""
    for key, value in default.to_dict().items():
        if isinstance(value, bool) and re.search(r"alibi|rope|rotary|nope|mem_rope", key) and "interleave" not in key:
            try:
                subject = build(**{key: not value})
                gone = not subject.rotary or not any(one["rotates"] for one in rotating.layers(subject, []))
            except Exception:  # noqa: BLE001 - a class may want more with the switch
                continue
            if gone:
                return str(key)
    return ""


def layout_of(layers: Iterable[Mapping[str, Any]]) -> str:
    """Return how the attention itself pairs channels, empty where no function that rotates was seen."""
    seen = {one["layout"] for layer in layers for one in layer.get("rotations", []) if "in" not in one}
    return seen.pop() if len(seen) == 1 else ""


def temperature_key(maker: Maker, build: Callable[..., Subject]) -> str:
    """Return the key without which no score follows the position."""
    small = maker.config()
    for key, value in small.to_dict().items():
        if re.fullmatch(TEMPERATURES, key) and value:
            subject = build(**{key: False if value is True else 0.0})
            if not rotating.temperatures(subject, subject.run()):
                return str(key)
    stated = dict(getattr(small, "rope_parameters", None) or {})
    for key in stated:
        if re.fullmatch(TEMPERATURES, str(key)):
            subject = build(rope_parameters={**stated, key: 0.0})
            if not rotating.temperatures(subject, subject.run()):
                return str(key)
    return ""


def follows_mscale(maker: Maker, build: Callable[..., Subject]) -> bool:
    """Return whether mscale_all_dim changes the scores beside the table: two that agree leave the table alone."""
    runs = []
    for keys in ({"attention_factor": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}):
        config = maker.config()
        config.rope_parameters = _of_type("yarn", config)
        more = dict.fromkeys(config.rope_parameters if nested(config) else [ONE], keys)
        subject = build(rope_parameters=_with(config, more))
        runs.append(subject.run(lambda _, output: rotation.unturned(output)))
    return rotation.score_change(runs[0], runs[1]) > rotation.MOVES
