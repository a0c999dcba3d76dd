"""A plan applied to a loaded model, without writing a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropetool import families, names
from ropetool.errors import ConfigError
from ropetool.plans.plan import Plan
from ropetool.rope.tables import Regime
from ropetool.verification.runners.torch_rotation import set_tables

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = Any  # so that the types of `patch` can be read without torch

LOAD = "ropetool extend, then load the output"


def patch(model: Module, plan: Plan) -> None:
    """Put the plan's tables into a loaded transformers 5 model, in place.

    The plan must have one fixed table for each layer type. Positions that are already in a cache keep their old
    rotation.
    Raises: ConfigError for a different model family, a table that depends on the length, a plan that bakes, or a family
    whose softmax scale the plan may change too (MLA).
    """
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    family = families.get(plan.family)
    if model.config.model_type != plan.family:  # type: ignore[union-attr]
        raise ConfigError(f"the plan is for {plan.family}, but the model is {model.config.model_type}", where="patch")  # type: ignore[union-attr]
    if family.mla:
        raise ConfigError("the plan also sets the softmax scale, which patch cannot change", where="patch", try_=LOAD)
    if plan.bakes:
        raise ConfigError(
            f"the plan also changes weights, which patch cannot do: {plan.bakes[0]}", where="patch",
            try_=LOAD,
        )  # fmt: skip
    regimes = {layer_type: table for layer_type, table in plan.tables.items() if len(table) == 1}
    if set(regimes) != set(family.rope_entries):
        raise ConfigError(
            f"the table of {plan.method} depends on the text length; patch needs a fixed table",
            where="patch",
            try_=LOAD,
        )
    tables = {
        layer_type: Regime(regime["inv_freq"], regime[names.ATTENTION_FACTOR])
        for layer_type, (regime,) in regimes.items()
    }
    if not set_tables(model, tables, family.nested):
        raise ConfigError("the model has no rotary module that patch can change", where="patch")
    config.max_position_embeddings = plan.max_position_embeddings
