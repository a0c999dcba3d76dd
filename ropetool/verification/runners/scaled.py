"""A runner that scales rows of a loaded model's weights during each call, as a bake would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ropetool.errors import ConfigError
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Runner, Scores, Wrapped, ignore
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor

T = TypeVar("T")
LAYERS = "layers."


class ScaledRunner(Wrapped):
    """A view of a loaded checkpoint with edited weights. After each call, the original weights are restored exactly.

    The edited numbers are rounded once, to the type of the loaded model.

    runner: computes; either `loaded` or a view of it.
    edits: the changes of rows, by the names of tensors in the file.
    Raises: ConfigError for a tensor of the file that the loaded model does not have.
    """

    def __init__(self, runner: Runner, loaded: TorchRunner, edits: Sequence[TensorEdit]) -> None:
        super().__init__(runner)
        self._loaded, self._changes = loaded, by_tensor(edits)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row."""
        return self._scaled(lambda: self._runner.score(rows, scored, done))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row."""
        return self._scaled(lambda: self._runner.predict(rows, candidates, done))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row. The model must not be used for anything else until the last piece is read."""
        with self._scaling():
            yield from self._runner.logits(ids)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Return the logits of generation and of whole passes."""
        return self._scaled(lambda: self._runner.generated(ids, count, done))

    def close(self) -> None:
        """Do nothing, because the owner closes the model."""

    def _scaled(self, compute: Callable[[], T]) -> T:
        with self._scaling():
            return compute()

    @contextmanager
    def _scaling(self) -> Iterator[None]:
        kept: list[tuple[Any, Any, Any]] = []
        try:
            for parameter, change in self._places():
                kept.append(_changed(parameter, change))
            yield
        finally:
            for view, rows, values in kept:
                view[rows] = values

    def _places(self) -> Iterator[tuple[Any, RowChange]]:
        parameters = self._loaded.model.parameters
        for name, change in self._changes.items():
            yield parameters[self._named(name, parameters)], change

    def _named(self, name: str, parameters: Mapping[str, Any]) -> str:
        """Return transformers' name for a tensor of the file. A wrapper's text model has a different prefix."""
        if name in parameters:
            return name
        tail = f".{LAYERS}{name.partition(LAYERS)[2]}"
        matches = [known for known in parameters if known.endswith(tail)]
        if LAYERS not in name or len(matches) != 1:
            raise ConfigError(
                f"the loaded model does not contain the tensor {name} of the file, so its change cannot be measured",
                where=str(self._loaded.path), try_="ropetool bake, then ropetool verify OUTPUT",
            )  # fmt: skip
        return matches[0]


def _changed(parameter: Any, change: RowChange) -> tuple[Any, Any, Any]:
    """Change rows of a weight in place. Return the weight as rows, the indices of the changed rows, and the old rows."""
    import torch

    view = parameter.data.view(change.factor.size, -1)
    rows = change.touched.nonzero()[0].tolist()
    kept = view[rows].clone()
    factor = torch.as_tensor(change.factor[rows], device=view.device)[:, None]
    view[rows] = ((view[change.source[rows].tolist()].double() + change.offset) * factor - change.offset).to(view.dtype)
    return view, rows, kept
