"""From the facts that scripts/families/probe reads from transformers, one record a model type, to what a family's file states.

A record is turned into a family where the mechanisms of this package describe it whole; where they do not, and where
there is nothing to rotate, the reason is kept for the refusal.
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
VERSION = "5.23.0"  # of transformers, which a test holds against the records
HANDS_OVER = "hands over"
PROVEN, UNROTATED = "proven", "does not rotate"
# Facts that have a family's own names.
ALIKE = (
    "model_type", "architecture", "default_head_dim", "default_partial_rotary_factor", "default_max_position_embeddings",
    "default_original_max_position_embeddings", "default_sizes", "mla", "null_head_dim", "rope_types",
)  # fmt: skip
# What a record does not tell, for it is read from the class and not from the files that are published.
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
# Where there is nothing to extend, and why.
SETTLED = {
    "beam": "its full-attention layers do not rotate, and its other layers have a fixed window at any context length",
    "recurrent_gemma": "its class accepts only the unscaled table, and its layers look back 2048 tokens at any context length",
}
WINDOWS = ("never", "always", "alternate", "use_sliding_window")


# Types that nothing rotates and that are no language models, so that the list in unrotated.txt does not hold them.
OTHERS = frozenset({"albert", "deberta", "deberta-v2", "distilbert", "t5"})


class Undescribed(Exception):
    """A record that no mechanism of this package describes: what is particular to it."""


@cache
def names() -> frozenset[str]:
    """Return the model types that are recorded, described or not."""
    entries = resources.files(__package__).joinpath("generated").iterdir()
    return frozenset(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


@cache
def unrotated() -> frozenset[str]:
    """Return the model types without rotary positions."""
    text = resources.files(__package__).joinpath("unrotated.txt").read_text(encoding="utf-8")
    return OTHERS | frozenset(text.split())


def facts(model_type: str) -> dict[str, Any]:
    """Return what a record says, as a family's file would state it.

    Raises: Undescribed with what no mechanism describes.
    """
    known = {**ELSEWHERE, **SETTLED}
    if model_type in known:
        raise Undescribed(known[model_type])
    record = _record(model_type) or _within(model_type)
    if record is None:
        raise Undescribed("no data from transformers on it")
    return described(record, model_type)


def described(record: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return what a record says of a type, as a family's file would state it.

    Raises: Undescribed with what no mechanism describes.
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
    """Return the keys that a record gives to a family's file of the same name.

    All keys but the name if the mechanisms describe the record, else only how its class reads odd spellings.
    """
    try:
        return {key: value for key, value in facts(model_type).items() if key != "model_type"}
    except Undescribed:
        record = _record(model_type)
        return {} if record is None or record["outcome"] != PROVEN else _odd(record, {})


def _odd(record: Mapping[str, Any], theirs: Mapping[str, str]) -> dict[str, Any]:
    """Return what a class does with nulls and older keys.

    theirs: this package's names of the kinds of layer, by the class's.
    """
    found = {
        key: record[key]
        for key in ("not_null", "rotary_dim_key", "shadows_type", "mscale_keys", "no_scaling_stops")
        if key in record
    }
    found["mrope"] = bool(record.get("mrope_section"))
    null = ["computed"] if record.get("null_head_dim_computed") else []
    if record.get("stated_null_head_dim") == "stops yarn":
        null.append("stops yarn")
    found["stated_null_head_dim"] = null
    if "rope_scaling_reaches" in record:
        found["rope_scaling_reaches"] = [theirs.get(kind, kind) for kind in record["rope_scaling_reaches"]]
    if "base_of_stated_keys" in record:
        bases = record["base_of_stated_keys"]
        found["base_of_stated_keys"] = {theirs.get(kind, kind): base for kind, base in bases.items()}
    return found


def _within(model_type: str) -> dict[str, Any] | None:
    """Return the record of a wrapper whose text model, of this type, has none of its own."""
    name = text_types().get(model_type)
    return None if name is None else _record(name)


@cache
def text_types() -> dict[str, str]:
    """Return the wrappers that were proven, by the type of the text model inside."""
    found: dict[str, str] = {}
    for name in sorted(names() - ELSEWHERE.keys()):
        record = _record(name)
        if record is not None and record["outcome"] == PROVEN and len(record.get("text_path", ())) == 1:
            found.setdefault(record["text_type"], name)
    return found


def reason(model_type: str) -> str:
    """Return why a type that transformers knows has no family; empty where it has one, or is not known either."""
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
    found: dict[str, Any] = json.loads(text)
    return found


def _source(record: Mapping[str, Any]) -> str:
    return f"transformers {record['transformers']}, proven on {record.get('proven_on', record['architecture'])}"


def _unrotated(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: record[key] for key in ALIKE if record.get(key) is not None}
    return {
        **found, "example": "", "layout": "half", "rotates": "none", "default_rope_theta": {FULL: 10000.0},
        "source": f"transformers {record['transformers']}, {record['architecture']}",
    }  # fmt: skip


def _check(record: Mapping[str, Any]) -> None:
    """Raise Undescribed for what no mechanism describes, whichever layers it has."""
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
    theirs = {name: kind for kind, name in groups.items()}
    kind_names = {**_kind_names(attending), **theirs}
    found = {key: record[key] for key in ALIKE if record.get(key) is not None}
    found |= {
        "example": "", "source": _source(record), "layout": _one(attending, "layout"),
        "rotates": _rotates(record, layers),
        "default_rope_theta": {theirs.get(kind, kind): theta for kind, theta in record["default_rope_theta"].items()},
        **_kinds(record, kind_names), **_windows(record), **_heads(record), **_odd(record, theirs),
    }  # fmt: skip
    if record["layer_types"]:
        found["layer_types"] = sorted(theirs.get(kind, kind) for kind in record["layer_types"])
    if any(kind != name for kind, name in groups.items()):
        found["rope_groups"] = {kind: name for kind, name in groups.items() if kind != name}
    keys = record["default_rope_parameters"]
    if record["layer_types"]:
        beside = () if record["base_keys_need_rope_parameters"] else (ROPE_THETA,)  # a base that may stand beside
        found["default_rope_keys"] = {
            theirs.get(kind, kind): {key: value for key, value in stated.items() if key not in beside}
            for kind, stated in keys.items()
        }
    elif keys.get("rope_type", "default") != "default" or record["base_keys_need_rope_parameters"]:
        found["default_rope_keys"] = {FULL: keys}
    share = record["partial_in_rope_parameters"] or record["default_partial_rotary_factor"] != 1
    if record["partial_rotary_key"] or (share and not _whole(record)):
        found["partial_rotary_key"] = record["partial_rotary_key"] or "partial_rotary_factor"
    if record["layer_types"]:
        found.pop("default_partial_rotary_factor", None)  # of nested keys it stands in each object
    elif "share_of_stated_keys" in record:
        found["default_partial_rotary_factor"] = record["share_of_stated_keys"][FULL]
    found["rope_theta_key"] = record["rope_theta_key"]
    local = [key for key, labels in record["base_keys"].items() if groups.get(SLIDING) in labels]
    found["local_theta_key"] = local[0] if local else ""
    found |= {
        key: record[key] for key in ("interleave_key", "off_key", "layer_base_key", "stretch_key") if record.get(key)
    }
    if record["temperature_key"]:
        rotating = any(layer.get("temperature") for layer in attending if layer["rotates"])
        known = "llama_4_scaling_beta"
        if rotating:  # of layers that do not rotate no file of ours says anything
            found["temperature_key"] = _known(
                record["temperature_key"],
                (known,),
                "ropetool does not support its key {}, which scales attention by position",
            )
    vanishing = {layer["factor_vanishes"] for layer in attending if layer["rotates"]}
    if len(vanishing) > 1:
        raise Undescribed("norms follow the rotation in only some of its layers")
    return {**found, "norm_after": vanishing.pop()}


def _known(value: str, known: Sequence[str], what: str) -> str:
    if value not in known:
        raise Undescribed(what.format(value))
    return value


def _one(attending: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Return what all rotations of the attention itself have in common."""
    found = {turn[key] for layer in attending for turn in layer.get("rotations", ()) if "in" not in turn}
    if len(found) != 1:
        raise Undescribed(f"its layers differ in {key}: {', '.join(sorted(map(str, found)))}")
    return found.pop()


def _groups(record: Mapping[str, Any], attending: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the words of its rope groups by kind of layer: full attention, and sliding where that has one of its own."""
    if not record["layer_types"]:
        return {FULL: FULL}
    found: dict[str, str] = {}
    for layer in attending:
        for name in layer.get("tables", ()):
            kind = SLIDING if layer.get("window") == "sliding" else FULL
            if found.setdefault(kind, name) != name or name in [other for k, other in found.items() if k != kind]:
                raise Undescribed(f"its rope groups {' and '.join(record['layer_types'])} do not match its layer types")
    if FULL not in found or set(found.values()) != set(record["layer_types"]):
        raise Undescribed(f"its rope groups {' and '.join(record['layer_types'])} do not match its layer types")
    return found


def _kind_names(attending: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return transformers' other words for layers that attend to everything."""
    found: dict[str, str] = {}
    for layer in attending:
        kind = layer.get("kind")
        if kind and kind not in (FULL, SLIDING) and layer.get("window") in ("full", "chunked"):
            found[kind] = FULL
    return found


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


def _kinds(record: Mapping[str, Any], kind_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the kinds that the class gives its layers, in order, and its words for them."""
    runs = record.get("default_layer_types")
    if not runs:
        return {}
    kinds = [kind_names.get(kind, kind) for count, kind in runs for _ in range(count)]
    others = [kind for kind in kinds if kind != FULL]
    found: dict[str, Any] = {"default_kinds": kinds}
    if others:
        found["pattern_other"] = others[0]
    if len(kinds) == record["default_sizes"].get("num_hidden_layers"):
        found["kinds_count"] = len(kinds)
    if any(kind != name for kind, name in kind_names.items()):
        found["kind_names"] = {kind: name for kind, name in kind_names.items() if kind != name}
    return found


def _windows(record: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sliding_window": _known(record["sliding_window"], WINDOWS, "its window depends on {}, which is not decoded")
    }
    if record.get("default_sliding_window") is not None and found["sliding_window"] != "never":
        found["default_sliding_window"] = record["default_sliding_window"]
    if record.get("max_position_embeddings_key"):
        found["context_key"] = record["max_position_embeddings_key"]
    if record.get("sliding_window_key"):
        found["window_key"] = record["sliding_window_key"]
    if any(layer.get("window") == "chunked" for _, layer in record["layers"]):
        found["chunked"] = True
    if record.get("unrotated_window_key"):
        found["unrotated_window_key"] = record["unrotated_window_key"]
    return found


def _heads(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the size of a head is stated, and what it is where it is not."""
    if "head_dim_keys" not in record:
        return {"head_dim_key": record["head_dim_key"]} if record["head_dim_key"] else {}
    keys = {kind: key for kind, key in record["head_dim_keys"].items() if key}
    widths = {kind: table["rotary_dim"] for kind, table in record["tables"].items()}
    return {"head_dim_keys": keys, "default_head_dims": widths}


def _whole(record: Mapping[str, Any]) -> bool:
    """Return whether a share of the head is turned by pairs that stand still, so that the table has the head's width."""
    return any(0.0 in table["inv_freq"].values() for table in record["tables"].values())
