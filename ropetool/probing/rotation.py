"""What rotates in a running model: each test changes cos and sin, or positions, and measures the effect on the layers.

Layers are tested separately: each gets its input from the unchanged run, so only its own computation can differ.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ropetool.errors import RopetoolError
from ropetool.probing.tiny import FORWARD, TOKENS, VOCABULARY, WINDOW

MOVES = 1e-3  # a relative change of a layer's output of at least this is an effect of rotation
STAYS = 1e-4  # a smaller relative change is rounding in float32, or an effect of the epsilon of a norm
FAR = 3_000_000  # positions; every temperature grows before them
MASKED = -1e30

Output = Any
Inputs = Any  # tensors by layer, one for each call of the layer; None: unchanged
Change = Callable[[str, Any], Any]  # from the name of a table and the result of its rotary module to the new result


class NotProbed(RopetoolError):
    """The probe cannot evaluate a model. The message has the reason."""


@dataclass
class ForwardPass:
    """The observations of one forward pass, most of them by layer.

    logits: of all tokens.
    inputs, outputs: tensors, one for each call of the layer.
    scores: attention scores before the softmax.
    attends: the layers with attention.
    applied: calls of functions that rotate queries and keys.
    tables: the results of rotary modules, by table.
    """

    logits: Any = None
    inputs: dict[int, list[Any]] = field(default_factory=dict)
    outputs: dict[int, list[Any]] = field(default_factory=dict)
    scores: dict[int, list[Any]] = field(default_factory=dict)
    attends: set[int] = field(default_factory=set)
    applied: dict[int, list[Any]] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


def rotary_modules(model: Any) -> dict[str, Any]:
    """Return the rotary modules of the text model by their name in the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if re.search(r"Rot(ary|ation).*Emb|R[oO][pP][eE]", type(module).__name__)
        and not re.search(r"(?i)vision|visual|audio|vit|encoder", name)
        and not re.search(r"Vision(?!Text)", type(module).__name__)
        and any(re.search(r"inv_freq", key) for key, _ in module.named_buffers(recurse=False))
    }


def decoder_layers(model: Any, count: int) -> list[Any]:
    """Return the layers of the text model in order.

    Raises: NotProbed if no list of layers fits.
    """
    from torch import nn

    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and not re.search(r"(?i)vision|visual|audio|vit|tower", name)
    ]
    lists = [one for one in lists if "decoder" in one[0]] or lists
    sized = [(name, layers) for name, layers in lists if len(layers) == count and _parameters(layers[0])]
    attending = [
        (name, layers)
        for name, layers in lists
        if any("ttn" in n or "ttention" in n for n, _ in layers.named_modules())
    ]
    for candidates in ([one for one in sized if one in attending], sized, attending):
        if candidates:
            return list(max(candidates, key=lambda one: _parameters(one[1]))[1])
    raise NotProbed("has no list of layers")


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


class Subject:
    """A tiny model under test. It runs with changes and records what its layers do."""

    def __init__(self, model: Any, count: int) -> None:
        import torch

        self.model = model
        self.layers = decoder_layers(model, count)
        self.rotary = rotary_modules(model)
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(16, min(VOCABULARY, 96), (1, TOKENS), generator=generator)
        config = model.config
        parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
        sizes = {key: value for part in reversed(parts) for key, value in part.to_dict().items() if type(value) is int}
        self.forward: dict[str, Any] = {
            name: torch.ones([size if isinstance(size, int) else sizes[size] for size in shape])
            for name, shape in FORWARD.get(config.model_type, {}).items()
        }
        self.positions = _takes(model, "position_ids")
        self.given = "decoder_input_ids" if _takes(model, "decoder_input_ids", named=True) else "input_ids"
        if self.given == "decoder_input_ids":
            self.forward["input_ids"] = self.tokens

    def run(
        self,
        change: Change | None = None,
        *,
        inputs: Inputs = None,
        offset: int = 0,
        replaced: Inputs = None,
        same: bool = False,
    ) -> ForwardPass:
        """Run the model once and return the observations.

        change: changes the results of rotary modules.
        inputs: inputs of layers, instead of the outputs of the layers before them.
        offset: a number that is added to every position.
        replaced: outputs of layers, instead of their own.
        same: the text consists of a single repeated token.
        """
        import torch

        run = ForwardPass()
        current: list[int] = []
        with ExitStack() as stack, torch.no_grad():
            for index, layer in enumerate(self.layers):
                stack.enter_context(
                    _hooked(layer, *self._layer_hooks(index, run, current, inputs or {}, replaced or {}))
                )
            for name, module in self.rotary.items():
                stack.enter_context(_hooked(module, None, self._rotary_hook(name, run, change)))
            stack.enter_context(_watched_attention(run, current))
            stack.enter_context(_watched_application(self.model, run, current))
            given = dict(self.forward)
            if offset:
                given["position_ids"] = torch.arange(TOKENS)[None] + offset
            given[self.given] = self.tokens[:, :1].expand_as(self.tokens) if same else self.tokens
            output = self.model(use_cache=False, **given)
        run.logits = output.logits if hasattr(output, "logits") else output[0]
        return run

    def _layer_hooks(
        self,
        index: int,
        run: ForwardPass,
        current: list[int],
        inputs: dict[int, list[Any]],
        replaced: dict[int, list[Any]],
    ) -> tuple[Any, Any]:
        def before(module: Any, args: Any, kwargs: Any) -> Any:
            current.append(index)
            given = args[0] if args else kwargs["hidden_states"]
            calls = run.inputs.setdefault(index, [])
            calls.append(given)
            if index in inputs:
                given = inputs[index][len(calls) - 1]
            return ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": given})

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            current.pop()
            first = output if hasattr(output, "shape") else output[0]
            calls = run.outputs.setdefault(index, [])
            calls.append(first)
            if index not in replaced:
                return None
            other = replaced[index][len(calls) - 1]
            return other if first is output else (other, *output[1:])

        return before, after

    def _rotary_hook(self, name: str, run: ForwardPass, change: Change | None) -> Any:
        def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            label = kwargs.get("layer_type") or next((one for one in args if isinstance(one, str)), "")
            table = f"{name}:{label}"
            run.tables[table] = output
            return None if change is None else change(table, output)

        return after


def _takes(model: Any, name: str, *, named: bool = False) -> bool:
    import inspect

    parameters = inspect.signature(model.forward).parameters
    return name in parameters or (not named and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


@contextmanager
def _hooked(module: Any, before: Any, after: Any) -> Iterator[None]:
    handles = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    if after is not None:
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _watched_attention(run: ForwardPass, current: list[int]) -> Iterator[None]:
    """Record every softmax over keys and every fused attention inside a layer."""
    import torch

    functional = torch.nn.functional
    softmax, fused, method, function = (
        functional.softmax,
        functional.scaled_dot_product_attention,
        torch.Tensor.softmax,
        torch.softmax,
    )

    def seen(scores: Any) -> None:
        if current and scores.ndim >= 3 and scores.shape[-2] == TOKENS and scores.shape[-1] >= TOKENS:
            run.attends.add(current[-1])
            run.scores.setdefault(current[-1], []).append(scores.detach())

    def watched(original: Any) -> Any:
        def call(scores: Any, *args: Any, **kwargs: Any) -> Any:
            seen(scores)
            return original(scores, *args, **kwargs)

        return call

    def watched_fused(*args: Any, **kwargs: Any) -> Any:
        if current:
            run.attends.add(current[-1])
        return fused(*args, **kwargs)

    functional.softmax, torch.softmax = watched(softmax), watched(function)
    torch.Tensor.softmax = watched(method)  # type: ignore[method-assign]
    functional.scaled_dot_product_attention = watched_fused
    try:
        yield
    finally:
        functional.softmax, torch.softmax, functional.scaled_dot_product_attention = softmax, function, fused
        torch.Tensor.softmax = method  # type: ignore[method-assign]


@contextmanager
def _watched_application(model: Any, run: ForwardPass, current: list[int]) -> Iterator[None]:
    """Record every call of a function that rotates queries and keys, in the modules of the model's classes."""
    files = {type(module).__module__ for module in model.modules()}
    replaced: list[tuple[Any, str, Any]] = []

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if current:
                owner = sys._getframe(1).f_locals.get("self")
                run.applied.setdefault(current[-1], []).append((function, args, kwargs, type(owner).__name__))
            return function(*args, **kwargs)

        return call

    for file in files:
        module = sys.modules[file]
        for name, value in list(vars(module).items()):
            if (
                callable(value)
                and re.search(r"apply.*(rotary|rope)", name)
                and "vision" not in name
                and not isinstance(value, type)
            ):
                replaced.append((module, name, value))
                setattr(module, name, watched(value))
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


# --- changes of the result of a rotary module


def mapped(output: Any, change: Callable[[Any, Any], tuple[Any, Any]], complexes: Callable[[Any], Any]) -> Any:
    """Return the module's result after a change of cos and sin, or of complex numbers."""
    if hasattr(output, "is_complex"):
        return complexes(output) if output.is_complex() else output
    if isinstance(output, (tuple, list)) and len(output) >= 2:
        return type(output)((*change(output[0], output[1]), *output[2:]))
    return output


def doubled(output: Any) -> Any:
    """Return the table with twice the angles."""
    return mapped(
        output,
        lambda cos, sin: (cos * cos - sin * sin, 2 * sin * cos),
        lambda whole: whole * whole / whole.abs().clamp_min(1e-12),
    )


def scaled(output: Any) -> Any:
    """Return cos and sin times 1.5."""
    return mapped(output, lambda cos, sin: (cos * 1.5, sin * 1.5), lambda whole: whole * 1.5)


def unrotated(output: Any) -> Any:
    """Return the table with angle 0."""
    import torch

    return mapped(output, lambda cos, sin: (torch.ones_like(cos), torch.zeros_like(sin)), torch.ones_like)


def change(ones: list[Any], others: list[Any]) -> float:
    """Return the largest difference between results, relative to the size of the first."""
    return max(_distance(one, other) for one, other in zip(ones, others, strict=True))


def constant(hidden: Any) -> Any:
    """Return an input of a layer with the values of its first token at every position."""
    axis = next((axis for axis, size in enumerate(hidden.shape) if size == TOKENS), None)
    if axis is None:  # no entry per token
        return hidden
    return hidden.narrow(axis, 0, 1).expand_as(hidden).contiguous()


def effect(one: ForwardPass, other: ForwardPass, index: int) -> float:
    """Return the largest difference in a layer's scores and output between two runs.

    The scores count because the attention may contribute little to the output.
    """
    scores = [[_visible(score) for score in run.scores.get(index, [])] for run in (one, other)]
    far = change(*scores) if scores[0] and len(scores[0]) == len(scores[1]) else 0.0
    return max(far, change(one.outputs[index], other.outputs[index]))


def _visible(scores: Any) -> Any:
    return scores.masked_fill(scores <= MASKED, 0.0)


def score_change(one: ForwardPass, other: ForwardPass) -> float:
    """Return the largest difference between the scores of two runs."""
    return max(change([_visible(one.scores[i][0])], [_visible(other.scores[i][0])]) for i in one.scores)


def _distance(one: Any, other: Any) -> float:
    scale = float(one.float().norm()) or 1.0
    return float((one.float() - other.float()).norm()) / scale


def decide(distance: float, what: str) -> bool:
    """Return whether a relative change is an effect.

    Raises: NotProbed if it is between the two limits, or not finite.
    """
    if not math.isfinite(distance):
        raise NotProbed(f"{what} gives numbers that are not finite")
    if STAYS <= distance < MOVES:
        raise NotProbed(f"{what} changes by {distance:.1e}, too much for rounding and too little for an effect")
    return distance >= MOVES


# --- windows and layouts


def window(scores: list[Any]) -> str:
    """Return which keys a query sees: full, sliding, chunked or other. Empty without scores."""
    if not scores:
        return ""
    visible = scores[0].reshape(-1, *scores[0].shape[-2:])[0][:, :TOKENS] > MASKED
    rows = [tuple(row.nonzero().flatten().tolist()) for row in visible]
    shapes = {
        "full": [tuple(range(row + 1)) for row in range(TOKENS)],
        "sliding": [tuple(range(max(0, row - WINDOW + 1), row + 1)) for row in range(TOKENS)],
        "chunked": [tuple(range(row - row % WINDOW, row + 1)) for row in range(TOKENS)],
    }
    return next((name for name, shape in shapes.items() if rows == shape), "other")


def pairs(call: Any) -> tuple[int, str]:
    """Return the number of rotated channels of a query, and their layout: half, interleaved or other.

    In each step, one channel is 1 and the others are 0. Two channels whose results have the same nonzero channels are a
    pair.
    """
    import torch

    function, args, kwargs, _ = call
    place = next(i for i, one in enumerate(args) if hasattr(one, "shape") and one.ndim >= 3) if args else None
    query = args[place] if place is not None else kwargs["q"]
    width = query.shape[-1]
    supports = []
    for channel in range(width):
        basis = torch.zeros_like(query)
        basis[..., channel] = 1.0
        if place is not None:
            output = function(*args[:place], basis, *args[place + 1 :], **kwargs)
        else:
            output = function(**{**kwargs, "q": basis})
        first = output[0] if isinstance(output, (tuple, list)) else output
        flat = first.reshape(-1, first.shape[-1]).abs().amax(0) > 1e-7
        supports.append(tuple(flat.nonzero().flatten().tolist()))
    partners: dict[tuple[int, ...], list[int]] = {}
    for channel, support in enumerate(supports):
        if len(support) == 2:
            partners.setdefault(support, []).append(channel)
    couples = sorted((both[0], both[1]) for both in partners.values() if len(both) == 2)
    apart = {second - first for first, second in couples}
    if len(apart) != 1:
        return 2 * len(couples), "other"
    if apart == {1} and len(couples) > 1:
        return 2 * len(couples), "interleaved"
    return 2 * len(couples), "half" if apart <= {len(couples), width // 2} else "other"
