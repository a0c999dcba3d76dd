"""The text model inside a wrapper: its config, and its tensors' names in a checkpoint without the wrapper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ropetool.checkpoint import style
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.wrappers import PREFIXES
from ropetool.names import QUANTIZATION_CONFIG

HEADS = {"lm_head.weight", "language_model.lm_head.weight"}
# Keys that the wrapper's class reads only at the top of the config, and vision_config, on which some GGUF keys depend.
_OUTER = (QUANTIZATION_CONFIG, "bos_token_id", "eos_token_id", "pad_token_id", "vision_config")
TIED = "tie_word_embeddings"


def text_config(checkpoint: HfCheckpoint) -> Mapping[str, Any]:
    """Return the config of the text model, with the wrapper's keys that apply to the whole model.

    Embedding and head are tied if wrapper or text model sets tie_word_embeddings, because only some classes pass the
    key on. The stored tensors then decide (tensors.py). If neither sets the key, they are tied, as in most wrappers'
    classes.
    Raises: InvalidRope.
    """
    family, outer = checkpoint.family, checkpoint.config
    if not family.wrapped:
        return outer
    inner = style.section(outer, family, checkpoint.where)
    tied = [part[TIED] for part in (outer, inner) if part.get(TIED) is not None]
    assumed = family.export.assumed if family.export is not None else {}
    kept = {key: outer[key] for key in _OUTER if key in outer}
    return {**assumed, **inner, **kept, TIED: True in tied or not tied}


def text_names(held: Iterable[str]) -> dict[str, str]:
    """Return the text model's tensor names: from the name in the wrapper's checkpoint to the name without a wrapper.

    Source: transformers 5.23.0, core_model_loading.py and models/*/modeling_*.py, _checkpoint_conversion_mapping.
    """
    held = list(held)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in held)), "model.")
    below = {name: f"model.{name.removeprefix(prefix)}" for name in held if name.startswith(prefix)}
    return below | {name: name.removeprefix("language_model.") for name in held if name in HEADS}


def left_out(held: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return a note that counts the tensors of other models, by the part of the wrapper."""
    others = [name.removeprefix("model.") for name in sorted({*held} - {*kept})]
    if not others:
        return ()
    parts = Counter(name.partition(".")[0] for name in others)
    shown = ", ".join(f"{part} ({count})" for part, count in parts.items())
    return (f"the file contains only the text model; left out (number of tensors): {shown}",)
