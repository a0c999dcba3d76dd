"""Mistakes that a changed table does not show: channel pairs, unrotated keys, wrong positions.

A mistake of the rotation replaces the functions of a transformers model that rotate queries and keys. A mistake of the
positions passes other positions to the model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conformance_kit import cases
from conformance_kit.cases import Calls
from ropetool.rope.tables import RopeSet
from ropetool.verification.runners.torch_rotation import TABLES, rotations

SAYS = {
    cases.PAIRS: "neighbouring channels are rotated instead of the two halves, or the reverse",
    cases.OFF_BY_ONE: "queries are rotated by one position more than keys; if a cache is kept, each later turn starts one position late",
    cases.KEYS: "queries are rotated, keys are not",
    cases.RESTART: "the positions of each later turn begin at 0 again",
    cases.LONGEST: "later turns of every request have the positions of the longest one",
    cases.CLAMPED: "later positions use row 4095",
    cases.WRAPPED: "position 4096 uses row 0 again",
    cases.INDEXER: "the indexer rotates neighbouring channels, as the attention does; its checkpoints pair the two halves",
    cases.ATTENTION: "the attention rotates the two halves, as the indexer does; its checkpoints pair neighbouring channels",
    cases.UNROTATED_BLOCKS: "the keys of compressed blocks are not rotated",
    cases.WRONG_TYPE: "the windowed layers are not scaled",
    cases.PARTIAL: "the first channels are paired among themselves, and the exponents are shares of their number",
}
ROWS = 4096  # of a table of cos and sin that is too short
HALF, NEIGHBOURS = "half", "interleaved"


def positions(name: str, calls: Calls, row: list[int]) -> list[int]:
    """Return the positions that an engine with this mistake gives the tokens of a row's longest prompt.

    row: the indexes of its prompts.
    """
    length = max(calls.lengths[prompt] for prompt in row)
    right = list(range(length))
    if name == cases.CLAMPED:
        return [min(at, ROWS - 1) for at in right]
    if name == cases.WRAPPED:
        return [at % ROWS for at in right]
    if not calls.share or name not in (cases.OFF_BY_ONE, cases.RESTART, cases.LONGEST):
        return right
    wrong = right[: calls.lengths[row[0]]]
    for prompt in row[1:]:
        kept = calls.kept(prompt)
        step = prompt // calls.together * calls.together
        longest = max(calls.kept(other) for other in range(step, step + calls.together))
        first = {cases.OFF_BY_ONE: kept + 1, cases.RESTART: 0, cases.LONGEST: longest}[name]
        wrong += range(first, first + calls.lengths[prompt] - kept)
    return wrong


@dataclass(frozen=True)
class Rotation:
    """A call of a function that rotates queries, keys or both.

    rotated, tables: the names of these arguments.
    """

    rotate: Callable[..., Any]
    bound: inspect.BoundArguments
    rotated: list[str]
    tables: list[str]

    def result(self, **changed: Any) -> Any:
        return self.rotate(**{**self.bound.arguments, **changed})

    def given(self, names: list[str]) -> dict[str, Any]:
        return {name: self.bound.arguments[name] for name in names}

    @property
    def of_keys(self) -> bool:
        """Whether a call with one rotated argument has a key: one head, and the queries of the kit have more."""
        value = self.bound.arguments[self.rotated[0]]
        return bool(value.shape[self.bound.arguments.get("unsqueeze_dim", 1)] == 1)

    def with_tables(self, tables: Mapping[str, Any], queries: bool) -> Any:
        """Return the result with other tables for the queries, or else for the keys."""
        if len(self.rotated) == 1:
            return self.result(**tables) if self.of_keys != queries else self.result()
        right, wrong = self.result(), self.result(**tables)
        return (wrong[0], right[1]) if queries else (right[0], wrong[1])


Change = Callable[[Rotation], Any]


@contextmanager
def mistaken(model: Any, name: str, rope: RopeSet, length: int) -> Iterator[None]:
    """Let a transformers model make a mistake of the rotation within the context.

    name: the mistake; other names change nothing.
    rope: the table that the model computes. length: of the prompt, in tokens.
    """
    functions = [(module, function, getattr(module, function)) for module, function in rotations(model)]
    hooks = _unscaled_windows(model) if name == cases.WRONG_TYPE and model.config.model_type == "gpt_oss" else []
    for module, function, rotate in functions:
        if change := _change(name, function, rope, length, len(functions) > 1):
            setattr(module, function, _replaced(rotate, change))
    try:
        yield
    finally:
        for module, function, rotate in functions:
            setattr(module, function, rotate)
        for hook in hooks:
            hook.remove()


def _replaced(rotate: Callable[..., Any], change: Change) -> Callable[..., Any]:
    signature = inspect.signature(rotate)
    names = list(signature.parameters)
    tables = [name for name in names if name in TABLES]
    rotated = names[: names.index(tables[0])]

    def wrong(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        return change(Rotation(rotate, bound, rotated, tables))

    return wrong


def _change(name: str, function: str, rope: RopeSet, length: int, by_name: bool) -> Change | None:
    """Return what a mistake does to a function, or None.

    by_name: the class has one function for each layout, and their names show which.
    """
    neighbours = function.endswith("interleave")
    layout = next(entry.layout for entry in rope.entries.values() if entry.table is not None)
    if by_name:
        layout = NEIGHBOURS if neighbours else HALF
    if name == cases.PAIRS or (name == cases.INDEXER and not neighbours) or (name == cases.ATTENTION and neighbours):
        widths = {
            width: entry.rotary_dim
            for entry in rope.entries.values()
            if entry.table is not None
            for width in (entry.rotary_dim, entry.head_dim)
        }
        return lambda call: _in_order(call, lambda channels: _other_pairs(channels, widths[channels], layout, call))
    changes: dict[str, Change] = {
        cases.OFF_BY_ONE: lambda call: call.with_tables(_one_further(call.given(call.tables)), queries=True),
        cases.KEYS: lambda call: call.with_tables(_unrotated(call.given(call.tables)), queries=False),
        cases.UNROTATED_BLOCKS: lambda call: _blocks(call, length),
        cases.PARTIAL: _first_channels,
    }
    return changes.get(name)


def _in_order(call: Rotation, order_of: Callable[[int], list[int]]) -> Any:
    """Return the result for permuted channels, permuted back."""
    import torch

    given = call.given(call.rotated)
    orders = {name: torch.tensor(order_of(value.shape[-1])) for name, value in given.items()}
    result = call.result(**{name: value[..., orders[name]] for name, value in given.items()})
    back = [order.argsort() for order in orders.values()]
    if len(back) == 1:
        return result[..., back[0]]
    return tuple(value[..., order] for value, order in zip(result, back, strict=True))


def _other_pairs(channels: int, count: int, layout: str, call: Rotation) -> list[int]:
    """Return the channels in the order in which the function pairs those that the other layout does.

    DeepSeek V4, the one class with a function of neighbouring channels for one argument, rotates the last channels.
    """
    pairs = (
        [at // 2 + at % 2 * (count // 2) for at in range(count)] if layout == NEIGHBOURS
        else [*range(0, count, 2), *range(1, count, 2)]
    )  # fmt: skip
    if layout == NEIGHBOURS and len(call.rotated) == 1:
        first = channels - count
        return [*range(first), *(first + at for at in pairs)]
    return [*pairs, *range(count, channels)]


def _one_further(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return cos and sin of the next positions, by the angle between the first two."""
    if set(tables) != {"cos", "sin"}:
        return {name: table * table[:, 1:2] / table[:, :1] for name, table in tables.items()}
    cos, sin = tables["cos"], tables["sin"]
    step_cos, step_sin = cos[:, 1:2] / cos[:, :1], sin[:, 1:2] / cos[:, :1]
    return {"cos": cos * step_cos - sin * step_sin, "sin": sin * step_cos + cos * step_sin}


def _unrotated(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an angle of 0 at every position."""
    import torch

    return {
        name: torch.zeros_like(table) if name == "sin" else torch.ones_like(table) for name, table in tables.items()
    }


def _blocks(call: Rotation, length: int) -> Any:
    tables = call.given(call.tables)
    blocks = call.of_keys and tables["cos"].shape[1] != length
    return call.result(**_unrotated(tables)) if blocks else call.result()


def _first_channels(call: Rotation) -> Any:
    """Pair the channels that have an angle among themselves, as a partial rotation does."""
    count = int((call.bound.arguments["sin"][0, 1] != 0).sum())

    def order(channels: int) -> list[int]:
        half = (channels - count) // 2
        rest = list(range(count, channels))
        return [*range(count // 2), *rest[:half], *range(count // 2, count), *rest[half:]]

    return _in_order(call, order)


def _unscaled_windows(model: Any) -> list[Any]:
    """Rotate the windowed layers of a model by the table without scaling; return the hooks that do it."""
    import torch

    plain = copy.deepcopy(model.model.rotary_emb)
    count = plain.inv_freq.shape[0]
    exponents = torch.arange(count, dtype=plain.inv_freq.dtype) / count
    plain.inv_freq = model.config.rope_parameters["rope_theta"] ** -exponents
    plain.attention_scaling = 1.0

    def replace(layer: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hidden = arguments[0]
        rows = torch.arange(hidden.shape[1])[None]
        return arguments, {**named, "position_embeddings": plain(hidden, rows)}

    return [
        layer.register_forward_pre_hook(replace, with_kwargs=True)
        for layer, layer_type in zip(model.model.layers, model.config.layer_types, strict=True)
        if layer_type == "sliding_attention"
    ]
