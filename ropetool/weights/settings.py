"""What config.json says after a bake: no longer what the weights now do, in every style that the file uses.

Knows the keys that ask for a factor, not the weights that carry it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropetool.checkpoint import style
from ropetool.checkpoint.edits import config_file_edits
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.files.hf import ABSENT, Edit
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.config_encodings import settled
from ropetool.runtimes.decoded import decoded
from ropetool.weights.fold_targets import FoldTargets


def factor_edits(
    targets: FoldTargets, config: Mapping[str, Any], attention_factors: Mapping[str, float], *, keep_softmax: bool
) -> list[Edit]:
    """Return the edits of config.json after which each of these kinds of layer asks for its factor alone.

    Raises: InvalidRope or AmbiguousRope for keys that break a rule.
    """
    found = style.read(config, targets.family, targets.where)
    target = {
        layer_type: settled(found.keys[layer_type], factor, keep_softmax=keep_softmax)
        for layer_type, factor in attention_factors.items()
    }
    return style.edits(config, targets.family, target, found.style, targets.where)


def number_edit(targets: FoldTargets, key: str, value: float | bool) -> Edit:
    """Return the edit of one number or switch beside the rope keys."""
    return Edit((*targets.family.text_path, key), targets.config.get(key, ABSENT), value)


def check_reading(checkpoint: HfCheckpoint, edits: Sequence[Edit], target: RopeSet) -> None:
    """Return if transformers reads the edited config as the target.

    Raises: LossyExport with the difference: the keys of the file can then not say what the weights leave to them.
    """
    objection = decoded(checkpoint.runtime, checkpoint.edited(config_file_edits(edits))).objection(target)
    if objection:
        raise LossyExport(
            f"{checkpoint.runtime} would not read the rest from config.json: {objection}", where=checkpoint.where
        )
