"""Replacement of the attention in a loaded transformers model by a function that gets unrotated queries and keys.

The function calls the model's own rotation with any positions. It replaces an entry of `ALL_ATTENTION_FUNCTIONS`, so it
works for all layouts and families. The caller must try whether a model allows this: the same attention, computed in
this way, must give the same hidden states.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from ropetool.verification.runners.torch_rotation import TABLES, rotations

TABLE_CALLS = 16  # remembered calls of rotary modules; one pass makes a call for each layer type


class Unfit(Exception):
    """The attention of this model cannot be replaced. The text is the reason, as a clause without its beginning."""


class Unrotated:
    """The queries, keys and values of a layer, with the model's rotation. Shapes: (rows, heads, tokens, channels).

    scaling: the factor of the scores.
    softcap: the softcap of the scores, or None.
    sinks: for each head, the score of attending to no key; None without sinks.
    """

    def __init__(self, call: _Rotation, states: tuple[Any, Any, Any], given: Mapping[str, Any]) -> None:
        self._call, (self._queries, self._keys, self.values) = call, states
        self.scaling: float = given.get("scaling") or self._queries.shape[-1] ** -0.5
        self.softcap: float | None = given.get("softcap")
        self.sinks: Any = given.get("s_aux")

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self._queries.shape[2])

    def queries(self, positions: Any = None) -> Any:
        """Return the queries rotated by these positions. None uses their own positions. Shapes: positions (tokens,)."""
        return self._call.rotated(self._queries, 0, positions)

    def keys(self, positions: Any = None) -> Any:
        """Return the keys rotated by these positions, as `queries` does."""
        return self._call.rotated(self._keys, 1, positions)


Attend = Callable[[Unrotated], Any]
"""Computes the attention: returns the weighted values for each query. Shapes: (rows, heads, tokens, channels)."""


class _Tables:
    """The cos and sin of the rotary modules: their results in the last pass, and the results for other positions."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Any, inspect.BoundArguments, Any]] = deque(maxlen=TABLE_CALLS)
        self._known: list[tuple[Any, bytes, Any]] = []

    def keep(self, module: Any, given: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        """Remember a call. This is a hook of rotary modules."""
        if isinstance(output, tuple) and len(output) == 2:
            self._calls.append((module, inspect.signature(module.forward).bind(*given, **named), output))
            self._known.clear()  # because these results used the tables of the previous pass

    def at(self, cos: Any, positions: Any) -> Any:
        """Return cos and sin of other positions from the module that returned this cos. Raises: Unfit if none did."""
        import torch

        key = positions.tobytes()
        for known_cos, known_key, tables in self._known:
            if known_cos is cos and known_key == key:
                return tables
        for module, bound, output in reversed(self._calls):
            if output[0] is cos and "position_ids" in bound.arguments:
                own = bound.arguments["position_ids"]
                moved = torch.from_numpy(positions).to(own.device).expand(*own.shape[:-1], -1)
                named = {**bound.arguments, "position_ids": moved}
                tables = module.forward(**named)
                self._known.append((cos, key, tables))
                return tables
        raise Unfit("its rotation does not depend on position ids")


class _Rotation:
    """A postponed call of a model's rotation. The model got its queries and keys back unrotated."""

    def __init__(
        self, rotate: Callable[..., Any], bound: inspect.BoundArguments, names: list[str], tables: _Tables
    ) -> None:
        self._rotate, self._bound, self._names, self._tables = rotate, bound, names, tables
        self.given = [bound.arguments[name] for name in names]

    def is_of(self, queries: Any, keys: Any) -> bool:
        """Return whether this call got these queries and keys. They may have more channels, which do not rotate."""
        import torch

        for state, own in zip((queries, keys), self.given, strict=True):
            width = own.shape[-1]
            if (
                state.shape[:-1] != own.shape[:-1]
                or width > state.shape[-1]
                or not torch.equal(state[..., :width], own)
            ):
                return False
        return True

    def rotated(self, states: Any, which: int, positions: Any) -> Any:
        """Return rotated queries or keys. Channels that the model does not rotate stay unchanged.

        which: 0 for queries, 1 for keys. positions: None for the model's own.
        """
        import torch

        arguments = self._bound.arguments
        if positions is not None:
            cos, sin = self._tables.at(arguments["cos"], positions)
            arguments = {**arguments, "cos": cos, "sin": sin}
        # The rotation needs both arguments. Only one head of the other one is passed, because its result is not used.
        arguments = {**arguments, self._names[1 - which]: self.given[1 - which][:, :1]}
        width = self.given[which].shape[-1]
        rotated = self._rotate(**arguments)[which]
        return rotated if width == states.shape[-1] else torch.cat([rotated, states[..., width:]], dim=-1)


class _Replacement:
    """The functions that replace the rotation and the attention of some layers."""

    def __init__(self, layers: frozenset[int], attend: Attend) -> None:
        self._layers, self._attend = layers, attend
        self.tables = _Tables()
        self.reached: set[int] = set()
        self._layer: int | None = None
        self._pending: _Rotation | None = None

    def enter(self, module: Any) -> None:
        """Remember which layer computes. This is a hook of attention modules."""
        self._layer, self._pending = module.layer_idx, None

    def rotation(self, rotate: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rotation that returns queries and keys of the chosen layers unrotated, and remembers the call."""
        signature = inspect.signature(rotate)
        names = [*itertools.takewhile(lambda name: name not in TABLES, signature.parameters)]

        def left(*given: Any, **named: Any) -> Any:
            if self._layer not in self._layers:
                return rotate(*given, **named)
            if len(names) != 2 or not {"cos", "sin"} <= signature.parameters.keys() or self._pending is not None:
                raise Unfit("it rotates queries and keys separately, or as complex numbers")
            self._pending = _Rotation(rotate, signature.bind(*given, **named), names, self.tables)
            return tuple(self._pending.given)

        return left

    def attention(self, own: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return an attention function that computes the chosen layers with `attend`, and all others with `own`.

        own: None uses the eager attention in the module's Python file.
        """

        def attended(module: Any, query: Any, key: Any, value: Any, mask: Any, *given: Any, **named: Any) -> Any:
            if self._pending is None or getattr(module, "layer_idx", None) != self._layer:
                compute = own or sys.modules[type(module).__module__].eager_attention_forward
                return compute(module, query, key, value, mask, *given, **named)
            call, self._pending = self._pending, None
            if not call.is_of(query, key):
                raise Unfit("it changes queries or keys between their rotation and their product")
            self.reached.add(module.layer_idx)
            weighted = self._attend(Unrotated(call, (query, key, value), named))
            return weighted.transpose(1, 2).contiguous(), None

        return attended


@contextmanager
def attending(model: Any, layers: frozenset[int], attend: Attend) -> Iterator[set[int]]:
    """Replace the attention of some layers of a loaded model within the context. Passes must not use a cache.

    Yields the set of the layers that have used `attend` so far.
    Raises: Unfit on entry or during a pass, if the model does not allow it.
    """
    functions = rotations(model)
    modules = [module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    interfaces = _interfaces(modules)
    if not functions:
        raise Unfit("ropetool cannot find its rotation of queries and keys")
    if not interfaces:
        raise Unfit("it does not use transformers' attention interface")
    replacement = _Replacement(layers, attend)
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, "rope_type"):
                hook = module.register_forward_hook(
                    lambda rotary, given, named, output: replacement.tables.keep(rotary, given, named, output),
                    with_kwargs=True,
                )
                stack.callback(hook.remove)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(lambda entered, _: replacement.enter(entered)).remove)
        for python, name in functions:
            stack.callback(setattr, python, name, getattr(python, name))
            setattr(python, name, replacement.rotation(getattr(python, name)))
        for interface, name in interfaces:
            own, local = interface.get(name), dict(interface._local_mapping)
            stack.callback(setattr, interface, "_local_mapping", local)
            interface[name] = replacement.attention(own)
        yield replacement.reached


def _interfaces(modules: list[Any]) -> list[tuple[Any, str]]:
    """Return the mappings that contain the modules' attention functions, each once, with the key that the modules use."""
    interfaces = []
    for module in modules:
        interface = getattr(sys.modules[type(module).__module__], "ALL_ATTENTION_FUNCTIONS", None)
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if interface is not None and name is not None and (interface, name) not in interfaces:
            interfaces.append((interface, name))
    return interfaces
