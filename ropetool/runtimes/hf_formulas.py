"""The rope formulas of transformers in float64, from stored values, for both generations.

transformers.py and transformers_v4.py read the keys, because the generations look for them in different places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.errors import LossyExport
from ropetool.families.family import Family, at
from ropetool.rope import arithmetic
from ropetool.rope.formulas import (
    Source,
    blend,
    blend_by_dims,
    dynamic_table,
    kept_share_by_turns,
    logn_factor,
    with_share,
)
from ropetool.rope.tables import (
    LARGEST,
    SMALLEST,
    Array,
    LayerRope,
    Regime,
    RopeSet,
    RopeTable,
    Temperature,
    is_multiplier,
    is_number,
)
from ropetool.runtimes.base import NotKnown, Refuses

NEEDS = {
    "linear": (names.FACTOR,),
    "dynamic": (names.FACTOR,),
    "yarn": (names.FACTOR,),
    "longrope": (names.SHORT_FACTOR, names.LONG_FACTOR),
    "llama3": (names.FACTOR, names.LOW_FREQ_FACTOR, names.HIGH_FREQ_FACTOR),
}
NEEDS_NOTHING = ("default", "proportional")
NEEDS_HEAD_DIM = ("yarn", "dynamic", "longrope")  # the types whose formula stops if head_dim is null
STATES_LENGTH = ("yarn", "longrope", "llama3")  # the types whose length transformers 5 fills in
PER_LAYER = ("alternate", "always")  # values of sliding_window that are no key of the config


@dataclass(frozen=True)
class Resolved:
    """The values that a generation of transformers reads from a file, for the formulas.

    rope_type: the type after any override by this generation.
    rope_theta: the base.
    rotary_dim: the number of rotating channels.
    params: the rope keys that the type reads.
    factor: after any override by this generation; None if there is no factor.
    length: original_max_position_embeddings as this generation reads it, in tokens.
    max_position_embeddings: in tokens.
    truncate: YaRN's key.
    head_dim: the channels of a head. The first rotary_dim channels rotate. 0 means that all channels rotate.
    """

    rope_type: str
    rope_theta: float
    rotary_dim: int
    params: Mapping[str, Any]
    factor: float | None
    length: int
    max_position_embeddings: int
    truncate: bool
    head_dim: int = 0


def need_keys(rope_type: str, params: Mapping[str, Any]) -> None:
    """Raise Refuses if a key that the type requires is absent; transformers raises KeyError."""
    missing = [key for key in NEEDS.get(rope_type, ()) if key not in params]
    if missing:
        raise Refuses(f"KeyError: {rope_type} needs {', '.join(missing)}")


def check_type(family: Family, rope_type: str) -> None:
    """Raise Refuses for a type that the class of a family rejects."""
    if family.rope_types and rope_type not in family.rope_types:
        raise Refuses(f"ValueError: {family.model_type} accepts only the rope_type {' or '.join(family.rope_types)}")


def rotary_dim(part: Mapping[str, Any], keys: Mapping[str, Any], family: Family, head: int, rope_type: str) -> int:
    """Return the number of rotating channels of a head.

    Raises: Refuses if the table would have another width than the rotation of the family, or if the share is invalid or
    gives an odd number of channels or fewer than 2.
    """
    if rope_type == "proportional":
        if family.partial_rotary_key:
            raise Refuses(
                f"RuntimeError: a proportional table covers whole heads, but {family.model_type} rotates a part of each head"
            )
        return head  # the pairs beyond its share do not rotate
    share = keys.get(names.PARTIAL_ROTARY_FACTOR, part.get(family.partial_rotary_key or names.PARTIAL_ROTARY_FACTOR))
    if share is None and is_number(part.get(family.rotary_dim_key or "")):
        share = part[family.rotary_dim_key] / head
    if family.mla and family.partial_rotary_key:
        return _decoupled(part, share, head, rope_type)
    if not family.partial_rotary_key:
        if share not in (None, 1) and rope_type != "default":  # the code of the default type does not read it
            raise Refuses(
                f"RuntimeError: partial_rotary_factor is {share}, but {family.model_type} rotates whole heads"
            )
        return head
    share = family.default_partial_rotary_factor if share is None else share
    return rotating_channels(_checked_share(share), head)


def rotating_channels(share: float, head: int) -> int:
    """Return the number of channels in this share of a head. Raises: Refuses if the number is odd or below 2."""
    channels = int(head * share)
    if channels < 2 or channels % 2:
        raise wrong_channels(channels, head)
    return channels


def wrong_channels(channels: int, head: int) -> Refuses:
    """Return the refusal for an odd or too small number of rotating channels."""
    return Refuses(f"{channels} of {head} channels would rotate; the number must be even, from 2 to {head}")


def _checked_share(share: Any) -> float:
    if not is_number(share) or not 0 < share <= 1:
        raise Refuses(f"partial_rotary_factor is {share}; it must be a number above 0, at most 1")
    return float(share)


def _decoupled(part: Mapping[str, Any], share: Any, head: int, rope_type: str) -> int:
    """Return the width of decoupled keys, which the family sets as a share of plain and rotary channels together.

    Raises: Refuses if the table does not fit the keys.
    """
    plain = part.get("qk_nope_head_dim") or head
    if type(plain) is not int:
        raise Refuses(f"TypeError: qk_nope_head_dim is {plain!r}; it must be a whole number")
    whole = plain + head
    if share is None and part.get(names.ROPE_SCALING):
        share = 1.0  # the class adds its share only to rope_parameters
    if rope_type == "default" or (is_number(share) and int(whole * share) != head):
        raise Refuses(f"RuntimeError: the table would not fit the {head} channels of the decoupled keys")
    return head


def stretched_base(rope_theta: float, alpha: Any, rotary_dim: int) -> float:
    """Return the base after NTK scaling by the factor alpha. Raises: Refuses for an alpha or a width out of range."""
    if rotary_dim < 4:
        raise Refuses(f"ZeroDivisionError: the head has {rotary_dim} channels; NTK scaling needs at least 4")
    if not is_multiplier(alpha):
        raise Refuses(f"alpha is {alpha!r}; it must be a number from {SMALLEST:g} to {LARGEST:g}")
    return float(rope_theta * alpha ** (rotary_dim / (rotary_dim - 2)))


def mscale_of(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 m ln s + 1, as DeepSeek and YaRN define it, and 1 up to s = 1."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def table(r: Resolved) -> RopeTable:
    """Return the table of these values.

    Raises: Refuses if transformers would stop.
    """
    base = arithmetic.base_inv_freq(r.rope_theta, r.rotary_dim)
    source = Source(base, r.length, r.rope_theta)
    if r.rope_type == "default":
        return RopeTable.fixed(base)
    if r.rope_type == "longrope":
        return _longrope(r, base)
    if r.rope_type == "proportional":
        return _proportional(r, base)
    if r.factor is None:
        raise Refuses(f"TypeError: factor is null; {r.rope_type} needs a number")
    if r.rope_type == "linear":
        return RopeTable.fixed(base / r.factor)
    if r.rope_type == "dynamic":
        return dynamic_table(base, r.max_position_embeddings, r.factor)
    if r.rope_type == "yarn":
        # 0 and null both mean the default: transformers writes `get(...) or 32`.
        fast, slow = r.params.get(names.BETA_FAST) or 32, r.params.get(names.BETA_SLOW) or 1
        inv_freq = blend_by_dims(source, fast, slow, r.truncate, r.factor)
        return RopeTable.fixed(inv_freq, _yarn_attention_factor(r.params, r.factor))
    if r.rope_type == "llama3":
        low, high = r.params[names.LOW_FREQ_FACTOR], r.params[names.HIGH_FREQ_FACTOR]
        if low is None or high is None:
            raise Refuses("TypeError: low_freq_factor or high_freq_factor is null; llama3 needs both")
        return RopeTable.fixed(blend(base, kept_share_by_turns(source, high, low), r.factor))
    raise Refuses(f"the rope_type {r.rope_type} is unknown")


def _proportional(r: Resolved, base: Array) -> RopeTable:
    """Return the table of a whole head. Only the first share of its pairs rotates, each as in a whole table."""
    share = r.params.get(names.PARTIAL_ROTARY_FACTOR, 1.0)
    return RopeTable.fixed(with_share(base, _checked_share(share)) / (1.0 if r.factor is None else r.factor))


def _yarn_attention_factor(params: Mapping[str, Any], factor: float) -> float:
    given = params.get(names.ATTENTION_FACTOR)
    if given is not None:
        return float(given)
    mscale, all_dim = params.get(names.MSCALE), params.get(names.MSCALE_ALL_DIM)
    if mscale and all_dim:  # a lone mscale is ignored
        return mscale_of(factor, mscale) / mscale_of(factor, all_dim)
    return mscale_of(factor)


def _longrope(r: Resolved, base: Any) -> RopeTable:
    short, long = (divisors(r.params, key, base.size) for key in (names.SHORT_FACTOR, names.LONG_FACTOR))
    given = r.params.get(names.ATTENTION_FACTOR)
    factor = r.factor if r.factor is not None else r.max_position_embeddings / r.length
    attention_factor = float(given) if given is not None else logn_factor(factor, r.length)
    last = Regime(base / long, attention_factor)
    if short == long:
        return RopeTable((last,))
    return RopeTable((Regime(base / short, attention_factor, up_to=r.length), last))


def divisors(keys: Mapping[str, Any], key: str, pairs: int) -> list[Any]:
    """Return a list of the rope keys. Raises: Refuses if it does not have an entry for each pair."""
    entries = keys.get(key)
    if not isinstance(entries, list) or len(entries) != pairs:
        count = len(entries) if isinstance(entries, list) else 0
        raise Refuses(f"{key} has {count} entries for {pairs} rotary pairs")
    return entries


def head_dim(part: Mapping[str, Any], family: Family, runtime: str, rope_type: str, layer_type: str = "") -> int:
    """Return the channels of a head in this layer type; under MLA, the channels of the decoupled key.

    Raises: Refuses if the runtime keeps a missing head_dim as null, and the formula of the type then stops.
    """
    key = family.head_dim_keys.get(layer_type, family.head_dim_key)
    width = part.get(key)
    null = family.stated_null_head_dim if names.HEAD_DIM in part and part[names.HEAD_DIM] is None else ()
    if ("stops yarn" in null and rope_type in NEEDS_HEAD_DIM) or ("computed" in null and key != names.HEAD_DIM):
        raise Refuses(f"TypeError: head_dim is null; {rope_type} needs a number, or a config without the key")
    if width is None and "computed" not in null:
        width = family.default_head_dims.get(layer_type, family.default_head_dim)
    if width is None:
        if runtime in family.null_head_dim and rope_type in NEEDS_HEAD_DIM:
            raise without_head_dim(rope_type, family)
        hidden, heads = part.get(names.HIDDEN_SIZE), part.get(names.NUM_ATTENTION_HEADS)
        if not {names.HIDDEN_SIZE, names.NUM_ATTENTION_HEADS} <= part.keys():
            raise NotKnown("the config sets neither head_dim nor both hidden_size and num_attention_heads")
        if hidden is None or heads is None:
            raise Refuses("hidden_size or num_attention_heads is null, and head_dim is not set")
        width = hidden // heads
    channels = int(width)
    if channels < 2 or channels % 2:
        raise Refuses(f"{key} is {channels}; it must be even and at least 2")
    return channels


def without_head_dim(rope_type: str, family: Family) -> Refuses:
    """Return the refusal for a config without head_dim, if the formula of a type needs it."""
    return Refuses(f"TypeError: {rope_type} needs head_dim in config.json for {family.model_type}")


def layer_indices(part: Mapping[str, Any], family: Family, layer_type: str) -> tuple[int, ...]:
    """Return the layers of this type, from layer_types or the family's pattern.

    Without layer types: all rotating layers.
    """
    count: int = part.get(names.NUM_HIDDEN_LAYERS) or 0
    if not family.nested:
        return _rotating(part, family, count)
    return tuple(i for i, name in enumerate(layer_types(part, family, count)) if name == layer_type)


def layer_types(part: Mapping[str, Any], family: Family, count: int) -> list[str]:
    """Return the type of each layer, for a family with several layer types.

    Raises: Refuses for a pattern in letters without layer_types, because the class computes with it as a number.
    """
    listed = next((part[key] for key in family.kinds_keys if part.get(key) is not None), None)
    if listed is not None:  # in a text, each letter is a layer
        words = [names.LAYER_TYPE_ALIASES.get(word, word) for word in listed]
        return [family.kind_names.get(word, word) for word in words]
    numbers = part.get(family.kind_numbers_key)
    if numbers is not None:
        return [family.kind_names[f"{number:g}"] for number in numbers[:count]]
    indices = at(part, family.kind_indices_key)
    if indices is not None:
        first = family.kind_indices_from
        return [names.FULL_ATTENTION if first + i in indices else family.pattern_other for i in range(count)]
    if family.unrotated_window_key:
        slides = part.get(family.unrotated_window_key) is True and part.get(family.window_key) is not None
        rotating = set(_rotating(part, family, count))
        return [names.SLIDING_ATTENTION if slides and i not in rotating else names.FULL_ATTENTION for i in range(count)]
    pattern = part.get(family.pattern_key) or family.pattern
    if isinstance(pattern, str):
        raise Refuses(f"TypeError: sliding_window_pattern is the text {pattern}, and layer_types is missing")
    if not pattern and family.default_kinds:
        return _default_layer_types(family, count)
    period = pattern or 1
    offset = part.get(family.pattern_offset_key, period - 1 if family.pattern_offset is None else family.pattern_offset)
    return [names.FULL_ATTENTION if i % period == offset else family.pattern_other for i in range(count)]


def _default_layer_types(family: Family, count: int) -> list[str]:
    """Return the class's default layer types for this number of layers. Raises: NotKnown if their rule is unknown."""
    if family.kinds_count not in (None, count):
        raise NotKnown(
            f"the config does not set {family.kinds_keys[0]}, and there is no data on the types of {count} layers"
        )
    return [family.default_kinds[i % len(family.default_kinds)] for i in range(count)]


def _rotating(part: Mapping[str, Any], family: Family, count: int) -> tuple[int, ...]:
    """Return the indices of the layers that rotate."""
    if family.rotates == "full":
        return tuple(
            i for i, layer_type in enumerate(layer_types(part, family, count)) if layer_type == names.FULL_ATTENTION
        )
    if family.rotates == "no_rope_layers":
        flags = part.get(family.rotating_key) or _default_flags(part, family, count)  # an empty list has no effect
        return tuple(i for i, rotates in enumerate(flags[:count]) if rotates)
    window = part.get(family.window_key, family.default_sliding_window)
    if family.rotates == "all" or (family.rotates == "sliding-if-any" and window is None):
        return tuple(range(count))
    if window is None:
        return ()
    return tuple(
        i for i, layer_type in enumerate(layer_types(part, family, count)) if layer_type == names.SLIDING_ATTENTION
    )


def _default_flags(part: Mapping[str, Any], family: Family, count: int) -> list[bool]:
    """Return which layers rotate if the config does not list them. Raises: Refuses for an invalid interval."""
    if family.rotating_key != names.NO_ROPE_LAYERS:
        return [True] * count
    interval = part.get(names.NO_ROPE_LAYER_INTERVAL, 4)
    if type(interval) is not int or interval < 1:
        raise Refuses(
            f"TypeError: {names.NO_ROPE_LAYER_INTERVAL} is {interval!r}; it must be a whole number of at least 1"
        )
    return [(i + 1) % interval != 0 for i in range(count)]


def sliding_window(part: Mapping[str, Any], family: Family, layer_type: str) -> int | None:
    """Return how many tokens the layers of this type look back, or None if they attend to all tokens."""
    if family.sliding_window == "never" or (family.nested and layer_type == names.FULL_ATTENTION):
        return None
    if family.sliding_window == "alternate" and not _all_slide(part, family):
        return None
    if family.sliding_window not in PER_LAYER and part.get(family.sliding_window) is not True:
        return None
    window = part.get(family.window_key, family.default_sliding_window)
    return int(window) if window is not None else None


def _all_slide(part: Mapping[str, Any], family: Family) -> bool:
    """Return whether every layer that rotates looks back through the window."""
    count: int = part.get(names.NUM_HIDDEN_LAYERS) or 0
    sliding = {
        layer
        for layer, layer_type in enumerate(layer_types(part, family, count))
        if layer_type == names.SLIDING_ATTENTION
    }
    rotating = _rotating(part, family, count)
    return bool(rotating) and sliding.issuperset(rotating)


def entry(
    r: Resolved, part: Mapping[str, Any], family: Family, layer_type: str, softmax_multiplier: float
) -> LayerRope:
    """Return the entry of a layer type for the RopeSet. Raises: Refuses, NotKnown."""
    scaled = r.rope_type != "default"
    beta = r.params.get(family.temperature_key) if family.temperature_key else None
    interleaved = family.layout == "interleaved" and part.get(family.interleave_key or "", True) is not False
    turned = table(r)
    if family.mscale_keys and scaled:
        turned = _with_mscales(turned, r, family)
    if family.norm_after:
        turned = turned.with_factor(1.0)  # norms after the rotation undo every factor on cos and sin
    return LayerRope(
        rope_type=r.rope_type, table=turned, head_dim=r.head_dim or r.rotary_dim, rotary_dim=r.rotary_dim,
        layout="interleaved" if interleaved else "half",
        layers=layer_indices(part, family, layer_type), rope_theta=r.rope_theta,
        factor=r.factor if scaled else None, params=dict(r.params),
        original_max_position_embeddings=_trained(r), softmax_multiplier=softmax_multiplier,
        temperature=Temperature(float(beta), r.length) if beta else None,
        sliding_window=sliding_window(part, family, layer_type), chunked=family.chunked,
    )  # fmt: skip


def _with_mscales(table: RopeTable, r: Resolved, family: Family) -> RopeTable:
    """Return a table with the factors of the class's own keys: one up to the original length, one beyond.

    The frequencies are the first regime's, because the class requests its table without a length.
    Raises: Refuses if a key is missing or is not a number.
    """
    missing = next((key for key in family.mscale_keys if not is_number(r.params.get(key))), None)
    if missing:
        raise Refuses(f"TypeError: the rope key {missing} must be a number")
    if r.rope_type not in STATES_LENGTH and names.ORIGINAL_MAX_POSITION_EMBEDDINGS not in r.params:
        raise Refuses(f"KeyError: {family.model_type} needs {names.ORIGINAL_MAX_POSITION_EMBEDDINGS} in its rope keys")
    short, long = (float(r.params[key]) for key in family.mscale_keys)
    inv_freq = table.regimes[0].inv_freq
    if short == long:
        return RopeTable.fixed(inv_freq, short)
    return RopeTable((Regime(inv_freq, short, up_to=r.length), Regime(inv_freq, long)))


def unrotated(part: Mapping[str, Any], family: Family, context: int) -> RopeSet:
    """Return the RopeSet of a model in which no layer rotates."""
    count: int = part.get(names.NUM_HIDDEN_LAYERS) or 0
    every = layer_types(part, family, count) if family.has_kinds else [names.FULL_ATTENTION] * count
    layers = tuple(i for i, layer_type in enumerate(every) if layer_type == names.FULL_ATTENTION)
    known = family.head_dim_key in part or family.default_head_dim or names.HIDDEN_SIZE in part
    width = head_dim(part, family, "", "") if known else 0
    entry = LayerRope("none", None, width, 0, family.layout, layers)
    return RopeSet({names.FULL_ATTENTION: entry}, context, context)


def _trained(r: Resolved) -> int | None:
    if r.rope_type == "linear":
        return None  # linear scaling stores no length
    return r.max_position_embeddings if r.rope_type in ("default", "dynamic") else r.length


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    count: the number of layers.
    sliding: the layers with a window.
    window: in tokens; None without sliding layers.
    stateful: the layers that keep a state and do not attend.
    """

    count: int
    sliding: frozenset[int] = frozenset()
    window: int | None = None
    stateful: frozenset[int] = frozenset()


def layers_of(config: Mapping[str, Any], family: Family, source: RopeSet, where: str) -> Layers:
    """Return the layers of a config, as transformers builds them. source: the tables that transformers computes."""
    part = style.section(config, family, where)
    count = int(part.get(names.NUM_HIDDEN_LAYERS) or 0)
    if family.rotates == "full":  # the others keep a state
        attending = {layer for entry in source.entries.values() for layer in entry.layers}
        return Layers(count, stateful=frozenset(range(count)) - attending)
    alike = source.entries[names.FULL_ATTENTION].sliding_window
    if family.chunked:
        return Layers(count, _chunked(part, source, where), alike)
    if not family.has_kinds or family.sliding_window not in PER_LAYER:
        return Layers(count, frozenset(range(count)) if alike is not None else frozenset(), alike)
    window = part.get(family.window_key, family.default_sliding_window)
    by_layer = layer_types(part, family, count)
    sliding = frozenset(layer for layer, layer_type in enumerate(by_layer) if layer_type == names.SLIDING_ATTENTION)
    return Layers(count, sliding, int(window)) if window is not None else Layers(count)


def _chunked(part: Mapping[str, Any], source: RopeSet, where: str) -> frozenset[int]:
    """Return the layers that attend within chunks: the rotating ones.

    Raises: LossyExport if the config lists others.
    """
    rotating = frozenset(source.entries[names.FULL_ATTENTION].layers)
    by_layer = part.get("layer_types")
    if by_layer is not None and rotating != {
        layer for layer, layer_type in enumerate(by_layer) if layer_type == "chunked_attention"
    }:
        raise LossyExport(
            "layer_types is wrong: chunked_attention layers must rotate, and other layers must not", where=where
        )
    return rotating
