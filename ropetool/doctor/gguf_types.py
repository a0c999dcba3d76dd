"""The rule about GGUF keys with a wrong type. llama.cpp does not convert types.

If the right type can store the same number, there is an exact repair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf import plain_value
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
    """A key whose type differs from the type that llama.cpp's loader reads.

    value: the value in the file.
    expected: the name of the type that the loader reads.
    same: the same number in this type. None if the type cannot store it.
    is_read: whether the loader reads the key in files of this architecture. If not, the wrong type has no effect there.
    """

    value: Value
    expected: str
    same: Value | None
    is_read: bool


def retyped(case: Case) -> dict[str, Retyped]:
    """Return the keys with a wrong type, by their names."""
    by_key: dict[str, Retyped] = {}
    arch = case.arch
    if case.gguf is None or arch is None:
        return by_key
    for key, value in case.gguf.values.items():
        types = key_types.loaded(key, arch.name)
        if types and value.label not in types:
            by_key[key] = Retyped(value, types[0], _in_type(value, types[0]), f"type {key}" in case.refusals)
    return by_key


def _in_type(value: Value, label: str) -> Value | None:
    """Return the same number in this type, or None if the type cannot store it exactly."""
    value_type = {each.label: each for each in (ValueType.U32, ValueType.I32, ValueType.F32)}.get(label)
    if value_type is None or value.type not in {*WHOLE, ValueType.F32, ValueType.F64}:
        return None
    number = float(value.number)
    if not math.isfinite(number):
        return None
    if value_type is not ValueType.F32:
        low, high = (0, 2**32) if value_type is ValueType.U32 else (-(2**31), 2**31)
        return Value.of(value_type, int(number)) if number.is_integer() and low <= number < high else None
    with np.errstate(over="ignore"):
        return Value.of(value_type, number) if float(np.float32(number)) == number else None


def retyping(case: Case) -> tuple[FileEdit, ...]:
    """Return the edits that store keys of a wrong type in the right one.

    A key whose number does not fit gets no edit.
    """
    return tuple(
        FileEdit(METADATA, (key,), plain_value(each.value), plain_value(each.same))
        for key, each in retyped(case).items()
        if each.same is not None
    )


def key_type(case: Case) -> Iterator[Finding]:
    for key, each in retyped(case).items():
        follows = "it does not load the file" if each.is_read else "a loader that reads this key stops"
        sentence = f"{key} is {each.value.label}, but llama.cpp reads only {each.expected}: {follows}"
        fix = fixed(case) if each.same else f"store it as {each.expected}"
        yield Finding("key-type", ERROR if each.is_read else WARNING, sentence, fix, key)
