"""A checkpoint's tables with the layer types of a GGUF file, for the comparison with another program's file."""

from __future__ import annotations

from dataclasses import replace

from ropetool.errors import LossyExport
from ropetool.rope.tables import LayerRope, RopeSet, in_words


def regrouped(source: RopeSet, in_llama_cpp: RopeSet, context: int, where: str, *, windows: bool = False) -> RopeSet:
    """Return the tables of a checkpoint, with the layer types and the layout of a GGUF file.

    source: the tables of the checkpoint.
    in_llama_cpp: the tables that llama.cpp computes from the file.
    context: the context length of the result, in tokens.
    where: the place for errors.
    windows: keep the checkpoint's windows if the file has no windows.
    Raises: LossyExport if layers with different tables share a table in the file, or a layer rotates in only one of
    them.
    """
    by_layer = {layer: entry for entry in source.entries.values() for layer in entry.layers}
    knows_windows = windows or any(entry.sliding_window is not None for entry in in_llama_cpp.entries.values())
    turning = {layer for layer, entry in by_layer.items() if entry.table is not None}
    in_file = {layer for entry in in_llama_cpp.entries.values() if entry.table is not None for layer in entry.layers}
    if turning != in_file:
        layers = ", ".join(map(str, sorted(turning ^ in_file)[:4]))
        raise LossyExport(
            f"layers {layers} rotate only in {'the checkpoint' if turning - in_file else 'llama.cpp'}", where=where
        )
    entries: dict[str, LayerRope] = {}
    for layer_type, entry in in_llama_cpp.entries.items():
        if entry.table is None:
            entries[layer_type] = entry
            continue
        ours = [by_layer[layer] for layer in entry.layers]
        first, others = ours[0], {id(one): one for one in ours[1:] if one is not ours[0]}
        window = first.sliding_window if knows_windows else None
        entries[layer_type] = replace(first, layout=entry.layout, layers=entry.layers, sliding_window=window)
        for other in others.values():
            alike = replace(
                other, layout=entry.layout, layers=entry.layers,
                sliding_window=other.sliding_window if knows_windows else None,
            )  # fmt: skip
            differs = in_words(entries[layer_type].differences(alike))
            if differs:
                raise LossyExport(
                    f"llama.cpp rotates layers {entry.layers[0]} and {other.layers[0]} alike, but they differ: {differs}",
                    where=where,
                )
    return RopeSet(entries, context, source.original_max_position_embeddings)
