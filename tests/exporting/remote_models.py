"""Tiny checkpoints of classes that only remote code has, and who computes their logits: mlx-lm, or a class of transformers.

Nothing here runs that code. A checkpoint is stated by its config and by the names and shapes of its tensors, as files that are
published have them. Where mlx-lm serves the class, it loads the directory as it is. Elsewhere the class is, operation for
operation, one that transformers has under other names: a twin is that class, and how its weights are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from exporting import maker

VOCABULARY = 265  # rows: those of the tokenizer, and a few that no token has
TOKENIZER_CONFIG = {**maker.TOKENIZER_CONFIG, "eos_token": "<|eos|>"}
SIZES = {"vocab": VOCABULARY, "hidden": 128, "q": 128, "kv": 64, "head": 32, "inner": 96, "layers": 2}
Arrays = dict[str, np.ndarray]
Splits = Mapping[str, Callable[[np.ndarray], Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Twin:
    """A class of transformers that computes the same.

    architecture: its name. config: its keys. names: pairs of a regular expression and its replacement, all of which are
    tried on each name in turn. splits: by the end of a name, what the tensors of one that is packed are, by their ends.
    sees_all: each token attends to all others, as models that fill in text do.
    """

    architecture: str
    config: Mapping[str, Any]
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
class Remote:
    """A tiny checkpoint of a class.

    config: its keys. tensors: a name and its shape in each line, in numbers and the words of SIZES; a line with {i} stands for
    each layer, and with {e} for each expert. twin: the class that computes the same; None: mlx-lm does.
    """

    config: Mapping[str, Any]
    tensors: str
    twin: Twin | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    experts: int = 0

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
        """Return random weights: matrices that spread what goes in, norms about 1, biases about 0."""
        chance, found = np.random.default_rng(0), {}
        for name, shape in self.shapes().items():
            numbers = chance.standard_normal(shape)
            if len(shape) > 1:
                numbers *= 1.5 / np.sqrt(shape[-1]) if "embed" not in name and "wte" not in name else 1.0
            elif name.endswith("bias"):
                numbers *= 0.1
            else:
                numbers = 1 + 0.1 * numbers
            found[name] = numbers.astype(np.float32)
        return found


def make(architecture: str, folder: Path) -> str:
    """Write the tiny checkpoint of a class, and return its model_type."""
    import torch
    from safetensors.torch import save_file

    remote = REMOTE[architecture]
    folder.mkdir(parents=True)
    config = {"architectures": [architecture], "torch_dtype": "float32", "vocab_size": VOCABULARY, **remote.config}
    maker.save(folder / "config.json", config)
    maker.save(folder / "tokenizer.json", maker.tokenizer())
    maker.save(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    save_file({name: torch.from_numpy(one) for name, one in remote.arrays().items()}, folder / "model.safetensors")
    return str(config["model_type"])


def twin_logits(architecture: str, tokens: list[int]) -> np.ndarray:
    """Return the logits of the class that computes the same, in float64, (tokens, rows).

    Raises: AssertionError for a weight that the class has not, or that the checkpoint has not.
    """
    import torch
    import transformers

    remote = REMOTE[architecture]
    twin = remote.twin
    assert twin is not None
    kind = getattr(transformers, twin.architecture)
    model = kind._from_config(kind.config_class(vocab_size=VOCABULARY, **twin.config), attn_implementation="eager")
    weights = {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in twin.weights(remote.arrays()).items()}
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown, f"the class has no {unknown}"
    assert all("inv_freq" in name for name in missing), f"the checkpoint has no {missing}"
    extra = {"attention_mask": torch.zeros(1, 1, len(tokens), len(tokens))} if twin.sees_all else {}
    with torch.no_grad():
        found = model.double().eval()(torch.tensor([tokens]), use_cache=False, **extra).logits[0]
    return np.asarray(found.numpy(), np.float64)


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


def _packed_by_group(array: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values of internlm2: for each key head its queries, the key, the value."""
    groups = array.reshape(2, 4, 32, -1)
    return {
        "self_attn.q_proj.weight": groups[:, :2].reshape(128, -1),
        "self_attn.k_proj.weight": groups[:, 2].reshape(64, -1),
        "self_attn.v_proj.weight": groups[:, 3].reshape(64, -1),
    }


REMOTE: dict[str, Remote] = {
    # A llama under GPT-2's names.
    "ExaoneForCausalLM": Remote(
        {
            "model_type": "exaone", "hidden_size": 128, "intermediate_size": 96, "num_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 512, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0,
            "activation_function": "silu", "bos_token_id": 256, "eos_token_id": 257, "tie_word_embeddings": False,
        },
        """
        transformer.wte.weight vocab hidden
        transformer.ln_f.weight hidden
        lm_head.weight vocab hidden
        transformer.h.{i}.ln_1.weight hidden
        transformer.h.{i}.ln_2.weight hidden
        transformer.h.{i}.attn.attention.q_proj.weight q hidden
        transformer.h.{i}.attn.attention.k_proj.weight kv hidden
        transformer.h.{i}.attn.attention.v_proj.weight kv hidden
        transformer.h.{i}.attn.attention.out_proj.weight hidden q
        transformer.h.{i}.mlp.c_fc_0.weight inner hidden
        transformer.h.{i}.mlp.c_fc_1.weight inner hidden
        transformer.h.{i}.mlp.c_proj.weight hidden inner
        """,
    ),
    "InternLM2ForCausalLM": Remote(
        {"model_type": "internlm2", "bias": False, **PLAIN},
        """
        model.tok_embeddings.weight vocab hidden
        model.norm.weight hidden
        output.weight vocab hidden
        model.layers.{i}.attention_norm.weight hidden
        model.layers.{i}.ffn_norm.weight hidden
        model.layers.{i}.attention.wqkv.weight 256 hidden
        model.layers.{i}.attention.wo.weight hidden q
        model.layers.{i}.feed_forward.w1.weight inner hidden
        model.layers.{i}.feed_forward.w2.weight hidden inner
        model.layers.{i}.feed_forward.w3.weight inner hidden
        """,
        Twin(
            "LlamaForCausalLM", LLAMA,
            (
                ("tok_embeddings", "embed_tokens"), ("^output", "lm_head"), ("attention_norm", "input_layernorm"),
                ("ffn_norm", "post_attention_layernorm"), (r"\battention\.wo", "self_attn.o_proj"),
                (r"feed_forward\.w1", "mlp.gate_proj"), (r"feed_forward\.w2", "mlp.down_proj"),
                (r"feed_forward\.w3", "mlp.up_proj"),
            ),
            {"attention.wqkv.weight": _packed_by_group},
        ),
    ),
}  # fmt: skip
