"""AWQ: whole numbers of 4 bits with a scale and a zero for each group of a column, eight columns in a word.

Source: transformers 5.23.0, quantizers/quantizer_awq.py. compressed-tensors 0.20.1 repacks tiny checkpoints on a CPU without
a changed number. gptqmodel 7.7.0 ignores the order of the columns in a word, so its unpacked weights are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.escaping import command
from ropetool.packed.base import PackedFormat, python, unreadable

METHOD = "awq"
_CODE = (
    "from compressed_tensors.entrypoints.convert import AutoAWQConverter as A, convert_checkpoint as c; "
    "c({source}, {copy}, A.from_pretrained({source}))"
)


def _check_readable(quantization: Mapping[str, Any], where: str) -> None:
    packs = "whole numbers of 4 bits with a scale and a zero for each group of a column"
    source = str(Path(where).parent)
    copy = f"{source}-compressed-tensors"
    repack = python(_CODE, source=source, copy=copy)
    export = command("ropetool", "export", copy)
    raise unreadable(METHOD, packs, where, f"pip install compressed-tensors, then {repack}, then {export}")


FORMAT = PackedFormat(METHOD, _check_readable, packages=("gptqmodel",))
