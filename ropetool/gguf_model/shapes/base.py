"""One model of a family with its numbers, and what the program beside a family's table may say of it.

Knows no family; the tables stand in families/, the programs in rules.py.
"""

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

OPTIONAL, REQUIRED, ABSENT = "optional", "required", "absent"  # what llama.cpp makes of output.weight


@dataclass(frozen=True)
class Filed:
    """What a GGUF file says of a model: its sizes by their names in a table, its keys without the architecture's name,
    the names of its tensors."""

    arch: str
    sizes: Mapping[str, int]
    keys: Mapping[str, Any]
    tensors: Collection[str] = ()


@dataclass(frozen=True)
class Rules:
    """What no table can say of a family. keys: further GGUF keys. check: refuses what else llama.cpp does not compute.

    caveats: notes on what it computes a little otherwise. stated: the keys of the config that a file comes
    from, as far as no table says them, what llama.cpp computes without being told among them. config: the config with its
    sizes under the keys of the table, where the class reckons them out or has older keys.
    """

    keys: Callable[[Model], Mapping[str, Value]] = lambda model: {}
    check: Callable[[Model], None] = lambda model: None
    caveats: Callable[[Model], tuple[str, ...]] = lambda model: ()
    stated: Callable[[Filed], Mapping[str, Any]] = lambda filed: {}
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: config


@dataclass(frozen=True)
class Model:
    """One model of a family: its config, and the numbers and switches that its table counts with.

    kinds: the kind of each layer, none of a family whose layers are alike.
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
        """The name of the embedding among the checkpoint's tensors."""
        return self.table.outer[0].hf

    @property
    def head(self) -> str:
        """The name of the head among the checkpoint's tensors."""
        return next(row.hf for row in self.table.outer if row.when == "untied")

    def untied(self, reason: str) -> Model:
        """Return the model with a head of its own. Raises: LossyExport where llama.cpp has no place for one."""
        if self.table.head == ABSENT:
            raise self.lossy(f"{reason}; llama.cpp uses the embedding as the head of {self.arch}")
        return replace(self, switches={**self.switches, "tied": False, "untied": True})

    def stored_as(self, held: Collection[str]) -> Model:
        """Return the model with the switches that the names of a checkpoint's tensors decide."""
        found = {
            switch: any(f"{self.table.prefix}{layer}.{hf}" in held for layer in range(self.layers))
            for switch, hf in self.table.held.items()
        }
        return replace(self, switches={**self.switches, **found})

    @property
    def experts(self) -> int:
        """How many experts a layer has, 0 for a dense model."""
        return self.counts.get("experts", 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What llama.cpp computes a little otherwise."""
        activation = self.config.get(self.table.activation_key, self.table.activations[0])
        caveats = self.rules.caveats(self)
        if activation not in self.table.approximated:
            return caveats
        return (
            *caveats,
            f"llama.cpp computes {activation} in its tanh form; logits can differ by 1e-3 of the largest",
        )

    @property
    def drafts(self) -> int:
        """How many layers behind the last only draft tokens."""
        return self.counts.get(DRAFTS, 0)

    def number(self, key: str, default: float) -> float:
        """Return a number of the config, the default where it is absent. Raises: ConfigError."""
        value = self.config.get(key, default)
        if not is_number(value):
            raise ConfigError(f"{shown(value)} must be a number", where=f"{self.where}: {key}")
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
        return self.holds(row.when, layer)

    def holds(self, when: str, layer: int | None = None) -> bool:
        """Return whether switches are as `when` has them, in this layer."""
        dense = layer is not None and layer < self.counts.get("dense_layers", self.layers)
        on = {name: self.counts[name] > 0 for name in (*self.table.counts, *self.table.derived)}
        on |= {**self.switches, "dense": dense, "sparse": not dense}
        if layer is not None:
            on |= {name: self._is_on(switch, layer) for name, switch in self.table.layer_switches.items()}
        return all(on[switch] == wanted for switch, wanted in conditions(when))

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
        """Return the error for what llama.cpp does not compute."""
        return LossyExport(text, where=self.where, try_=try_)
