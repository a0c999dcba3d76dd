"""The flag of a server for overrides of config.json, as JSON: vLLM and SGLang have one.

The overrides are derived from a plan's edits, applied to the source as the program applies them, and decoded. The flag
is shown only if the result is the plan's target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.escaping import word
from ropetool.files.hf import ABSENT
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import engine_formulas
from ropetool.runtimes.base import Decode, NoFlags, NotKnown, PlannedChange, Refuses, Serving

# Rope keys go into one object. A share of rotating channels must be in it too, because loading puts it there.
GATHERED = frozenset({*engine_formulas.SCALING_KEYS, names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT})


@dataclass(frozen=True)
class ConfigOverrides:
    """How a program takes overrides of config.json.

    command: the command line that serves a file, with places for its path and its context in tokens.
    option: the option that takes the overrides.
    merges: for each way of the releases, whether an object of rope keys is merged into the object of the source.
    nested_merges: the same below text_config; empty if releases replace all of text_config, which breaks it.
    """

    command: str
    option: str
    merges: tuple[bool, ...]
    nested_merges: tuple[bool, ...]

    @property
    def serving(self) -> Serving:
        """How the program serves files."""
        return Serving(self.command, self.flags)

    def flags(self, change: PlannedChange, decode: Decode) -> Sequence[str]:
        """Return the command line that serves the source of a change as its target, by these releases of the program.

        Raises: NoFlags if the overrides do not reach the target.
        """
        source, target = change.source, change.target
        assert isinstance(source, HfCheckpoint)
        try:
            overrides = overrides_of(change)
            reason = self._objection(source, overrides, target, decode)
        except Refuses as refusal:
            reason = str(refusal) if isinstance(refusal, NotKnown) else f"it stops with {refusal}"
        if reason:
            raise NoFlags(reason)
        line = self.serving.line(str(source.path), target.max_position_embeddings)
        return [f"{line} {self.option} {word(json.dumps(overrides))}"]

    def _objection(self, source: HfCheckpoint, overrides: Mapping[str, Any], target: RopeSet, decode: Decode) -> str:
        """Return why the program would not compute the target with these overrides; empty if it would, in each way."""
        ways = self.nested_merges if source.family.text_path else self.merges
        if not ways:
            return f"{self.option} replaces all of {'.'.join(source.family.text_path)} in some releases"
        for merges in ways:
            config = overridden(source, overrides, merges=merges)
            read = decode(replace(source, config=config, given=source.family))
            if read.max_position_embeddings < target.max_position_embeddings:
                return f"context {read.max_position_embeddings} instead of {target.max_position_embeddings}"
            # The option for the context shortens a longer one.
            within = replace(read, max_position_embeddings=target.max_position_embeddings)
            reason = target.mismatch(within)
            if reason:
                return reason
        return ""


def overrides_of(change: PlannedChange) -> dict[str, Any]:
    """Return values that make the source load like the edited config. The rope keys are one whole object.

    Raises: Refuses if the edited config stops the loading.
    """
    output = change.output
    assert isinstance(output, HfCheckpoint)
    family = output.family
    by_layer = {t: {**_share(output), **keys} for t, keys in engine_formulas.loaded_keys(output).items()}
    rope: Any = by_layer if family.nested else by_layer[names.FULL_ATTENTION]
    part = {
        edit.path[-1]: edit.new for edit in change.edits
        if edit.file == names.CONFIG_JSON and edit.new is not ABSENT and GATHERED.isdisjoint(edit.path)
    }  # fmt: skip
    overrides: dict[str, Any] = {**part, names.ROPE_PARAMETERS: rope}
    for key in reversed(family.text_path):
        overrides = {key: overrides}
    return overrides


def _share(checkpoint: HfCheckpoint) -> dict[str, Any]:
    """Return the share of rotating channels as a rope key. Empty if all rotate, and the family has no other default.

    Raises: Refuses if no share gives this number of channels.
    """
    entry = engine_formulas.shape(checkpoint).entries[names.FULL_ATTENTION]
    share = entry.rotary_dim / entry.head_dim
    if checkpoint.family.mla or (share == 1 and not checkpoint.family.partial_rotary_key):
        return {}
    if int(entry.head_dim * share) != entry.rotary_dim:
        raise Refuses(f"{entry.rotary_dim} of {entry.head_dim} channels cannot be written as a share")
    return {names.PARTIAL_ROTARY_FACTOR: share}


def overridden(source: HfCheckpoint, overrides: Mapping[str, Any], *, merges: bool) -> dict[str, Any]:
    """Return a config that loads as the source does after these overrides.

    merges: whether the program merges the rope keys into the object of the source.
    """
    path = source.family.text_path
    for key in path:
        overrides = overrides[key]
    loaded = engine_formulas.loaded_keys(source)
    share = _share(source)
    rope = dict(overrides[names.ROPE_PARAMETERS])
    if merges and source.family.nested:
        kept = {t: {**share, **keys} for t, keys in loaded.items()}
        rope = {**kept, **{t: {**kept[t], **keys} if path else keys for t, keys in rope.items()}}
    elif merges:
        rope = {**share, **loaded[names.FULL_ATTENTION], **rope}
    bare = {key: value for key, value in source.section.items() if key not in GATHERED}
    config: dict[str, Any] = {**bare, **overrides, names.ROPE_PARAMETERS: rope}
    for key in reversed(path):
        config = {**source.config, key: config}
    return config
