"""Putting a plan's table into a model that is already loaded, without writing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropetool import families, names
from ropetool.errors import ConfigError
from ropetool.plans.plan import Plan

if TYPE_CHECKING:
    from torch.nn import Module


def patch(model: Module, plan: Plan) -> None:
    """Make a loaded transformers 5 model rotate as the plan says, in place.

    Takes plans with one fixed table for each kind of layer; positions already in a cache stay as they were rotated.
    Raises: ConfigError for another model family, a table that follows the length, a plan that bakes, or a family
    whose softmax scale the plan may change too (MLA).
    """
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    family = families.get(plan.family)
    if model.config.model_type != plan.family:  # type: ignore[union-attr]
        raise ConfigError(f"the plan is for a {plan.family}, the model is a {model.config.model_type}", where="patch")  # type: ignore[union-attr]
    if family.mla:
        raise ConfigError(
            "the softmax scale belongs to the plan as well", where="patch", try_="ropetool extend, then load the output"
        )
    if plan.bakes:
        raise ConfigError(
            f"the plan also changes weights: {plan.bakes[0]}", where="patch",
            try_="ropetool extend, then load the output",
        )  # fmt: skip
    regimes = {layer_type: table for layer_type, table in plan.tables.items() if len(table) == 1}
    if set(regimes) != set(family.rope_entries):
        raise ConfigError(
            f"{plan.method} has a table that changes with the length",
            where="patch",
            try_="ropetool extend, then load the output",
        )
    patched = 0
    for module in model.modules():
        if hasattr(module, "rope_type") and any(
            name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)
        ):
            for layer_type, (regime,) in regimes.items():
                _set_table(module, f"{layer_type}_" if family.nested else "", layer_type, regime)
            patched += 1
    if not patched:
        raise ConfigError("the model has no rotary module that could be set", where="patch")
    config.max_position_embeddings = plan.max_position_embeddings


def _set_table(module: Any, prefix: str, layer_type: str, regime: Any) -> None:
    import torch

    buffer = getattr(module, f"{prefix}inv_freq")
    table = torch.tensor(regime["inv_freq"], dtype=buffer.dtype, device=buffer.device)
    setattr(module, f"{prefix}inv_freq", table)
    setattr(module, f"{prefix}original_inv_freq", table.clone())
    setattr(module, f"{prefix}attention_scaling", regime[names.ATTENTION_FACTOR])
    # A fixed table: the module must not recompute it as dynamic and longrope do.
    if isinstance(module.rope_type, dict):
        module.rope_type[layer_type] = "default"
    else:
        module.rope_type = "default"
