"""The layers of a tiny model: which rotate, by which table, which attend, what they see, what a factor does."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ropetool.probing import rotation
from ropetool.probing.rotation import FAR, NotProbed, Run, Subject, decide

# Not to look at in the test of temperatures: the first rows, where short convolutions still reach before the text.
EDGE = 12


def tables_used(subject: Subject, layers: list[dict[str, Any]]) -> list[str]:
    """Return the tables that the layers follow, each as the name of its module and its label."""
    base = subject.run()
    labels = {one for layer in layers for one in layer.get("tables", [])}
    found = []
    for table in base.tables:
        if label(table) in labels:
            run = subject.run(partial(_other, table), inputs=base.inputs)
            if any(rotation.effect(base, run, index) >= rotation.MOVES for index in base.outputs):
                found.append(table)
    return found


def _other(table: str, name: str, output: Any) -> Any:
    return rotation.turned(output) if name == table else None


def layers(subject: Subject, kinds: list[str]) -> list[dict[str, Any]]:
    """Return what each layer does, in order.

    kinds: the layer_type of each layer, as far as the config states them.
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
    found = []
    for index in range(count):
        attends = index in base.attends or bool(tables[index])
        layer: dict[str, Any] = {"attends": attends, "rotates": bool(tables[index])}
        if index < len(kinds):
            layer["kind"] = kinds[index]
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
        found.append(layer)
    return found


def label(table: str) -> str:
    """Return the layer type of a table, full_attention where its rotary module knows one table."""
    return table.partition(":")[2] or "full_attention"


def applications(run: Run, index: int) -> list[dict[str, Any]]:
    """Return the different ways in which functions that rotate were called in a layer."""
    found: list[dict[str, Any]] = []
    for call in run.applied.get(index, []):
        try:
            channels, layout = rotation.pairs(call)
        except (TypeError, KeyError, StopIteration, RuntimeError, AttributeError, ValueError, IndexError):
            continue  # a helper that takes no query
        one = {"channels": channels, "layout": layout}
        if special := re.search(r"Indexer|Compressor", call[3]):
            one["in"] = special[0].lower()
        if channels and one not in found:
            found.append(one)
    return found


def temperatures(subject: Subject, base: Run) -> set[int]:
    """Return the layers whose scores follow the position where nothing rotates and every token is the same.

    What a query makes of its own key is then one number, in each row and at far positions too, unless the position is
    in it.
    """
    constant = {index: [rotation.constant(one) for one in given] for index, given in base.inputs.items()}
    runs = [
        subject.run(lambda _, output: rotation.unturned(output), inputs=constant, offset=offset, same=True)
        for offset in ((0, FAR) if subject.positions else (0,))
    ]
    found = set()
    for index in base.scores:
        own = [score.diagonal(dim1=-2, dim2=-1)[..., EDGE:] for run in runs for score in run.scores[index][:1]]
        first = own[0][..., :1]
        if decide(max(rotation.change([first.expand_as(one)], [one]) for one in own), f"layer {index} along positions"):
            found.add(index)
    return found
