"""One checkpoint as the rules see it: opened once, inspected once, and compared with what its own runtime computes."""

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
    """A checkpoint that could be opened. name: as it was named, a path or a hub id.

    found: what inspect says of it, None where a value stands against that. problem: that value's error. source: the
    checkpoint that it should compute the same as, where one is given or named. wanted: the runtimes that the user has, by
    their full names; empty for all.
    """

    name: str
    checkpoint: Checkpoint
    found: Inspection | None
    problem: RopetoolError | None = None
    source: Case | None = None
    wanted: frozenset[str] = frozenset()

    @property
    def format(self) -> str:
        return self.checkpoint.format

    @property
    def path(self) -> Path | None:
        """Where it lies on this disk, None for one on the hub."""
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
        """What llama.cpp does with files of this architecture, None for a directory or where that is not known."""
        with suppress(NotKnown, RopetoolError):
            return None if self.gguf is None else archs.get(self.gguf.name)
        return None

    @cached_property
    def refusals(self) -> Mapping[str, str]:
        """The rules for which llama.cpp would not load a GGUF file, each with a sentence."""
        return {} if self.gguf is None else key_rules.refusals(self.gguf)

    @property
    def readings(self) -> Sequence[Decoded]:
        return () if self.found is None else self.found.readings

    @property
    def own(self) -> Decoded | None:
        """What the runtime makes of it that the format is made for."""
        return next((each for each in self.readings if each.name == self.checkpoint.runtime), None)

    @property
    def rope(self) -> RopeSet | None:
        """What that runtime computes, None where it stops or is not known to run it."""
        return None if self.own is None else self.own.rope

    @property
    def others(self) -> Iterator[Decoded]:
        asked = (each for each in self.readings if not self.wanted or each.name in self.wanted)
        return (each for each in asked if each is not self.own)

    @property
    def full(self) -> LayerRope | None:
        """The layers that look all the way back and rotate, None where there are none."""
        entry = None if self.rope is None else self.rope.entries.get(names.FULL_ATTENTION)
        return entry if entry is not None and entry.table is not None else None

    @cached_property
    def section(self) -> Mapping[str, Any]:
        """The object of a config that holds the rope keys, empty where there is none or its family is unknown."""
        if self.hf is not None and self.found is not None and self.found.family is not None:
            with suppress(RopetoolError):
                return style.section(self.hf.config, self.found.family, self.hf.where)
        return {}

    @cached_property
    def in_both_styles(self) -> HfCheckpoint | None:
        """The checkpoint with its table in both styles of config.json, None where that says something else or the same."""
        edits = self.edits_to_both
        if not edits or self.hf is None or self.rope is None:
            return None
        edited = self.hf.edited(edits)
        agreeing = [each.name for each in self.readings if each.rope and not self.rope.differences(each.rope)]
        again = [asked(name, edited).rope for name in agreeing]  # who reads it right now must do so afterwards
        return edited if all(rope is not None and not self.rope.differences(rope) for rope in again) else None

    @cached_property
    def edits_to_both(self) -> tuple[FileEdit, ...]:
        """The edits that state the same table in both styles."""
        if self.hf is None or self.rope is None or self.found is None or self.found.family is None:
            return ()
        config, family, where = self.hf.config, self.found.family, self.hf.where
        with suppress(RopetoolError):
            stated = style.read(config, family, where).keys
            keys = {kind: replace(each, rope_theta=self._base(kind, each)) for kind, each in stated.items()}
            edits = style.edits(config, family, keys, names.BOTH, where)
            return tuple(config_file_edits([*edits, *self._share(keys)]))
        return ()

    def _share(self, keys: Mapping[str, style.RopeKeys]) -> Iterator[Edit]:
        """Yield the edit that states beside the rope keys, as the older style does, which share of a head rotates."""
        family = self.found.family if self.found else None
        key = family.partial_rotary_key if family else ""
        share = keys[names.FULL_ATTENTION].params.get(names.PARTIAL_ROTARY_FACTOR)
        if family is not None and key and key not in self.section and share is not None:
            yield Edit((*family.text_path, key), ABSENT, share)

    def _base(self, kind: str, keys: style.RopeKeys) -> float | None:
        """Return the base of a kind of layer; one that the keys do not state, as it is read."""
        entry = None if self.rope is None else self.rope.entries.get(kind)
        return keys.rope_theta if entry is None or keys.rope_theta is not None else entry.rope_theta

    @cached_property
    def without_window(self) -> HfCheckpoint | None:
        """The checkpoint without its sliding window, None where it states none."""
        if self.hf is None or self.found is None or self.found.family is None:
            return None
        key = self.found.family.window_key
        if not self.section.get(key):
            return None
        edit = FileEdit(names.CONFIG_JSON, (*self.found.family.text_path, key), self.section[key], None)
        with suppress(RopetoolError):
            return self.hf.edited([edit])
        return None

    @cached_property
    def without_truncate(self) -> RopeSet | None:
        """What the own runtime computes of the config without that key, None where it is not there."""
        if self.hf is None or self.found is None or self.found.family is None:
            return None
        places = rope_keys(self.hf.config, self.found.family.text_path)
        edits = [FileEdit(names.CONFIG_JSON, at, old, ABSENT) for at, old in places if at[-1] == names.TRUNCATE]
        return asked(self.hf.runtime, self.hf.edited(edits)).rope if edits else None


def asked(runtime: str, edited: HfCheckpoint) -> Decoded:
    """Return what a runtime makes of a checkpoint with edits, in which a value may be wrong that was right before."""
    try:
        style.read(edited.config, edited.family, edited.where)
        return decoded(runtime, edited)
    except RopetoolError as error:
        return Decoded(runtime, None, error.message)


def rope_keys(config: Mapping[str, Any], text_path: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of the objects that scale positions, with its place, those by kind of layer too."""
    part: Any = config
    for name in text_path:
        part = part.get(name) if isinstance(part, Mapping) else None
    for outer in (names.ROPE_PARAMETERS, names.ROPE_SCALING):
        found = part.get(outer) if isinstance(part, Mapping) else None
        for key, value in found.items() if isinstance(found, Mapping) else ():
            if isinstance(value, Mapping):
                yield from (((*text_path, outer, key, inner), each) for inner, each in value.items())
            else:
                yield (*text_path, outer, key), value


def named(found: Sequence[str]) -> str:
    """Return names of runtimes for a sentence."""
    return ", ".join(runtimes.display_ranges(found))
