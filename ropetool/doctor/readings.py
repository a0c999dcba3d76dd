"""Rules about runtimes: each one's decoder is held against what the checkpoint's own runtime computes.

No rule here knows a family or a runtime by name: what differs says which rule it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from ropetool import names
from ropetool.doctor.cases import Case, asked, named
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding
from ropetool.doctor.remedies import baked, fixed, same_for
from ropetool.rope import arithmetic
from ropetool.rope.tables import CONTEXT, TABLE_TOLERANCE, Difference, LayerRope, in_words
from ropetool.runtimes.decoded import Decoded

CONFIG_STYLE, STOPS, NO_GGUF, WINDOW = "config-style", "runtime-stops", "no-gguf", "sliding-window"
LENGTH_RULE, TRUNCATE, SCALING, TABLE = "length-rule", "truncate", "scaling-ignored", "other-table"
AGREES = "with the table in both config styles, it agrees"
# What a rule is about, by the field that differs; tables are looked into further.
BY_FIELD = {
    CONTEXT: "context-length", "attention_factor": "attention-factor", "softmax_multiplier": "softmax-scale",
    "temperature": "temperature", "sliding_window": WINDOW, "table": LENGTH_RULE,
}  # fmt: skip


@dataclass(frozen=True)
class _Seen:
    """What one runtime does with a file, by the rule that it is a case of."""

    rule: str
    severity: str
    words: str
    runtime: str


_known: WeakKeyDictionary[Case, list[_Seen]] = WeakKeyDictionary()


def of_readings(rule: str) -> Callable[[Case], Iterator[Finding]]:
    """Return what finds the cases of one rule among the readings of all runtimes."""

    def find(case: Case) -> Iterator[Finding]:
        if case not in _known:
            _known[case] = [seen for reading in case.others for seen in _of(case, reading)]
        alike: dict[tuple[str, str], list[str]] = {}
        for seen in _known[case]:
            if seen.rule == rule:
                alike.setdefault((seen.severity, seen.words), []).append(seen.runtime)
        for (severity, words), those in alike.items():
            said = words if words.startswith(f"{those[0]} ") else f"in {named(those)}: {words}"
            yield Finding(rule, severity, said, _fix(case, rule, those), _key(case, rule), tuple(those))

    return find


def _fix(case: Case, rule: str, those: Sequence[str]) -> str:
    if rule == CONFIG_STYLE:
        return fixed(case)
    if rule == "softmax-scale" and (line := baked(case, rule)):
        return line
    if rule == BY_FIELD[CONTEXT] and case.rope is not None:
        return f"set the context length when you serve it: {case.rope.max_position_embeddings} tokens"
    return same_for(case, those) if rule != STOPS else ""


def _of(case: Case, reading: Decoded) -> Iterator[_Seen]:
    """Yield what a runtime does otherwise than the checkpoint's own one."""
    if case.rope is None or not reading.known:
        return
    better = _in_both_styles(case, reading)
    if reading.rope is None:
        if better is not None and better.rope is not None:
            yield _Seen(CONFIG_STYLE, WARNING, f"stops with {reading.refuses}; {AGREES}", reading.name)
        elif reading.stops:
            yield _Seen(STOPS, NOTE, f"stops with {reading.refuses}", reading.name)
        else:
            at_fault = WINDOW if _serves_without_window(case, reading) else NO_GGUF
            yield _Seen(at_fault, WARNING, reading.refuses, reading.name)
        return
    found = _differences(case, reading)
    if better is not None and better.rope is not None:
        left = _differences(case, better)
        kept = {(one.layer_type, one.field) for one in left}
        mended = [one for one in found if (one.layer_type, one.field) not in kept]
        if mended:
            words = f"{in_words(mended)}; {AGREES}"
            yield _Seen(CONFIG_STYLE, ERROR, words, reading.name)
        found = left
    yield from (_Seen(rule, WARNING, words, reading.name) for rule, words in _by_rule(case, reading, found))


def _in_both_styles(case: Case, reading: Decoded) -> Decoded | None:
    """Return what the runtime would make of the same table in both styles of config.json, None where that is the same."""
    return None if case.in_both_styles is None else asked(reading.name, case.in_both_styles)


def _serves_without_window(case: Case, reading: Decoded) -> bool:
    """Return whether the runtime would compute what is stated but for a sliding window."""
    whole = case.without_window
    return whole is not None and asked(reading.name, whole).rope is not None


def _differences(case: Case, reading: Decoded) -> list[Difference]:
    """Return what the runtime computes otherwise, without windows that no text of the context leaves."""
    rope, other = case.rope, reading.rope
    if rope is None or other is None:
        return []
    ours, theirs = (
        replace(each, entries={kind: e.within(rope.max_position_embeddings) for kind, e in each.entries.items()})
        for each in (rope, other)
    )
    return list(ours.differences(theirs))


def _by_rule(case: Case, reading: Decoded, found: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """Yield each rule that differences are cases of, with what differs in words."""
    alike: dict[str, list[Difference]] = {}
    follows_length = any(one.field == "table" for one in found)
    rules = [
        BY_FIELD.get(one.field) or (LENGTH_RULE if follows_length else _cause(case, reading, one)) for one in found
    ]
    for rule, one in zip(rules, found, strict=True):
        with_scaling = one.field == "attention_factor" and SCALING in rules
        alike.setdefault(SCALING if with_scaling else rule, []).append(one)
    for rule, those in alike.items():
        yield rule, in_words(those) + (f"; it does not read {names.TRUNCATE}" if rule == TRUNCATE else "")


def _cause(case: Case, reading: Decoded, one: Difference) -> str:
    """Return the rule of a table with other frequencies: which key the runtime leaves out, if that is what it does."""
    if one.field != "inv_freq" or case.rope is None or reading.rope is None:
        return TABLE
    kind = one.layer_type or next(iter(case.rope.entries))
    theirs, ours = reading.rope.entries[kind], case.rope.entries[kind]
    whole = case.without_truncate
    if whole is not None and _turns_alike(whole.entries[kind], theirs):
        return TRUNCATE
    if ours.rope_theta and theirs.table is not None:
        base = arithmetic.base_inv_freq(ours.rope_theta, ours.rotary_dim)
        found = theirs.table.regimes[-1].inv_freq
        if found.size == base.size and np.allclose(found, base, rtol=TABLE_TOLERANCE, atol=0):
            return SCALING
    return TABLE


def _turns_alike(one: LayerRope, other: LayerRope) -> bool:
    return (
        one.table is not None
        and other.table is not None
        and one.table.agrees(other.table.with_factor(one.attention_factor))
    )


def _key(case: Case, rule: str) -> str:
    """Return the key of the config that a rule is about, for whoever shows the place."""
    wanted = {TRUNCATE: names.TRUNCATE, WINDOW: names.SLIDING_WINDOW, "attention-factor": names.ATTENTION_FACTOR,
              "softmax-scale": names.MSCALE_ALL_DIM, "context-length": names.MAX_POSITION_EMBEDDINGS}.get(rule)  # fmt: skip
    text = "" if case.hf is None else case.hf.text
    found = (wanted, names.ROPE_PARAMETERS, names.ROPE_SCALING, names.ROPE_THETA)
    return next((key for key in found if key and f'"{key}"' in text), "")
