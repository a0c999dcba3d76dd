"""What a checkpoint computes, under the division into kinds of layer that a GGUF file has which others wrote.

Knows decoded tables alone; which file, and what is done about a difference, is the caller's.
"""

from __future__ import annotations

from dataclasses import replace

from ropetool.errors import LossyExport
from ropetool.rope.tables import LayerRope, RopeSet, in_words


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
            f"layers {layers} rotate only in {'the checkpoint' if turning - in_file else 'llama.cpp'}", where=where
        )
    entries: dict[str, LayerRope] = {}
    for kind, entry in found.entries.items():
        if entry.table is None:
            entries[kind] = entry
            continue
        ours = [by_layer[layer] for layer in entry.layers]
        first, others = ours[0], {id(one): one for one in ours[1:] if one is not ours[0]}
        window = first.sliding_window if knows_windows else None
        entries[kind] = replace(first, layout=entry.layout, layers=entry.layers, sliding_window=window)
        for other in others.values():
            alike = replace(
                other, layout=entry.layout, layers=entry.layers,
                sliding_window=other.sliding_window if knows_windows else None,
            )  # fmt: skip
            differs = in_words(entries[kind].differences(alike))
            if differs:
                raise LossyExport(
                    f"llama.cpp rotates layers {entry.layers[0]} and {other.layers[0]} alike, but they differ: {differs}",
                    where=where,
                )
    return RopeSet(entries, context, source.original_max_position_embeddings)
