"""The layer types of a GGUF export: the layers that llama.cpp lets slide, and the keys for them.

exported.py chooses the table and writes it.
"""

from __future__ import annotations

from dataclasses import replace

from ropetool import names
from ropetool.errors import LossyExport
from ropetool.files.gguf import Value, ValueType
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes.hf_formulas import Layers
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.layers import UNROTATED


def slides(arch: Architecture, layers: Layers) -> bool:
    """Return whether llama.cpp supports sliding layers in this model."""
    rules = arch.sliding
    return rules is not None and rules.layer_count in (None, layers.count) and layers.window is not None


def entries(source: RopeSet, layers: Layers, arch: Architecture, where: str) -> dict[str, LayerRope]:
    """Return the entry of each layer type, with llama.cpp's layer types.

    Raises: LossyExport if no layer attends to the whole context.
    """
    full = source.entries[names.FULL_ATTENTION]
    rotating = {layer for entry in source.entries.values() for layer in entry.layers}
    sliding = layers.sliding if slides(arch, layers) else frozenset()
    attending = [layer for layer in range(layers.count) if layer not in layers.stateful]
    by_type: dict[str, LayerRope] = {}
    for layer_type in (names.FULL_ATTENTION, names.SLIDING_ATTENTION):
        those = [layer for layer in attending if (layer in sliding) == (layer_type == names.SLIDING_ATTENTION)]
        turning = tuple(layer for layer in those if layer in rotating)
        still = tuple(layer for layer in those if layer not in rotating)
        window = layers.window if layer_type == names.SLIDING_ATTENTION else None
        if turning:
            entry = source.entries.get(layer_type, full)
            by_type[layer_type] = replace(entry, layout=arch.layout, layers=turning, sliding_window=window)
        if still:
            by_type[layer_type + UNROTATED if turning else layer_type] = LayerRope(
                "none", None, full.head_dim, 0, arch.layout, still
            )
    if names.FULL_ATTENTION not in by_type:
        raise LossyExport(
            "every layer has a sliding window; export needs a layer that attends to the whole context", where=where
        )
    return by_type


def layer_keys(target: RopeSet, layers: Layers, arch: Architecture) -> dict[str, Value]:
    """Return the keys for sliding layers, their base, and the temperature of the score."""
    values: dict[str, Value] = {}
    if slides(arch, layers):
        assert layers.window is not None
        pattern = [layer in layers.sliding for layer in range(layers.count)]
        values[keys.SLIDING_WINDOW] = Value.of(ValueType.U32, layers.window)
        values[keys.SLIDING_WINDOW_PATTERN] = Value.array(ValueType.BOOL, pattern)
    entry = target.entries.get(names.SLIDING_ATTENTION)
    if entry is not None and entry.rope_theta is not None and arch.sliding is not None and arch.sliding.own_base:
        values[keys.FREQ_BASE_SWA] = Value.of(ValueType.F32, entry.rope_theta)
    temperature = next((entry.temperature for entry in target.entries.values() if entry.temperature), None)
    if temperature is not None and keys.TEMPERATURE_SCALE in arch.keys:
        values[keys.TEMPERATURE_SCALE] = Value.of(ValueType.F32, temperature.beta)
        if keys.TEMPERATURE_LENGTH in arch.keys:
            values[keys.TEMPERATURE_LENGTH] = Value.of(ValueType.U32, temperature.length)
    return {f"{arch.name}.{key}": value for key, value in values.items()}


def window_notes(layers: Layers, arch: Architecture, context: int, where: str, allowed: bool) -> tuple[str, ...]:
    """Return a note on a window that llama.cpp ignores in this architecture.

    allowed: full attention is allowed.
    Raises: LossyExport for a window below the context length, if full attention is not allowed.
    """
    window = layers.window
    if window is None or not layers.sliding or slides(arch, layers):
        return ()
    return ignored_window_notes(window, context, where, allowed)


def ignored_window_notes(window: int, context: int, where: str, allowed: bool) -> tuple[str, ...]:
    """Return a note on a window that llama.cpp ignores, if it is below the context length. Lengths are in tokens.

    Raises: LossyExport for such a window, if full attention is not allowed.
    """
    if window >= context:
        return ()
    ignored = f"llama.cpp ignores the sliding window of {window} tokens and attends to the whole context of {context}"
    if not allowed:
        raise LossyExport(ignored, where=where, try_="--allow-full-attention, if the model works without the window")
    return (f"{ignored}: on texts of more than {window} tokens its results differ from transformers",)
