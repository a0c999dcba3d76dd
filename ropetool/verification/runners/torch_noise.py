"""Hooks that make a model of transformers round as ggml rounds, for any family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

SEED = 0
NO_TABLE = ("Quick", "Clipped")  # forms of GELU with formulas of their own


def is_gelu(module: Any) -> bool:
    """Return whether ggml computes this activation from its table of GELU (ggml-cpu/vec.h, GGML_GELU_FP16)."""
    name = type(module).__name__
    return "GELU" in name and not name.startswith(NO_TABLE)


@contextmanager
def noisy(model: Any, amount: float) -> Iterator[None]:
    """Round GELU as ggml does, and shift the inputs of matrices by a share of up to `amount`, within the context.

    ggml looks the tanh form of GELU up in a table, whose inputs and outputs are float16. The shift imitates sums in a
    different order. Each call uses the same shift, and the negative amount mirrors it. If two experts are nearly tied,
    one of the two signs chooses the second one.
    """
    torch = import_module("torch")
    generator = torch.Generator().manual_seed(SEED)
    hooks = []

    def table(module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        activation = torch.nn.functional.gelu(inputs[0].half().float(), approximate="tanh")
        return activation.half().to(output.dtype)

    def shifted(factors: Any) -> Any:
        return lambda module, inputs: (inputs[0] * factors.to(inputs[0]), *inputs[1:])

    for module in model.modules():
        if is_gelu(module):
            hooks.append(module.register_forward_hook(table))
        elif isinstance(module, torch.nn.Linear):
            factors = 1 + amount * (2 * torch.rand(module.in_features, generator=generator) - 1)
            hooks.append(module.register_forward_pre_hook(shifted(factors)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
