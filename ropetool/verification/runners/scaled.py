"""A runner that scales rows of a loaded model's weights during each call, as a bake would write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ropetool.errors import ConfigError
from ropetool.verification.runners.altered import AlteredRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Runner
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor

LAYERS = "layers."


class ScaledRunner(AlteredRunner):
    """A view of a loaded checkpoint with edited weights. After each call, the original weights are restored exactly.

    The edited numbers are rounded once, to the type of the loaded model.

    runner: computes; either `loaded` or a view of it.
    edits: the changes of rows, by the names of tensors in the file.
    Raises: ConfigError for a tensor of the file that the loaded model does not have.
    """

    def __init__(self, runner: Runner, loaded: TorchRunner, edits: Sequence[TensorEdit]) -> None:
        super().__init__(runner)
        self._loaded, self._changes = loaded, by_tensor(edits)

    @contextmanager
    def _altered(self, length: int) -> Iterator[None]:
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
