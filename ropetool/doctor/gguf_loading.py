"""Repairs for GGUF files that llama.cpp does not load. Only a missing image section has an exact repair."""

from __future__ import annotations

import numpy as np

from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf import plain_array, plain_value
from ropetool.doctor.cases import Case
from ropetool.doctor.remedies import fixed
from ropetool.files.gguf import Value
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import key_rules
from ropetool.runtimes.llama_cpp.loading_rules import Numbers

SECTIONS = 4  # time, height and width of an image, and a fourth that Qwen does not use


def completing(case: Case) -> tuple[FileEdit, ...]:
    """Return the edit that adds a fourth image section of 0, or nothing if llama.cpp would still not load the file."""
    if case.gguf is None:
        return ()
    key = f"{case.gguf.name}.{archs.DIMENSION_SECTIONS}"
    value = case.gguf.values.get(key)
    if value is None or value.element is None or value.count != SECTIONS - 1 or f"length {key}" not in case.refusals:
        return ()
    four = Value.array(value.element, [*np.asarray(value.decode()).tolist(), 0])
    edits = (FileEdit(METADATA, (key,), plain_value(value), plain_array(four)),)
    return () if key_rules.refusals(case.gguf.edited(edits)) else edits


def key_of(case: Case, rule: str) -> str:
    """Return the key that a broken rule of the loader is about. Empty if it is about several keys."""
    assert case.gguf is not None
    about = rule.rpartition(" ")[2]
    return next((key for key in (about, Numbers(case.gguf).key(about)) if key in case.gguf.values), "")


def step(case: Case, rule: str) -> str:
    """Return the repair of a broken loader rule: a command if this is the only broken rule, else words."""
    assert case.gguf is not None
    what, _, about = rule.partition(" ")
    if what == "required":
        return f"set {Numbers(case.gguf).key(about)} to the value of the source model"
    if what == "length" and about.endswith(archs.DIMENSION_SECTIONS) and case.gguf.values[about].count == SECTIONS - 1:
        return fixed(case) if completing(case) else "add a fourth entry, 0"
    return ""
