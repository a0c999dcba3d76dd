"""The numbers of the GGUF container: its value types, and the block sizes of ggml's tensor types."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple


class ValueType(IntEnum):
    """The type of a metadata value, with its number in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STR = 8
    ARR = 9
    U64 = 10
    I64 = 11
    F64 = 12

    @property
    def label(self) -> str:
        """Return the short name that llama.cpp prints: u32, f32, str, arr."""
        return self.name.lower()


# The types of fixed width. Strings and arrays store their length.
PACKING = {
    ValueType.U8: struct.Struct("<B"),
    ValueType.I8: struct.Struct("<b"),
    ValueType.U16: struct.Struct("<H"),
    ValueType.I16: struct.Struct("<h"),
    ValueType.U32: struct.Struct("<I"),
    ValueType.I32: struct.Struct("<i"),
    ValueType.F32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.U64: struct.Struct("<Q"),
    ValueType.I64: struct.Struct("<q"),
    ValueType.F64: struct.Struct("<d"),
}


class GgmlType(NamedTuple):
    """A tensor type, which stores `block` adjacent elements of a row in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


F32 = 0

# Numbers missing here were removed from ggml (4, 5, 31-33, 36-38) or are newer than this table.
GGML_TYPES = {
    F32: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    9: GgmlType("Q8_1", 32, 40),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    29: GgmlType("IQ1_M", 256, 56),
    30: GgmlType("BF16", 1, 2),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
    41: GgmlType("Q1_0", 128, 18),
    42: GgmlType("Q2_0", 64, 18),
}
_NUMBERS = {type_.name: number for number, type_ in GGML_TYPES.items()}


def ggml_type(dtype: str) -> int:
    """Return the number of a type in the tensor table."""
    return _NUMBERS[dtype]
