"""The text model inside a wrapper: its config and its tensors under the names that they have where it stands alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ropetool.checkpoint import style
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.wrappers import PREFIXES

HEADS = {"lm_head.weight", "language_model.lm_head.weight"}
# What the wrapper's class computes by, wherever else the keys stand, and what llama.cpp is told of its other parts.
_OUTER = ("quantization_config", "bos_token_id", "eos_token_id", "pad_token_id", "vision_config")
TIED = "tie_word_embeddings"


def text_config(checkpoint: HfCheckpoint) -> Mapping[str, Any]:
    """Return the config of the text model, with what the wrapper states for all of it.

    Embedding and head are one where either says so, which some classes hand on and others do not: what is stored decides
    (tensors.py). Without a word they are one, as most wrappers' classes have it. Raises: InvalidRope.
    """
    family, outer = checkpoint.family, checkpoint.config
    if not family.wrapped:
        return outer
    inner = style.section(outer, family, checkpoint.where)
    stated = [part[TIED] for part in (outer, inner) if part.get(TIED) is not None]
    assumed = family.export.assumed if family.export is not None else {}
    kept = {key: outer[key] for key in _OUTER if key in outer}
    return {**assumed, **inner, **kept, TIED: True in stated or not stated}


def text_names(held: Iterable[str]) -> dict[str, str]:
    """Return the tensors of the text model in a wrapper's checkpoint: their own names, by the wrapper's.

    Source: transformers 5.23.0, core_model_loading.py and models/*/modeling_*.py, _checkpoint_conversion_mapping.
    """
    held = list(held)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in held)), "model.")
    found = {name: f"model.{name.removeprefix(prefix)}" for name in held if name.startswith(prefix)}
    return found | {name: name.removeprefix("language_model.") for name in held if name in HEADS}


def left_out(held: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return a note on the tensors that are no text model's, by the parts that they belong to."""
    others = [name.removeprefix("model.") for name in sorted({*held} - {*kept})]
    if not others:
        return ()
    parts = Counter(name.partition(".")[0] for name in others)
    shown = ", ".join(f"{part} ({count})" for part, count in parts.items())
    return (f"the file contains only the text model; left out (number of tensors): {shown}",)
