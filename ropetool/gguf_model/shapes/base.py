"""One model of a family with its sizes, and the rules that complete a family's export table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropetool.errors import ConfigError, LossyExport
from ropetool.families.family import Family
from ropetool.families.tensors import DRAFTS, Export, LayerSwitch, Row, conditions
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import is_number

REQUIRED, ABSENT = "required", "absent"  # how llama.cpp treats output.weight


@dataclass(frozen=True)
class Filed:
    """The facts about a model in a GGUF file.

    arch: the name of its architecture.
    sizes: the sizes, by their names in an export table.
    keys: the keys, without the architecture's name.
    tensors: the names of the tensors.
    """

    arch: str
    sizes: Mapping[str, int]
    keys: Mapping[str, Any]
    tensors: Collection[str] = ()


@dataclass(frozen=True)
class Rules:
    """The rules of a family that a table cannot express.

    keys: further GGUF keys.
    check: raises LossyExport or ConfigError for settings that llama.cpp does not compute.
    caveats: notes about small differences in llama.cpp's results.
    from_file: config keys for a GGUF file, if the table does not have them. These include settings that llama.cpp
      assumes.
    config: the config with its sizes under the table's keys, if the class computes sizes or accepts older keys.
    """

    keys: Callable[[ModelShape], Mapping[str, Value]] = lambda model: {}
    check: Callable[[ModelShape], None] = lambda model: None
    caveats: Callable[[ModelShape], tuple[str, ...]] = lambda model: ()
    from_file: Callable[[Filed], Mapping[str, Any]] = lambda filed: {}
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: config


@dataclass(frozen=True)
class ModelShape:
    """One model of a family: its config, and the sizes and switches of its export table.

    counts: sizes by name.
    switches: booleans by name.
    where: the config file, for error messages.
    kinds: the layer type of each layer; empty for a family without layer types.
    """

    family: Family
    table: Export
    rules: Rules
    config: Mapping[str, Any]
    arch: str
    counts: Mapping[str, int]
    switches: Mapping[str, bool]
    where: str
    kinds: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        return self.counts["layers"]

    @property
    def tied(self) -> bool:
        return self.switches["tied"]

    @property
    def embedding(self) -> str:
        """The checkpoint's name of the embedding."""
        return self.table.outer[0].hf

    @property
    def head(self) -> str:
        """The checkpoint's name of the head."""
        return next(row.hf for row in self.table.outer if row.when == "untied")

    def untied(self, reason: str) -> ModelShape:
        """Return the model with a separate head. Raises: LossyExport if llama.cpp does not support one."""
        if self.table.head == ABSENT:
            raise self.lossy(f"{reason}; llama.cpp uses the embedding as the head of {self.arch}")
        return replace(self, switches={**self.switches, "tied": False, "untied": True})

    def stored_as(self, held: Collection[str]) -> ModelShape:
        """Return the model with the switches that depend on the names of the checkpoint's tensors."""
        decided = {
            switch: any(f"{self.table.prefix}{layer}.{hf}" in held for layer in range(self.layers))
            for switch, hf in self.table.held.items()
        }
        return replace(self, switches={**self.switches, **decided})

    @property
    def experts(self) -> int:
        """The number of experts in a layer, 0 for a dense model."""
        return self.counts.get("experts", 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about small differences in llama.cpp's results."""
        activation = self.config.get(self.table.activation_key, self.table.activations[0])
        caveats = self.rules.caveats(self)
        if activation not in self.table.approximated:
            return caveats
        return (*caveats, f"llama.cpp computes {activation} in its tanh form; logits can differ by 1e-3 of the largest")

    @property
    def drafts(self) -> int:
        """The number of draft layers, which follow the last layer."""
        return self.counts.get(DRAFTS, 0)

    def number(self, key: str, default: float) -> float:
        """Return a number of the config, or the default if the key is missing.

        Raises: ConfigError if it is not a number.
        """
        value = self.config.get(key, default)
        if not is_number(value):
            raise ConfigError(f"{shown(value)} must be a number", where=f"{self.where}: {key}")
        return float(value)

    def need_nonzero(self, key: str, default: float) -> None:
        """Raise LossyExport for a multiplier of 0, because llama.cpp treats 0 as a missing key."""
        if self.number(key, default) == 0:
            raise self.lossy(f"{key} is 0; llama.cpp computes as if it were not set")

    def shape(self, sizes: str) -> tuple[int, ...]:
        """Return a shape from names of sizes that are separated by spaces."""
        return tuple(self.counts[size] for size in sizes.split())

    def has(self, row: Row, layer: int | None = None) -> bool:
        """Return whether the model has this tensor, in this layer if one is given."""
        return self.holds(row.when, layer)

    def holds(self, when: str, layer: int | None = None) -> bool:
        """Return whether the switches meet the condition `when`, in this layer if one is given."""
        dense = layer is not None and layer < self.counts.get("dense_layers", self.layers)
        on = {name: self.counts[name] > 0 for name in (*self.table.counts, *self.table.derived)}
        on |= {**self.switches, "dense": dense, "sparse": not dense}
        if layer is not None:
            on |= {name: self._is_on(switch, layer) for name, switch in self.table.layer_switches.items()}
        return all(on[switch] == required for switch, required in conditions(when))

    def _is_on(self, switch: LayerSwitch, layer: int) -> bool:
        every = self.counts[switch.every] if switch.every else 1
        numbers, words = self.config.get(switch.numbers_key), self.config.get(switch.words_key)
        return (
            (not switch.kinds or self.kinds[layer] in switch.kinds)
            and (not switch.first or layer < self.counts[switch.first])
            and (layer + 1) % every == 0
            and (numbers is None or layer in numbers)
            and (words is None or words[layer] in switch.words)
        )

    def lossy(self, text: str, try_: str = "") -> LossyExport:
        """Return a LossyExport for a setting that llama.cpp does not compute."""
        return LossyExport(text, where=self.where, try_=try_)
