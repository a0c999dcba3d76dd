"""The rule about older releases of a program that read a config differently from the newest one."""

from __future__ import annotations

from collections.abc import Iterator

from ropetool import names
from ropetool.doctor.cases import Case, rope_keys
from ropetool.doctor.findings import NOTE, Finding
from ropetool.runtimes.older import OLDER, OlderReading

RULE = "older-release"


def older_release(case: Case) -> Iterator[Finding]:
    for reading in OLDER:
        if _applies(reading, case):
            numbers = _numbers(case)
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


def _numbers(case: Case) -> dict[str, str]:
    """Return the numbers of a checkpoint that sentences name."""
    full = case.full
    if full is None:
        return dict.fromkeys(("channels", "rotary_dim", "share", "softmax"), "")
    return {
        "channels": str(full.head_dim), "rotary_dim": str(full.rotary_dim), "share": f"{full.rotary_dim / full.head_dim:g}",
        "softmax": f"{full.softmax_multiplier:.6g}",
    }  # fmt: skip
