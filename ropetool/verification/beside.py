"""Yardsticks measured beside a target: the same measurements of the same tokens, and the target held against each.

They inform and gate nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.rope.tables import RopeSet
from ropetool.verification import suites
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.results import VerifyResult, YardstickResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Measurement, Runner
from ropetool.verification.statistics import paired_difference
from ropetool.verification.yardsticks.named import OPTION, parse_all
from ropetool.verification.yardsticks.runner import layers_of, yardstick_runner

UNTOLD = (suites.CACHE,)  # measurements that a yardstick is not asked for: it reads whole texts


@dataclass(frozen=True)
class Beside:
    """The yardsticks of a run. on: the checkpoint that they are put on. make: their runners beside its own, by name.

    served: what else runs each of them, by name.
    """

    on: str
    served: Mapping[str, str]
    make: Callable[[Runner], Mapping[str, Runner]]


def prepared_beside(specs: str, checkpoint: Checkpoint, rope: RopeSet | None, trained: int, longest: int) -> Beside:
    """Return the yardsticks of a list of names, to be put on a checkpoint. longest: to be measured. Units: tokens.

    Raises: ConfigError for what is none, and for a checkpoint that transformers does not run or that has no layer for them.
    """
    yardsticks = parse_all(specs, trained, longest)
    if not isinstance(checkpoint, HfCheckpoint):
        raise ConfigError(
            f"yardsticks are put into a model that transformers runs, and {checkpoint.path.name} is a GGUF file", where=OPTION,
            try_=f"{command('ropetool', 'import', checkpoint.path, '-o', 'DIR')}, and the directory as --baseline",
        )  # fmt: skip
    if rope is None:
        raise ConfigError(
            f"what {checkpoint.path.name} rotates by is not known", where=OPTION, try_=f"without {OPTION}"
        )
    layers_of(rope, str(checkpoint.path))
    nested = checkpoint.family.nested

    def make(runner: Runner) -> Mapping[str, Runner]:
        assert isinstance(runner, TorchRunner)  # what opens directories, unless another program was asked for
        return {each.name: yardstick_runner(each, runner, rope, trained=trained, nested=nested) for each in yardsticks}

    return Beside(hub.name_of(checkpoint.path), {each.name: each.served for each in yardsticks}, make)


def told_by(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements that yardsticks are asked for."""
    return [m for m in measurements if m.name not in UNTOLD]


def yardstick_result(
    name: str,
    beside: Beside,
    found: VerifyResult,
    measurements: Sequence[Measurement],
    target: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> YardstickResult:
    """Return what a yardstick gave, and the target's losses minus its own on the same tokens.

    found: its own measurements, as they would be a target's. target, raw: what was measured of the target and of it, by name.
    """
    segments = next((m for m in measurements if isinstance(m, LastSegment)), None)
    differences = (
        ()
        if segments is None
        else tuple(
            paired_difference(
                target[segments.name][length], raw[segments.name][length],
                [segment.document for segment in segments.chosen[length]],
            )
            for length in segments.asked
        )
    )  # fmt: skip
    return YardstickResult(
        name, beside.on, beside.served[name], found.lengths, differences, found.protocols, found.position,
        found.far, found.retrieval, found.long_pass,
        found.key_tokens, found.needle_answers, found.effective_length, found.many_shot,
    )  # fmt: skip
