"""The model whose rotary table `compare` and `tune` change in memory: its settings, its lengths and its runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.plans.basis import CURRENT
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import inspection
from ropetool.runtimes.inspection import Inspection
from ropetool.verification.opening import Open
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.session import UNDECODED, lengths_of


@dataclass(frozen=True)
class SourceModel:
    """A checkpoint that transformers runs.

    look: the decoded settings.
    context: the configured context length in tokens.
    trained: the trained length before any extension in tokens.
    """

    checkpoint: HfCheckpoint
    look: Inspection
    context: int
    trained: int

    @classmethod
    def of(cls, source: str | Path | Checkpoint, verb: str, instead: str = "") -> SourceModel:
        """Open a checkpoint and decode its settings.

        verb: the command, for the next step of a refusal. instead: another next step.
        Raises: CheckpointError; ConfigError for a GGUF file, and if the file sets no length.
        """
        checkpoint = open_source(source)
        if not isinstance(checkpoint, HfCheckpoint):
            raise ConfigError(
                "is a GGUF file; llama.cpp cannot change the RoPE table of a loaded model", where=str(checkpoint.path),
                try_=f"{command('ropetool', 'import', checkpoint.path, '-o', 'DIR')}, then {verb} DIR{instead and f'; or {instead}'}",
            )  # fmt: skip
        look = inspection.inspect_checkpoint(checkpoint)
        return cls(checkpoint, look, *lengths_of(look, checkpoint))

    @property
    def rope(self) -> RopeSet:
        """Return the tables that the model computes. Raises: ConfigError if its settings cannot be decoded."""
        if self.look.rope is None:
            raise ConfigError(UNDECODED, where=str(self.checkpoint.path))
        return self.look.rope

    def check_beyond(
        self, target_length: int, reading: str | None, to: str, original_length: int | None = None
    ) -> None:
        """Raise ConfigError for a target length within the length that the source already has.

        to: the command, a verb of the message.
        original_length: trained length in tokens. None uses the length in the file.
        """
        trained = original_length or self.trained
        known = self.context if reading == CURRENT else trained
        if target_length <= known:
            what = "context length of the source" if known > trained else "trained length of the model"
            raise ConfigError(
                f"{target_length} does not exceed {known} tokens, the {what}, so there is nothing to {to}",
                where="--target-length", try_=f"a target length beyond {known}",
            )  # fmt: skip

    def load(self, device: str, dtype: str, report: Callable[[str], None]) -> TorchRunner:
        """Return the runner of the model. report: receives a sentence for each change that the runner makes."""
        runner = Open({})(self.checkpoint.path, device=device, dtype=dtype, report=report)
        assert isinstance(runner, TorchRunner)  # the runner of directories
        return runner
