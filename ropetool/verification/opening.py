"""Opening of a checkpoint of either format with the program that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CheckpointError
from ropetool.verification.runners.torch_library import without_class

if TYPE_CHECKING:
    from ropetool.verification.runners.llama_runner import LlamaRunner
    from ropetool.verification.runners.torch_runner import TorchRunner


class Open:
    """Opens a directory in transformers and a GGUF file in llama.cpp.

    renamed: the new model_type of each old one, if a plan renamed the model_type of the target to a built-in class. A
      source with the old model_type then runs with the same class.
    as_served: llama.cpp computes as its own programs do; see `LlamaRunner`.
    """

    def __init__(self, renamed: Mapping[str, str], *, as_served: bool = False) -> None:
        self._renamed, self._as_served = renamed, as_served

    def __call__(
        self, path: Path, *, device: str, dtype: str, report: Callable[[str], None], cache_type: str | None = None
    ) -> LlamaRunner | TorchRunner:
        if not path.is_dir():
            from ropetool.verification.runners.llama_runner import LlamaRunner

            return LlamaRunner(
                path, device=device, dtype=dtype, report=report, cache_type=cache_type, as_served=self._as_served
            )
        as_type = (
            self._renamed.get(str(HfCheckpoint.open(path).config.get(names.MODEL_TYPE)), "") if self._renamed else ""
        )
        problem = "" if as_type else without_class(HfCheckpoint.open(path))
        if problem:
            raise CheckpointError(
                f"transformers cannot run it: {problem}",
                where=str(path),
                try_="ropetool export --converter auto, then ropetool verify FILE.gguf with llama.cpp",
            )
        from ropetool.verification.runners.torch_runner import TorchRunner

        return TorchRunner(path, device=device, dtype=dtype, report=report, as_type=as_type)
