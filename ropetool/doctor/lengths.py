"""Rules about the lengths in a scaled checkpoint of either format."""

from __future__ import annotations

from collections.abc import Iterator

from ropetool import names
from ropetool.doctor.cases import Case, rope_keys
from ropetool.doctor.findings import ERROR, WARNING, Finding
from ropetool.doctor.remedies import reaching, stating
from ropetool.runtimes.llama_cpp import architectures as archs

ROUNDING = 0.01  # relative, because some files round lengths to thousands
COUNTS_BY_LENGTH = "yarn"  # its factor is the ratio of two lengths in the file; the factor of llama3 is not


def length_ratio(case: Case) -> Iterator[Finding]:
    """Yield a finding if the context length differs from the original length times the factor."""
    entry, rope = case.full, case.rope
    if entry is None or rope is None or entry.rope_type != COUNTS_BY_LENGTH or not _sets_original(case):
        return
    original, context = entry.original_max_position_embeddings, rope.max_position_embeddings
    if not original or not entry.factor:
        return
    reach = round(original * entry.factor)
    sum_ = f"{original} x {entry.factor:g} = {reach}"
    if context > reach * (1 + ROUNDING):
        sentence = f"the context length of {context} tokens exceeds the reach of the scaling, {sum_}"
        yield Finding("length-ratio", ERROR, sentence, reaching(case, context), _context_key(case))
    elif context < reach * (1 - ROUNDING):
        sentence = (
            f"the context length of {context} tokens is below the reach of the scaling, {sum_}: runtimes stop too early"
        )
        yield Finding("length-ratio", WARNING, sentence, stating(case, reach), _context_key(case))


def original_length(case: Case) -> Iterator[Finding]:
    """Yield a finding if the file has two different original lengths, or YaRN without one."""
    yield from _two_lengths(case)
    entry, rope = case.full, case.rope
    if entry is None or rope is None or entry.rope_type != COUNTS_BY_LENGTH or _sets_original(case):
        return
    sentence = (
        f"yarn without an original length: {case.checkpoint.runtime} computes its ramp from the context length of "
        f"{rope.max_position_embeddings} tokens, which is right only if the model was trained on that length"
    )
    key = archs.ORIGINAL_CONTEXT_LENGTH if case.gguf else names.ORIGINAL_MAX_POSITION_EMBEDDINGS
    yield Finding("original-length", WARNING, sentence, f"set {key} to the trained length", _context_key(case))


def _two_lengths(case: Case) -> Iterator[Finding]:
    key = names.ORIGINAL_MAX_POSITION_EMBEDDINGS
    outer, inner = case.section.get(key), [value for value in _inner_lengths(case) if value]
    nested = case.inspection is not None and case.inspection.family is not None and case.inspection.family.nested
    if outer and inner and not nested and any(value != outer for value in inner):
        sentence = f"{key} is {outer} at the top and {inner[0]} among the rope keys: transformers reads the first, others the second"
        yield Finding(
            "original-length", ERROR, sentence, f"set both to the original length in {names.CONFIG_JSON}", key
        )


def _inner_lengths(case: Case) -> list[object]:
    family = case.inspection.family if case.inspection else None
    places = rope_keys(case.hf.config, family.text_path) if case.hf and family else ()
    return [value for place, value in places if place[-1] == names.ORIGINAL_MAX_POSITION_EMBEDDINGS]


def _sets_original(case: Case) -> bool:
    if case.gguf is not None:
        return f"{case.gguf.name}.{archs.ORIGINAL_CONTEXT_LENGTH}" in case.gguf.values
    outer = case.section.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    family = case.inspection.family if case.inspection else None
    default = family.default_original_max_position_embeddings if family else None
    return bool(outer or default or any(_inner_lengths(case)))


def _context_key(case: Case) -> str:
    return f"{case.gguf.name}.{archs.CONTEXT_LENGTH}" if case.gguf else names.MAX_POSITION_EMBEDDINGS
