"""A causal language model of transformers taken apart at its last hidden states: context in, logits of some places out.

Holds hidden states of a whole context, never its logits. Knows nothing of checkpoints, tokens' texts or losses.
"""

from __future__ import annotations

from typing import Any

from ropetool.verification.runners.torch_library import RopeState

LENGTH_RULES = ("dynamic", "longrope")  # their tables follow the length of the call


class TorchModel:
    """A loaded model. fixed_table: whether a context may be computed piece by piece."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch, self._model = torch, model
        self._rope_state = RopeState(model)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.fixed_table = not any(kind in LENGTH_RULES for kind in self._rope_state.rope_types)

    def hidden(self, ids: Any, first: int, chunk: int) -> Hidden:
        """Return the last hidden states of the positions from `first` on, computed `chunk` tokens at a time.

        A chunk sees those before it through a cache of keys and values. Shapes: ids (rows, tokens).
        """
        self._rope_state.restore()
        if not self.fixed_table or chunk >= ids.shape[1]:
            # No mask and no position_ids: rows are of one length, and transformers reads steps other than one
            # as the borders of packed sequences.
            outputs = self._model.base_model(input_ids=ids, use_cache=False)
            return Hidden(type(outputs), outputs.last_hidden_state[:, first:])
        cache, parts = None, []
        for start in range(0, ids.shape[1], chunk):
            piece = ids[:, start : start + chunk]
            outputs = self._model.base_model(input_ids=piece, past_key_values=cache, use_cache=True)
            cache = outputs.past_key_values
            if start + piece.shape[1] > first:
                parts.append(outputs.last_hidden_state[:, max(0, first - start) :])
        return Hidden(type(outputs), self._torch.cat(parts, dim=1))

    def logits(self, hidden: Hidden, start: int, end: int) -> Any:
        """Return the logits of some of the hidden states, with all that the model does to logits.

        The model's own forward is run on states that are there already, so scales, caps and heads of any family are
        respected without being known. Shapes: (rows, end - start, vocabulary).
        """
        states = hidden.states[:, start:end]
        base = self._model.base_model
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

        base = self._model.base_model
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
