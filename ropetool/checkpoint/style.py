"""The two styles of rope keys in a config.json: reading the keys, and the edits that change them.

v4 is rope_theta and rope_scaling (transformers up to 4.57). v5 is rope_parameters, which some families nest by layer
type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool import names
from ropetool.checkpoint import config_values
from ropetool.errors import AmbiguousRope, InvalidRope
from ropetool.families.family import Family
from ropetool.files.hf.jsontext import ABSENT, Edit, shown
from ropetool.rope.tables import is_number


@dataclass(frozen=True)
class RopeKeys:
    """The keys of one layer type.

    rope_type: one of names.KNOWN_ROPE_TYPES.
    rope_theta: None means the default of the class.
    params: all other keys of the object.
    """

    rope_type: str = "default"
    rope_theta: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileRope:
    """The rope keys of a config.json.

    style: names.V4, names.V5 or names.BOTH.
    keys: the keys of each layer type that has a table.
    """

    style: str
    keys: Mapping[str, RopeKeys]


def section(config: Mapping[str, Any], family: Family, where: str) -> Mapping[str, Any]:
    """Return the object with the rope keys: config.json itself, or its text_config.

    Missing sizes of an inner object are filled in, because transformers saves only the sizes that differ from its
    class.
    Raises: InvalidRope if the object is missing.
    """
    part: Any = config
    for name in family.text_path:
        part = part.get(name)
        if not isinstance(part, Mapping):
            raise InvalidRope(
                f"{name} must be an object, because it contains the rope keys of {family.name}; it is {shown(part)}",
                where=where,
            )
    named = {key: part[own] for key, own in family.size_keys.items() if own in part and key not in part}
    values = {**(family.default_sizes if family.text_path else {}), **part, **named}
    values.pop("", None)  # a family without some key has an empty name for it
    return values


def scaling_of(part: Mapping[str, Any]) -> Any:
    """Return rope_scaling, or None for false, 0, "" and [], which transformers 5 treats as no scaling."""
    scaling = part.get(names.ROPE_SCALING)
    return scaling if scaling or isinstance(scaling, Mapping) else None


def theta_keys(family: Family) -> tuple[str, str]:
    """Return the two v4 keys of the RoPE base: of full-attention layers, and of sliding layers with a separate base."""
    if family.in_v4 or not family.nested:
        return names.ROPE_THETA, names.ROPE_LOCAL_BASE_FREQ
    return family.rope_theta_key or names.ROPE_THETA, family.local_theta_key or names.ROPE_LOCAL_BASE_FREQ


def context_key(part: Mapping[str, Any], family: Family) -> str:
    """Return the key of the context length in a config.

    It is the class's own key, or the usual key, which the class also accepts.
    """
    usual = names.MAX_POSITION_EMBEDDINGS
    return usual if usual in part and family.context_key not in part else family.context_key


def read(config: Mapping[str, Any], family: Family, where: str) -> FileRope:
    """Return the rope keys of a config.json.

    Raises: InvalidRope for a value that breaks a rule, or a nesting that the family does not read; AmbiguousRope if
    `type` and `rope_type`, or the two styles, disagree.
    """
    part = section(config, family, where)
    config_values.check_sizes(part, family, context_key(part, family), where)
    config_values.check_layer_lists(part, family, where)
    parameters, scaling = part.get(names.ROPE_PARAMETERS), scaling_of(part)
    if family.default_rope_keys and parameters is None and scaling is None and not part.get(family.rope_theta_key):
        groups = {family.rope_group(layer_type): keys for layer_type, keys in family.default_rope_keys.items()}
        defaults = groups if family.nested else family.default_rope_keys[names.FULL_ATTENTION]
        return FileRope(names.V5, _read_v5(defaults, family, where))
    v4 = _read_v4(part, family, where)
    if parameters is None:
        return FileRope(names.V4, v4)
    v5 = _read_v5(parameters, family, where)
    # A rope_scaling of null means "unscaled" only if there is also a rope_theta.
    if scaling is None and (names.ROPE_SCALING not in part or names.ROPE_THETA not in part):
        _refuse_other_theta(part, v5, family, where)
        return FileRope(names.V5, v5)
    _refuse_conflict(v4, v5, family, where)
    return FileRope(names.BOTH, v5)


def _read_v4(part: Mapping[str, Any], family: Family, where: str) -> dict[str, RopeKeys]:
    scaling = scaling_of(part)
    outer, local_key = theta_keys(family)
    theta = config_values.base(part.get(outer), f"{where}: {outer}")
    unread = family.rope_scaling_reaches == () and not isinstance(scaling, Mapping)
    keys = _keys({} if scaling is None or unread else scaling, f"{where}: rope_scaling")
    if any(isinstance(value, Mapping) for value in keys.params.values()):
        raise InvalidRope("it is nested by layer type, but rope_scaling must be flat", where=f"{where}: rope_scaling")
    entries = {names.FULL_ATTENTION: RopeKeys(keys.rope_type, keys.rope_theta or theta, keys.params)}
    if names.SLIDING_ATTENTION in family.rope_entries:
        local = part.get(local_key)
        entries[names.SLIDING_ATTENTION] = RopeKeys(
            rope_theta=config_values.base(local, f"{where}: {local_key}") if family.has_local_base else theta
        )
    return entries


def _read_v5(parameters: Any, family: Family, where: str) -> dict[str, RopeKeys]:
    place = f"{where}: rope_parameters"
    if not isinstance(parameters, Mapping):
        raise InvalidRope(f"{shown(parameters)} is not an object", where=place)
    by_layer = any(isinstance(value, Mapping) for value in parameters.values())
    if by_layer != family.nested and parameters:
        shape, reads = ("nested by layer type", "flat") if by_layer else ("flat", "nested by layer type")
        raise InvalidRope(
            f"it is {shape}, but {family.model_type} requires it {reads}: transformers would ignore these keys",
            where=place, try_=f"write rope_parameters {reads}",
        )  # fmt: skip
    if not family.nested:
        return {names.FULL_ATTENTION: _keys(parameters, place)}
    entries = {}
    for layer_type in family.layer_types:
        group = family.rope_group(layer_type)
        value = parameters.get(group)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidRope(f"{shown(value)} is not an object", where=f"{place}.{group}")
        entries[layer_type] = _keys(value or {}, f"{place}.{group}")
    return entries


def _keys(data: Any, where: str) -> RopeKeys:
    """Check the rope keys of one object and return them."""
    if not isinstance(data, Mapping):
        raise InvalidRope(f"{shown(data)} is not an object", where=where)
    new, old = data.get(names.ROPE_TYPE), data.get(names.LEGACY_TYPE)
    if new is not None and old is not None and _canonical(new) != _canonical(old):
        raise AmbiguousRope(
            f"rope_type is {shown(new)}, but type is {shown(old)}; transformers 5 reads rope_type, transformers 4 type",
            where=where, try_="make them equal in config.json",
        )  # fmt: skip
    rope_type = _canonical(new if new is not None else old if old is not None else "default")
    if rope_type not in names.KNOWN_ROPE_TYPES:
        raise InvalidRope(
            f"rope_type {shown(rope_type)} is unknown; known: {', '.join(names.KNOWN_ROPE_TYPES)}", where=where
        )
    params = {k: v for k, v in data.items() if k not in (names.ROPE_TYPE, names.LEGACY_TYPE, names.ROPE_THETA)}
    for key, value in params.items():
        config_values.check_param(key, value, f"{where}.{key}")
    return RopeKeys(str(rope_type), config_values.base(data.get(names.ROPE_THETA), f"{where}.rope_theta"), params)


def _canonical(rope_type: Any) -> Any:
    return names.ROPE_TYPE_ALIASES.get(rope_type, rope_type) if isinstance(rope_type, str) else rope_type


def _refuse_other_theta(part: Mapping[str, Any], v5: Mapping[str, RopeKeys], family: Family, where: str) -> None:
    """Raise AmbiguousRope if the top level has a different rope_theta than rope_parameters.

    Nested families use the rope_theta at the top for other purposes.
    """
    outer, inner = part.get(names.ROPE_THETA), v5[names.FULL_ATTENTION].rope_theta
    if not family.nested and outer is not None and inner not in (None, outer):
        raise AmbiguousRope(
            f"rope_theta is {outer:g} at the top and {inner:g} in rope_parameters; transformers 4 reads the first, 5 "
            "the second", where=where, try_="remove the wrong one from config.json",
        )  # fmt: skip


def _refuse_conflict(v4: Mapping[str, RopeKeys], v5: Mapping[str, RopeKeys], family: Family, where: str) -> None:
    for layer_type, new in v5.items():
        old = v4[layer_type]
        default = family.default_rope_theta[layer_type]
        same = (
            old.rope_type == new.rope_type
            and (old.rope_theta or default) == (new.rope_theta or default)
            and all(old.params.get(k) == new.params.get(k) for k in {*old.params, *new.params} & names.ROPE_TYPE_KEYS)
        )
        if not same:
            raise AmbiguousRope(
                f"rope_scaling and rope_parameters disagree for {layer_type} ({_shown(old, default)} against "
                f"{_shown(new, default)}); transformers 5 reads the first, llama.cpp's converter the second",
                where=where, try_="remove the wrong one from config.json",
            )  # fmt: skip


def _shown(keys: RopeKeys, default: float) -> str:
    factor = keys.params.get(names.FACTOR)
    return f"{keys.rope_type}{f' factor {factor}' if factor else ''} theta {keys.rope_theta or default:g}"


def edits(
    config: Mapping[str, Any], family: Family, target: Mapping[str, RopeKeys], style: str, where: str
) -> list[Edit]:
    """Return the edits that write `target` into the config in this style. Layer types not in `target` keep their keys.

    If an object already exists, each edit changes one key, so that a small change is a small diff.
    """
    part = section(config, family, where)
    current = read(config, family, where)
    result_keys = {**current.keys, **target}
    extra = {layer_type: _unknown(keys.params) for layer_type, keys in current.keys.items()}
    result: list[Edit] = []
    if style in (names.V4, names.BOTH):
        result += _v4_edits(part, family, current.keys, result_keys, extra[names.FULL_ATTENTION])
    elif current.style == names.V5:
        result += _outer_theta_edit(part, family, result_keys[names.FULL_ATTENTION])
    else:
        result += _removals(part, family, (*theta_keys(family), names.ROPE_SCALING))
    if style in (names.V5, names.BOTH):
        result += _v5_edits(part, family, result_keys, extra)
    else:
        result += _removals(part, family, (names.ROPE_PARAMETERS,))
    return result


def _removals(part: Mapping[str, Any], family: Family, keys: Iterable[str]) -> list[Edit]:
    return [Edit((*family.text_path, key), part[key], ABSENT) for key in keys if key in part]


def _outer_theta_edit(part: Mapping[str, Any], family: Family, full: RopeKeys) -> list[Edit]:
    """Return the edit that keeps a rope_theta at the top equal to the one in rope_parameters."""
    outer = part.get(names.ROPE_THETA)
    if outer is None or full.rope_theta is None or family.nested:
        return []
    return _value_edit((*family.text_path, names.ROPE_THETA), outer, full.rope_theta)


def _v4_edits(
    part: Mapping[str, Any],
    family: Family,
    current: Mapping[str, RopeKeys],
    target: Mapping[str, RopeKeys],
    extra: Mapping[str, Any],
) -> list[Edit]:
    path = family.text_path
    outer, local_key = theta_keys(family)
    full = target[names.FULL_ATTENTION]
    old = part.get(names.ROPE_SCALING, ABSENT)
    theta_inside = isinstance(old, Mapping) and names.ROPE_THETA in old
    # v4 has one theta for all layers; if the file does not set it, the class's default is already right.
    theta = full.rope_theta
    result: list[Edit] = []
    if theta is None and names.ROPE_PARAMETERS in part:
        theta = family.default_rope_theta[names.FULL_ATTENTION]
    silent = current[names.FULL_ATTENTION].rope_theta is None and theta == family.shared_default_theta
    if theta is not None and not silent and not theta_inside:
        result += _value_edit((*path, outer), part.get(outer, ABSENT), theta)
    sliding = target.get(names.SLIDING_ATTENTION)
    if family.has_local_base and sliding is not None and sliding.rope_theta is not None:
        result += _value_edit((*path, local_key), part.get(local_key, ABSENT), sliding.rope_theta)
    new = _object(full, old, extra, family.scaling_keys[:1])
    if full.rope_type == "default" and not _unknown(new):
        return result + ([Edit((*path, names.ROPE_SCALING), old, None)] if isinstance(old, Mapping) else [])
    if theta_inside and theta is not None:
        new[names.ROPE_THETA] = theta
    return result + _object_edits((*path, names.ROPE_SCALING), old, new)


def _v5_edits(
    part: Mapping[str, Any], family: Family, target: Mapping[str, RopeKeys], extra: Mapping[str, Mapping[str, Any]]
) -> list[Edit]:
    path = (*family.text_path, names.ROPE_PARAMETERS)
    old = part.get(names.ROPE_PARAMETERS, ABSENT)

    def entry(layer_type: str, before: Any) -> dict[str, Any]:
        keys = target[layer_type]
        theta = keys.rope_theta if keys.rope_theta is not None else family.default_rope_theta[layer_type]
        return {**_object(keys, before, extra[layer_type]), names.ROPE_THETA: theta}

    if not family.nested:
        return _object_edits(path, old, entry(names.FULL_ATTENTION, old))
    if not isinstance(old, Mapping):
        return [Edit(path, old, {family.rope_group(t): entry(t, ABSENT) for t in family.layer_types})]
    result = []
    for layer_type in family.layer_types:
        group = family.rope_group(layer_type)
        before = old.get(group, ABSENT)
        result += _object_edits((*path, group), before, entry(layer_type, before))
    return result


def _unknown(keys: Any) -> dict[str, Any]:
    """Return the keys that no rope type reads. Edits keep these keys."""
    if not isinstance(keys, Mapping):
        return {}
    return {k: v for k, v in keys.items() if k not in names.ROPE_TYPE_KEYS and k != names.ROPE_THETA}


def _object(keys: RopeKeys, old: Any, extra: Mapping[str, Any], spelling: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the object to write. Its first key is the type, in the spelling of the class or of the old object."""
    before: Mapping[str, Any] = old if isinstance(old, Mapping) else {}
    present = [key for key in (names.ROPE_TYPE, names.LEGACY_TYPE) if key in before]
    spellings = spelling or present or [names.ROPE_TYPE]
    params = {k: v for k, v in keys.params.items() if k in names.ROPE_TYPE_KEYS}
    return {**dict.fromkeys(spellings, keys.rope_type), **params, **extra, **_unknown(before)}


def _value_edit(path: tuple[str, ...], old: Any, new: Any) -> list[Edit]:
    # An equal number is not rewritten: 10000 and 10000.0 mean the same.
    stays = old == new and (type(old) is type(new) or (is_number(old) and is_number(new)))
    return [] if stays else [Edit(path, old, new)]


def _object_edits(path: tuple[str, ...], old: Any, new: Mapping[str, Any]) -> list[Edit]:
    if not isinstance(old, Mapping):
        return [Edit(path, old, dict(new))]
    result = [Edit((*path, key), value, ABSENT) for key, value in old.items() if key not in new]
    for key, value in new.items():
        result += _value_edit((*path, key), old.get(key, ABSENT), value)
    return result
