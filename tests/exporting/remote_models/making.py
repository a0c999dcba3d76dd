"""Tiny checkpoints of classes that only remote code has, and who computes their logits: mlx-lm, or a class of transformers.

Nothing here runs that code. A checkpoint is stated by its config and by the names and shapes of its tensors, as files that are
published have them. Where mlx-lm serves the class, it loads the directory as it is. Elsewhere the class is, operation for
operation, one that transformers has under other names: a twin is that class, and how its weights are called. Where there is
none, what the class computes is written out, from its published code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tokenizer_making

VOCABULARY = 265  # rows: those of the tokenizer, and a few that no token has
TOKENIZER_CONFIG = {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"}
SIZES = {"vocab": VOCABULARY, "hidden": 128, "q": 128, "kv": 64, "head": 32, "inner": 96, "layers": 2}
Arrays = dict[str, np.ndarray]
Config = Mapping[str, Any]
Splits = Mapping[str, Callable[[np.ndarray], Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Twin:
    """A class of transformers that computes the same.

    architecture: its name. config: its keys. names: pairs of a regular expression and its replacement, all of which are
    tried on each name in turn. splits: by the end of a name, what the tensors of one that is packed are, by their ends.
    sees_all: each token attends to all others, as models that fill in text do.
    """

    architecture: str
    config: Config
    names: tuple[tuple[str, str], ...] = ()
    splits: Splits = field(default_factory=dict)
    sees_all: bool = False

    def weights(self, tensors: Mapping[str, np.ndarray]) -> Arrays:
        """Return tensors of the checkpoint under the names of the class."""
        found: Arrays = {}
        for name, array in tensors.items():
            for end, split in self.splits.items():
                if name.endswith(end):
                    found |= {self._called(name.removesuffix(end) + own): part for own, part in split(array).items()}
                    break
            else:
                found[self._called(name)] = array
        return found

    def _called(self, name: str) -> str:
        for pattern, other in self.names:
            name = re.sub(pattern, other, name)
        return name


@dataclass(frozen=True)
class Written:
    """What a class computes, written out.

    source: whose code it was read in. logits: it, from the tensors, the config and the ids, (tokens, rows).
    """

    source: str
    logits: Callable[[Mapping[str, Any], Config, Any], Any]


@dataclass(frozen=True)
class Remote:
    """A tiny checkpoint of a class.

    config: its keys. tensors: a name and its shape in each line, in numbers and the words of SIZES; a line with {i} stands for
    each layer, and with {e} for each expert. twin: who computes the same; None: mlx-lm does.
    indexed: whether a list says which file each tensor is in, as published ones of several files have it.
    """

    config: Config
    tensors: str
    twin: Twin | Written | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    experts: int = 0
    indexed: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, by name."""
        sizes, found = {**SIZES, **self.sizes}, {}
        for line in self.tensors.split("\n"):
            if not line.strip():
                continue
            name, *shape = line.split()
            rows = tuple(sizes[word] if word in sizes else int(word) for word in shape)
            for layer in range(sizes["layers"]) if "{i}" in name else (0,):
                for expert in range(self.experts) if "{e}" in name else (0,):
                    found[name.replace("{i}", str(layer)).replace("{e}", str(expert))] = rows
        return found

    def arrays(self) -> Arrays:
        """Return random weights: matrices that spread what goes in, norms about 1, biases about 0.

        What a gelu is taken of is small: llama.cpp takes it from a table of float16 numbers, which full weights show.
        """
        quiet = re.compile(r"mlp|ffn|feed_forward|moe|experts" if "gelu" in str(self.config) else r"(?!)")
        chance, found = np.random.default_rng(0), {}
        for name, shape in self.shapes().items():
            numbers = chance.standard_normal(shape)
            if len(shape) > 1:
                numbers *= 1.5 / np.sqrt(shape[-1]) if "embed" not in name and "wte" not in name else 1.0
                numbers *= 0.1 if quiet.search(name) else 1.0
            elif name.endswith("bias"):
                numbers *= 0.1
            else:
                numbers = 1 + 0.1 * numbers
            found[name] = numbers.astype(np.float32)
        return found


ATTENTION = """
model.layers.{i}.self_attn.q_proj.weight q hidden
model.layers.{i}.self_attn.k_proj.weight kv hidden
model.layers.{i}.self_attn.v_proj.weight kv hidden
model.layers.{i}.self_attn.o_proj.weight hidden q
"""
NORMS = """
model.layers.{i}.input_layernorm.weight hidden
model.layers.{i}.post_attention_layernorm.weight hidden
"""
GATED = """
model.layers.{i}.mlp.gate_proj.weight inner hidden
model.layers.{i}.mlp.up_proj.weight inner hidden
model.layers.{i}.mlp.down_proj.weight hidden inner
"""
ENDS = """
model.embed_tokens.weight vocab hidden
model.norm.weight hidden
lm_head.weight vocab hidden
"""
PLAIN = {
    "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "bos_token_id": 256, "eos_token_id": 257, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = {
    **{key: value for key, value in PLAIN.items() if key != "rope_theta"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
