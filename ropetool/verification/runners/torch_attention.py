"""Another attention put into a loaded model of transformers, which gets queries and keys before they are rotated.

The model's own rotation is called with other positions, and its attention modules call what stands in the place of their
implementation (`ALL_ATTENTION_FUNCTIONS`), so neither layouts nor families have to be known. Whether a model lets that be done
is tried: the same attention computed so has to give the same hidden states.
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

TABLE_CALLS = 16  # of rotary modules that are remembered: a call for each kind of layer in one pass


class Unfit(Exception):
    """This model does not let its attention be replaced; the text says why, as the second half of a sentence."""


class Unrotated:
    """The queries, keys and values of a layer, and how its model rotates them. Shapes: (rows, heads, tokens, channels).

    scaling: of the scores. softcap: what bends them, None where nothing does. sinks: scores of no key, by head, or None.
    """

    def __init__(self, call: _Rotation, states: tuple[Any, Any, Any], given: Mapping[str, Any]) -> None:
        self._call, (self._queries, self._keys, self.values) = call, states
        self.scaling: float = given.get("scaling") or self._queries.shape[-1] ** -0.5
        self.softcap: float | None = given.get("softcap")
        self.sinks: Any = given.get("s_aux")

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return int(self._queries.shape[2])

    def queries(self, positions: Any = None) -> Any:
        """Return the queries rotated by positions, their own where none are given. Shapes: positions (tokens,)."""
        return self._call.rotated(self._queries, 0, positions)

    def keys(self, positions: Any = None) -> Any:
        """Return the keys rotated likewise."""
        return self._call.rotated(self._keys, 1, positions)


Attend = Callable[[Unrotated], Any]
"""Returns what each query makes of the values. Shapes: (rows, heads, tokens, channels)."""


class _Tables:
    """What the rotary modules returned in a pass, and what they return for other positions."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Any, inspect.BoundArguments, Any]] = deque(maxlen=TABLE_CALLS)
        self._known: list[tuple[Any, bytes, Any]] = []

    def keep(self, module: Any, given: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        """Remember a call; a hook of rotary modules."""
        if isinstance(output, tuple) and len(output) == 2:
            self._calls.append((module, inspect.signature(module.forward).bind(*given, **named), output))
            self._known.clear()  # by the tables of the pass before

    def at(self, cos: Any, positions: Any) -> Any:
        """Return cos and sin of other positions from the module that gave this cos. Raises: Unfit if none did."""
        import torch

        key = positions.tobytes()
        for of, wanted, found in self._known:
            if of is cos and wanted == key:
                return found
        for module, bound, output in reversed(self._calls):
            if output[0] is cos and "position_ids" in bound.arguments:
                own = bound.arguments["position_ids"]
                moved = torch.from_numpy(positions).to(own.device).expand(*own.shape[:-1], -1)
                named = {**bound.arguments, "position_ids": moved}
                found = module.forward(**named)
                self._known.append((cos, key, found))
                return found
        raise Unfit("its rotation does not depend on position ids")


class _Rotation:
    """One call of a model's rotation, that was not carried out: `rotate` returned what it got."""

    def __init__(
        self, rotate: Callable[..., Any], bound: inspect.BoundArguments, names: list[str], tables: _Tables
    ) -> None:
        self._rotate, self._bound, self._names, self._tables = rotate, bound, names, tables
        self.given = [bound.arguments[name] for name in names]

    def is_of(self, queries: Any, keys: Any) -> bool:
        """Return whether these are what was to be rotated, alone or in front of channels that are not."""
        import torch

        for state, own in zip((queries, keys), self.given, strict=True):
            wide = own.shape[-1]
            if state.shape[:-1] != own.shape[:-1] or wide > state.shape[-1] or not torch.equal(state[..., :wide], own):
                return False
        return True

    def rotated(self, states: Any, which: int, positions: Any) -> Any:
        """Return queries (0) or keys (1) rotated by positions, None for the model's own; channels behind are left."""
        import torch

        arguments = self._bound.arguments
        if positions is not None:
            cos, sin = self._tables.at(arguments["cos"], positions)
            arguments = {**arguments, "cos": cos, "sin": sin}
        # The other of the two is rotated too and thrown away: one head of it is enough.
        arguments = {**arguments, self._names[1 - which]: self.given[1 - which][:, :1]}
        wide = self.given[which].shape[-1]
        found = self._rotate(**arguments)[which]
        return found if wide == states.shape[-1] else torch.cat([found, states[..., wide:]], dim=-1)


class _Seam:
    """What stands in the place of rotations and attention while a context lasts."""

    def __init__(self, layers: frozenset[int], attend: Attend) -> None:
        self._layers, self._attend = layers, attend
        self.tables = _Tables()
        self.reached: set[int] = set()
        self._layer: int | None = None
        self._pending: _Rotation | None = None

    def enter(self, module: Any) -> None:
        """Remember which layer computes; a hook of attention modules."""
        self._layer, self._pending = module.layer_idx, None

    def rotation(self, rotate: Callable[..., Any]) -> Callable[..., Any]:
        """Return what leaves queries and keys of the chosen layers as they are."""
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
        """Return what computes the chosen layers otherwise, and all others by their own; None: by what their class has."""

        def attended(module: Any, query: Any, key: Any, value: Any, mask: Any, *given: Any, **named: Any) -> Any:
            if self._pending is None or getattr(module, "layer_idx", None) != self._layer:
                compute = own or sys.modules[type(module).__module__].eager_attention_forward
                return compute(module, query, key, value, mask, *given, **named)
            call, self._pending = self._pending, None
            if not call.is_of(query, key):
                raise Unfit("it changes queries or keys between their rotation and their product")
            self.reached.add(module.layer_idx)
            found = self._attend(Unrotated(call, (query, key, value), named))
            return found.transpose(1, 2).contiguous(), None

        return attended


@contextmanager
def attending(model: Any, layers: frozenset[int], attend: Attend) -> Iterator[set[int]]:
    """Make some layers of a loaded model attend otherwise, as long as the context lasts; whole rows only, without a cache.

    Gives the layers that have computed so. Raises: Unfit in a pass of a model where that cannot be done.
    """
    found = rotations(model)
    modules = [module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    interfaces = _interfaces(modules)
    if not found:
        raise Unfit("ropetool cannot find its rotation of queries and keys")
    if not interfaces:
        raise Unfit("it does not use transformers' attention interface")
    seam = _Seam(layers, attend)
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, "rope_type"):
                hook = module.register_forward_hook(
                    lambda rotary, given, named, output: seam.tables.keep(rotary, given, named, output),
                    with_kwargs=True,
                )
                stack.callback(hook.remove)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(lambda entered, _: seam.enter(entered)).remove)
        for python, name in found:
            stack.callback(setattr, python, name, getattr(python, name))
            setattr(python, name, seam.rotation(getattr(python, name)))
        for interface, name in interfaces:
            own, local = interface.get(name), dict(interface._local_mapping)
            stack.callback(setattr, interface, "_local_mapping", local)
            interface[name] = seam.attention(own)
        yield seam.reached


def _interfaces(modules: list[Any]) -> list[tuple[Any, str]]:
    """Return what the modules ask for an implementation of attention, and the name that they ask by, each once."""
    found = []
    for module in modules:
        interface = getattr(sys.modules[type(module).__module__], "ALL_ATTENTION_FUNCTIONS", None)
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if interface is not None and name is not None and (interface, name) not in found:
            found.append((interface, name))
    return found
