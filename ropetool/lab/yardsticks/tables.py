"""Variants with a scaled table, whose factor is fixed or follows the length of a text.

Not every runtime can read the latter from a file. A KV cache makes them impossible, because its keys keep the table of
an earlier length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ropetool.lab.yardsticks.named import Yardstick
from ropetool.rope.formulas import Source, blend, kept_share_by_dims, ntk_stretch, yarn_factor
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet, RopeTable

BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's defaults


def scaled(rope: RopeSet, yardstick: Yardstick, trained: int, layers: frozenset[int]) -> RopeSet:
    """Return the tables of a variant in these layers: `linear`, `ntk` or `yarn`.

    Without a factor of the variant, the factor is max(1, n / trained) for a text of n tokens. A scale of the variant
    replaces the attention factor.
    Source: emozilla 2023, reddit.com/r/LocalLLaMA/comments/14mrgpr; Peng et al. 2023, arXiv 2309.00071, 3.3.
    """
    entries = {
        layer_type: replace(entry, table=_scaled(entry, yardstick, trained))
        if layers.issuperset(entry.layers)
        else entry
        for layer_type, entry in rope.entries.items()
    }
    return replace(rope, entries=entries)


def _scaled(entry: LayerRope, yardstick: Yardstick, trained: int) -> RopeTable | None:
    if entry.table is None:
        return None
    own = entry.table.at(trained)
    by_factor = _BY_NAME[yardstick.table](Source(own.inv_freq, trained, entry.rope_theta if entry.unscaled else None))

    def regime(factor: float) -> Regime:
        inv_freq, attention_factor = by_factor(factor)
        return Regime(inv_freq, own.attention_factor * (1.0 if yardstick.scale else attention_factor))

    if yardstick.factor:
        return RopeTable((regime(yardstick.factor),))
    return RopeTable((own,), rule=lambda length: regime(max(1.0, length / trained)), rule_key=(yardstick.name, trained))


def _linear(source: Source) -> Callable[[float], tuple[Array, float]]:
    return lambda factor: (source.inv_freq / factor, 1.0)


def _ntk(source: Source) -> Callable[[float], tuple[Array, float]]:
    return lambda factor: (source.inv_freq * ntk_stretch(source.rotary_dim, factor), 1.0)


def _yarn(source: Source) -> Callable[[float], tuple[Array, float]]:
    kept = kept_share_by_dims(source, BETA_FAST, BETA_SLOW, True)
    return lambda factor: (blend(source.inv_freq, kept, factor), yarn_factor(factor))


_BY_NAME = {"linear": _linear, "ntk": _ntk, "yarn": _yarn}
