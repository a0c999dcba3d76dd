"""What a checkpoint computes, under the division into kinds of layer that a GGUF file has which others wrote.

Knows decoded tables alone; which file, and what is done about a difference, is the caller's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ropetool.errors import LossyExport
from ropetool.rope.tables import LayerRope, RopeSet, RopeTable, in_words

NO_TURN = 1e-20  # radians a token: 2^31 tokens on, float32 has the cosine as 1


def regrouped(source: RopeSet, found: RopeSet, context: int, where: str, *, windows: bool = False) -> RopeSet:
    """Return what the checkpoint computes, its layers grouped, named and laid out as the file has them.

    windows: whether the checkpoint's windows count where the file has none.
    Raises: LossyExport where layers that the checkpoint tells apart share a table in the file, or rotate in one alone.
    """
    by_layer = {layer: entry for entry in source.entries.values() for layer in entry.layers}
    knows_windows = windows or any(entry.sliding_window is not None for entry in found.entries.values())
    turning = {layer for layer, entry in by_layer.items() if entry.table is not None}
    in_file = {layer for entry in found.entries.values() if entry.table is not None for layer in entry.layers}
    if turning != in_file:
        layers = ", ".join(map(str, sorted(turning ^ in_file)[:4]))
        raise LossyExport(
            f"layers {layers} rotate in {'the checkpoint' if turning - in_file else 'llama.cpp'} alone", where=where
        )
    entries: dict[str, LayerRope] = {}
    for kind, entry in found.entries.items():
        if entry.table is None:
            entries[kind] = entry
            continue
        ours = [by_layer[layer] for layer in entry.layers]
        first, others = ours[0], {id(one): one for one in ours[1:] if one is not ours[0]}
        window = first.sliding_window if knows_windows else None
        entries[kind] = replace(
            first, table=_still_as_found(first.table, entry.table), layout=entry.layout, layers=entry.layers,
            sliding_window=window,
        )  # fmt: skip
        for other in others.values():
            alike = replace(
                other, table=_still_as_found(other.table, entry.table), layout=entry.layout, layers=entry.layers,
                sliding_window=other.sliding_window if knows_windows else None,
            )  # fmt: skip
            differs = in_words(entries[kind].differences(alike))
            if differs:
                raise LossyExport(
                    f"llama.cpp treats layers {entry.layers[0]} and {other.layers[0]} alike, which differ: {differs}",
                    where=where,
                )
    return RopeSet(entries, context, source.original_max_position_embeddings)


def _still_as_found(table: RopeTable | None, found: RopeTable) -> RopeTable | None:
    """Return a table whose pairs that never turn have the file's frequencies, where those are none either.

    A file can only divide, so a pair that does not turn is divided by 1e30, as gemma4's converter does.
    """
    if table is None or table.rule is not None or len(table.regimes) != len(found.regimes):
        return table
    regimes = []
    for ours, theirs in zip(table.regimes, found.regimes, strict=True):
        if ours.inv_freq.shape != theirs.inv_freq.shape:
            return table
        still = (ours.inv_freq == 0) & (theirs.inv_freq < NO_TURN)
        regimes.append(replace(ours, inv_freq=np.where(still, theirs.inv_freq, ours.inv_freq)))
    return replace(table, regimes=tuple(regimes))
