"""A causal language model of transformers, split at its last hidden states.

The hidden states of a whole context are in memory. Logits are computed from them only for the requested positions.
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
from ropetool.verification.runners.torch_rotation import RopeState, SoftmaxScales, rotations, set_tables, swapped_pairs

LENGTH_RULES = ("dynamic", "longrope")  # types whose tables depend on the number of tokens in a call


class TorchModel:
    """A loaded model.

    vocabulary: the number of tokens in the vocabulary.
    fixed_table: the tables do not depend on the length, so a context may be computed in chunks.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch, self._model = torch, model
        # base_model_prefix of Llama4ForCausalLM names an attribute language_model, which the class does not have.
        self._body = model.model if model.base_model is model else model.base_model
        self._rope_state = RopeState(model)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.fixed_table = not any(rope_type in LENGTH_RULES for rope_type in self._rope_state.rope_types)

    def rotate(self, tables: Mapping[str, Regime], nested: bool, scores: Mapping[int, float]) -> None:
        """Use these fixed tables from now on. tables, nested: see `set_tables`. scores: ratios of softmax scales by layer."""
        set_tables(self._model, tables, nested)
        self._softmax_scales.times(scores)
        self._rope_state, self.fixed_table = RopeState(self._model), True

    @contextmanager
    def rotated(self, tables: Mapping[str, Regime], nested: bool, scores: Mapping[int, float]) -> Iterator[None]:
        """Use these fixed tables within the context, as `rotate` does, then restore the previous ones."""
        own, fixed = self._rope_state, self.fixed_table
        own.restore()
        changed = ("rope_type", "inv_freq", "attention_scaling")  # suffixes of the attributes that `set_tables` changes
        before = [
            (module, dict(module._buffers), {name: copy(state[name]) for name in state if name.endswith(changed)})
            for module in self._model.modules()
            if "rope_type" in (state := vars(module))
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
        """Replace the attention of these layers within the context; see `torch_attention.attending`.

        Rows are then computed whole. Raises: Unfit on entry or during a pass.
        """
        fixed, self.fixed_table = self.fixed_table, False
        try:
            with attending(self._model, layers, attend) as reached:
                yield reached
        finally:
            self.fixed_table = fixed

    def noisy(self, amount: float) -> AbstractContextManager[None]:
        """Round as ggml does within the context, except in the head; see `torch_noise.noisy`."""
        return noisy(self._body, amount)

    @property
    def has_gelu(self) -> bool:
        """Whether ggml looks its activation up in a table of float16 numbers."""
        return any(map(is_gelu, self._body.modules()))

    def swapped(self, widths: Mapping[int, int], layout: str) -> AbstractContextManager[None]:
        """Pair channels as the other layout does, within the context; see `torch_rotation.swapped_pairs`."""
        return swapped_pairs(self._model, widths, layout)

    @property
    def parameters(self) -> dict[str, Any]:
        """The weights by transformers' names."""
        return dict(self._model.named_parameters())

    @property
    def swappable(self) -> bool:
        """Whether ropetool finds the functions that rotate queries and keys, so that `swapped` works."""
        return bool(rotations(self._model))

    @cached_property
    def _softmax_scales(self) -> SoftmaxScales:
        return SoftmaxScales(self._model)

    @property
    def scalable(self) -> frozenset[int]:
        """The layers whose softmax scale can be changed."""
        return self._softmax_scales.layers

    def hidden(self, ids: Any, first: int, chunk: int) -> Hidden:
        """Return the last hidden states of the positions from `first` on, computed in chunks of `chunk` tokens.

        A chunk sees the chunks before it through a cache of keys and values. Shapes: ids (rows, tokens).
        """
        parts = []
        for start, hidden in self.steps(ids, chunk):
            if start + hidden.states.shape[1] > first:
                parts.append(hidden.states[:, max(0, first - start) :])
        return Hidden(hidden.output_class, parts[0] if len(parts) == 1 else self._torch.cat(parts, dim=1))

    def steps(self, ids: Any, chunk: int) -> Iterator[tuple[int, Hidden]]:
        """Yield the last hidden states of each `chunk` tokens, with the position of the first token.

        If a table depends on the length of the text, all tokens are computed at once. Shapes: ids (rows, tokens).
        """
        self._rope_state.restore()
        if not self.fixed_table or chunk >= ids.shape[1]:
            # Without a mask and position_ids, because all rows have the same length. transformers would take steps other
            # than 1 in position_ids for the borders of packed sequences.
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
        """The type of the model's numbers, as torch names it."""
        return str(self._model.dtype).removeprefix("torch.")

    def grown(self, ids: Any, count: int) -> Any:
        """Return the logits of transformers' `generate` before each of the last `count` tokens, with its growing cache.

        `generate` is forced to choose the tokens of the row. The checkpoint's generation config is not used.
        Shapes: ids (1, tokens) -> (count, vocabulary).
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
            generation = self._model.generate(
                ids[:, :-count], attention_mask=torch.ones_like(ids[:, :-count]), max_new_tokens=count, do_sample=False,
                logits_processor=LogitsProcessorList([choose]), output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        finally:
            self._model.generation_config = own
        return torch.cat(generation.logits)

    def whole(self, ids: Any, count: int, chunk: int) -> Any:
        """Return the logits before the last `count` tokens from passes over all previous tokens, as `grown` does.

        This is one pass, or a pass for each token if a table depends on the length.
        """
        if self.fixed_table:
            hidden = self.hidden(ids[:, :-1], ids.shape[1] - 1 - count, chunk)
            return self.logits(hidden, slice(count))[0]
        ends = range(ids.shape[1] - count, ids.shape[1])
        return self._torch.cat([self.logits(self.hidden(ids[:, :end], end - 1, chunk), slice(1))[0] for end in ends])

    def logits(self, hidden: Hidden, places: Any) -> Any:
        """Return the logits of some of the hidden states. places: a slice or the indices of their positions.

        This runs the model's own forward on the given states, so that the scale, the cap and the head of each family
        apply.
        Shapes: (rows, places, vocabulary).
        """
        states = hidden.states[:, places]
        base = self._body
        own = base.__dict__.get("forward")  # accelerate sets it if the layers are on several devices
        base.forward = lambda *args, **kwargs: hidden.output_class(last_hidden_state=states)
        try:
            placeholder = self._torch.zeros(states.shape[:2], dtype=self._torch.long, device=states.device)
            return self._model(input_ids=placeholder, use_cache=False).logits
        finally:
            if own is None:
                del base.forward
            else:
                base.forward = own

    def first_not_finite(self, ids: Any) -> tuple[str, int]:
        """Return the first module with a value that is not finite, in words, and the position; -1 for the output head.

        Shapes: ids (1, tokens).
        """
        places: list[tuple[str, int]] = []

        def look(name: str, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            bad = (~self._torch.isfinite(states)).flatten(2).any(dim=2).nonzero().tolist()
            if bad and not places:
                places.append((name, bad[0][1]))

        base = self._body
        modules = [("the embeddings", self._model.get_input_embeddings())]
        modules += [(f"layer {index}", layer) for index, layer in enumerate(getattr(base, "layers", ()))]
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, name=name: look(name, output))
            for name, module in modules
        ]
        try:
            hidden = self.hidden(ids, 0, ids.shape[1])
        finally:
            for hook in hooks:
                hook.remove()
        look("the last norm", hidden.states)
        return places[0] if places else ("the output head", -1)


class Hidden:
    """Hidden states, and the output class of the model's body. Shapes: states (rows, positions, hidden_size)."""

    def __init__(self, output_class: type, states: Any) -> None:
        self.output_class, self.states = output_class, states
