"""The input of the rules: a checkpoint, how each runtime decodes it, and variants of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import FileEdit, config_file_edits
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import RopetoolError
from ropetool.files.hf import ABSENT, Edit
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes.base import NotKnown
from ropetool.runtimes.decoded import Decoded, decoded
from ropetool.runtimes.inspection import Inspection
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import key_rules


@dataclass(frozen=True, eq=False)
class Case:
    """An open checkpoint, with the table that each runtime decodes from it.

    name: the path or Hub id that the user passed, or the path in a folder.
    checkpoint: the open checkpoint.
    inspection: the result of `inspect`. None if a value of the checkpoint prevents that.
    problem: the error that prevented the inspection. None if there is an inspection.
    source: the checkpoint that must have the same table. None if there is no such checkpoint.
    for_runtimes: the full names of the runtimes that the user has. Empty for all runtimes.
    """

    name: str
    checkpoint: Checkpoint
    inspection: Inspection | None
    problem: RopetoolError | None = None
    source: Case | None = None
    for_runtimes: frozenset[str] = frozenset()

    @property
    def format(self) -> str:
        return self.checkpoint.format

    @property
    def path(self) -> Path | None:
        """Return the path on this disk, or None for a model on the Hub."""
        place = Path(self.name)
        return place if place.exists() else None

    @property
    def hf(self) -> HfCheckpoint | None:
        return self.checkpoint if isinstance(self.checkpoint, HfCheckpoint) else None

    @property
    def gguf(self) -> GgufCheckpoint | None:
        return self.checkpoint if isinstance(self.checkpoint, GgufCheckpoint) else None

    @property
    def arch(self) -> archs.Architecture | None:
        """Return llama.cpp's architecture of a GGUF file, or None for a directory or an unknown architecture."""
        with suppress(NotKnown, RopetoolError):
            return None if self.gguf is None else archs.get(self.gguf.name)
        return None

    @cached_property
    def refusals(self) -> Mapping[str, str]:
        """Return the rules for which llama.cpp refuses to load the GGUF file, each with a message.

        Empty for a directory.
        """
        return {} if self.gguf is None else key_rules.refusals(self.gguf)

    @property
    def readings(self) -> Sequence[Decoded]:
        """Return the decoded table of each runtime. Empty without an inspection."""
        return () if self.inspection is None else self.inspection.readings

    @property
    def own(self) -> Decoded | None:
        """Return the decoded table of the format's own runtime: transformers or llama.cpp.

        None if it has no decoder.
        """
        return next((each for each in self.readings if each.name == self.checkpoint.runtime), None)

    @property
    def rope(self) -> RopeSet | None:
        """Return the tables of the format's own runtime, or None if it stops or does not know the model."""
        return None if self.own is None else self.own.rope

    @property
    def others(self) -> Iterator[Decoded]:
        """Yield the decoded tables of the other runtimes, limited to the runtimes that the user has."""
        requested = (each for each in self.readings if not self.for_runtimes or each.name in self.for_runtimes)
        return (each for each in requested if each is not self.own)

    @property
    def full(self) -> LayerRope | None:
        """Return the layers with full attention, or None if there are none or they do not rotate."""
        entry = None if self.rope is None else self.rope.entries.get(names.FULL_ATTENTION)
        return entry if entry is not None and entry.table is not None else None

    @cached_property
    def section(self) -> Mapping[str, Any]:
        """Return the object of config.json that contains the rope keys. Empty for an unknown family or a GGUF file."""
        if self.hf is not None and self.inspection is not None and self.inspection.family is not None:
            with suppress(RopetoolError):
                return style.section(self.hf.config, self.inspection.family, self.hf.where)
        return {}

    @cached_property
    def in_both_styles(self) -> HfCheckpoint | None:
        """Return the checkpoint with the rope keys in both styles of config.json.

        None if there is nothing to add, or if a runtime that reads the table correctly today would not do so
        afterwards.
        """
        edits = self.edits_to_both
        if not edits or self.hf is None or self.rope is None:
            return None
        edited = self.hf.edited(edits)
        agreeing = [each.name for each in self.readings if each.rope and not self.rope.differences(each.rope)]
        ropes_after = [decoded_after_edits(name, edited).rope for name in agreeing]
        return edited if all(rope is not None and not self.rope.differences(rope) for rope in ropes_after) else None

    @cached_property
    def edits_to_both(self) -> tuple[FileEdit, ...]:
        """Return the edits that write the same table in both styles of config.json. Empty if that is not possible."""
        if self.hf is None or self.rope is None or self.inspection is None or self.inspection.family is None:
            return ()
        config, family, where = self.hf.config, self.inspection.family, self.hf.where
        with suppress(RopetoolError):
            keys_by_type = style.read(config, family, where).keys
            keys = {
                layer_type: replace(each, rope_theta=self._base(layer_type, each))
                for layer_type, each in keys_by_type.items()
            }
            edits = style.edits(config, family, keys, names.BOTH, where)
            return tuple(config_file_edits([*edits, *self._share(keys)]))
        return ()

    def _share(self, keys: Mapping[str, style.RopeKeys]) -> Iterator[Edit]:
        """Yield the edit that adds the share of rotated channels at the place of the older style."""
        family = self.inspection.family if self.inspection else None
        key = family.partial_rotary_key if family else ""
        share = keys[names.FULL_ATTENTION].params.get(names.PARTIAL_ROTARY_FACTOR)
        if family is not None and key and key not in self.section and share is not None:
            yield Edit((*family.text_path, key), ABSENT, share)

    def _base(self, layer_type: str, keys: style.RopeKeys) -> float | None:
        """Return the base of a layer type. If the keys do not set it, return the base that the own runtime uses."""
        entry = None if self.rope is None else self.rope.entries.get(layer_type)
        return keys.rope_theta if entry is None or keys.rope_theta is not None else entry.rope_theta

    @cached_property
    def without_window(self) -> HfCheckpoint | None:
        """Return the checkpoint without its sliding window, or None if the config does not set one."""
        if self.hf is None or self.inspection is None or self.inspection.family is None:
            return None
        key = self.inspection.family.window_key
        if not self.section.get(key):
            return None
        edit = FileEdit(names.CONFIG_JSON, (*self.inspection.family.text_path, key), self.section[key], None)
        with suppress(RopetoolError):
            return self.hf.edited([edit])
        return None

    @cached_property
    def without_truncate(self) -> RopeSet | None:
        """Return the own runtime's tables for the config without `truncate`, or None if the config does not set it."""
        if self.hf is None or self.inspection is None or self.inspection.family is None:
            return None
        places = rope_keys(self.hf.config, self.inspection.family.text_path)
        edits = [FileEdit(names.CONFIG_JSON, path, old, ABSENT) for path, old in places if path[-1] == names.TRUNCATE]
        return decoded_after_edits(self.hf.runtime, self.hf.edited(edits)).rope if edits else None


def decoded_after_edits(runtime: str, edited: HfCheckpoint) -> Decoded:
    """Return how a runtime decodes an edited checkpoint.

    If the edits make a value invalid, the result contains the error.
    """
    try:
        style.read(edited.config, edited.family, edited.where)
        return decoded(runtime, edited)
    except RopetoolError as error:
        return Decoded(runtime, None, error.message)


def rope_keys(config: Mapping[str, Any], text_path: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each key in `rope_parameters` and `rope_scaling`, also of keys per layer type."""
    part: Any = config
    for name in text_path:
        part = part.get(name) if isinstance(part, Mapping) else None
    for outer in (names.ROPE_PARAMETERS, names.ROPE_SCALING):
        scaling = part.get(outer) if isinstance(part, Mapping) else None
        for key, value in scaling.items() if isinstance(scaling, Mapping) else ():
            if isinstance(value, Mapping):
                yield from (((*text_path, outer, key, inner), each) for inner, each in value.items())
            else:
                yield (*text_path, outer, key), value


def runtime_list(runtime_names: Sequence[str]) -> str:
    """Return runtime names for a message, with releases of the same runtime collapsed into ranges."""
    return ", ".join(runtimes.display_ranges(runtime_names))
