"""The tables of types against the gguf package's."""

from __future__ import annotations

import gguf

from ropetool.files.gguf import GGML_TYPES, ValueType
from ropetool.files.gguf.kinds import PACKING

NEWER = {"Q2_0"}  # in ggml, not yet in every release of the package


def test_every_tensor_type_of_the_package_has_its_block_and_size():
    ours = {kind.name: (number, kind.block, kind.nbytes) for number, kind in GGML_TYPES.items()}
    theirs = {kind.name: (int(kind), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {name: ours[name] for name in theirs} == theirs
    assert ours.keys() - theirs.keys() <= NEWER


def test_value_types_have_the_numbers_of_the_package():
    names = {"UINT": "U", "INT": "I", "FLOAT": "F", "STRING": "STR", "ARRAY": "ARR"}
    for theirs in gguf.GGUFValueType:
        kind = theirs.name.rstrip("0123456789")
        ours = ValueType(int(theirs))
        assert ours.name == names.get(kind, kind) + theirs.name[len(kind) :]
        if ours in PACKING:
            assert PACKING[ours].size * 8 == int(theirs.name[len(kind) :] or 8)
