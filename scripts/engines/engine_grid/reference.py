"""transformers with the tables of a RopeSet in its rotary modules: what a model computes if a decoder is right."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.families.family import Family
from ropetool.probing.rotation import rotary_modules
from ropetool.rope.tables import LayerRope, RopeSet

Found = npt.NDArray[np.float64]
SCALES = ("scaling", "softmax_scale", "scale")  # what attention modules call the multiplier of the score


APPLIED: dict[str, dict[str, Any]] = {}  # by module of transformers: what stood in place of another rotation


class NotPut(Exception):
    """A RopeSet that cannot be put into a model, with what is in the way."""


class Reference:
    """A checkpoint in transformers; its own rope keys play no part once a RopeSet is put in."""

    def __init__(self, folder: Path) -> None:
        import transformers

        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = getattr(transformers, data["architectures"][0])
        self.model = kind.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
        self.config = self.model.config.get_text_config(decoder=True)
        self.modules = rotary_modules(self.model)
        self.scales = [
            (module, name, float(getattr(module, name)))
            for path, module in self.model.named_modules()
            for name in SCALES
            if "ttention" in type(module).__name__ and isinstance(getattr(module, name, None), float)
        ]

    def put(self, rope: RopeSet, family: Family, length: int, plain: RopeSet) -> None:
        """Have the model compute what a RopeSet says at a length.

        plain: what transformers makes of this checkpoint's own config; beside tables and factors nothing may differ.
        Raises: NotPut.
        """
        for kind, entry in rope.entries.items():
            _same_otherwise(kind, entry, plain.entries[kind])
            if entry.sliding_window != plain.entries[kind].sliding_window:
                self.config.sliding_window = entry.sliding_window  # masks are made from it at each call
            if plain.entries[kind].temperature is not None:
                beta = 0.0 if entry.temperature is None else entry.temperature.beta
                self.config.rope_parameters["llama_4_scaling_beta"] = beta
            self._pair(entry.layout, plain.entries[kind].layout)
            if entry.table is not None:
                regime = entry.table.at(length)
                self._put_table(family.rope_group(kind), family.nested, regime.inv_freq, regime.attention_factor)
        factors = {
            entry.softmax_multiplier / plain.entries[kind].softmax_multiplier for kind, entry in rope.entries.items()
        }
        if len(factors) > 1:
            raise NotPut("the score of some layers alone is multiplied")
        factor = factors.pop()
        if factor != 1 and not self.scales:
            raise NotPut("there is no multiplier of the score to change")
        for module, name, own in self.scales:
            setattr(module, name, own * factor)

    def _put_table(self, group: str, nested: bool, inv_freq: Any, attention_factor: float) -> None:
        import torch

        prefix, found = f"{group}_" if nested else "", False
        for module in self.modules.values():
            own = getattr(module, f"{prefix}inv_freq", None)
            if own is None:
                continue
            if own.shape != inv_freq.shape:
                raise NotPut(f"{inv_freq.size} pairs instead of {own.numel()}")
            own.copy_(torch.from_numpy(np.array(inv_freq)))
            setattr(module, f"{prefix}attention_scaling", attention_factor)
            found = True
        if not found:
            raise NotPut(f"there is no rotary module with {prefix}inv_freq")

    def _pair(self, layout: str, own: str) -> None:
        """Have a model that pairs neighbours pair channels i and i + d/2, as Llama's code does, or as it does itself."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        file = sys.modules[type(self.model).__module__]
        if layout == own:
            vars(file).update(APPLIED.pop(file.__name__, {}))
        elif layout == "half":
            APPLIED.setdefault(file.__name__, {"apply_rotary_pos_emb": file.apply_rotary_pos_emb})
            vars(file)["apply_rotary_pos_emb"] = apply_rotary_pos_emb
        else:
            raise NotPut(f"layout {layout}")

    def log_probs(self, ids: Sequence[int]) -> Found:
        """Return the log probability of each token but the first."""
        import torch

        row = torch.tensor([list(ids)])
        with torch.no_grad():
            logits = self.model(input_ids=row, use_cache=False).logits[0, :-1].double()
        found = torch.log_softmax(logits, dim=-1).gather(1, row[0, 1:, None])[:, 0]
        return np.asarray(found.numpy(), dtype=np.float64)


def _same_otherwise(kind: str, entry: LayerRope, plain: LayerRope) -> None:
    fields = ("layers", "chunked", "rotary_dim")
    for name in fields:
        if getattr(entry, name) != getattr(plain, name):
            raise NotPut(f"{kind}: {name} {getattr(entry, name)} instead of {getattr(plain, name)}")
    if (entry.table is None) != (plain.table is None):
        raise NotPut(f"{kind}: one rotates, the other does not")
    if entry.temperature is not None and not entry.temperature.agrees(plain.temperature):
        raise NotPut(f"{kind}: another temperature")
