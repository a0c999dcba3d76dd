"""Variants whose table depends on the length of a text. Not every runtime can read them from a file.

A KV cache makes them impossible, because its keys keep the table of an earlier length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ropetool.rope.formulas import Source, blend, kept_share_by_dims, ntk_stretch, yarn_factor
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet, RopeTable

BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's defaults


def following(rope: RopeSet, table: str, trained: int, layers: frozenset[int]) -> RopeSet:
    """Return the tables with `ntk` or `yarn` of factor max(1, n / trained) for a text of n tokens, in these layers.

    Source: emozilla 2023, reddit.com/r/LocalLLaMA/comments/14mrgpr; Peng et al. 2023, arXiv 2309.00071, 3.3.
    """
    entries = {
        layer_type: replace(entry, table=_following(entry, table, trained))
        if layers.issuperset(entry.layers)
        else entry
        for layer_type, entry in rope.entries.items()
    }
    return replace(rope, entries=entries)


def _following(entry: LayerRope, table: str, trained: int) -> RopeTable | None:
    if entry.table is None:
        return None
    own = entry.table.at(trained)
    scaled = _BY_NAME[table](Source(own.inv_freq, trained, entry.rope_theta if entry.unscaled else None))

    def rule(length: int) -> Regime:
        factor = max(1.0, length / trained)
        inv_freq, attention_factor = scaled(factor)
        return Regime(inv_freq, own.attention_factor * attention_factor)

    return RopeTable((own,), rule=rule, rule_key=(table, trained))


def _ntk(source: Source) -> Callable[[float], tuple[Array, float]]:
    return lambda factor: (source.inv_freq * ntk_stretch(source.rotary_dim, factor), 1.0)


def _yarn(source: Source) -> Callable[[float], tuple[Array, float]]:
    kept = kept_share_by_dims(source, BETA_FAST, BETA_SLOW, True)
    return lambda factor: (blend(source.inv_freq, kept, factor), yarn_factor(factor))


_BY_NAME = {"ntk": _ntk, "yarn": _yarn}
