"""Keys of a config that change what remote code computes, and that llama.cpp or its converter takes for granted."""

from __future__ import annotations

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.files.hf.jsontext import shown


def check(checkpoint: HfCheckpoint) -> None:
    """Return if the converter's file of this config can be the model; nobody compares logits where only remote code has it.

    Raises: LossyExport for a key with a value of another model, and for a model that llama.cpp loads and does not compute.
    """
    config, family = checkpoint.section, checkpoint.family
    if family.not_computed:
        raise LossyExport(
            f"llama.cpp loads a {family.name} and computes something else: {family.not_computed}",
            where=checkpoint.where,
        )
    for key, values in family.fixed.items():
        if config.get(key) in values:
            continue
        stated = f"is {shown(config[key])}" if key in config else "is not stated, and its class assumes something else"
        raise LossyExport(
            f"{key} {stated}; llama.cpp computes a {family.name} as if it were {shown(values[0])}",
            where=checkpoint.where,
        )
