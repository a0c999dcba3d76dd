"""The ways to write a table into a Hugging Face config, in order of preference, as edits of its text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import FileEdit, config_file_edits
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.style import RopeKeys
from ropetool.families.family import Family
from ropetool.files.hf import ABSENT, Edit
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import geometric
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes.decoded import EncodedTarget

IN_WEIGHTS = "the rest in the weights"  # the end of the name of an encoding that bakes


class Encoding(NamedTuple):
    """A way to write a table: its name and keys. baked: the keys leave a part of a factor to the weights."""

    name: str
    keys: RopeKeys
    baked: bool = False


def encodings(entry: LayerRope, derived: Derived, trained_length: int, family: Family) -> list[Encoding]:
    """Return the encodings to try, in order of preference: the method's own keys, a full table, then with a bake."""
    ways: list[Encoding] = []
    native_keys = {key for native in derived.native for key in native}

    def lost(native: Mapping[str, Any]) -> int:
        """Return how many of the method's keys the source has and the output would lose.

        Some runtimes require each key.
        """
        return (
            len((entry.params.keys() & native_keys) - native.keys())
            if native[names.ROPE_TYPE] == entry.rope_type
            else 0
        )

    for native in sorted(derived.native, key=lost):
        keys = dict(native)
        rope_type = keys.pop(names.ROPE_TYPE)
        theta = keys.pop(names.ROPE_THETA, entry.rope_theta)
        if family.mscale_keys and rope_type != "default":
            keys |= _own_factors(family, derived.table.regimes[-1].attention_factor, trained_length)
        name = f"{rope_type} keys"
        again = any(encoding.name == name for encoding in ways)
        ways.append(Encoding(f"{name} in full" if again else name, RopeKeys(rope_type, theta, keys)))
    proportional = _as_proportional(entry, derived)
    if proportional:
        ways.append(Encoding("proportional keys", proportional))
    lists = _as_lists(entry, derived, trained_length, family)
    if lists and not derived.table.is_fixed:
        ways.append(Encoding("longrope lists with a factor each", _with_mscales(lists, derived.table)))
    if lists and all(lists != each.keys for each in ways):
        ways.append(Encoding("a full table as longrope lists", lists))
    return ways + [
        Encoding(f"{name} {how}, {IN_WEIGHTS}", other, baked=True)
        for name, keys, _ in ways
        for how, other in variants(keys).items()
    ]


def _own_factors(family: Family, factor: float, trained_length: int) -> dict[str, Any]:
    """Return the keys that a class with separate factors requires with every scaled type."""
    return {**dict.fromkeys(family.mscale_keys, float(factor)), names.ORIGINAL_MAX_POSITION_EMBEDDINGS: trained_length}


def _as_proportional(entry: LayerRope, derived: Derived) -> RopeKeys | None:
    """Return the keys of a proportional table with a new base or one divisor; None if no such keys give the table."""
    regime = derived.table.regimes[-1]
    if entry.rope_type != "proportional" or not derived.table.is_fixed or regime.attention_factor != 1:
        return None
    assert entry.rope_theta is not None
    fitted = geometric(regime.inv_freq, entry.rope_theta)
    if fitted is None:
        return None
    theta, factor = fitted
    params = {names.PARTIAL_ROTARY_FACTOR: entry.params.get(names.PARTIAL_ROTARY_FACTOR, 1.0)}
    return RopeKeys("proportional", theta, params if factor == 1 else {**params, names.FACTOR: factor})


def _as_lists(entry: LayerRope, derived: Derived, trained_length: int, family: Family) -> RopeKeys | None:
    """Return a table as longrope divisors; None if it has a rule, over two regimes, or a pair that never rotates."""
    regimes = derived.table.regimes
    if derived.table.rule is not None or len(regimes) > 2 or any((r.inv_freq == 0).any() for r in regimes):
        return None
    assert entry.rope_theta is not None
    base = base_inv_freq(entry.rope_theta, entry.rotary_dim)
    factor = max(1.0, derived.max_position_embeddings / trained_length)
    length = regimes[0].up_to or trained_length
    short, long = _ends(derived.table)
    params: dict[str, Any] = {
        names.SHORT_FACTOR: (base / short.inv_freq).tolist(),
        names.LONG_FACTOR: (base / long.inv_freq).tolist(),
        names.FACTOR: factor,
        names.ORIGINAL_MAX_POSITION_EMBEDDINGS: length,
        names.ATTENTION_FACTOR: long.attention_factor,
        **(_own_factors(family, long.attention_factor, trained_length) if family.mscale_keys else {}),
    }
    if family.mla and derived.softmax_multiplier != 1 and factor > 1:
        # The softmax scale is (0.1 m ln s + 1)^2 for any type, so m sets the multiplier.
        params[names.MSCALE_ALL_DIM] = (math.sqrt(derived.softmax_multiplier) - 1) / (0.1 * math.log(factor))
    return RopeKeys("longrope", entry.rope_theta, params)


def _with_mscales(lists: RopeKeys, table: RopeTable) -> RopeKeys:
    """Return longrope keys with the factor of each list, which vLLM and SGLang read only from these keys."""
    short, long = _ends(table)
    mscales = {names.SHORT_MSCALE: short.attention_factor, names.LONG_MSCALE: long.attention_factor}
    return replace(lists, params={**lists.params, **mscales})


def _ends(table: RopeTable) -> tuple[Regime, Regime]:
    """Return the regimes for the shortest and for the longest sequences."""
    return table.regimes[0], table.regimes[-1]


def config_edits(checkpoint: HfCheckpoint, keys: RopeKeys, target: RopeSet, config_style: str) -> list[FileEdit]:
    """Return the edits of config.json that set these keys and the context length of the target."""
    family, part = checkpoint.family, checkpoint.section
    edits = style.edits(checkpoint.config, family, {names.FULL_ATTENTION: keys}, config_style, checkpoint.where)
    path = family.text_path
    edits += _number_edit(path, part, style.context_key(part, family), target.max_position_embeddings)
    outer = names.ORIGINAL_MAX_POSITION_EMBEDDINGS
    if keys.rope_type == "longrope" or (outer in part and outer in keys.params):
        # transformers 4.57 reads longrope's length only here. In transformers 5 it takes precedence over the inner one.
        edits += _number_edit(path, part, outer, int(keys.params[outer]))
    if (
        family.null_head_dim
        and keys.rope_type in ("yarn", "dynamic", "longrope")
        and part.get(family.head_dim_key) is None
    ):
        edits += _number_edit(path, part, family.head_dim_key, target.entries[names.FULL_ATTENTION].head_dim)
    return config_file_edits(edits)


def length_encodings(checkpoint: HfCheckpoint, target: RopeSet, config_style: str) -> list[EncodedTarget]:
    """Return the ways to set the target's context length and keep the tables of the file, in order of preference.

    If the rope keys lack a number (the length before scaling, longrope's factor), a runtime derives it from the context
    length. The later ways set these numbers.
    """
    part, current = checkpoint.section, style.read(checkpoint.config, checkpoint.family, checkpoint.where)
    entry, keys = target.entries[names.FULL_ATTENTION], current.keys[names.FULL_ATTENTION]
    candidates = []
    if config_style == current.style:
        family = checkpoint.family
        path = family.text_path
        edits = _number_edit(path, part, style.context_key(part, family), target.max_position_embeddings)
        candidates.append(EncodedTarget("the context", partial(config_file_edits, edits)))
    more = {names.ORIGINAL_MAX_POSITION_EMBEDDINGS: entry.original_max_position_embeddings, names.FACTOR: entry.factor}
    params = {**keys.params, **{key: value for key, value in more.items() if value is not None}}
    scaled = replace(keys, params=params) if keys.rope_type in STATES_LENGTH else keys
    variants = {
        "the context, and new rope keys": keys,
        "the context, the length before scaling and the factor": scaled,
        "the context, the length before scaling and both factors": settled(
            scaled, entry.attention_factor, keep_softmax=True
        ),
    }
    distinct: list[RopeKeys] = [keys] if candidates else []
    for name, one in variants.items():
        if one not in distinct:
            distinct.append(one)
            candidates.append(EncodedTarget(name, partial(config_edits, checkpoint, one, target, config_style)))
    return candidates


def _number_edit(path: tuple[str, ...], part: Mapping[str, Any], key: str, value: int) -> list[Edit]:
    old = part.get(key, ABSENT)
    return [] if old == value else [Edit((*path, key), old, value)]


STATES_FACTOR = ("yarn", "longrope")  # the types that read attention_factor
STATES_LENGTH = (*STATES_FACTOR, "llama3")  # the types that read original_max_position_embeddings


_FACTOR_KEYS = (
    names.ATTENTION_FACTOR, names.ATTN_FACTOR, names.MSCALE, names.MSCALE_ALL_DIM, names.SHORT_MSCALE, names.LONG_MSCALE,
)  # fmt: skip


def variants(keys: RopeKeys) -> dict[str, RopeKeys]:
    """Return other keys for the same frequencies, by the name of the way. Every runtime may read their factors alike.

    The weights get the missing part of a factor.
    """
    bare = {key: value for key, value in keys.params.items() if key not in _FACTOR_KEYS}
    named = {
        "without a factor": RopeKeys(keys.rope_type, keys.rope_theta, bare),
        "with factor 1": settled(keys, 1.0, keep_softmax=False),
        "with factor 1 and the softmax scale": settled(keys, 1.0, keep_softmax=True),
    }
    distinct: dict[str, RopeKeys] = {}
    for name, one in named.items():
        if one != keys and one not in distinct.values():
            distinct[name] = one
    return distinct


def settled(keys: RopeKeys, attention_factor: float, *, keep_softmax: bool) -> RopeKeys:
    """Return the keys with this attention factor. keep_softmax: keep MLA's softmax scale; otherwise remove it.

    mscale is removed with mscale_all_dim, or set to the same value, because readers without attention_factor use their
    ratio.
    """
    params = {key: value for key, value in keys.params.items() if key not in _FACTOR_KEYS}
    if keys.rope_type in STATES_FACTOR:
        params[names.ATTENTION_FACTOR] = float(attention_factor)
    all_dim = keys.params.get(names.MSCALE_ALL_DIM)
    if keep_softmax and all_dim:
        params |= {names.MSCALE: all_dim, names.MSCALE_ALL_DIM: all_dim}
    return RopeKeys(keys.rope_type, keys.rope_theta, params)
