"""Config keys that change what remote code computes, but that llama.cpp or its converter ignores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.files.hf.jsontext import shown


def check(checkpoint: HfCheckpoint) -> None:
    """Raise LossyExport if the converter's file of this config cannot be the model.

    This check is necessary because the logits of remote code are not compared.
    Raises: LossyExport for a key with a value that the converter ignores, and for a model that llama.cpp computes
    incorrectly.
    """
    family = checkpoint.family
    if family.not_computed:
        raise LossyExport(
            f"llama.cpp loads {family.name} models but computes something else: {family.not_computed}",
            where=checkpoint.where,
        )
    for key, values in family.fixed.items():
        for value in _values_at(checkpoint.section, key.split(".")):
            if value in values:
                continue
            problem = "is not set, and its default differs" if value is None else f"is {shown(value)}"
            assumed = "not set" if values[0] is None else shown(values[0])
            raise LossyExport(
                f"{key} {problem}; for {family.name}, llama.cpp computes as if it were {assumed}",
                where=checkpoint.where,
            )


def _values_at(value: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path of keys, through each entry of a list. A missing key yields None."""
    if not keys:
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _values_at(one, keys)
    else:
        yield from _values_at(value.get(keys[0]) if isinstance(value, Mapping) else None, keys[1:])
