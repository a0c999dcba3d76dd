"""A causal language model of transformers taken apart at its last hidden states: context in, logits of some places out.

Holds hidden states of a whole context, never its logits. Knows nothing of checkpoints, tokens' texts or losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import cached_property
from typing import Any

from ropetool.rope.tables import Regime
from ropetool.verification.runners.torch_attention import Attend, attending
from ropetool.verification.runners.torch_noise import is_gelu, noisy
from ropetool.verification.runners.torch_rotation import (
    RopeState,
    SoftmaxScales,
    rotations,
    set_tables,
    swapped_pairs,
)

LENGTH_RULES = ("dynamic", "longrope")  # their tables follow the length of the call


class TorchModel:
    """A loaded model. fixed_table: whether a context may be computed piece by piece."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch, self._model = torch, model
        # Llama4ForCausalLM says that its body is called language_model, which it does not have.
        self._body = model.model if model.base_model is model else model.base_model
        self._rope_state = RopeState(model)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.fixed_table = not any(kind in LENGTH_RULES for kind in self._rope_state.rope_types)

    def rotate(self, tables: Mapping[str, Regime], nested: bool, scores: Mapping[int, float]) -> None:
        """Turn by these fixed tables from now on, as `set_tables` takes them, with other softmax scales by layer."""
        set_tables(self._model, tables, nested)
        self._softmax_scales.times(scores)
        self._rope_state, self.fixed_table = RopeState(self._model), True

    @contextmanager
    def turned(self, tables: Mapping[str, Regime], nested: bool, scores: Mapping[int, float]) -> Iterator[None]:
        """Turn by these fixed tables as `rotate` does, and as before when the context ends."""
        own, fixed = self._rope_state, self.fixed_table
        own.restore()
        set_there = ("rope_type", "inv_freq", "attention_scaling")  # how the names end of what `set_tables` changes
        before = [
            (module, dict(module._buffers), {name: copy(found[name]) for name in found if name.endswith(set_there)})
            for module in self._model.modules()
            if "rope_type" in (found := vars(module))
        ]
        try:
            self.rotate(tables, nested, scores)
            yield
        finally:
            for module, buffers, attributes in before:
                module._buffers.clear()
                module._buffers.update(buffers)
                vars(module).update(attributes)
            self._softmax_scales.times({})
            self._rope_state, self.fixed_table = own, fixed

    @contextmanager
    def attending(self, layers: frozenset[int], attend: Attend) -> Iterator[set[int]]:
        """Attend otherwise in these layers as long as the context lasts, whole rows at a time; give those that did.

        Raises: Unfit, then or as it computes.
        """
        fixed, self.fixed_table = self.fixed_table, False
        try:
            with attending(self._model, layers, attend) as reached:
                yield reached
        finally:
            self.fixed_table = fixed

    def noisy(self, amount: float) -> AbstractContextManager[None]:
        """Round as ggml does, as long as the context lasts; see `torch_noise.noisy`. The head is left alone."""
        return noisy(self._body, amount)

    @property
    def has_gelu(self) -> bool:
        """Whether ggml looks its activation up in a table of float16 numbers."""
        return any(map(is_gelu, self._body.modules()))

    def swapped(self, widths: Mapping[int, int], layout: str) -> AbstractContextManager[None]:
        """Pair channels as the other layout does, as long as the context lasts."""
        return swapped_pairs(self._model, widths, layout)

    @property
    def parameters(self) -> dict[str, Any]:
        """The weights by the names that transformers has for them."""
        return dict(self._model.named_parameters())

    @property
    def swappable(self) -> bool:
        """Whether it is known where queries and keys are rotated."""
        return bool(rotations(self._model))

    @cached_property
    def _softmax_scales(self) -> SoftmaxScales:
        return SoftmaxScales(self._model)

    @property
    def scalable(self) -> frozenset[int]:
        """The layers whose softmax scale can be changed."""
        return self._softmax_scales.layers

    def hidden(self, ids: Any, first: int, chunk: int) -> Hidden:
        """Return the last hidden states of the positions from `first` on, computed `chunk` tokens at a time.

        A chunk sees those before it through a cache of keys and values. Shapes: ids (rows, tokens).
        """
        parts = []
        for start, hidden in self.steps(ids, chunk):
            if start + hidden.states.shape[1] > first:
                parts.append(hidden.states[:, max(0, first - start) :])
        return Hidden(hidden.kind, parts[0] if len(parts) == 1 else self._torch.cat(parts, dim=1))

    def steps(self, ids: Any, chunk: int) -> Iterator[tuple[int, Hidden]]:
        """Yield the last hidden states of `chunk` tokens after the other, with the position of the first.

        A table that follows the length of the text takes all tokens at once. Shapes: ids (rows, tokens).
        """
        self._rope_state.restore()
        if not self.fixed_table or chunk >= ids.shape[1]:
            # No mask and no position_ids: rows are of one length, and transformers reads steps other than one
            # as the borders of packed sequences.
            outputs = self._body(input_ids=ids, use_cache=False)
            yield 0, Hidden(type(outputs), outputs.last_hidden_state)
            return
        cache = None
        for start in range(0, ids.shape[1], chunk):
            outputs = self._body(input_ids=ids[:, start : start + chunk], past_key_values=cache, use_cache=True)
            cache = outputs.past_key_values
            yield start, Hidden(type(outputs), outputs.last_hidden_state)

    @property
    def dtype(self) -> str:
        """The type of its numbers."""
        return str(self._model.dtype).removeprefix("torch.")

    def grown(self, ids: Any, count: int) -> Any:
        """Return the logits that `generate` of transformers has before each of the last `count` tokens, cache and all.

        It is made to choose the tokens of the row; what the checkpoint says of generation is left out. Shapes: ids (1, tokens)
        -> (count, vocabulary).
        """
        from transformers import GenerationConfig, LogitsProcessorList

        torch, own = self._torch, self._model.generation_config

        def choose(so_far: Any, scores: Any) -> Any:
            chosen = torch.full_like(scores, -torch.inf)
            chosen[:, ids[0, so_far.shape[1]]] = 0
            return chosen

        self._rope_state.restore()
        self._model.generation_config = GenerationConfig()
        try:
            found = self._model.generate(
                ids[:, :-count], attention_mask=torch.ones_like(ids[:, :-count]), max_new_tokens=count, do_sample=False,
                logits_processor=LogitsProcessorList([choose]), output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        finally:
            self._model.generation_config = own
        return torch.cat(found.logits)

    def whole(self, ids: Any, count: int, chunk: int) -> Any:
        """Return the same of passes without a cache from one call to the next: one, or where tables move one a token."""
        if self.fixed_table:
            hidden = self.hidden(ids[:, :-1], ids.shape[1] - 1 - count, chunk)
            return self.logits(hidden, 0, count)[0]
        ends = range(ids.shape[1] - count, ids.shape[1])
        return self._torch.cat([self.logits(self.hidden(ids[:, :end], end - 1, chunk), 0, 1)[0] for end in ends])

    def logits(self, hidden: Hidden, start: int, end: int) -> Any:
        """Return the logits of some of the hidden states, with all that the model does to logits.

        The model's own forward is run on states that are there already, so scales, caps and heads of any family are
        respected without being known. Shapes: (rows, end - start, vocabulary).
        """
        states = hidden.states[:, start:end]
        base = self._body
        own = base.__dict__.get("forward")  # accelerate's, where layers are spread over devices
        base.forward = lambda *args, **kwargs: hidden.kind(last_hidden_state=states)
        try:
            placeholder = self._torch.zeros(states.shape[:2], dtype=self._torch.long, device=states.device)
            return self._model(input_ids=placeholder, use_cache=False).logits
        finally:
            if own is None:
                del base.forward
            else:
                base.forward = own

    def first_not_finite(self, ids: Any) -> tuple[str, int]:
        """Return where a row first leaves the finite numbers: a module in words, and the position.

        Shapes: ids (1, tokens).
        """
        found: list[tuple[str, int]] = []

        def look(name: str, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            bad = (~self._torch.isfinite(states)).flatten(2).any(dim=2).nonzero().tolist()
            if bad and not found:
                found.append((name, bad[0][1]))

        base = self._body
        places = [("the embeddings", self._model.get_input_embeddings())]
        places += [(f"layer {index}", layer) for index, layer in enumerate(getattr(base, "layers", ()))]
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, name=name: look(name, output))
            for name, module in places
        ]
        try:
            hidden = self.hidden(ids, 0, ids.shape[1])
        finally:
            for hook in hooks:
                hook.remove()
        look("the last norm", hidden.states)
        return found[0] if found else ("the output head", -1)


class Hidden:
    """Hidden states, and the class that the model's body wraps them in. Shapes: states (rows, places, hidden_size)."""

    def __init__(self, kind: type, states: Any) -> None:
        self.kind, self.states = kind, states
