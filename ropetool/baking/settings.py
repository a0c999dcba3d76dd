"""What config.json says after a bake: no longer what the weights now do, in every style that the file uses.

Knows the keys that ask for a factor, not the weights that carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names, runtimes
from ropetool.baking.sites import View
from ropetool.errors import LossyExport
from ropetool.formats.hf import ABSENT, Edit, apply_edits, parse_object, style
from ropetool.formats.hf.style import RopeKeys
from ropetool.runtimes import HfView, Refuses
from ropetool.spec import RopeSet

STATES_FACTOR = ("yarn", "longrope")  # the types that read attention_factor
_FACTOR_KEYS = (
    names.ATTENTION_FACTOR, "attn_factor", names.MSCALE, names.MSCALE_ALL_DIM, "short_mscale", "long_mscale",
)  # fmt: skip


def variants(keys: RopeKeys) -> dict[str, RopeKeys]:
    """Return other ways to state the same frequencies, whose factors every runtime may read alike, by their names.

    What they leave of a factor is for the weights.
    """
    bare = {key: value for key, value in keys.params.items() if key not in _FACTOR_KEYS}
    found = {
        "without a factor": RopeKeys(keys.rope_type, keys.rope_theta, bare),
        "with factor 1": settled(keys, 1.0, keep_softmax=False),
        "with factor 1 and the softmax scale": settled(keys, 1.0, keep_softmax=True),
    }
    distinct: dict[str, RopeKeys] = {}
    for name, one in found.items():
        if one != keys and one not in distinct.values():
            distinct[name] = one
    return distinct


def settled(keys: RopeKeys, attention_factor: float, *, keep_softmax: bool) -> RopeKeys:
    """Return keys that ask for this attention factor, and for MLA's softmax scale as before or not at all.

    mscale goes with mscale_all_dim, or stays equal to it: readers that know no attention_factor take their ratio.
    """
    params = {key: value for key, value in keys.params.items() if key not in _FACTOR_KEYS}
    if keys.rope_type in STATES_FACTOR:
        params[names.ATTENTION_FACTOR] = float(attention_factor)
    all_dim = keys.params.get(names.MSCALE_ALL_DIM)
    if keep_softmax and all_dim:
        params |= {names.MSCALE: all_dim, names.MSCALE_ALL_DIM: all_dim}
    return RopeKeys(keys.rope_type, keys.rope_theta, params)


def factor_edits(
    view: View, config: Mapping[str, Any], attention_factors: Mapping[str, float], *, keep_softmax: bool
) -> list[Edit]:
    """Return the edits of config.json after which each of these kinds of layer asks for its factor alone.

    Raises: InvalidRope or AmbiguousRope for keys that break a rule.
    """
    found = style.read(config, view.family, view.where)
    target = {
        layer_type: settled(found.keys[layer_type], factor, keep_softmax=keep_softmax)
        for layer_type, factor in attention_factors.items()
    }
    return style.edits(config, view.family, target, found.style, view.where)


def number_edit(view: View, key: str, value: float | bool) -> Edit:
    """Return the edit of one number or switch beside the rope keys."""
    return Edit((*view.family.text_path, key), view.config.get(key, ABSENT), value)


def check_reading(view: View, text: str, edits: list[Edit], wanted: RopeSet, runtime: str = "transformers") -> None:
    """Return if the runtime reads the edited config as `wanted`.

    Raises: LossyExport with the difference: the keys of the file can then not say what the weights leave to them.
    """
    edited = parse_object(apply_edits(text, edits, view.where), view.where)
    try:
        found = runtimes.get(runtime, "hf").decode(HfView(edited, view.family, view.where))
        difference = wanted.disagreement(found)
    except Refuses as refusal:
        difference = str(refusal)
    if difference:
        raise LossyExport(f"{runtime} would not read the rest from config.json: {difference}", where=view.where)
