"""A different configured context length and no other change, for models trained on longer texts or without rotation.

Every layer type keeps its computation, so the search starts from the unchanged file.
"""

from __future__ import annotations

from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal, NoParams, chosen_attention_factor
from ropetool.rope.tables import RopeTable

NAME = "length"
ALIASES = ("context-length",)
SUMMARY = "changes only the configured context length: for models trained on longer texts, or layers without rotation"
SOURCE = "max_position_embeddings of transformers, context_length of GGUF"
AUTO_ATTENTION_FACTOR = "none"
KEEPS_TABLES = True


def derive(source: Source, goal: Goal, params: NoParams) -> Derived:
    return Derived(
        RopeTable.fixed(source.inv_freq, chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)),
        goal.target_length,
        softmax_multiplier=source.softmax_multiplier,
    )
