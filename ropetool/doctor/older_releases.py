"""The rule about releases of programs that read a config differently from the newest release, with these releases as data.

A program whose releases compute different tables for many models has ranges of releases in its module. The entries here
concern a few families. Each was confirmed by running both releases; tests/oracle/older_releases.json has the answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropetool import names
from ropetool.doctor.cases import Case, rope_keys
from ropetool.doctor.findings import NOTE, Finding
from ropetool.rope.tables import LayerRope

RULE = "older-release"


@dataclass(frozen=True)
class OlderReading:
    """A different reading in older releases.

    program: the runtime.
    before: the first release with the reading of today.
    families: the model types.
    reads: what older releases do, as the end of a sentence. {channels}, {rotary_dim}, {share} and {softmax} stand for
        numbers of the checkpoint.
    keys: rope keys, or keys next to them, that the config has.
    absent: a rope key that the config does not have.
    nested: whether the rope keys are nested by layer type; None for both.
    scaled: whether a layer must have a rope type other than "default".
    fix: what makes all releases read the same; empty if only a newer release does.
    """

    program: str
    before: str
    families: tuple[str, ...]
    reads: str
    keys: tuple[str, ...] = ()
    absent: str = ""
    nested: bool | None = None
    scaled: bool = False
    fix: str = ""


OLDER = (
    OlderReading(
        "transformers", "5.18", ("minimax_m2",),
        "ignores rotary_dim, so {channels} channels rotate instead of {rotary_dim}",
        keys=("rotary_dim",), absent=names.PARTIAL_ROTARY_FACTOR,
        fix=f"set {names.PARTIAL_ROTARY_FACTOR} to {{share}} next to rotary_dim",
    ),
    OlderReading(
        "transformers", "5.15", ("deepseek_v2", "mistral4"),
        f"ignores {names.MSCALE_ALL_DIM} for the attention score, which must be multiplied by {{softmax}}",
        keys=(names.MSCALE_ALL_DIM,), scaled=True,
    ),
    OlderReading(
        "transformers", "5.13", ("olmo3",), "also scales the layers with a sliding window", nested=False, scaled=True,
    ),
    OlderReading(
        "transformers", "5.13", ("olmo3",),
        "ignores rope keys nested by layer type, so every layer gets the unscaled table of base 10000", nested=True,
    ),
)  # fmt: skip


def older_release(case: Case) -> Iterator[Finding]:
    for reading in OLDER:
        if case.full is not None and _applies(reading, case):
            numbers = _numbers(case.full)
            sentence = f"{reading.program} before {reading.before} {reading.reads.format(**numbers)}"
            fix = reading.fix.format(**numbers) or f"use {reading.program} {reading.before} or later"
            key = reading.keys[0] if reading.keys else names.ROPE_PARAMETERS if reading.nested else names.ROPE_SCALING
            yield Finding(RULE, NOTE, sentence, fix, key, (reading.program,))


def _applies(reading: OlderReading, case: Case) -> bool:
    """Return whether older releases read this checkpoint differently."""
    if case.hf is None or case.rope is None or case.inspection is None or case.inspection.family is None:
        return False
    family = case.inspection.family
    if family.model_type not in reading.families:
        return False
    paths = [path for path, _ in rope_keys(case.hf.config, family.text_path)]
    present = {path[-1] for path in paths} | case.section.keys()
    nested = any(len(path) > len(family.text_path) + 2 for path in paths)
    scaled = any(not entry.unscaled for entry in case.rope.entries.values() if entry.table is not None)
    return (
        present.issuperset(reading.keys)
        and reading.absent not in present
        and reading.nested in (None, nested)
        and (scaled or not reading.scaled)
    )


def _numbers(full: LayerRope) -> dict[str, str]:
    """Return the numbers of a checkpoint that sentences name."""
    return {
        "channels": str(full.head_dim), "rotary_dim": str(full.rotary_dim), "share": f"{full.rotary_dim / full.head_dim:g}",
        "softmax": f"{full.softmax_multiplier:.6g}",
    }  # fmt: skip
