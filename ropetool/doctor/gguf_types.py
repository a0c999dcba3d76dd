"""The rule about types of GGUF keys, which llama.cpp does not convert, and the same numbers in the right ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf_edits import plain_value
from ropetool.doctor.cases import Case
from ropetool.doctor.findings import ERROR, WARNING, Finding
from ropetool.doctor.remedies import fixed
from ropetool.files.gguf import Value, ValueType
from ropetool.runtimes.llama_cpp import key_types

WHOLE = {
    ValueType.U8,
    ValueType.I8,
    ValueType.U16,
    ValueType.I16,
    ValueType.U32,
    ValueType.I32,
    ValueType.U64,
    ValueType.I64,
}


@dataclass(frozen=True)
class Retyped:
    """A key of another type than llama.cpp's loader takes. same: the same number in that type, None where it holds none.

    asked: whether the loader is known to ask for it in files of this architecture; those that it does not it passes over.
    """

    value: Value
    wanted: str
    same: Value | None
    asked: bool


def retyped(case: Case) -> dict[str, Retyped]:
    """Return the keys of a wrong type."""
    found: dict[str, Retyped] = {}
    arch = case.arch
    if case.gguf is None or arch is None:
        return found
    for key, value in case.gguf.values.items():
        wanted = key_types.loaded(key, arch.name)
        if wanted and value.label not in wanted:
            found[key] = Retyped(value, wanted[0], _in_type(value, wanted[0]), f"type {key}" in case.refusals)
    return found


def _in_type(value: Value, wanted: str) -> Value | None:
    """Return the same number in another type, None where it would be another number."""
    kind = {each.label: each for each in (ValueType.U32, ValueType.I32, ValueType.F32)}.get(wanted)
    if kind is None or value.type not in {*WHOLE, ValueType.F32, ValueType.F64}:
        return None
    number = float(value.number)
    if not math.isfinite(number):
        return None
    if kind is not ValueType.F32:
        low, high = (0, 2**32) if kind is ValueType.U32 else (-(2**31), 2**31)
        return Value.of(kind, int(number)) if number.is_integer() and low <= number < high else None
    with np.errstate(over="ignore"):
        return Value.of(kind, number) if float(np.float32(number)) == number else None


def retyping(case: Case) -> tuple[FileEdit, ...]:
    """Return the edits that store keys of a wrong type in the one that llama.cpp takes, the same numbers."""
    return tuple(
        FileEdit(METADATA, (key,), plain_value(each.value), plain_value(each.same))
        for key, each in retyped(case).items()
        if each.same is not None
    )


def key_type(case: Case) -> Iterator[Finding]:
    for key, each in retyped(case).items():
        follows = "it does not load the file" if each.asked else "a loader that reads this key stops"
        said = f"{key} is {each.value.label}, but llama.cpp reads only {each.wanted}: {follows}"
        fix = fixed(case) if each.same else f"store it as {each.wanted}"
        yield Finding("key-type", ERROR if each.asked else WARNING, said, fix, key)
