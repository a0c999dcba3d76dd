"""The layers of a tiny model: which ones rotate, their tables, attention and windows, and the effect of a factor."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ropetool.probing import rotation
from ropetool.probing.rotation import FAR, ForwardPass, NotProbed, Subject, decide

# The first rows that the test of temperatures ignores, because short convolutions reach before the text there.
EDGE = 12


def tables_used(subject: Subject, layers: list[dict[str, Any]]) -> list[str]:
    """Return the tables that affect layers, each as the name of its module and its label."""
    base = subject.run()
    labels = {one for layer in layers for one in layer.get("tables", [])}
    used = []
    for table in base.tables:
        if label(table) in labels:
            run = subject.run(partial(_other, table), inputs=base.inputs)
            if any(rotation.effect(base, run, index) >= rotation.MOVES for index in base.outputs):
                used.append(table)
    return used


def _other(table: str, name: str, output: Any) -> Any:
    return rotation.doubled(output) if name == table else None


def layers(subject: Subject, layer_types: list[str]) -> list[dict[str, Any]]:
    """Return the facts about each layer, in order.

    layer_types: the layer_type of each layer; may be shorter or empty.
    Raises: NotProbed.
    """
    base = subject.run()
    count = len(base.outputs)
    again = subject.run(inputs=base.inputs)
    if any(rotation.change(base.outputs[i], again.outputs[i]) > 0 for i in range(count)):
        raise NotProbed("gives different numbers in a second run")
    tables: dict[int, list[str]] = {index: [] for index in range(count)}
    changed: dict[int, list[Any]] = {}
    for table in base.tables:
        run = subject.run(partial(_other, table), inputs=base.inputs)
        for index in range(count):
            if decide(rotation.effect(base, run, index), f"layer {index} with a different table"):
                tables[index].append(table)
                changed.setdefault(index, run.outputs[index])
    scaled = subject.run(lambda _, output: rotation.scaled(output), inputs=base.inputs)
    warm = temperatures(subject, base)
    facts = []
    for index in range(count):
        attends = index in base.attends or bool(tables[index])
        layer: dict[str, Any] = {"attends": attends, "rotates": bool(tables[index])}
        if index < len(layer_types):
            layer["kind"] = layer_types[index]
        if index in base.scores:
            layer["window"] = rotation.window(base.scores[index])
        if tables[index]:
            layer["tables"] = sorted({label(name) for name in tables[index]})
            layer["factor_vanishes"] = not decide(
                rotation.effect(base, scaled, index), f"a factor on cos and sin in layer {index}"
            )
            moved = subject.run(replaced={index: changed[index]})
            if rotation.change([base.logits], [moved.logits]) < 1e-6:
                raise NotProbed(f"gives the same logits with a different table in layer {index}")
        rotations = applications(base, index)
        if rotations:
            layer["rotations"] = rotations
        if index in warm:
            layer["temperature"] = True
        facts.append(layer)
    return facts


def label(table: str) -> str:
    """Return the layer type of a table, or full_attention if its rotary module has only one table."""
    return table.partition(":")[2] or "full_attention"


def applications(run: ForwardPass, index: int) -> list[dict[str, Any]]:
    """Return the different calls of functions that rotate in a layer."""
    rotations: list[dict[str, Any]] = []
    for call in run.applied.get(index, []):
        try:
            channels, layout = rotation.pairs(call)
        except (TypeError, KeyError, StopIteration, RuntimeError, AttributeError, ValueError, IndexError):
            continue  # a helper without a query
        one = {"channels": channels, "layout": layout}
        if special := re.search(r"Indexer|Compressor", call[3]):
            one["in"] = special[0].lower()
        if channels and one not in rotations:
            rotations.append(one)
    return rotations


def temperatures(subject: Subject, base: ForwardPass) -> set[int]:
    """Return the layers whose scores depend on the position although nothing rotates and all tokens are equal.

    The score of a query with its own key is then the same in each row and at distant positions, unless the position
    affects it.
    """
    constant = {index: [rotation.constant(one) for one in given] for index, given in base.inputs.items()}
    runs = [
        subject.run(lambda _, output: rotation.unrotated(output), inputs=constant, offset=offset, same=True)
        for offset in ((0, FAR) if subject.positions else (0,))
    ]
    warm = set()
    for index in base.scores:
        own = [score.diagonal(dim1=-2, dim2=-1)[..., EDGE:] for run in runs for score in run.scores[index][:1]]
        first = own[0][..., :1]
        if decide(max(rotation.change([first.expand_as(one)], [one]) for one in own), f"layer {index} along positions"):
            warm.add(index)
    return warm
