"""What a family's table holds, and one model of a family with its numbers.

Knows no family; what each is made of stands in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ropetool.errors import ConfigError, LossyExport
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_export.shapes.rows import Row, Rows
from ropetool.rope.tables import is_number

# Bounds of our own, several times beyond any model: a hostile count would cost memory before it is found out.
MAX_COUNT, MAX_EXPERTS = 2**20, 2**10
RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
OUTER = (
    Row(EMBEDDING, "token_embd.weight", "vocabulary hidden"),
    Row(NORM, "output_norm.weight", "hidden"),
    Row(HEAD, "output.weight", "vocabulary hidden", "untied"),
)
OPTIONAL, REQUIRED, ABSENT = "optional", "required", "absent"  # what llama.cpp makes of output.weight


@dataclass(frozen=True)
class Count:
    """A size in config.json: its key, other keys for the same, and what the class assumes; None: it must be stated.

    null: what a key with null stands for, where that is another size than without the key.
    """

    key: str
    default: int | None = None
    others: tuple[str, ...] = ()
    most: int = MAX_COUNT
    least: int = 1
    null: int | None = None


@dataclass(frozen=True)
class Family:
    """What the class of a family does, assumes where the config is silent, and calls its tensors.

    layer, outer: the tensors of a layer below `prefix`, and those of none. kv_heads None: as many as heads. grouped:
    whether heads may share keys and values. counts: sizes beyond the common ones. derived: sizes that follow from
    others. switches: keys of the config that are true or false, and what they are where it is silent. head: whether
    llama.cpp needs output.weight, takes the embedding without it, or always. output_bias: whether there is a place for
    the biases that attention_bias asks for. square: heads and channels make the hidden size, for llama.cpp reckons so.
    activations: those that llama.cpp computes, under `activation_key`; approximated: those of them that it computes a
    little otherwise. fixed: keys whose value llama.cpp takes for granted, with the ones that it takes. sizes: GGUF keys
    that hold a size. more: further GGUF keys. check: refuses what else llama.cpp does not compute. caveats: notes on
    what it computes a little otherwise.
    """

    layer: Rows
    outer: Rows = OUTER
    prefix: str = "model.layers."
    kv_heads: int | None = None
    grouped: bool = True
    eps: float = 1e-6
    eps_key: str = "rms_norm_eps"
    eps_name: str = RMS_EPS
    counts: Mapping[str, Count] = field(default_factory=dict)
    derived: Callable[[Mapping[str, int]], Mapping[str, int]] = lambda counts: {}
    switches: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    tied: bool = False
    head: str = OPTIONAL
    output_bias: bool = True
    square: bool = False
    activations: tuple[str, ...] = ("silu",)
    activation_key: str = "hidden_act"
    approximated: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Model], Mapping[str, Value]] = lambda model: {}
    check: Callable[[Model], None] = lambda model: None
    caveats: Callable[[Model], tuple[str, ...]] = lambda model: ()


@dataclass(frozen=True)
class Model:
    """One model of a family: its config, and the numbers and switches that its table counts with."""

    family: Family
    config: Mapping[str, Any]
    arch: str
    counts: Mapping[str, int]
    switches: Mapping[str, bool]
    where: str

    @property
    def layers(self) -> int:
        return self.counts["layers"]

    @property
    def tied(self) -> bool:
        return self.switches["tied"]

    @property
    def embedding(self) -> str:
        """The name of the embedding among the checkpoint's tensors."""
        return self.family.outer[0].source

    @property
    def head(self) -> str:
        """The name of the head among the checkpoint's tensors."""
        return next(row.source for row in self.family.outer if row.when == "untied")

    def untied(self, reason: str) -> Model:
        """Return the model with a head of its own. Raises: LossyExport where llama.cpp has no place for one."""
        if self.family.head == ABSENT:
            raise self.lossy(f"{reason}; llama.cpp takes the embedding as the head of {self.arch}")
        return replace(self, switches={**self.switches, "tied": False, "untied": True})

    @property
    def experts(self) -> int:
        """How many experts a layer has, 0 for a dense model."""
        return self.counts.get("experts", 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What llama.cpp computes a little otherwise."""
        activation = self.config.get(self.family.activation_key, self.family.activations[0])
        caveats = self.family.caveats(self)
        if activation not in self.family.approximated:
            return caveats
        return (
            *caveats,
            f"llama.cpp computes {activation} by its tanh form, which can move logits by 1e-3 of the largest",
        )

    @property
    def drafts(self) -> int:
        """How many layers behind the last only draft tokens."""
        return self.counts.get("drafts", 0)

    def number(self, key: str, default: float) -> float:
        """Return a number of the config, the default where it is absent. Raises: ConfigError."""
        value = self.config.get(key, default)
        if not is_number(value):
            raise ConfigError(f"{shown(value)} is not a number", where=f"{self.where}: {key}")
        return float(value)

    def need_nonzero(self, key: str, default: float) -> None:
        """Raise LossyExport for a multiplier of 0, which llama.cpp takes for one that is not set."""
        if self.number(key, default) == 0:
            raise self.lossy(f"{key} is 0; llama.cpp computes as if it were not set")

    def shape(self, sizes: str) -> tuple[int, ...]:
        """Return the numbers of sizes by name."""
        return tuple(self.counts[size] for size in sizes.split())

    def has(self, row: Row, layer: int | None = None) -> bool:
        """Return whether the model has this tensor, in this layer."""
        dense = layer is not None and layer < self.counts.get("dense_layers", self.layers)
        on = {**self.switches, "": True, "dense": dense, "sparse": not dense}
        return on[row.when.removeprefix("not ")] != row.when.startswith("not ")

    def lossy(self, text: str, try_: str = "") -> LossyExport:
        """Return the error for what llama.cpp does not compute."""
        return LossyExport(text, where=self.where, try_=try_)
