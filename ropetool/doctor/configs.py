"""Rules about config.json and the tokenizer files next to it, for any runtime."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.edits import FileEdit
from ropetool.doctor.cases import Case, rope_keys
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding, misspelt
from ropetool.doctor.remedies import fixed, stating
from ropetool.errors import RopetoolError
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import LayerRope, is_number
from ropetool.runtimes.hf_formulas import mscale_of

# No rope type reads these, but they are correct: they are for images, temperatures or other programs.
NOT_OF_A_TYPE = frozenset({
    names.ROPE_THETA, names.PARTIAL_ROTARY_FACTOR, names.MROPE_SECTION, names.MAX_POSITION_EMBEDDINGS,
    names.LLAMA_4_SCALING_BETA, "mrope_interleaved", "apply_yarn_scaling",
})  # fmt: skip
OUTER = (
    names.ROPE_THETA, names.ROPE_SCALING, names.ROPE_PARAMETERS, names.MAX_POSITION_EMBEDDINGS,
    names.ORIGINAL_MAX_POSITION_EMBEDDINGS, names.SLIDING_WINDOW,
)  # fmt: skip
# Similarity by difflib. 0.8 allows one wrong letter. A whole config has more names, so more of them look alike.
NEAR_KEY, NEAR_OUTER = 0.8, 0.9
DUAL_CHUNK = "dual_chunk_attention_config"
NUMBERS = frozenset(names.ROPE_TYPE_KEYS | NOT_OF_A_TYPE) - {
    names.ROPE_TYPE, names.LEGACY_TYPE, names.TRUNCATE, names.SHORT_FACTOR, names.LONG_FACTOR, names.MROPE_SECTION,
    "finetuned", "mrope_interleaved", "apply_yarn_scaling",
}  # fmt: skip


def numbers_as_text(case: Case) -> tuple[FileEdit, ...]:
    """Return the edits that replace numbers in quotes by numbers, in the rope keys and the keys next to them."""
    if case.hf is None:
        return ()
    path: tuple[str, ...] = ()
    with suppress(RopetoolError):
        path = families.of_config(case.hf.config).text_path
    places = {place: value for place, value in rope_keys(case.hf.config, path) if place[-1] in NUMBERS}
    part: Any = case.hf.config
    for name in path:
        part = part.get(name) if isinstance(part, dict) else None
    part = part if isinstance(part, dict) else {}
    places |= {(*path, key): part[key] for key in (*OUTER, names.PARTIAL_ROTARY_FACTOR) if key in part}
    texts = {place: value for place, value in places.items() if isinstance(value, str)}
    numbers = {place: _number(text) for place, text in texts.items()}
    return tuple(
        FileEdit(names.CONFIG_JSON, place, texts[place], number)
        for place, number in numbers.items()
        if number is not None
    )


def _number(text: str) -> int | float | None:
    for number_type in (int, float):
        with suppress(ValueError):
            number: int | float = number_type(text)
            return number if is_number(number) else None
    return None


def number_as_text(case: Case) -> Iterator[Finding]:
    for edit in numbers_as_text(case):
        key = ".".join(edit.path)
        sentence = (
            f"{key} is the text {shown(edit.old)} instead of the number {edit.new}: runtimes stop, or compare text"
        )
        yield Finding("number-as-text", ERROR, sentence, fixed(case), edit.path[-1])


def unread_key(case: Case) -> Iterator[Finding]:
    if case.hf is None or case.inspection is None or case.inspection.family is None:
        return
    family = case.inspection.family
    known = (names.ROPE_TYPE_KEYS | NOT_OF_A_TYPE | {family.temperature_key, family.stretch_key}) - {""}
    for place, _ in rope_keys(case.hf.config, family.text_path):
        key = place[-1]
        if key == names.ATTN_FACTOR:
            sentence = f"transformers does not read {'.'.join(place)}; vLLM and SGLang multiply their own factor by it"
            yield Finding(
                "unread-key", WARNING, sentence, f"set {names.ATTENTION_FACTOR}, which transformers reads", key
            )
        elif key not in known:
            unread = Finding("unread-key", NOTE, f"no rope type reads {'.'.join(place)}", key=key)
            yield _misspelt(".".join(place), key, known, NEAR_KEY) or unread
    for key in case.section.keys() - {*OUTER, family.context_key}:
        if (finding := _misspelt(key, key, OUTER, NEAR_OUTER)) is not None:
            yield finding
    if case.section.get(DUAL_CHUNK):
        sentence = (
            f"{DUAL_CHUNK} enables a different attention beyond its chunks, which transformers does not implement"
        )
        yield Finding("unread-key", NOTE, sentence, key=DUAL_CHUNK)


def _misspelt(place: str, key: str, known: Iterable[str], near: float) -> Finding | None:
    """Return a finding for a key that resembles a known key, or None."""
    similar = get_close_matches(key, known, 1, near)
    return misspelt(place, similar[0], key) if similar else None


def mscale_pair(case: Case) -> Iterator[Finding]:
    if case.hf is None or case.inspection is None or case.inspection.family is None or case.rope is None:
        return
    for layer_type, entry in case.rope.entries.items():
        settled = entry.params.get(names.ATTENTION_FACTOR) is not None or case.inspection.family.norm_after
        if entry.table is None or entry.rope_type != "yarn" or settled:  # only yarn reads the two keys
            continue
        where = f"{layer_type}: " if len(case.rope.entries) > 1 else ""
        if (finding := _mscales(entry, where)) is not None:
            yield finding


def _mscales(entry: LayerRope, where: str) -> Finding | None:
    """Return a finding if the two multipliers of one yarn table are inconsistent, else None."""
    mscale, all_dim = (entry.params.get(key) for key in (names.MSCALE, names.MSCALE_ALL_DIM))
    computed = entry.attention_factor
    if mscale and all_dim and mscale != all_dim:
        text = f"{where}mscale {mscale:g} and mscale_all_dim {all_dim:g} differ: the attention factor is {computed:.6g}, not 1"
        return Finding("mscale-pair", NOTE, text, key=names.MSCALE)
    if (mscale is None) == (all_dim is None):
        return None
    factor = entry.factor or 1.0
    # The defaults of DeepSeek's own code. It uses the ratio even if only one of the keys is set.
    ratio = mscale_of(factor, 1.0 if mscale is None else mscale) / mscale_of(factor, all_dim or 0.0)
    if math.isclose(ratio, computed, rel_tol=1e-6):
        return None
    present, missing = names.MSCALE, names.MSCALE_ALL_DIM
    if mscale is None:
        present, missing = missing, present
    text = (
        f"{where}{present} is set without {missing}: transformers ignores it, so the attention factor is {computed:.6g}; "
        f"DeepSeek's own code computes {ratio:.6g}"
    )
    step = f"set {names.ATTENTION_FACTOR} to {computed:.6g} to keep this table, or to {ratio:.6g} if the model was trained that way"
    return Finding("mscale-pair", WARNING, text, step, present)


def tokenizer_limit(case: Case) -> Iterator[Finding]:
    if case.hf is None or case.rope is None or case.hf.files is None:
        return
    limit = (case.hf.files.tokenizer_config or {}).get(names.MODEL_MAX_LENGTH)
    context = case.rope.max_position_embeddings
    if is_number(limit) and limit < context:
        sentence = f"the tokenizer's {names.MODEL_MAX_LENGTH} is {limit}, below the context length {context}: texts may be cut there"
        yield Finding("tokenizer-limit", WARNING, sentence, stating(case, context), names.MODEL_MAX_LENGTH)
