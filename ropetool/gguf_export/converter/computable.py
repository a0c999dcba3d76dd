"""Keys of a config that change what remote code computes, and that llama.cpp or its converter takes for granted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.files.hf.jsontext import shown


def check(checkpoint: HfCheckpoint) -> None:
    """Return if the converter's file of this config can be the model; nobody compares logits where only remote code has it.

    Raises: LossyExport for a key with a value of another model, and for a model that llama.cpp loads and does not compute.
    """
    family = checkpoint.family
    if family.not_computed:
        raise LossyExport(
            f"llama.cpp loads {family.name} models but computes something else: {family.not_computed}",
            where=checkpoint.where,
        )
    for key, values in family.fixed.items():
        for stated in _reached(checkpoint.section, key.split(".")):
            if stated in values:
                continue
            found = "is not set, and its default differs" if stated is None else f"is {shown(stated)}"
            taken = "not set" if values[0] is None else shown(values[0])
            raise LossyExport(
                f"{key} {found}; for {family.name}, llama.cpp computes as if it were {taken}",
                where=checkpoint.where,
            )


def _reached(value: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield what stands where keys lead, in each entry of a list; None where nothing does."""
    if not keys:
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _reached(one, keys)
    else:
        yield from _reached(value.get(keys[0]) if isinstance(value, Mapping) else None, keys[1:])
