"""Reference attention variants of a loaded checkpoint, for `verify` and `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.choosing.candidates import Refused
from ropetool.choosing.measuring import Trial, sorted_out
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.lab.yardsticks.named import Yardstick, yardsticks_named
from ropetool.lab.yardsticks.runner import layers_of, yardstick_runner
from ropetool.rope.tables import RopeSet
from ropetool.verification.beside import OPTION, Beside, kept_as
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Runner


def yardsticks_beside(specs: str, checkpoint: Checkpoint, rope: RopeSet | None, trained: int, longest: int) -> Beside:
    """Return the variants of a list of names, to be run in a checkpoint. trained, longest: lengths in tokens.

    Raises: ConfigError for an unknown name, and if transformers does not run the checkpoint or no layer fits.
    """
    yardsticks = yardsticks_named(specs, trained, longest)
    if not isinstance(checkpoint, HfCheckpoint):
        raise ConfigError(
            f"reference attention variants work only with transformers, and {checkpoint.path.name} is a GGUF file", where=OPTION,
            try_=f"{command('ropetool', 'import', checkpoint.path, '-o', 'DIR')}, then pass DIR as --baseline",
        )  # fmt: skip
    if rope is None:
        raise ConfigError(
            f"the RoPE settings of {checkpoint.path.name} cannot be decoded", where=OPTION, try_=f"without {OPTION}"
        )
    layers_of(rope, str(checkpoint.path))
    nested = checkpoint.family.nested

    def make(runner: Runner) -> Mapping[str, Runner]:
        assert isinstance(runner, TorchRunner)  # the runner of directories, unless the user requests another program
        return {each.name: yardstick_runner(each, runner, rope, trained=trained, nested=nested) for each in yardsticks}

    return Beside(hub.name_of(checkpoint.path), {each.name: each.served for each in yardsticks}, make)


def yardstick_trials(
    runner: TorchRunner, yardsticks: Sequence[Yardstick], source: HfCheckpoint, source_rope: RopeSet, reach: int,
    trained_length: int,
) -> tuple[list[Trial], list[Refused]]:  # fmt: skip
    """Load the model, and return a trial of each variant that fits it, and a refusal of each other variant."""

    def trial(each: Yardstick) -> Trial:
        view = yardstick_runner(each, runner, source_rope, trained=trained_length, nested=source.family.nested)
        return Trial(each.name, view, reach, kept_as(each.name, trained_length))

    trials, refused, _ = sorted_out(yardsticks, trial)
    return trials, refused
