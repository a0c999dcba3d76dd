"""Convert the records that scripts/families/probe reads from transformers into the keys of a family's file.

If the mechanisms of this package cannot describe a record completely, or if nothing rotates, the error has the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from ropetool.families.wrappers import Wrapper

FULL, SLIDING = "full_attention", "sliding_attention"
ROPE_THETA = "rope_theta"
VERSION = "5.24.0"  # of transformers; a test compares it with the records
HANDS_OVER = "hands over"
PROVEN, UNROTATED = "proven", "does not rotate"
# Facts with the same name in a record and in a family's file.
ALIKE = (
    "model_type", "architecture", "default_head_dim", "default_partial_rotary_factor", "default_max_position_embeddings",
    "default_original_max_position_embeddings", "default_sizes", "mla", "null_head_dim", "rope_types",
)  # fmt: skip
# Types whose record is not enough, because it describes the class and not the published files.
ELSEWHERE = {
    "blt": "several models inside it rotate, each with separate rope keys",
    "pi0": "two models inside it rotate side by side and share their positions",
    "florence2": "its text model is a bart, which has no rotary positions",
    "inkling_mm_model": "its text model is an inkling_text, which has no rotary positions",
    "vision-encoder-decoder": "its decoder is a separate checkpoint, joined by cross attention",
    "dbrx": (
        "its published configs set the base in attn_config, which transformers 5 does not read: it always rotates with base 10000"
    ),
    "dia": "its text encoder and its audio decoder rotate with separate rope keys",
    "t5gemma": "its encoder and its decoder rotate with separate rope keys",
    "t5gemma2": "its encoder and its decoder rotate with separate rope keys",
}
# Types that cannot be extended, with the reason.
SETTLED = {
    "beam": "its full-attention layers do not rotate, and its other layers have a fixed window at any context length",
    "recurrent_gemma": "its class accepts only the unscaled table, and its layers look back 2048 tokens at any context length",
}
WINDOWS = ("never", "always", "alternate", "use_sliding_window")


# Types without rotation that are not language models. The list in unrotated.txt contains only language models.
OTHERS = frozenset({"albert", "deberta", "deberta-v2", "distilbert", "t5"})


class Undescribed(Exception):
    """The mechanisms of this package cannot describe a record. The message has the reason."""


@cache
def names() -> frozenset[str]:
    """Return the model types with a record, including records that cannot be described."""
    entries = resources.files(__package__).joinpath("generated").iterdir()
    return frozenset(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


@cache
def unrotated() -> frozenset[str]:
    """Return the model types without rotary positions."""
    text = resources.files(__package__).joinpath("unrotated.txt").read_text(encoding="utf-8")
    return OTHERS | frozenset(text.split())


def facts(model_type: str) -> dict[str, Any]:
    """Return the facts of a record as the keys of a family's file.

    Raises: Undescribed with the reason.
    """
    known = {**ELSEWHERE, **SETTLED}
    if model_type in known:
        raise Undescribed(known[model_type])
    record = _record(model_type) or _within(model_type)
    if record is None:
        raise Undescribed("no data from transformers on it")
    return described(record, model_type)


def described(record: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return the facts of a type's record as the keys of a family's file.

    Raises: Undescribed with the reason.
    """
    if record["outcome"] == UNROTATED:
        return _unrotated(record)
    if record["outcome"] != PROVEN:
        raise Undescribed(record["reason"])
    if record.get("text_type", model_type) != model_type:
        raise Undescribed(f"it uses the {record['text_type']} inside it")
    return {**_rotating(record), "model_type": model_type}


def handing_over(model_type: str) -> Wrapper | None:
    """Return how a config of this type wraps a text model, or None if it is not a wrapper."""
    record = _record(model_type)
    return None if model_type in ELSEWHERE or record is None else wrapper_in(record)


def wrapper_in(record: Mapping[str, Any]) -> Wrapper | None:
    """Return the wrapper that a record describes, or None if the type does not contain a text model."""
    if record["outcome"] not in (PROVEN, HANDS_OVER) or not record.get("text_path"):
        return None
    return Wrapper(
        ".".join(record["text_path"]), record["text_type"], fixed=not record.get("takes_text_types", True),
        needs=tuple(record.get("text_fills", ())), renames=record.get("text_renames", {}), source=_source(record),
    )  # fmt: skip


def renames(model_type: str) -> dict[str, str]:
    """Return the inner model types that a wrapper's class replaces, each with the type that the class builds."""
    return dict((_record(model_type) or {}).get("text_renames", {}))


def rest(model_type: str) -> dict[str, Any]:
    """Return the keys that a record adds to a family's file of the same name.

    These are all keys except the model_type. If the record cannot be described: only the class's treatment of odd
    spellings.
    """
    try:
        return {key: value for key, value in facts(model_type).items() if key != "model_type"}
    except Undescribed:
        record = _record(model_type)
        return {} if record is None or record["outcome"] != PROVEN else _odd(record, {})


def _odd(record: Mapping[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
    """Return the class's treatment of nulls and older keys.

    ours: this package's names of the layer types, by the class's names.
    """
    keys: dict[str, Any] = {
        key: record[key]
        for key in ("not_null", "rotary_dim_key", "shadows_type", "mscale_keys", "no_scaling_stops")
        if key in record
    }
    keys["mrope"] = bool(record.get("mrope_section"))
    null = ["computed"] if record.get("null_head_dim_computed") else []
    if record.get("stated_null_head_dim") == "stops yarn":
        null.append("stops yarn")
    keys["stated_null_head_dim"] = null
    if "rope_scaling_reaches" in record:
        keys["rope_scaling_reaches"] = [
            ours.get(layer_type, layer_type) for layer_type in record["rope_scaling_reaches"]
        ]
    if "base_of_stated_keys" in record:
        bases = record["base_of_stated_keys"]
        keys["base_of_stated_keys"] = {ours.get(layer_type, layer_type): base for layer_type, base in bases.items()}
    return keys


def _within(model_type: str) -> dict[str, Any] | None:
    """Return the record of a wrapper, for the type of its text model, if that type has no record; else None."""
    name = text_types().get(model_type)
    return None if name is None else _record(name)


@cache
def text_types() -> dict[str, str]:
    """Return the proven wrappers by the type of their text model."""
    wrappers: dict[str, str] = {}
    for name in sorted(names() - ELSEWHERE.keys()):
        record = _record(name)
        if record is not None and record["outcome"] == PROVEN and len(record.get("text_path", ())) == 1:
            wrappers.setdefault(record["text_type"], name)
    return wrappers


def reason(model_type: str) -> str:
    """Return why a known type has no family. Empty if the type has a family, or if it is unknown."""
    try:
        facts(model_type)
    except Undescribed as error:
        return str(error) if model_type in names() | text_types().keys() | ELSEWHERE.keys() else ""
    return ""


@cache
def _record(model_type: str) -> dict[str, Any] | None:
    if model_type not in names():
        return None
    text = resources.files(__package__).joinpath("generated").joinpath(f"{model_type}.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return record


def _source(record: Mapping[str, Any]) -> str:
    return f"transformers {record['transformers']}, proven on {record.get('proven_on', record['architecture'])}"


def _unrotated(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: record[key] for key in ALIKE if record.get(key) is not None}, "example": "", "layout": "half",
        "rotates": "none", "default_rope_theta": {FULL: 10000.0},
        "source": f"transformers {record['transformers']}, {record['architecture']}",
    }  # fmt: skip


def _check(record: Mapping[str, Any]) -> None:
    """Raise Undescribed for a record with a property that no mechanism describes, for any layers."""
    if record["layer_types"] and "qk_rope_head_dim" in (
        record["head_dim_key"],
        *record.get("head_dim_keys", {}).values(),
    ):
        raise Undescribed("it has separate decoupled keys for each layer type")
    if record["rope_types"] == ["default"] and not all(table["plain"] for table in record["tables"].values()):
        raise Undescribed("its class accepts only the unscaled type, and orders the pairs of its table by image axes")
    sized = {"hidden_size", "num_attention_heads"} <= record["default_sizes"].keys()
    if not sized and record["default_head_dim"] is None:
        raise Undescribed("no data on the key that sets the size of its heads")


def _rotating(record: Mapping[str, Any]) -> dict[str, Any]:
    layers = [layer for part in ("layers", "layers_with_window") for _, layer in record.get(part, ())]
    attending = [layer for layer in layers if layer["attends"]]
    groups = _groups(record, attending)
    _check(record)
    ours = {name: layer_type for layer_type, name in groups.items()}
    type_names = {**_type_names(attending), **ours}
    keys = {key: record[key] for key in ALIKE if record.get(key) is not None}
    keys |= {
        "example": "", "source": _source(record), "layout": _one(attending, "layout"),
        "rotates": _rotates(record, layers),
        "default_rope_theta": {ours.get(name, name): theta for name, theta in record["default_rope_theta"].items()},
        **_default_types(record, type_names), **_windows(record), **_heads(record), **_odd(record, ours),
    }  # fmt: skip
    if record["layer_types"]:
        keys["layer_types"] = sorted(ours.get(name, name) for name in record["layer_types"])
    if any(layer_type != name for layer_type, name in groups.items()):
        keys["rope_groups"] = {layer_type: name for layer_type, name in groups.items() if layer_type != name}
    rope_keys = record["default_rope_parameters"]
    if record["layer_types"]:
        outside = () if record["base_keys_need_rope_parameters"] else (ROPE_THETA,)  # the base may be outside rope keys
        keys["default_rope_keys"] = {
            ours.get(name, name): {key: value for key, value in of_type.items() if key not in outside}
            for name, of_type in rope_keys.items()
        }
    elif rope_keys.get("rope_type", "default") != "default" or record["base_keys_need_rope_parameters"]:
        keys["default_rope_keys"] = {FULL: rope_keys}
    share = record["partial_in_rope_parameters"] or record["default_partial_rotary_factor"] != 1
    if record["partial_rotary_key"] or (share and not _whole(record)):
        keys["partial_rotary_key"] = record["partial_rotary_key"] or "partial_rotary_factor"
    if record["layer_types"]:
        keys.pop("default_partial_rotary_factor", None)  # if keys are nested, each object has it
    elif "share_of_stated_keys" in record:
        keys["default_partial_rotary_factor"] = record["share_of_stated_keys"][FULL]
    keys["rope_theta_key"] = record["rope_theta_key"]
    local = [key for key, labels in record["base_keys"].items() if groups.get(SLIDING) in labels]
    keys["local_theta_key"] = local[0] if local else ""
    keys |= {
        key: record[key] for key in ("interleave_key", "off_key", "layer_base_key", "stretch_key") if record.get(key)
    }
    if record["temperature_key"]:
        rotating = any(layer.get("temperature") for layer in attending if layer["rotates"])
        known = "llama_4_scaling_beta"
        if rotating:  # a family's file cannot describe a temperature of layers that do not rotate
            keys["temperature_key"] = _known(
                record["temperature_key"],
                (known,),
                "ropetool does not support its key {}, which scales attention by position",
            )
    vanishing = {layer["factor_vanishes"] for layer in attending if layer["rotates"]}
    if len(vanishing) > 1:
        raise Undescribed("norms follow the rotation in only some of its layers")
    return {**keys, "norm_after": vanishing.pop()}


def _known(value: str, known: Sequence[str], what: str) -> str:
    if value not in known:
        raise Undescribed(what.format(value))
    return value


def _one(attending: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Return the value of a key that all rotations of the attention share. Raises: Undescribed if they differ."""
    values = {one[key] for layer in attending for one in layer.get("rotations", ()) if "in" not in one}
    if len(values) != 1:
        raise Undescribed(f"its layers differ in {key}: {', '.join(sorted(map(str, values)))}")
    return values.pop()


def _groups(record: Mapping[str, Any], attending: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the rope groups by layer type: full attention, and sliding attention if it is separate.

    Raises: Undescribed if the groups do not match the layer types.
    """
    if not record["layer_types"]:
        return {FULL: FULL}
    groups: dict[str, str] = {}
    for layer in attending:
        for name in layer.get("tables", ()):
            layer_type = SLIDING if layer.get("window") == "sliding" else FULL
            others = [other for another, other in groups.items() if another != layer_type]
            if groups.setdefault(layer_type, name) != name or name in others:
                raise Undescribed(f"its rope groups {' and '.join(record['layer_types'])} do not match its layer types")
    if FULL not in groups or set(groups.values()) != set(record["layer_types"]):
        raise Undescribed(f"its rope groups {' and '.join(record['layer_types'])} do not match its layer types")
    return groups


def _type_names(attending: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return transformers' other names for layers with full attention."""
    names: dict[str, str] = {}
    for layer in attending:
        name = layer.get("kind")
        if name and name not in (FULL, SLIDING) and layer.get("window") in ("full", "chunked"):
            names[name] = FULL
    return names


def _rotates(record: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> str:
    still = [layer for layer in layers if layer["attends"] and not layer["rotates"]]
    stateful = [layer for layer in layers if not layer["attends"]]
    if not stateful:
        return str(record["rotates"])
    if record["layer_types"] and not still:
        return "all"
    attending = [layer for layer in layers if layer["attends"]]
    if attending and not still and all(layer.get("window") == "sliding" for layer in attending):
        return "sliding"
    if still or any(layer["attends"] and layer.get("window") == "sliding" for _, layer in record["layers"]):
        raise Undescribed("some of its layers keep a state, others have a sliding window or do not rotate")
    return "full"


def _default_types(record: Mapping[str, Any], type_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the default layer types of the class, in order, and its names for them."""
    runs = record.get("default_layer_types")
    if not runs:
        return {}
    layer_types = [type_names.get(name, name) for count, name in runs for _ in range(count)]
    others = [layer_type for layer_type in layer_types if layer_type != FULL]
    keys: dict[str, Any] = {"default_kinds": layer_types}
    if others:
        keys["pattern_other"] = others[0]
    if len(layer_types) == record["default_sizes"].get("num_hidden_layers"):
        keys["kinds_count"] = len(layer_types)
    if any(name != layer_type for name, layer_type in type_names.items()):
        keys["kind_names"] = {name: layer_type for name, layer_type in type_names.items() if name != layer_type}
    return keys


def _windows(record: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "sliding_window": _known(record["sliding_window"], WINDOWS, "its window depends on {}, which is not decoded")
    }
    if record.get("default_sliding_window") is not None and keys["sliding_window"] != "never":
        keys["default_sliding_window"] = record["default_sliding_window"]
    if record.get("max_position_embeddings_key"):
        keys["context_key"] = record["max_position_embeddings_key"]
    if record.get("sliding_window_key"):
        keys["window_key"] = record["sliding_window_key"]
    if any(layer.get("window") == "chunked" for _, layer in record["layers"]):
        keys["chunked"] = True
    if record.get("unrotated_window_key"):
        keys["unrotated_window_key"] = record["unrotated_window_key"]
    return keys


def _heads(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the head size, and the default head sizes if they depend on the layer type."""
    if "head_dim_keys" not in record:
        return {"head_dim_key": record["head_dim_key"]} if record["head_dim_key"] else {}
    keys = {layer_type: key for layer_type, key in record["head_dim_keys"].items() if key}
    widths = {layer_type: table["rotary_dim"] for layer_type, table in record["tables"].items()}
    return {"head_dim_keys": keys, "default_head_dims": widths}


def _whole(record: Mapping[str, Any]) -> bool:
    """Return whether the table has the width of a whole head.

    The other pairs of a partial rotation then have frequency 0.
    """
    return any(0.0 in table["inv_freq"].values() for table in record["tables"].values())
