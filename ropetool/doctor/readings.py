"""Rules that compare each runtime's decoded table with the table of the checkpoint's own runtime.

They do not name any family or runtime. The fields that differ determine the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from ropetool import names
from ropetool.doctor.cases import Case, decoded_after_edits, runtime_list
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding
from ropetool.doctor.remedies import baked, fixed, same_for
from ropetool.rope import arithmetic
from ropetool.rope.tables import CONTEXT, TABLE_TOLERANCE, Difference, LayerRope, in_words
from ropetool.runtimes.decoded import Decoded

CONFIG_STYLE, STOPS, NO_GGUF, WINDOW = "config-style", "runtime-stops", "no-gguf", "sliding-window"
LENGTH_RULE, TRUNCATE, SCALING, TABLE = "length-rule", "truncate", "scaling-ignored", "other-table"
AGREES = "with the table in both config styles, it agrees"
# The rule of each field that can differ. Frequencies need a closer look, in _cause.
BY_FIELD = {
    CONTEXT: "context-length", "attention_factor": "attention-factor", "softmax_multiplier": "softmax-scale",
    "temperature": "temperature", "sliding_window": WINDOW, "table": LENGTH_RULE,
}  # fmt: skip


@dataclass(frozen=True)
class _RuntimeDifference:
    """A difference in a single runtime.

    rule: the rule that reports it.
    severity: the severity of the finding.
    words: the difference, for a message.
    runtime: the runtime's name.
    """

    rule: str
    severity: str
    words: str
    runtime: str


_by_case: WeakKeyDictionary[Case, list[_RuntimeDifference]] = WeakKeyDictionary()


def of_readings(rule: str) -> Callable[[Case], Iterator[Finding]]:
    """Return a function that yields the findings of a single rule about all runtimes."""

    def find(case: Case) -> Iterator[Finding]:
        if case not in _by_case:
            _by_case[case] = [difference for reading in case.others for difference in _differences_of(case, reading)]
        runtimes_by_words: dict[tuple[str, str], list[str]] = {}
        for difference in _by_case[case]:
            if difference.rule == rule:
                runtimes_by_words.setdefault((difference.severity, difference.words), []).append(difference.runtime)
        for (severity, words), runtime_names in runtimes_by_words.items():
            sentence = (
                words if words.startswith(f"{runtime_names[0]} ") else f"in {runtime_list(runtime_names)}: {words}"
            )
            yield Finding(
                rule, severity, sentence, _fix(case, rule, runtime_names), _key(case, rule), tuple(runtime_names)
            )

    return find


def _fix(case: Case, rule: str, runtime_names: Sequence[str]) -> str:
    if rule == CONFIG_STYLE:
        return fixed(case)
    if rule == "softmax-scale" and (line := baked(case, rule)):
        return line
    if rule == BY_FIELD[CONTEXT] and case.rope is not None:
        return f"set the context length when you serve it: {case.rope.max_position_embeddings} tokens"
    return same_for(case, runtime_names) if rule != STOPS else ""


def _differences_of(case: Case, reading: Decoded) -> Iterator[_RuntimeDifference]:
    """Yield the differences between a runtime and the checkpoint's own runtime."""
    if case.rope is None or not reading.known:
        return
    better = _in_both_styles(case, reading)
    if reading.rope is None:
        if better is not None and better.rope is not None:
            yield _RuntimeDifference(CONFIG_STYLE, WARNING, f"stops with {reading.refuses}; {AGREES}", reading.name)
        elif reading.stops:
            yield _RuntimeDifference(STOPS, NOTE, f"stops with {reading.refuses}", reading.name)
        else:
            at_fault = WINDOW if _serves_without_window(case, reading) else NO_GGUF
            yield _RuntimeDifference(at_fault, WARNING, reading.refuses, reading.name)
        return
    differences = _differences(case, reading)
    if better is not None and better.rope is not None:
        left = _differences(case, better)
        kept = {(one.layer_type, one.field) for one in left}
        removed = [one for one in differences if (one.layer_type, one.field) not in kept]
        if removed:
            words = f"{in_words(removed)}; {AGREES}"
            yield _RuntimeDifference(CONFIG_STYLE, ERROR, words, reading.name)
        differences = left
    yield from (
        _RuntimeDifference(rule, WARNING, words, reading.name) for rule, words in _by_rule(case, reading, differences)
    )


def _in_both_styles(case: Case, reading: Decoded) -> Decoded | None:
    """Return how the runtime decodes the config with both styles, or None if there is no such config."""
    return None if case.in_both_styles is None else decoded_after_edits(reading.name, case.in_both_styles)


def _serves_without_window(case: Case, reading: Decoded) -> bool:
    """Return whether the runtime decodes the config after its sliding window is removed."""
    whole = case.without_window
    return whole is not None and decoded_after_edits(reading.name, whole).rope is not None


def _differences(case: Case, reading: Decoded) -> list[Difference]:
    """Return the differences from the own runtime. Ignores windows that are at least as long as the context."""
    rope, other = case.rope, reading.rope
    if rope is None or other is None:
        return []
    ours, theirs = (
        replace(
            each,
            entries={
                layer_type: layer.within(rope.max_position_embeddings) for layer_type, layer in each.entries.items()
            },
        )
        for each in (rope, other)
    )
    return list(ours.differences(theirs))


def _by_rule(case: Case, reading: Decoded, differences: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """Yield each rule with its differences in words."""
    by_rule: dict[str, list[Difference]] = {}
    follows_length = any(one.field == "table" for one in differences)
    rules = [
        BY_FIELD.get(one.field) or (LENGTH_RULE if follows_length else _cause(case, reading, one))
        for one in differences
    ]
    for rule, one in zip(rules, differences, strict=True):
        with_scaling = one.field == "attention_factor" and SCALING in rules
        by_rule.setdefault(SCALING if with_scaling else rule, []).append(one)
    for rule, of_rule in by_rule.items():
        yield rule, in_words(of_rule) + (f"; it does not read {names.TRUNCATE}" if rule == TRUNCATE else "")


def _cause(case: Case, reading: Decoded, one: Difference) -> str:
    """Return the rule for different frequencies. If the runtime ignores a certain key, it is the rule of this key."""
    if one.field != "inv_freq" or case.rope is None or reading.rope is None:
        return TABLE
    layer_type = one.layer_type or next(iter(case.rope.entries))
    theirs, ours = reading.rope.entries[layer_type], case.rope.entries[layer_type]
    whole = case.without_truncate
    if whole is not None and _rotates_alike(whole.entries[layer_type], theirs):
        return TRUNCATE
    if ours.rope_theta and theirs.table is not None:
        base = arithmetic.base_inv_freq(ours.rope_theta, ours.rotary_dim)
        frequencies = theirs.table.regimes[-1].inv_freq
        if frequencies.size == base.size and np.allclose(frequencies, base, rtol=TABLE_TOLERANCE, atol=0):
            return SCALING
    return TABLE


def _rotates_alike(one: LayerRope, other: LayerRope) -> bool:
    return (
        one.table is not None
        and other.table is not None
        and one.table.agrees(other.table.with_factor(one.attention_factor))
    )


def _key(case: Case, rule: str) -> str:
    """Return the key of the config that a rule is about, to find its line. Empty if the config lacks it."""
    key_of_rule = {TRUNCATE: names.TRUNCATE, WINDOW: names.SLIDING_WINDOW, "attention-factor": names.ATTENTION_FACTOR,
              "softmax-scale": names.MSCALE_ALL_DIM, "context-length": names.MAX_POSITION_EMBEDDINGS}.get(rule)  # fmt: skip
    text = "" if case.hf is None else case.hf.text
    candidates = (key_of_rule, names.ROPE_PARAMETERS, names.ROPE_SCALING, names.ROPE_THETA)
    return next((key for key in candidates if key and f'"{key}"' in text), "")
