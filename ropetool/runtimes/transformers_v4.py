"""transformers 4.57: it reads rope_theta and rope_scaling, and ignores rope_parameters without a warning.

Source: modeling_rope_utils.py and models/*/modeling_*.py of transformers 4.57.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.family import Family
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import hf_formulas as formulas
from ropetool.runtimes.base import NotKnown, Refuses, checked_base

NAME = "transformers-v4"
FORMATS = ("hf",)
VERSIONS = "4.57.6"
SUMMARY = "Hugging Face transformers 4.57: reads rope_theta and rope_scaling, ignores rope_parameters"
UNCHECKED = ("mistral", "mixtral")  # whose config classes do not look at rope_scaling


def decode(view: HfCheckpoint) -> RopeSet:
    """Return the tables that transformers 4.57 computes from a config.

    Raises: Refuses if the program stops with an error while it builds the model.
    """
    family = view.family
    if not family.in_v4:
        raise NotKnown(f"no data on {family.name} in transformers 4.57")
    part = view.section
    context = part.get(names.MAX_POSITION_EMBEDDINGS, family.default_max_position_embeddings)
    theta = part.get(family.rope_theta_key, family.v4_default_rope_theta)
    keys = part.get(names.ROPE_SCALING)
    if keys is not None and not isinstance(keys, Mapping) and family.model_type not in UNCHECKED:
        raise Refuses(f"rope_scaling is {shown(keys)}; it must be an object")
    scaling = keys or {}
    entries = {names.FULL_ATTENTION: _entry(part, family, names.FULL_ATTENTION, scaling, theta, context)}
    if names.SLIDING_ATTENTION in family.layer_types:
        local = theta
        if family.has_local_base:
            local = part.get(names.ROPE_LOCAL_BASE_FREQ, family.default_rope_theta[names.SLIDING_ATTENTION])
        entries[names.SLIDING_ATTENTION] = _entry(part, family, names.SLIDING_ATTENTION, {}, local, context)
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _entry(
    part: Mapping[str, Any],
    family: Family,
    layer_type: str,
    scaling: Mapping[str, Any],
    theta: float | None,
    context: int,
) -> LayerRope:
    rope_type = scaling.get(names.ROPE_TYPE, scaling.get(names.LEGACY_TYPE, "default"))
    if rope_type not in (*formulas.NEEDS, "default"):
        raise Refuses(f"KeyError: {rope_type!r} is not a rope type of transformers 4.57")
    formulas.need_keys(rope_type, scaling)
    base = checked_base(theta)
    if rope_type == "llama3" and names.ORIGINAL_MAX_POSITION_EMBEDDINGS not in scaling:
        raise Refuses("KeyError: llama3 needs original_max_position_embeddings")
    length = scaling.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context
    factor = scaling.get(names.FACTOR)
    if rope_type == "longrope":
        # Only the outer key has an effect. If it exists, the ratio of the lengths replaces the factor.
        outer = part.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
        length = outer or context
        factor = context / outer if outer else factor
        if factor is None and scaling.get(names.ATTENTION_FACTOR) is None:
            raise Refuses("TypeError: longrope needs factor, or original_max_position_embeddings outside rope_scaling")
    head_dim = formulas.head_dim(part, family, NAME, rope_type)
    # 4.57 reads only the share outside rope_scaling, for every type and also for the default type.
    rotary_dim = formulas.rotary_dim(part, {}, family, head_dim, rope_type if family.partial_rotary_key else "any")
    resolved = formulas.Resolved(
        rope_type, base, rotary_dim,
        {k: v for k, v in scaling.items() if k in names.ROPE_TYPE_KEYS - {names.ROPE_TYPE, names.LEGACY_TYPE}},
        factor, length, context, bool(scaling.get(names.TRUNCATE, True)), head_dim,
    )  # fmt: skip
    return formulas.entry(resolved, part, family, layer_type, _softmax(scaling, family))


def _softmax(scaling: Mapping[str, Any], family: Family) -> float:
    if not (family.mla and family.v4_softmax_scale and scaling):
        return 1.0
    if scaling.get(names.FACTOR) is None:
        raise Refuses("KeyError: the softmax scale of this family needs factor")
    all_dim = scaling.get(names.MSCALE_ALL_DIM)
    return formulas.mscale_of(scaling[names.FACTOR], all_dim) ** 2 if all_dim else 1.0
